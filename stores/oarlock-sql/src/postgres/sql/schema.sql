-- Everything that is made once in a database: format 11. Run under an advisory lock, so that many may try at once.
-- Keys: none.
-- Arguments: none.
-- Answer: none.
CREATE SCHEMA IF NOT EXISTS oarlock;

CREATE TABLE IF NOT EXISTS oarlock.format (
    version integer NOT NULL,
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);

-- One row per name: locked first in every step, so that exactly one decides at a time.
CREATE TABLE IF NOT EXISTS oarlock.resource (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    format smallint NOT NULL DEFAULT 2, -- of this row: a step refuses one that it would misread
    capacity bigint, -- NULL: not stated; 0: unlimited. Without claims it means nothing
    arrivals bigint NOT NULL DEFAULT 0,
    last_fence bigint NOT NULL DEFAULT 0,
    memo bytea,
    used timestamptz NOT NULL DEFAULT clock_timestamp(),
    graves bytea[] NOT NULL DEFAULT '{}', -- the last broken claims …
    epitaphs text[] NOT NULL DEFAULT '{}', -- … and by whom and why
    observers bigint[] NOT NULL DEFAULT '{}', -- sessions to be told of the next change
    -- Whether oarlock.claim may have claims of this name. Where it says no, there is at most the one in this row.
    queued boolean NOT NULL DEFAULT true,
    -- The only claim, a holder, as the usual case of oarlock.attempt writes it. Its fence is the last one.
    sole_id bytea, -- NULL: there is none, and the other columns mean nothing
    sole_session bigint NOT NULL DEFAULT 0,
    sole_tethered boolean NOT NULL DEFAULT false,
    sole_kind text NOT NULL DEFAULT '',
    sole_weight bigint NOT NULL DEFAULT 0,
    sole_behind bigint NOT NULL DEFAULT 0,
    sole_label text NOT NULL DEFAULT '',
    sole_value bytea,
    sole_lease bigint NOT NULL DEFAULT 0,
    sole_expires timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- One row per client: what the server that saw its session begin needs to tell that it is over. Unlogged on purpose:
-- after a crash and on a promoted standby it is empty, for a server that has not seen a session cannot say why it is
-- not there.
CREATE UNLOGGED TABLE IF NOT EXISTS oarlock.session (
    number bigint PRIMARY KEY,
    server timestamptz NOT NULL, -- when the server started that saw it begin: a restart in good order keeps the row
    pid integer NOT NULL, -- the backend that holds the liveness lock
    requests integer NOT NULL DEFAULT 0, -- the backend that last took or kept a claim for it …
    kills bigint NOT NULL DEFAULT -1, -- … and how many sessions had been killed by then
    ended timestamptz -- when a client found it over
);

-- One row per live claim: a holder has a fence, a waiter has none. A slot without an id is free and will be used again,
-- so that a busy lock rewrites one row in place and leaves nothing to be vacuumed.
CREATE TABLE IF NOT EXISTS oarlock.claim (
    resource bigint NOT NULL,
    slot integer NOT NULL,
    id bytea,
    arrival bigint NOT NULL,
    session bigint NOT NULL, -- whom to tell
    tethered boolean NOT NULL, -- whether it ends with that session
    kind text NOT NULL,
    weight bigint NOT NULL, -- 0: all
    behind bigint NOT NULL,
    label text NOT NULL,
    value bytea,
    fence bigint,
    since timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    lease bigint, -- how long it was at its last renewal, in microseconds: it cannot end later than that from now
    turn timestamptz, -- a called waiter must come until then
    ticket bigint, -- of the last request of a waiter, for the notification that grants; NULL: it must ask for its grant
    handed boolean NOT NULL DEFAULT false, -- granted by the step of another client; its own has not asked yet
    ending text,
    ends timestamptz GENERATED ALWAYS AS (least(expires, turn)) STORED,
    PRIMARY KEY (resource, slot)
) WITH (fillfactor = 50);

-- The largest fence that was seen on the protected side, for whatever is protected. The row without a name has the
-- largest one that was forgotten.
CREATE TABLE IF NOT EXISTS oarlock.fence (
    name text PRIMARY KEY,
    fence bigint NOT NULL,
    used timestamptz -- to the day; NULL: never to be forgotten
);

-- What format 9 lacks. Before the table of claims, as every step locks them; and not at all where it is there, because
-- even that would wait for all steps.
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = 'oarlock.resource'::regclass AND attname = 'queued'
    ) THEN
        ALTER TABLE oarlock.resource
            ADD COLUMN queued boolean NOT NULL DEFAULT true,
            ADD COLUMN sole_id bytea,
            ADD COLUMN sole_session bigint NOT NULL DEFAULT 0,
            ADD COLUMN sole_tethered boolean NOT NULL DEFAULT false,
            ADD COLUMN sole_kind text NOT NULL DEFAULT '',
            ADD COLUMN sole_weight bigint NOT NULL DEFAULT 0,
            ADD COLUMN sole_behind bigint NOT NULL DEFAULT 0,
            ADD COLUMN sole_label text NOT NULL DEFAULT '',
            ADD COLUMN sole_value bytea,
            ADD COLUMN sole_lease bigint NOT NULL DEFAULT 0,
            ADD COLUMN sole_expires timestamptz NOT NULL DEFAULT '-infinity';
    END IF;
END $$;

-- What format 10 has as format 1. A step of an older format that is still under way overlooks a claim in the row of its
-- name, and refuses these rows.
DO $$
BEGIN
    IF (SELECT version FROM oarlock.format) < 11 THEN
        ALTER TABLE oarlock.resource ALTER COLUMN format SET DEFAULT 2;
        UPDATE oarlock.resource SET format = 2 WHERE format = 1;
    END IF;
END $$;

-- What format 5 has, and no longer means anything.
ALTER TABLE oarlock.claim DROP COLUMN IF EXISTS fair;

-- What format 7 has instead of tickets.
ALTER TABLE oarlock.claim DROP COLUMN IF EXISTS sent;

-- What formats 6 and 7 lack.
ALTER TABLE oarlock.claim ADD COLUMN IF NOT EXISTS ticket bigint;
ALTER TABLE oarlock.claim ADD COLUMN IF NOT EXISTS handed boolean NOT NULL DEFAULT false;

-- What format 4 lacks.
ALTER TABLE oarlock.claim ADD COLUMN IF NOT EXISTS lease bigint;
ALTER TABLE oarlock.fence ADD COLUMN IF NOT EXISTS used timestamptz;
UPDATE oarlock.fence SET used = clock_timestamp() WHERE used IS NULL AND fence >= 1000000000000000 AND name <> '';

CREATE INDEX IF NOT EXISTS fence_used ON oarlock.fence (used);
INSERT INTO oarlock.fence (name, fence) VALUES ('', 0) ON CONFLICT (name) DO NOTHING;
