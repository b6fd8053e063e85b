-- Everything that is made once in a database, besides the procedures: format 9. Many may try at once.
-- Keys: none.
-- Arguments: none.
-- Answer: none.
CREATE TABLE IF NOT EXISTS oarlock_format (
    one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL
) ENGINE = InnoDB;

-- One row per name: locked first in every step, so that exactly one decides at a time. Times are microseconds since
-- 1970.
CREATE TABLE IF NOT EXISTS oarlock_resource (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name VARBINARY(1536) NOT NULL UNIQUE,
    format SMALLINT NOT NULL DEFAULT 2, -- of this row: a step refuses one that it would misread
    capacity BIGINT, -- NULL: not stated; 0: unlimited
    arrivals BIGINT NOT NULL DEFAULT 0,
    last_fence BIGINT NOT NULL DEFAULT 0,
    memo BLOB,
    used BIGINT NOT NULL,
    -- Whether oarlock_claim may have claims of this name. Where it says no, there is at most the one in this row.
    queued BOOLEAN NOT NULL DEFAULT TRUE,
    -- The only claim, a holder of everything, as take.sql wrote it. Its fence is the last one.
    sole_id BINARY(16) NOT NULL DEFAULT '',
    sole_session BIGINT NOT NULL DEFAULT 0,
    sole_tethered BOOLEAN NOT NULL DEFAULT FALSE,
    sole_kind VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    sole_behind BIGINT NOT NULL DEFAULT 0,
    sole_label MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    sole_value LONGBLOB,
    sole_lease BIGINT NOT NULL DEFAULT 0,
    sole_expires BIGINT NOT NULL DEFAULT 0, -- 0: there is none, and the other columns mean nothing
    sole_wake BOOLEAN NOT NULL DEFAULT FALSE -- whether its wake-up lock was taken or released
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row per live claim: a holder has a fence, a waiter has none.
CREATE TABLE IF NOT EXISTS oarlock_claim (
    resource BIGINT NOT NULL,
    id BINARY(16) NOT NULL,
    arrival BIGINT NOT NULL,
    session BIGINT NOT NULL,
    tethered BOOLEAN NOT NULL, -- whether it ends with that session
    kind VARCHAR(32) NOT NULL,
    weight BIGINT NOT NULL, -- 0: all
    behind BIGINT NOT NULL,
    label MEDIUMTEXT NOT NULL,
    value LONGBLOB,
    fence BIGINT,
    since BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    lease BIGINT, -- how long it was at its last renewal: it cannot end later than that from now
    turn BIGINT, -- a called waiter must come until then
    ending TEXT,
    PRIMARY KEY (resource, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The last claims of a name that were broken, and by whom and why.
CREATE TABLE IF NOT EXISTS oarlock_grave (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    resource BIGINT NOT NULL,
    id BINARY(16) NOT NULL,
    ending TEXT NOT NULL,
    KEY (resource)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per client: what the server that saw its session begin needs to tell that it is over.
CREATE TABLE IF NOT EXISTS oarlock_session (
    number BIGINT NOT NULL PRIMARY KEY,
    boot BINARY(16) NOT NULL, -- which run of which server saw it begin
    kills BIGINT NOT NULL, -- how many connections had been killed when its client was last heard of
    begun BIGINT NOT NULL, -- or found alive, a day later and more
    KEY (begun)
) ENGINE = InnoDB;

-- The largest fence that was seen on the protected side, for whatever is protected. The row without a name has the
-- largest one that was forgotten.
CREATE TABLE IF NOT EXISTS oarlock_fence (
    name VARBINARY(1536) NOT NULL PRIMARY KEY,
    fence BIGINT NOT NULL,
    used BIGINT, -- to the day; NULL: never to be forgotten
    KEY (used)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The present run of each server. In memory on purpose: it is empty after a restart, for a server that has not seen a
-- session cannot say why it is not there. Under a name of its own, so that a replica does not take the run of its
-- source for its own.
CREATE TABLE IF NOT EXISTS oarlock_server (
    name BINARY(16) NOT NULL PRIMARY KEY,
    boot BINARY(16) NOT NULL
) ENGINE = MEMORY;

-- What format 5 has, and no longer means anything.
SET @oarlock = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'oarlock_claim' AND column_name = 'fair'
    ), 'ALTER TABLE oarlock_claim DROP COLUMN fair', 'DO 0'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;

-- What format 4 lacks. MySQL cannot add a column only if it is missing.
SET @oarlock = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'oarlock_claim' AND column_name = 'lease'
    ), 'DO 0', 'ALTER TABLE oarlock_claim ADD COLUMN lease BIGINT'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;
SET @oarlock = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'oarlock_fence' AND column_name = 'used'
    ), 'DO 0', 'ALTER TABLE oarlock_fence ADD COLUMN used BIGINT, ADD KEY (used)'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;

-- What format 7 lacks.
SET @oarlock = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'oarlock_resource' AND column_name = 'queued'
    ), 'DO 0',
    'ALTER TABLE oarlock_resource ADD COLUMN queued BOOLEAN NOT NULL DEFAULT TRUE,
        ADD COLUMN sole_id BINARY(16) NOT NULL DEFAULT \'\', ADD COLUMN sole_session BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN sole_tethered BOOLEAN NOT NULL DEFAULT FALSE,
        ADD COLUMN sole_kind VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT \'\',
        ADD COLUMN sole_behind BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN sole_label MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ADD COLUMN sole_value LONGBLOB,
        ADD COLUMN sole_lease BIGINT NOT NULL DEFAULT 0, ADD COLUMN sole_expires BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN sole_wake BOOLEAN NOT NULL DEFAULT FALSE'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;

-- What format 8 has as format 1. A step of an older format that is still under way overlooks a claim in the row of its
-- name, and refuses these rows. Without such a row nothing is written, so that no step waits.
SET @oarlock = IF(
    EXISTS (
        SELECT 1 FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'oarlock_resource' AND column_name = 'format'
            AND column_default = '1'
    ), 'ALTER TABLE oarlock_resource ALTER COLUMN format SET DEFAULT 2', 'DO 0'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;
SET @oarlock = IF(
    EXISTS (SELECT 1 FROM oarlock_resource WHERE format = 1),
    'UPDATE oarlock_resource SET format = 2 WHERE format = 1', 'DO 0'
);
PREPARE oarlock_raise FROM @oarlock;
EXECUTE oarlock_raise;
DEALLOCATE PREPARE oarlock_raise;
UPDATE oarlock_fence SET used = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE used IS NULL AND fence >= 1000000000000000 AND name <> '';
INSERT INTO oarlock_fence (name, fence) VALUES ('', 0) ON DUPLICATE KEY UPDATE name = ''
