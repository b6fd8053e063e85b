-- What `oarlock serve` has sampled. Each table is bounded: see history.rs. Times are milliseconds since the epoch.
-- A hold without an end was there at the last sample.
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA max_page_count = 65536;
CREATE TABLE IF NOT EXISTS holds (
    name TEXT NOT NULL,
    claim TEXT NOT NULL,
    fence TEXT NOT NULL,
    kind TEXT NOT NULL,
    holder TEXT NOT NULL,
    reason TEXT,
    since_ms INTEGER NOT NULL,
    until_ms INTEGER,
    UNIQUE (name, claim, fence)
);
CREATE INDEX IF NOT EXISTS holds_by_name ON holds (name, since_ms);
CREATE TABLE IF NOT EXISTS waits (
    name TEXT NOT NULL,
    claim TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    until_ms INTEGER,
    granted INTEGER,
    UNIQUE (name, claim, since_ms)
);
CREATE INDEX IF NOT EXISTS waits_by_name ON waits (name, until_ms);
CREATE TABLE IF NOT EXISTS breaks (
    at_ms INTEGER NOT NULL,
    name TEXT NOT NULL,
    fence TEXT NOT NULL,
    by TEXT NOT NULL,
    why TEXT NOT NULL,
    -- asked or released; NULL in rows of an earlier version
    outcome TEXT,
    -- empty in rows of an earlier version
    claim TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS breaks_by_name ON breaks (name, at_ms);
-- What an earlier server had not seen end: what is still there is seen again, with its age.
DELETE FROM holds WHERE until_ms IS NULL;
DELETE FROM waits WHERE until_ms IS NULL;
