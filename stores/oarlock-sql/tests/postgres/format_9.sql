-- What format 9 had, for tests of what came after it: all that was made in a database.
-- Everything that is made once in a database: format 9. Run under an advisory lock, so that many may try at once.
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
    format smallint NOT NULL DEFAULT 1,
    capacity bigint, -- NULL: not stated; 0: unlimited. Without claims it means nothing
    arrivals bigint NOT NULL DEFAULT 0,
    last_fence bigint NOT NULL DEFAULT 0,
    memo bytea,
    used timestamptz NOT NULL DEFAULT clock_timestamp(),
    graves bytea[] NOT NULL DEFAULT '{}', -- the last broken claims …
    epitaphs text[] NOT NULL DEFAULT '{}', -- … and by whom and why
    observers bigint[] NOT NULL DEFAULT '{}' -- sessions to be told of the next change
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

-- Sessions: how one begins, who answers for it, and when it is over.
-- Keys: oarlock.session by number, and the advisory lock of that number, its liveness lock.

-- Arguments: a session. Takes its liveness lock, which the server releases when this connection ends, and writes its
-- row. What was over for longer than the longest lease that can end with a session is forgotten.
CREATE OR REPLACE FUNCTION oarlock.begin(_session bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock(_session);
    WITH old AS (
        SELECT number FROM oarlock.session
        WHERE server <> pg_postmaster_start_time() OR ended < clock_timestamp() - interval '1 hour'
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM oarlock.session USING old WHERE session.number = old.number;
    WITH backend AS MATERIALIZED (
        SELECT pid FROM pg_stat_get_activity(NULL) WHERE pid IS NOT NULL
    ), old AS (
        SELECT number FROM oarlock.session
        WHERE ended IS NULL AND pid NOT IN (SELECT pid FROM backend) AND requests NOT IN (SELECT pid FROM backend)
        FOR UPDATE SKIP LOCKED
    )
    UPDATE oarlock.session SET ended = clock_timestamp() FROM old WHERE session.number = old.number;
    INSERT INTO oarlock.session (number, server, pid) VALUES (_session, pg_postmaster_start_time(), pg_backend_pid());
END $$;

-- Answer: how many sessions of this database were ended by an administrator. Exact since version 15, where a backend
-- writes it down before it leaves the list of those that are alive.
CREATE OR REPLACE FUNCTION oarlock.kills() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
    IF current_setting('server_version_num')::integer < 150000 THEN
        RETURN 0;
    END IF;
    RETURN pg_stat_get_db_sessions_killed(here);
END $$;

-- Arguments: a database. Answer: the same for that one, in a form that the planner puts in place of its call. It only
-- decides whether a session is written anew: after an upgrade of the server it may be too small until `oarlock init`,
-- and sessions are then taken for older than they are.
DO $$
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION oarlock.killed(_database oid) RETURNS bigint LANGUAGE sql STABLE AS '
        || CASE WHEN current_setting('server_version_num')::integer < 150000 THEN quote_literal('SELECT 0::bigint')
            ELSE quote_literal('SELECT pg_stat_get_db_sessions_killed(_database)') END;
END $$;

-- Arguments: a session, how many had been killed, whether this connection stands for the session. Makes that one its
-- second liveness lock: a process that dies loses both at once, while the end of one connection of a client has not
-- shown that it is dead. Its other connections do not write here, so that they need not wait for each other, unless
-- there is no second one yet. Taken after all names, so that no deadlock is possible.
CREATE OR REPLACE FUNCTION oarlock.witness(_session bigint, _seen bigint, _witness boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF _session <> 0 THEN
        UPDATE oarlock.session SET requests = pg_backend_pid(), kills = _seen
        WHERE number = _session AND (_witness OR requests = 0) AND (requests <> pg_backend_pid() OR kills <> _seen);
    END IF;
END $$;

-- Arguments: a session. Answer: whether this server saw it begin, neither of its liveness locks is left, and no
-- connection was killed since its client was last heard of: then it was the client's side that ended them.
CREATE OR REPLACE FUNCTION oarlock.is_over(_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    known oarlock.session;
BEGIN
    SELECT * INTO known FROM oarlock.session WHERE number = _session AND server = pg_postmaster_start_time();
    -- The quick question first: it is the answer nearly always. Shared, so that two who look do not see each other.
    IF NOT FOUND OR NOT pg_try_advisory_xact_lock_shared(_session) THEN
        RETURN false;
    END IF;
    -- A backend always gets its own liveness lock; that it is alive is seen here.
    IF EXISTS (SELECT FROM pg_stat_get_activity(NULL) WHERE pid IN (known.pid, known.requests)) THEN
        RETURN false;
    END IF;
    RETURN known.kills = oarlock.kills();
END $$;

-- Arguments: a session. Returns once its liveness lock is released, and waits for up to half a second more until its
-- other connection is gone too. Answer: whether it is over; null if nothing happened for a while. As long as a
-- statement lasts, nothing is removed that died after its start, in no table of the database: so it must be asked again
-- and again.
CREATE OR REPLACE FUNCTION oarlock.await_end(_session bigint) RETURNS boolean
    LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(_session);
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
    FOR look IN 1..100 LOOP
        -- Inside a transaction the server would show the same picture of its backends for ever.
        PERFORM pg_stat_clear_snapshot();
        IF oarlock.is_over(_session) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN false;
END $$;

-- What every verb is made of. `head` is the locked row of a name: a step changes it in memory and writes it once.
-- Keys: oarlock.resource by name, oarlock.claim by resource. Times are the server's, read once the row is locked.

-- Arguments: a span. Answer: its whole microseconds. Simple enough for the planner to put it in place of its calls.
CREATE OR REPLACE FUNCTION oarlock.micros(_span interval) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT floor(extract(epoch FROM _span) * 1000000)::bigint;
$$;

-- Arguments: name, whether to make its row. Answer: the row, locked; nulls if there is none.
CREATE OR REPLACE FUNCTION oarlock.enter(_name bytea, _make boolean) RETURNS oarlock.resource LANGUAGE plpgsql AS $$
DECLARE
    head oarlock.resource;
    idle bigint[];
BEGIN
    -- Each statement of a step must see what others committed before the row was locked.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'locks need READ COMMITTED, not %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported';
    END IF;
    LOOP
        SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
        EXIT WHEN FOUND OR NOT _make;
        INSERT INTO oarlock.resource (name) VALUES (_name) ON CONFLICT (name) DO NOTHING;
        -- Each new name looks at ten old ones, and forgets those that were not used for a day. The clock alone then
        -- decides their next fence, so a fence that was given while the clock was ahead is kept. It waits for no other
        -- step.
        idle := ARRAY(
            SELECT old.key
            FROM (
                SELECT key FROM oarlock.resource
                WHERE key >= (SELECT floor(random() * max(key))::bigint FROM oarlock.resource) ORDER BY key LIMIT 10
            ) AS few JOIN oarlock.resource AS old USING (key)
            WHERE old.used < clock_timestamp() - interval '24 hours'
                AND old.last_fence < oarlock.micros(clock_timestamp() - interval '24 hours' - 'epoch')
                AND NOT EXISTS (
                    SELECT FROM oarlock.claim
                    WHERE resource = old.key AND id IS NOT NULL AND ends > clock_timestamp()
                )
                AND NOT EXISTS (SELECT FROM oarlock.session WHERE number = ANY (old.observers) AND ended IS NULL)
            FOR UPDATE OF old SKIP LOCKED
        );
        -- Looked at once more now that they are locked: a renewal is written to its claim alone.
        WITH gone AS (
            DELETE FROM oarlock.resource AS old
            WHERE key = ANY (idle)
                AND NOT EXISTS (
                    SELECT FROM oarlock.claim
                    WHERE resource = old.key AND id IS NOT NULL AND ends > clock_timestamp()
                )
            RETURNING key
        )
        DELETE FROM oarlock.claim USING gone WHERE resource = gone.key;
        -- A role that only takes locks may lack the right.
        IF has_table_privilege('oarlock.fence', 'SELECT') AND has_table_privilege('oarlock.fence', 'UPDATE')
            AND has_table_privilege('oarlock.fence', 'DELETE') THEN
            PERFORM oarlock.forget_fences(10);
        END IF;
    END LOOP;
    IF head.format > 1 THEN
        RAISE EXCEPTION 'this name was written by a newer version' USING ERRCODE = 'OAR01';
    END IF;
    RETURN head;
END $$;

-- Arguments: the row, the time. Writes it back, and notifies the sessions that watch the next change.
CREATE OR REPLACE FUNCTION oarlock.leave(head oarlock.resource, _now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(head.observers) > 0 THEN
        PERFORM oarlock.tell(session, 'r' || encode(head.name, 'hex')) FROM unnest(head.observers) AS session;
    END IF;
    UPDATE oarlock.resource
    SET capacity = head.capacity, arrivals = head.arrivals, last_fence = head.last_fence, memo = head.memo,
        used = greatest(head.used, _now), graves = head.graves, epitaphs = head.epitaphs, observers = '{}'
    WHERE key = head.key;
END $$;

-- Arguments: a session (0: a client that does not listen), the hexadecimal id of a claim or `r` and that of a name.
-- Sent with the commit. A transaction whose notice does not fit into the queue of the server cannot commit at all, so
-- none is sent when the queue is nearly full: the session looks by itself.
CREATE OR REPLACE FUNCTION oarlock.tell(_session bigint, _what text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('oarlock_' || to_hex(_session), _what) WHERE _session <> 0 AND pg_notification_queue_usage() < 0.9;
$$;

-- Arguments: the row, the time. Answer: the row. Grants to the waiters that fit now and can be told so: each holds from
-- now on, for two seconds, until its client asks or renews. The notification has all that the client needs: id, fence,
-- the ticket of the last request, the lease of the grant in microseconds, and the memo in hexadecimal. The client
-- believes from that request on: it was before this step, by its own clock. A notification of another role has no
-- ticket. Other waiters are called: each has two seconds to come. If one of them was silent for so long that it may
-- hang, the next one is told to look, and learns when those two seconds are over; where many wait, one of them looks
-- soon enough.
CREATE OR REPLACE FUNCTION oarlock.call(head oarlock.resource, _now timestamptz) RETURNS oarlock.resource
    LANGUAGE plpgsql AS $$
DECLARE
    room bigint := coalesce(head.capacity, 1);
    claims bigint := 0;
    units numeric := 0;
    whole boolean := false;
    doubtful boolean := false;
    next_fence bigint;
    waiter record;
BEGIN
    -- The holders come first.
    FOR waiter IN
        SELECT slot, id, arrival, weight, session, fence, turn, ticket, ending, expires, lease FROM oarlock.claim
        WHERE resource = head.key AND id IS NOT NULL ORDER BY fence IS NULL, arrival
    LOOP
        IF waiter.fence IS NULL AND NOT oarlock.bears(claims, units, whole, room, waiter.weight) THEN
            UPDATE oarlock.claim SET turn = NULL
            WHERE resource = head.key AND id IS NOT NULL AND fence IS NULL AND turn IS NOT NULL
                AND arrival >= waiter.arrival;
            IF doubtful AND (SELECT count(*) FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL) <= 32 THEN
                PERFORM oarlock.tell(waiter.session, encode(waiter.id, 'hex'));
            END IF;
            -- A claim that does not fit holds back those behind it.
            EXIT;
        END IF;
        claims := claims + 1;
        units := units + waiter.weight;
        whole := whole OR waiter.weight = 0;
        CONTINUE WHEN waiter.fence IS NOT NULL OR waiter.turn IS NOT NULL;
        doubtful := doubtful
            OR _now - waiter.expires + waiter.lease * interval '1 microsecond' > interval '200 milliseconds';
        next_fence := greatest(head.last_fence + 1, oarlock.micros(_now - 'epoch'));
        IF waiter.ticket IS NOT NULL AND waiter.session <> 0 AND waiter.ending IS NULL AND next_fence < 9007199254740992
            AND coalesce(length(head.memo), 0) <= 3000 AND pg_notification_queue_usage() < 0.9 THEN
            head.last_fence := next_fence;
            UPDATE oarlock.claim
            SET fence = next_fence, handed = true, since = _now, lease = least(lease, 2000000),
                expires = least(expires, _now + interval '2 seconds')
            WHERE resource = head.key AND slot = waiter.slot;
            PERFORM pg_notify(
                'oarlock_' || to_hex(waiter.session),
                concat_ws(' ', encode(waiter.id, 'hex'), next_fence, waiter.ticket, least(waiter.lease, 2000000),
                    encode(head.memo, 'hex'))
            );
        ELSE
            UPDATE oarlock.claim SET turn = _now + interval '2 seconds'
            WHERE resource = head.key AND slot = waiter.slot;
            PERFORM oarlock.tell(waiter.session, encode(waiter.id, 'hex'));
        END IF;
    END LOOP;
    RETURN head;
END $$;

-- Arguments: what stands there (claims, units, whether one took all), the capacity, a weight. Answer: whether it fits.
CREATE OR REPLACE FUNCTION oarlock.bears(_claims bigint, _units numeric, _whole boolean, _room bigint, _weight bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _weight = 0 THEN _claims = 0
        ELSE NOT _whole AND (_room = 0 OR _units + _weight <= _room) END;
$$;

-- Arguments: the row, the time. Answer: the row, once claims were removed: an empty one has no capacity.
CREATE OR REPLACE FUNCTION oarlock.settle(head oarlock.resource, _now timestamptz) RETURNS oarlock.resource
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL) THEN
        head := oarlock.call(head, _now);
    ELSE
        head.capacity := NULL;
    END IF;
    RETURN head;
END $$;

-- Arguments: the row, a broken claim, by whom and why. Answer: the row, which remembers the last eight.
CREATE OR REPLACE FUNCTION oarlock.bury(head oarlock.resource, _id bytea, _ending text) RETURNS oarlock.resource
LANGUAGE plpgsql AS $$
BEGIN
    head.graves := (ARRAY[_id] || head.graves)[:8];
    head.epitaphs := (ARRAY[_ending] || head.epitaphs)[:8];
    RETURN head;
END $$;

-- Arguments: a resource, a slot. Frees it; of the free ones only a few are kept.
CREATE OR REPLACE FUNCTION oarlock.vacate(_resource bigint, _slot integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF _slot > 8 THEN
        DELETE FROM oarlock.claim WHERE resource = _resource AND slot = _slot;
    ELSE
        UPDATE oarlock.claim
        SET id = NULL, fence = NULL, tethered = false, turn = NULL, ending = NULL, label = '', value = NULL
        WHERE resource = _resource AND slot = _slot;
    END IF;
END $$;

-- Arguments: the row, the time, dead sessions. Answer: the row, without what has run out or ended with them.
CREATE OR REPLACE FUNCTION oarlock.sweep(head oarlock.resource, _now timestamptz, _dead bigint[])
RETURNS oarlock.resource LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    FOR gone IN
        SELECT slot, id, ending FROM oarlock.claim
        WHERE resource = head.key AND id IS NOT NULL AND (ends <= _now OR (tethered AND session = ANY (_dead)))
    LOOP
        PERFORM oarlock.vacate(head.key, gone.slot);
        IF gone.ending IS NOT NULL THEN
            head := oarlock.bury(head, gone.id, gone.ending);
        END IF;
    END LOOP;
    RETURN oarlock.settle(head, _now);
END $$;

-- Arguments: a resource, the session that asks, an arrival. Answer: the dead sessions of holders, of waiters whose turn
-- has come, and of waiters that arrived before.
CREATE OR REPLACE FUNCTION oarlock.dead(_resource bigint, _me bigint, _before bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    suspect bigint;
    dead bigint[];
BEGIN
    FOR suspect IN
        SELECT DISTINCT session FROM oarlock.claim
        WHERE resource = _resource AND tethered AND session <> _me
            AND (fence IS NOT NULL OR turn IS NOT NULL OR arrival < _before)
    LOOP
        IF oarlock.is_over(suspect) THEN
            dead := dead || suspect;
        END IF;
    END LOOP;
    RETURN dead;
END $$;

-- Takes, keeps or refuses a place: one round trip, one transaction.
-- Keys: oarlock.resource by name, locked; oarlock.claim by resource; oarlock.session by number.
-- Arguments: name, id, session (0: none) and whether the claim ends with it, kind, capacity (null: any, 0:
--   unlimited) and whether a stored one is adopted, weight (0: all), wait, behind, lease and place in microseconds,
--   label, value, the ticket of this request (null: it must ask for its grant), whether this connection stands for
--   the session.
-- Answer: outcome (granted, pending, spec, heavy, upgrade, exhausted); fence, lease in microseconds and memo of a
--   grant; how many stand ahead and after how many microseconds something in the way ends; the capacity that
--   applies; the session of the nearest one ahead that ends with it, for a waiter.
CREATE OR REPLACE FUNCTION oarlock.attempt(
    _name bytea, _id bytea, _session bigint, _tethered boolean, _kind text, _capacity bigint, _adopt boolean,
    _weight bigint, _wait boolean, _behind bigint, _lease bigint, _place bigint, _label text, _value bytea,
    _ticket bigint, _witness boolean,
    OUT outcome text, OUT fence bigint, OUT lease bigint, OUT memo bytea, OUT ahead bigint, OUT recheck bigint,
    OUT stored bigint, OUT nearest bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    mine oarlock.claim;
    units numeric;
    whole boolean;
    waiting bigint;
    in_the_way timestamptz;
    soonest timestamptz;
    too_long boolean;
    place bigint;
    free integer;
    own integer;
    last integer;
    dead bigint[];
    changed boolean := false;
    durable boolean;
    unhurried text;
    widens boolean;
    now timestamptz;
BEGIN
    SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
    IF NOT FOUND OR head.format > 1 OR current_setting('transaction_isolation') <> 'read committed' THEN
        head := oarlock.enter(_name, true);
    END IF;
    now := clock_timestamp();
    -- The usual case in few statements: no claim is there, no session wants to be told, and a slot is free.
    PERFORM FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL LIMIT 1;
    IF NOT FOUND AND head.observers = '{}' AND (_weight = 0 OR _capacity = 0 OR _weight <= coalesce(_capacity, 1)) THEN
        fence := greatest(head.last_fence + 1, oarlock.micros(now - 'epoch'));
        UPDATE oarlock.claim
        SET id = _id, arrival = head.arrivals + 1, session = _session, tethered = _tethered, kind = _kind,
            weight = _weight, behind = _behind, label = _label, value = _value, fence = attempt.fence, since = now,
            lease = _lease, ticket = NULL, handed = false, expires = now + _lease * interval '1 microsecond'
        WHERE resource = head.key AND slot = 1 AND attempt.fence < 9007199254740992;
        IF FOUND THEN
            UPDATE oarlock.resource
            SET capacity = _capacity, arrivals = head.arrivals + 1, last_fence = attempt.fence,
                used = greatest(head.used, now)
            WHERE key = head.key;
            PERFORM FROM oarlock.session
            WHERE number = _session AND requests = pg_backend_pid()
                AND kills = oarlock.killed((SELECT oid FROM pg_database WHERE datname = current_database()));
            IF NOT FOUND THEN
                PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
            END IF;
            outcome := 'granted';
            lease := _lease;
            memo := head.memo;
            RETURN;
        END IF;
        fence := NULL;
    END IF;
    LOOP
        mine := NULL;
        units := 0;
        whole := false;
        waiting := 0;
        ahead := 0;
        in_the_way := NULL;
        nearest := NULL;
        SELECT min(ends) FILTER (WHERE id IS NOT NULL), min(slot) FILTER (WHERE id IS NULL), max(slot),
            min(slot) FILTER (WHERE id = _id),
            coalesce(bool_or(expires > now + lease * interval '1 microsecond') FILTER (WHERE id IS NOT NULL), false)
        INTO soonest, free, last, own, too_long FROM oarlock.claim WHERE resource = head.key;
        IF too_long THEN
            -- The clock was set back. A holder does not believe for longer than a lease from now.
            UPDATE oarlock.claim SET expires = now + lease * interval '1 microsecond'
            WHERE resource = head.key AND id IS NOT NULL AND expires > now + lease * interval '1 microsecond';
            changed := true;
            CONTINUE;
        END IF;
        IF soonest <= now THEN
            head := oarlock.sweep(head, now, '{}');
            changed := true;
            CONTINUE;
        END IF;
        IF own IS NOT NULL THEN
            SELECT * INTO mine FROM oarlock.claim WHERE resource = head.key AND slot = own;
        ELSIF soonest IS NULL THEN
            head.capacity := NULL;
        END IF;

        IF mine.fence IS NOT NULL THEN
            outcome := 'upgrade';
            IF mine.weight = 0 OR _weight BETWEEN 1 AND mine.weight THEN
                UPDATE oarlock.claim
                SET weight = _weight, kind = _kind, session = _session, tethered = _tethered, ticket = NULL,
                    handed = false,
                    lease = CASE WHEN ending IS NULL THEN _lease ELSE lease END,
                    expires = CASE WHEN ending IS NULL THEN now + _lease * interval '1 microsecond' ELSE expires END
                WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
                head := oarlock.call(head, now);
                outcome := 'granted';
                fence := mine.fence;
                lease := oarlock.micros(mine.expires - now);
                memo := head.memo;
            END IF;
            PERFORM oarlock.leave(head, now);
            PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
            RETURN;
        END IF;

        place := coalesce(mine.arrival, head.arrivals + 1);
        IF soonest IS NOT NULL THEN
            SELECT count(*) FILTER (WHERE blocks), coalesce(sum(weight) FILTER (WHERE blocks), 0),
                coalesce(bool_or(weight = 0) FILTER (WHERE blocks), false), min(ends) FILTER (WHERE blocks),
                count(*) FILTER (WHERE fence IS NULL),
                -- Each waiter looks at the one before it, the first at a holder: one death wakes one.
                (array_agg(session ORDER BY fence IS NOT NULL, arrival DESC) FILTER (WHERE tethered AND blocks))[1]
            INTO ahead, units, whole, in_the_way, waiting, nearest
            FROM (
                SELECT *, fence IS NOT NULL OR arrival < place AS blocks FROM oarlock.claim
                WHERE resource = head.key AND id <> _id
            ) AS others;
        END IF;
        stored := coalesce(head.capacity, _capacity, 1);
        outcome := CASE
            WHEN NOT _adopt AND _capacity <> head.capacity THEN 'spec'
            WHEN stored > 0 AND _weight > stored THEN 'heavy'
            WHEN oarlock.bears(ahead, units, whole, stored, _weight) THEN 'granted'
            ELSE 'pending' END;
        EXIT WHEN outcome = 'granted' OR soonest IS NULL;
        -- Something is in the way: only now it matters whether it is alive. A claim that will wait looks at holders, at
        -- claims whose turn has come and at the nearest claim ahead. So an arrival does not cost more where many wait.
        -- The quick question for all of them at once: it is the answer nearly always. A CASE, so that the liveness
        -- locks of no others are tried.
        PERFORM FROM oarlock.claim
        WHERE resource = head.key AND tethered AND session <> _session
            AND CASE WHEN fence IS NOT NULL OR turn IS NOT NULL OR session = nearest
                OR (arrival < place AND NOT (_wait AND outcome = 'pending'))
                THEN pg_try_advisory_xact_lock_shared(session) ELSE false END
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        dead := oarlock.dead(head.key, _session, CASE WHEN _wait AND outcome = 'pending' THEN 0 ELSE place END);
        IF dead IS NULL AND _wait AND nearest <> _session AND oarlock.is_over(nearest) THEN
            dead := ARRAY[nearest];
        END IF;
        EXIT WHEN dead IS NULL;
        head := oarlock.sweep(head, now, dead);
        changed := true;
    END LOOP;

    recheck := oarlock.micros(in_the_way - now);
    -- What others were given must not be lost.
    durable := changed OR outcome = 'granted';
    IF outcome = 'granted' THEN
        fence := greatest(head.last_fence + 1, oarlock.micros(now - 'epoch'));
        IF fence >= 9007199254740992 THEN
            outcome := 'exhausted';
        END IF;
    ELSIF outcome = 'pending' AND NOT _wait AND mine.id IS NOT NULL THEN
        PERFORM oarlock.vacate(head.key, mine.slot);
        head := oarlock.settle(head, now);
        changed := true;
        durable := true;
    END IF;
    IF outcome = 'granted' OR (outcome = 'pending' AND _wait) THEN
        changed := true;
        widens := head.capacity IS NULL AND _capacity IS NOT NULL;
        head.capacity := coalesce(head.capacity, _capacity);
        head.last_fence := coalesce(fence, head.last_fence);
        head.arrivals := greatest(head.arrivals, place);
        lease := CASE WHEN fence IS NULL THEN _place ELSE _lease END;
        memo := head.memo;
        IF mine.id IS NOT NULL THEN
            UPDATE oarlock.claim
            SET session = _session, tethered = _tethered, behind = _behind, fence = attempt.fence,
                lease = CASE WHEN ending IS NULL THEN attempt.lease ELSE lease END,
                since = CASE WHEN attempt.fence IS NULL THEN since ELSE now END,
                turn = CASE WHEN attempt.fence IS NULL THEN turn END,
                ticket = CASE WHEN attempt.fence IS NULL THEN _ticket END,
                -- A claim that was asked to end gets no more time, waiting or holding.
                expires = CASE WHEN ending IS NULL THEN now + attempt.lease * interval '1 microsecond' ELSE expires END
            WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
            lease := oarlock.micros(mine.expires - now);
        ELSIF free IS NOT NULL THEN
            UPDATE oarlock.claim
            SET id = _id, arrival = place, session = _session, tethered = _tethered, kind = _kind, weight = _weight,
                behind = _behind, label = _label, value = _value, fence = attempt.fence, since = now,
                lease = attempt.lease, ticket = CASE WHEN attempt.fence IS NULL THEN _ticket END, handed = false,
                expires = now + attempt.lease * interval '1 microsecond'
            WHERE resource = head.key AND slot = free;
        ELSE
            INSERT INTO oarlock.claim (
                resource, slot, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since, lease,
                expires, ticket
            ) VALUES (
                head.key, coalesce(last, 0) + 1, _id, place, _session, _tethered, _kind, _weight, _behind, _label,
                _value, attempt.fence, now, attempt.lease, now + attempt.lease * interval '1 microsecond',
                CASE WHEN attempt.fence IS NULL THEN _ticket END
            );
        END IF;
        -- A grant may leave room for more, or take the turn away from one that was called. A place at the end changes
        -- nothing for the others, unless this claim is the first to state a capacity.
        IF waiting > 0 AND (outcome = 'granted' OR widens) THEN
            head := oarlock.call(head, now);
            durable := true;
        END IF;
    END IF;
    IF changed THEN
        PERFORM oarlock.leave(head, now);
        PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
    END IF;
    IF NOT durable THEN
        -- A crash can take away a position in the queue, which its client then asks for anew, or nothing. A later grant
        -- that survives keeps it: the log is in order.
        unhurried := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- Keeps claims alive, holders and waiters. A name that another transaction has locked is left out, so that it does
-- not delay the others; those are asked for again on their own. Then they are waited for, in the order of their
-- names, so that two batches cannot wait for each other, and for a second at most.
-- Keys: oarlock.resource by name, locked one after the other until the end; oarlock.claim by resource;
--   oarlock.session by number.
-- Arguments: the session that asks (0: none); whether to wait for locked names; arrays with one element per claim:
--   name, id, lease and place in microseconds, behind, value, memo, for how many microseconds that must be kept at
--   least beyond a day, the least fence, how many fences to reserve, whether its client knows that it holds, the
--   ticket of this request (null: it must ask for its grant).
-- Answer: per claim its place in the arrays; outcome (alive, gone, broken, session, exhausted, busy, newer); lease
--   in microseconds; the largest fence of a holder; by whom and why it was asked to end.
CREATE OR REPLACE FUNCTION oarlock.renew(
    _session bigint, _wait boolean, _names bytea[], _ids bytea[], _leases bigint[], _places bigint[],
    _behind bigint[], _values bytea[], _memos bytea[], _keeps bigint[], _least bigint[], _reserve bigint[],
    _held boolean[], _tickets bigint[]
) RETURNS TABLE (at bigint, outcome text, lease bigint, fence bigint, ending text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    mine oarlock.claim;
    asked record;
    now timestamptz;
    changed boolean;
    form smallint;
    -- Read before anything is kept: who is killed after this is not taken for heard of.
    seen bigint := oarlock.kills();
BEGIN
    IF _wait THEN
        PERFORM set_config('lock_timeout', '1s', true);
    END IF;
    FOR asked IN
        SELECT * FROM unnest(
            _names, _ids, _leases, _places, _behind, _values, _memos, _keeps, _least, _reserve, _held, _tickets
        ) WITH ORDINALITY AS batch(name, id, lease, place, behind, value, memo, keep, least, reserve, held, ticket, at)
        ORDER BY name, at
    LOOP
        at := asked.at;
        outcome := 'gone';
        lease := NULL;
        fence := NULL;
        ending := NULL;
        changed := false;
        IF _wait THEN
            SELECT format INTO form FROM oarlock.resource WHERE name = asked.name FOR UPDATE;
        ELSE
            SELECT format INTO form FROM oarlock.resource WHERE name = asked.name FOR UPDATE SKIP LOCKED;
        END IF;
        IF form > 1
            OR (form IS NULL AND NOT _wait AND EXISTS (SELECT FROM oarlock.resource WHERE name = asked.name)) THEN
            outcome := CASE WHEN form > 1 THEN 'newer' ELSE 'busy' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        head := oarlock.enter(asked.name, false);
        now := clock_timestamp();
        IF EXISTS (SELECT FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL AND ends <= now) THEN
            head := oarlock.sweep(head, now, '{}');
            changed := true;
        END IF;
        SELECT * INTO mine FROM oarlock.claim WHERE resource = head.key AND id = asked.id;
        IF NOT FOUND THEN
            ending := head.epitaphs[array_position(head.graves, asked.id)];
            outcome := CASE WHEN ending IS NULL THEN 'gone' ELSE 'broken' END;
        ELSIF mine.tethered AND mine.session <> _session THEN
            -- It belonged to a session that is no longer its client's: other clients may have seen that end.
            outcome := 'session';
        ELSIF mine.fence IS NULL THEN
            UPDATE oarlock.claim
            SET behind = asked.behind, ticket = CASE WHEN session = _session THEN asked.ticket END,
                lease = CASE WHEN ending IS NULL THEN asked.place ELSE lease END,
                expires = CASE WHEN ending IS NULL THEN now + asked.place * interval '1 microsecond' ELSE expires END
            WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
            outcome := 'alive';
            -- Its turn must be taken by an attempt; staying alive is not enough to sit on it.
            lease := oarlock.micros(mine.ends - now);
        ELSIF mine.handed AND NOT asked.held AND asked.least IS NULL AND asked.reserve IS NULL
            AND asked.memo IS NULL THEN
            -- Its client does not know of the grant: to keep it would let a client sit on a lock that it does not use.
            outcome := 'alive';
            lease := oarlock.micros(mine.ends - now);
        ELSE
            outcome := 'alive';
            fence := greatest(mine.fence, asked.least,
                CASE WHEN asked.reserve > 0 THEN head.last_fence + asked.reserve END);
            IF fence >= 9007199254740992 THEN
                outcome := 'exhausted';
            ELSE
                changed := changed OR fence > head.last_fence OR asked.memo IS NOT NULL;
                head.last_fence := greatest(head.last_fence, fence);
                IF asked.memo IS NOT NULL THEN
                    head.memo := asked.memo;
                    -- As if it had been used then: no later use shortens that.
                    head.used := greatest(head.used, now + asked.keep * interval '1 microsecond');
                END IF;
                UPDATE oarlock.claim
                SET value = asked.value, handed = false, ticket = NULL, fence = greatest(mine.fence, asked.least),
                    lease = CASE WHEN ending IS NULL THEN asked.lease ELSE lease END,
                    expires = CASE WHEN ending IS NULL THEN now + asked.lease * interval '1 microsecond'
                        ELSE expires END
                WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
                lease := oarlock.micros(mine.expires - now);
                ending := mine.ending;
            END IF;
        END IF;
        IF changed THEN
            PERFORM oarlock.leave(head, now);
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM oarlock.witness(_session, seen, true);
END $$;

-- Ends a claim, holder or waiter.
-- Keys: oarlock.resource by name, locked; oarlock.claim by resource.
-- Arguments: name, id, a memo to leave (null: none), by whom and why it is broken (null: by its owner), the grace in
--   microseconds.
-- Answer: outcome (released, not_held, asked); whether others wait.
CREATE OR REPLACE FUNCTION oarlock.release(
    _name bytea, _id bytea, _memo bytea, _ending text, _grace bigint, OUT outcome text, OUT others boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    crowd record;
    now timestamptz;
    changed boolean := false;
    durable boolean;
    unhurried text;
BEGIN
    SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
    IF NOT FOUND OR head.format > 1 OR current_setting('transaction_isolation') <> 'read committed' THEN
        head := oarlock.enter(_name, false);
    END IF;
    now := clock_timestamp();
    -- The usual case in few statements: no other claim is there, and nothing that must not be lost. The row of the name
    -- stays as it is.
    PERFORM FROM oarlock.claim WHERE resource = head.key AND id <> _id LIMIT 1;
    IF NOT FOUND AND head.observers = '{}' AND _memo IS NULL AND _ending IS NULL
        AND head.used > now - interval '1 hour' THEN
        UPDATE oarlock.claim
        SET id = NULL, fence = NULL, tethered = false, label = '', value = NULL
        WHERE resource = head.key AND slot = 1 AND id = _id AND fence IS NOT NULL AND ending IS NULL AND turn IS NULL
            AND expires > now AND expires <= now + interval '1 minute';
        IF FOUND THEN
            outcome := 'released';
            others := false;
            unhurried := set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT min(ends) FILTER (WHERE id IS NOT NULL) AS soonest, count(*) FILTER (WHERE id <> _id) AS claims,
            count(*) FILTER (WHERE id <> _id AND fence IS NULL) AS waiting, min(slot) FILTER (WHERE id = _id) AS slot,
            min(session) FILTER (WHERE id = _id) AS session, min(fence) FILTER (WHERE id = _id) AS fence,
            min(expires) FILTER (WHERE id = _id) AS expires
        INTO crowd FROM oarlock.claim WHERE resource = head.key;
        EXIT WHEN crowd.soonest IS NULL OR crowd.soonest > now;
        head := oarlock.sweep(head, now, '{}');
        changed := true;
    END LOOP;
    others := crowd.waiting > 0;
    -- What others were given, told or left must not be lost, nor the end of a claim that would come back for long.
    durable := changed OR others OR _memo IS NOT NULL OR _ending IS NOT NULL
        OR coalesce(crowd.expires > now + interval '1 minute', false);
    outcome := 'not_held';
    IF crowd.slot IS NOT NULL THEN
        changed := true;
        IF _ending IS NOT NULL THEN
            PERFORM oarlock.tell(crowd.session, encode(_id, 'hex'));
        END IF;
        IF crowd.fence IS NOT NULL THEN
            head.memo := coalesce(_memo, head.memo);
        END IF;
        IF _grace > 0 THEN
            outcome := 'asked';
            UPDATE oarlock.claim
            SET ending = _ending, expires = least(expires, now + _grace * interval '1 microsecond')
            WHERE resource = head.key AND slot = crowd.slot;
        ELSE
            outcome := 'released';
            PERFORM oarlock.vacate(head.key, crowd.slot);
            IF _ending IS NOT NULL THEN
                head := oarlock.bury(head, _id, _ending);
            END IF;
            IF crowd.claims = 0 THEN
                head.capacity := NULL;
            ELSIF others THEN
                head := oarlock.call(head, now);
            END IF;
        END IF;
    END IF;
    IF changed THEN
        PERFORM oarlock.leave(head, now);
    END IF;
    IF NOT durable THEN
        -- After a crash the claim may be back, and ends with its lease. No later grant can be there without this
        -- release: the log is in order.
        unhurried := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- Tells a session of the next change of a name, once.
-- Keys: oarlock.resource by name, locked.
-- Arguments: name, session.
-- Answer: none.
CREATE OR REPLACE FUNCTION oarlock.observe(_name bytea, _session bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head oarlock.resource := oarlock.enter(_name, true);
BEGIN
    UPDATE oarlock.resource
    SET used = greatest(used, clock_timestamp()), observers = array_append(array_remove(observers, _session), _session)
    WHERE key = head.key;
END $$;

-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock.fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant.
-- Answer: none; an error with the state OAR02 if a larger fence was here before, or may have been: then the writer
--   has lost its lock, and its transaction is undone.
CREATE OR REPLACE FUNCTION oarlock.check(_name text, _fence bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    largest bigint;
    forgotten bigint;
    now timestamptz := clock_timestamp();
BEGIN
    IF _name = '' THEN
        RAISE EXCEPTION 'what is protected needs a name' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Noted once a day: a change of what is indexed costs more than another one.
    UPDATE oarlock.fence
    SET fence = greatest(fence, _fence),
        used = CASE WHEN used > now - interval '1 day' OR _fence < 1000000000000000 THEN used ELSE now END
    WHERE name = _name RETURNING fence INTO largest;
    IF NOT FOUND THEN
        INSERT INTO oarlock.fence AS seen (name, fence, used)
        VALUES (_name, _fence, CASE WHEN _fence >= 1000000000000000 THEN now END)
        ON CONFLICT (name) DO UPDATE SET fence = greatest(seen.fence, _fence) RETURNING fence INTO largest;
        -- A row that was forgotten before this one was made is seen here. Where all statements of a transaction see the
        -- same picture, the server ends it if the row has changed since.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            SELECT fence INTO forgotten FROM oarlock.fence WHERE name = '';
        ELSE
            SELECT fence INTO forgotten FROM oarlock.fence WHERE name = '' FOR SHARE;
        END IF;
        IF _fence >= 1000000000000000 AND _fence <= forgotten THEN
            RAISE EXCEPTION 'this fence is too old to tell whether a larger one was here: take the lock again'
                USING ERRCODE = 'OAR02';
        END IF;
    END IF;
    IF largest > _fence THEN
        RAISE EXCEPTION 'a larger fence was here before: the lock is lost' USING ERRCODE = 'OAR02';
    END IF;
END $$;

-- Forgets fences of the protected side that were not used for 30 days and are as old themselves. The row without a name
-- keeps the largest of them: a fence up to that one is refused where its own row is gone. Only fences from a clock
-- (microseconds since 1970, so above 10^15) are forgotten: small numbers, from stores that count, would all be refused.
-- It waits for no other transaction. Keys: oarlock.fence by name, the one without a name first. Arguments: how many at
-- most. Answer: how many.
CREATE OR REPLACE FUNCTION oarlock.forget_fences(_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    before timestamptz := clock_timestamp() - interval '30 days';
    largest bigint;
    many bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM oarlock.fence WHERE used < before) THEN
        RETURN 0;
    END IF;
    PERFORM FROM oarlock.fence WHERE name = '' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT name FROM oarlock.fence
        WHERE used < before AND fence >= 1000000000000000 AND fence < oarlock.micros(before - 'epoch')
        ORDER BY used LIMIT _most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM oarlock.fence AS seen USING old WHERE seen.name = old.name RETURNING seen.fence
    )
    SELECT max(fence), count(*) INTO largest, many FROM gone;
    IF many > 0 THEN
        UPDATE oarlock.fence SET fence = greatest(fence, largest) WHERE name = '';
    END IF;
    RETURN many;
END $$;

INSERT INTO oarlock.format (version) VALUES (9);
