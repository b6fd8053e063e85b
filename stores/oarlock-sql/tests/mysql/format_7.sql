-- What format 7 had, for tests of what came after it: all that was made in a database, but for what shows locks.
-- Everything that is made once in a database, besides the procedures: format 7. Many may try at once.
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
    format SMALLINT NOT NULL DEFAULT 1,
    capacity BIGINT, -- NULL: not stated; 0: unlimited
    arrivals BIGINT NOT NULL DEFAULT 0,
    last_fence BIGINT NOT NULL DEFAULT 0,
    memo BLOB,
    used BIGINT NOT NULL
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
DEALLOCATE PREPARE oarlock_raise;
UPDATE oarlock_fence SET used = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
WHERE used IS NULL AND fence >= 1000000000000000 AND name <> '';
INSERT INTO oarlock_fence (name, fence) VALUES ('', 0) ON DUPLICATE KEY UPDATE name = '';

-- Sessions: how one begins, and when it is over.
-- Keys: oarlock_session by number, oarlock_server by name. Each connection of a session holds one of its sixteen named
-- locks, `oarlock_<number in hexadecimal>_<0 to 15>`.

-- Arguments: how many times a connection was killed on this server, or null to look. Answer: that number. MySQL has it
-- in no table: the client has to ask there, and null stays null. MariaDB alone reads what is in this comment.
CREATE PROCEDURE IF NOT EXISTS oarlock_kills(INOUT _kills BIGINT) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    /*M! IF _kills IS NULL THEN
        SELECT variable_value INTO _kills FROM information_schema.global_status WHERE variable_name = 'COM_KILL';
    END IF; */
END;

-- Answer: the run of this server in which a session can begin; null if none has.
CREATE PROCEDURE IF NOT EXISTS oarlock_boot(OUT _boot BINARY(16)) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    SET _boot = NULL;
    SELECT boot INTO _boot FROM oarlock_server
    WHERE name = UNHEX(LEFT(SHA2(CONCAT_WS('|', @@hostname, @@port, @@server_id, @@datadir), 256), 32));
END;

-- Arguments: a session that has connections, sixteen random bytes, how many were killed (null: look). Writes it down.
-- What this run of the server has not seen, or has not seen alive for a day, is forgotten: that can only make others
-- more patient.
CREATE PROCEDURE IF NOT EXISTS oarlock_begin(_session BIGINT, _random BINARY(16), _kills BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _boot BINARY(16);
    DECLARE _now, _old BIGINT;
    DECLARE _dark, _done BOOLEAN DEFAULT FALSE;
    DECLARE old CURSOR FOR SELECT number FROM oarlock_session WHERE begun < _now - 86400000000 ORDER BY begun LIMIT 20;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    INSERT INTO oarlock_server (name, boot)
    VALUES (UNHEX(LEFT(SHA2(CONCAT_WS('|', @@hostname, @@port, @@server_id, @@datadir), 256), 32)), _random)
    ON DUPLICATE KEY UPDATE boot = boot;
    CALL oarlock_boot(_boot);
    CALL oarlock_kills(_kills);
    SET _now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    INSERT INTO oarlock_session (number, boot, kills, begun) VALUES (_session, _boot, _kills, _now)
    ON DUPLICATE KEY UPDATE boot = _boot, kills = _kills, begun = _now;
    OPEN old;
    forget: LOOP
        SET _done = FALSE;
        FETCH old INTO _old;
        IF _done THEN
            LEAVE forget;
        END IF;
        CALL oarlock_is_dark(_old, _dark);
        IF _dark THEN
            DELETE FROM oarlock_session WHERE number = _old;
        ELSE
            -- Others are looked at before it is again.
            UPDATE oarlock_session SET begun = _now WHERE number = _old;
        END IF;
    END LOOP;
    CLOSE old;
END;

-- Arguments: a session. Answer: whether none of its connections is here.
CREATE PROCEDURE IF NOT EXISTS oarlock_is_dark(_session BIGINT, OUT _dark BOOLEAN) NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE _witness INT DEFAULT 0;
    SET _dark = TRUE;
    WHILE _dark AND _witness < 16 DO
        SET _dark = IS_FREE_LOCK(CONCAT('oarlock_', LOWER(HEX(_session)), '_', _witness)) = 1;
        SET _witness = _witness + 1;
    END WHILE;
END;

-- Arguments: a session. Answer: whether this run of this server saw it begin, none of its connections is left, and none
-- was killed since its client was last heard of: then it was the client's side that ended them. Where the client has to
-- count, it must count after the connections were found gone. It is told by the state OAR03 (oarlock_doubts) and the
-- list @oarlock_doubt, and asks again with those in @oarlock_dark and the count in @oarlock_kills.
CREATE PROCEDURE IF NOT EXISTS oarlock_is_over(_session BIGINT, OUT _over BOOLEAN) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _boot, _seen BINARY(16);
    DECLARE _kills, _then BIGINT;
    -- The quick question first: it is the answer nearly always.
    CALL oarlock_is_dark(_session, _over);
    IF _over THEN
        CALL oarlock_boot(_boot);
        SELECT boot, kills INTO _seen, _then FROM oarlock_session WHERE number = _session;
        SET _over = COALESCE(_boot = _seen, FALSE);
    END IF;
    IF _over THEN
        SET _kills = IF(FIND_IN_SET(_session, @oarlock_dark), @oarlock_kills, NULL);
        CALL oarlock_kills(_kills);
        IF _kills IS NULL THEN
            SET @oarlock_doubt = CONCAT_WS(',', @oarlock_doubt, _session);
        END IF;
        SET _over = COALESCE(_kills = _then, FALSE);
    END IF;
END;

-- Raises the state OAR03 if a session is in doubt until the client has counted who was killed.
CREATE PROCEDURE IF NOT EXISTS oarlock_doubts() NO SQL SQL SECURITY INVOKER
BEGIN
    IF @oarlock_doubt IS NOT NULL THEN
        SIGNAL SQLSTATE 'OAR03' SET MESSAGE_TEXT = 'how many connections were killed on this server?';
    END IF;
END;

-- What every verb is made of. The row of a name is locked first; a step changes it in variables and writes it once.
-- Keys: oarlock_resource by name, oarlock_claim by resource. Times are the server's, read once the row is locked.

-- Arguments: name, whether to make its row. Answer: the row, locked; nulls if there is none.
CREATE PROCEDURE IF NOT EXISTS oarlock_enter(
    _name VARBINARY(1536), _make BOOLEAN, OUT _head BIGINT, OUT _capacity BIGINT, OUT _arrivals BIGINT,
    OUT _last_fence BIGINT, OUT _memo BLOB
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _format SMALLINT DEFAULT 0;
    SET _head = NULL;
    SELECT number, format, capacity, arrivals, last_fence, memo
    INTO _head, _format, _capacity, _arrivals, _last_fence, _memo
    FROM oarlock_resource WHERE name = _name FOR UPDATE;
    IF _head IS NULL AND _make THEN
        -- Not INSERT IGNORE: two who both share the row that a third made would wait for each other.
        INSERT INTO oarlock_resource (name, used)
        VALUES (_name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) ON DUPLICATE KEY UPDATE name = _name;
        SELECT number, format, capacity, arrivals, last_fence, memo
        INTO _head, _format, _capacity, _arrivals, _last_fence, _memo
        FROM oarlock_resource WHERE name = _name FOR UPDATE;
        CALL oarlock_forget(_head);
    END IF;
    IF _format > 1 THEN
        SIGNAL SQLSTATE 'OAR01' SET MESSAGE_TEXT = 'this name was written by a newer version';
    END IF;
END;

-- Arguments: a new resource. It looks at ten old ones, and forgets those that were not used for a day. The clock alone
-- then decides their next fence, so a fence that was given while the clock was ahead is kept. It waits for no other
-- step.
CREATE PROCEDURE IF NOT EXISTS oarlock_forget(_new BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _old BIGINT;
    DECLARE _done BOOLEAN DEFAULT FALSE;
    DECLARE _from BIGINT DEFAULT FLOOR(RAND() * _new);
    DECLARE _now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    DECLARE few CURSOR FOR
        SELECT number FROM oarlock_resource
        WHERE number IN (
            SELECT number FROM (
                SELECT number FROM oarlock_resource WHERE number >= _from AND number <> _new ORDER BY number LIMIT 10
            ) AS ten
        ) AND used <= _now - 86400000000 AND last_fence <= _now - 86400000000 FOR UPDATE SKIP LOCKED;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    OPEN few;
    forget: LOOP
        SET _done = FALSE;
        FETCH few INTO _old;
        IF _done THEN
            LEAVE forget;
        END IF;
        IF NOT EXISTS (SELECT 1 FROM oarlock_claim WHERE resource = _old AND expires > _now) THEN
            DELETE FROM oarlock_claim WHERE resource = _old;
            DELETE FROM oarlock_grave WHERE resource = _old;
            DELETE FROM oarlock_resource WHERE number = _old;
        END IF;
    END LOOP;
    CLOSE few;
    BEGIN
        -- A user that only takes locks may lack the right to the table or the procedure.
        DECLARE EXIT HANDLER FOR 1142, 1370 BEGIN END;
        CALL oarlock_forget_some_fences(10);
    END;
END;

-- Arguments: a resource, its capacity, the time. Calls the waiters that fit now: each has two seconds to come. Adds
-- `<id in hexadecimal>@<session>,` for each to what was called before.
CREATE PROCEDURE IF NOT EXISTS oarlock_call(_head BIGINT, _capacity BIGINT, _now BIGINT, INOUT _called MEDIUMTEXT)
MODIFIES SQL DATA SQL SECURITY INVOKER
call_them: BEGIN
    DECLARE _room BIGINT DEFAULT COALESCE(_capacity, 1);
    DECLARE _claims, _units, _arrival, _weight, _session, _turn, _turns, _first BIGINT;
    DECLARE _whole BOOLEAN;
    DECLARE _id BINARY(16);
    DECLARE _done BOOLEAN DEFAULT FALSE;
    DECLARE waiters CURSOR FOR
        SELECT id, arrival, weight, session, turn FROM oarlock_claim
        WHERE resource = _head AND fence IS NULL ORDER BY arrival;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    SELECT COUNT(fence), COALESCE(SUM(IF(fence IS NULL, 0, weight)), 0),
        COALESCE(MAX(fence IS NOT NULL AND weight = 0), FALSE),
        COALESCE(SUM(fence IS NULL AND turn IS NOT NULL), 0), MIN(IF(fence IS NULL, arrival, NULL))
    INTO _claims, _units, _whole, _turns, _first FROM oarlock_claim WHERE resource = _head;
    -- Nearly always one claim wants everything. It is found without a cursor, for which the server makes a table.
    IF _claims = 0 AND _first IS NOT NULL THEN
        SELECT id, weight, session, turn INTO _id, _weight, _session, _turn FROM oarlock_claim
        WHERE resource = _head AND arrival = _first;
        IF _weight = 0 THEN
            SET _whole = TRUE;
            IF _turn IS NULL THEN
                UPDATE oarlock_claim SET turn = _now + 2000000 WHERE resource = _head AND id = _id;
                SET _called = CONCAT(_called, LOWER(HEX(_id)), '@', _session, ',');
            ELSE
                SET _turns = _turns - 1;
            END IF;
        END IF;
    END IF;
    IF _whole OR _first IS NULL THEN
        IF _turns > 0 THEN
            UPDATE oarlock_claim SET turn = NULL
            WHERE resource = _head AND fence IS NULL AND turn IS NOT NULL AND (_claims > 0 OR id <> _id);
        END IF;
        LEAVE call_them;
    END IF;
    OPEN waiters;
    next_one: LOOP
        SET _done = FALSE;
        FETCH waiters INTO _id, _arrival, _weight, _session, _turn;
        IF _done THEN
            LEAVE next_one;
        END IF;
        IF IF(_weight = 0, _claims = 0, NOT _whole AND (_room = 0 OR _units + _weight <= _room)) THEN
            SET _claims = _claims + 1, _units = _units + _weight, _whole = _whole OR _weight = 0;
            IF _turn IS NULL THEN
                UPDATE oarlock_claim SET turn = _now + 2000000 WHERE resource = _head AND id = _id;
                SET _called = CONCAT(_called, LOWER(HEX(_id)), '@', _session, ',');
            END IF;
        ELSE
            UPDATE oarlock_claim SET turn = NULL
            WHERE resource = _head AND fence IS NULL AND turn IS NOT NULL AND arrival >= _arrival;
            -- A claim that does not fit holds back those behind it.
            LEAVE next_one;
        END IF;
    END LOOP;
    CLOSE waiters;
END;

-- Arguments: a resource, a broken claim, by whom and why. The last eight of a name are remembered.
CREATE PROCEDURE IF NOT EXISTS oarlock_bury(_head BIGINT, _id BINARY(16), _ending TEXT CHARACTER SET utf8mb4)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _many BIGINT;
    INSERT INTO oarlock_grave (resource, id, ending) VALUES (_head, _id, _ending);
    SELECT COUNT(*) - 8 INTO _many FROM oarlock_grave WHERE resource = _head;
    IF _many > 0 THEN
        DELETE FROM oarlock_grave WHERE resource = _head ORDER BY number LIMIT _many;
    END IF;
END;

-- Arguments: a resource, its capacity, the time, a dead session or null. Removes what has run out or ended with that
-- session: an empty resource has no capacity, and in another one it may be the turn of a waiter.
CREATE PROCEDURE IF NOT EXISTS oarlock_sweep(
    _head BIGINT, INOUT _capacity BIGINT, _now BIGINT, _dead BIGINT, INOUT _called MEDIUMTEXT
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _id BINARY(16);
    DECLARE _ending TEXT CHARACTER SET utf8mb4;
    DECLARE _done BOOLEAN DEFAULT FALSE;
    DECLARE gone CURSOR FOR
        SELECT id, ending FROM oarlock_claim
        WHERE resource = _head
            AND (expires <= _now OR turn <= _now OR (tethered AND session = COALESCE(_dead, 0)));
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    OPEN gone;
    next_one: LOOP
        SET _done = FALSE;
        FETCH gone INTO _id, _ending;
        IF _done THEN
            LEAVE next_one;
        END IF;
        DELETE FROM oarlock_claim WHERE resource = _head AND id = _id;
        IF _ending IS NOT NULL THEN
            CALL oarlock_bury(_head, _id, _ending);
        END IF;
    END LOOP;
    CLOSE gone;
    CALL oarlock_settle(_head, _capacity, _now, _called);
END;

-- Arguments: a resource of which claims were removed, its capacity, the time.
CREATE PROCEDURE IF NOT EXISTS oarlock_settle(_head BIGINT, INOUT _capacity BIGINT, _now BIGINT,
    INOUT _called MEDIUMTEXT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF EXISTS (SELECT 1 FROM oarlock_claim WHERE resource = _head) THEN
        CALL oarlock_call(_head, _capacity, _now, _called);
    ELSE
        SET _capacity = NULL;
    END IF;
END;

-- Arguments: a resource, the session that asks, an arrival. Answer: a dead session that has a holder, or a waiter that
-- arrived before; null if there is none.
CREATE PROCEDURE IF NOT EXISTS oarlock_dead(_head BIGINT, _me BIGINT, _before BIGINT, OUT _dead BIGINT)
READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _suspect, _last, _many BIGINT;
    DECLARE _over, _done BOOLEAN DEFAULT FALSE;
    DECLARE suspects CURSOR FOR
        SELECT DISTINCT session FROM oarlock_claim
        WHERE resource = _head AND tethered AND session <> _me AND (fence IS NOT NULL OR arrival < _before);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    SET _dead = NULL;
    SELECT MIN(session), MAX(session), COUNT(DISTINCT session) INTO _suspect, _last, _many FROM oarlock_claim
    WHERE resource = _head AND tethered AND session <> _me AND (fence IS NOT NULL OR arrival < _before);
    IF _many > 2 THEN
        OPEN suspects;
    END IF;
    next_one: LOOP
        IF _many > 2 THEN
            SET _done = FALSE;
            FETCH suspects INTO _suspect;
        END IF;
        IF _done OR _suspect IS NULL OR _dead IS NOT NULL THEN
            LEAVE next_one;
        END IF;
        -- The first of its named locks is taken nearly always, and that is asked at once.
        IF IS_FREE_LOCK(CONCAT('oarlock_', LOWER(HEX(_suspect)), '_0')) = 1 THEN
            CALL oarlock_is_over(_suspect, _over);
            IF _over THEN
                SET _dead = _suspect;
            END IF;
        END IF;
        IF _many <= 2 THEN
            SET _suspect = IF(_suspect < _last, _last, NULL);
        END IF;
    END LOOP;
    IF _many > 2 THEN
        CLOSE suspects;
    END IF;
    IF _dead IS NULL AND @oarlock_doubt IS NOT NULL THEN
        CALL oarlock_doubts();
    END IF;
END;

-- Takes, keeps or refuses a place: one round trip, one transaction.
-- Keys: oarlock_resource by name, locked; oarlock_claim by resource.
-- Arguments: name, id, session (0: none) and whether the claim ends with it, kind, capacity (null: any, 0:
--   unlimited) and whether a stored one is adopted, weight (0: all), wait, behind, lease and place in microseconds,
--   label, value, whether this connection takes the wake-up lock of the claim.
-- Answer: outcome (granted, pending, spec, heavy, upgrade, exhausted); fence, lease in microseconds and memo of a
--   grant; how many stand ahead and after how many microseconds something in the way ends; the capacity that
--   applies; where a waiter stands in order of arrival; who was called; the claim that must leave before a waiter
--   is granted (null: none in particular); whether this connection took the wake-up lock.
CREATE PROCEDURE IF NOT EXISTS oarlock_attempt(
    _name VARBINARY(1536), _id BINARY(16), _session BIGINT, _tethered BOOLEAN, _kind VARCHAR(32), _capacity BIGINT,
    _adopt BOOLEAN, _weight BIGINT, _wait BOOLEAN, _behind BIGINT, _lease BIGINT, _place BIGINT,
    _label MEDIUMTEXT CHARACTER SET utf8mb4, _value LONGBLOB, _wake BOOLEAN
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _head, _stated, _arrivals, _last_fence, _stored, _now BIGINT;
    DECLARE _arrival, _fence, _held, _position, _soonest, _units, _waiting, _ahead, _recheck, _dead, _grace,
        _last_holder, _last_waiter, _turns BIGINT;
    DECLARE _whole, _too_long BOOLEAN;
    DECLARE _changed BOOLEAN DEFAULT FALSE;
    DECLARE _memo BLOB;
    DECLARE _outcome VARCHAR(16);
    DECLARE _called MEDIUMTEXT DEFAULT '';
    DECLARE _before BINARY(16);
    DECLARE _lock VARCHAR(64) DEFAULT CONCAT('oarlock_w_', LOWER(HEX(_id)));
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    -- Each statement of a step must see what others committed before the row was locked.
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL oarlock_enter(_name, TRUE, _head, _stated, _arrivals, _last_fence, _memo);
    SET _now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    decide: LOOP
        SET _units = 0, _whole = FALSE, _waiting = 0, _ahead = 0, _turns = 0;
        -- A claim that was asked to end is not given more time, waiting or holding.
        SELECT MIN(LEAST(expires, COALESCE(turn, expires))), COALESCE(MAX(expires > _now + lease), FALSE),
            MAX(IF(id = _id, arrival, NULL)), MAX(IF(id = _id, fence, NULL)),
            MAX(IF(id = _id, weight, NULL)), MAX(IF(id = _id AND ending IS NOT NULL, expires - _now, NULL))
        INTO _soonest, _too_long, _arrival, _fence, _held, _grace FROM oarlock_claim WHERE resource = _head;
        IF _too_long THEN
            -- The clock was set back. A holder does not believe for longer than a lease from now.
            UPDATE oarlock_claim SET expires = _now + lease WHERE resource = _head AND expires > _now + lease;
            SET _changed = TRUE;
            ITERATE decide;
        END IF;
        IF _soonest <= _now THEN
            CALL oarlock_sweep(_head, _stated, _now, NULL, _called);
            SET _changed = TRUE;
            ITERATE decide;
        END IF;

        IF _fence IS NOT NULL THEN
            SET _outcome = 'upgrade';
            IF _held = 0 OR _weight BETWEEN 1 AND _held THEN
                SET _lease = COALESCE(_grace, _lease);
                UPDATE oarlock_claim
                SET weight = _weight, kind = _kind, session = _session, tethered = _tethered, expires = _now + _lease,
                    lease = IF(ending IS NULL, _lease, lease)
                WHERE resource = _head AND id = _id;
                CALL oarlock_call(_head, _stated, _now, _called);
                SET _outcome = 'granted';
            END IF;
            SET _changed = TRUE;
            LEAVE decide;
        END IF;

        SET _position = COALESCE(_arrival, _arrivals + 1), _recheck = NULL;
        IF _soonest IS NOT NULL THEN
            SELECT COALESCE(SUM(fence IS NOT NULL OR arrival < _position), 0),
                COALESCE(SUM(IF(fence IS NOT NULL OR arrival < _position, weight, 0)), 0),
                COALESCE(MAX(weight = 0 AND (fence IS NOT NULL OR arrival < _position)), FALSE),
                MIN(IF(fence IS NOT NULL OR arrival < _position, LEAST(expires, COALESCE(turn, expires)), NULL)) - _now,
                COALESCE(SUM(fence IS NULL), 0),
                MAX(IF(fence IS NOT NULL AND (_weight = 0 OR weight = 0), arrival, NULL)),
                MAX(IF(fence IS NULL AND arrival < _position AND (_weight = 0 OR weight = 0), arrival, NULL)),
                COALESCE(SUM(fence IS NULL AND turn IS NOT NULL), 0)
            INTO _ahead, _units, _whole, _recheck, _waiting, _last_holder, _last_waiter, _turns
            FROM oarlock_claim WHERE resource = _head AND id <> _id;
        END IF;
        SET _stored = COALESCE(_stated, _capacity, 1);
        SET _outcome = CASE
            WHEN NOT _adopt AND _capacity <> _stated THEN 'spec'
            WHEN _stored > 0 AND _weight > _stored THEN 'heavy'
            WHEN IF(_weight = 0, _ahead = 0, NOT _whole AND (_stored = 0 OR _units + _weight <= _stored)) THEN 'granted'
            ELSE 'pending' END;
        IF _outcome = 'granted' OR _soonest IS NULL THEN
            LEAVE decide;
        END IF;
        SET _before = NULL;
        IF _outcome = 'pending' AND _wait THEN
            SELECT id INTO _before FROM oarlock_claim
            WHERE resource = _head AND arrival = COALESCE(_last_waiter, _last_holder);
        END IF;
        -- Something is in the way: only now it matters whether it is alive. The client of a claim that joins the queue
        -- hears of the death of the one before it, which has its lock; and that one looks at those before.
        IF _arrival IS NULL AND _weight = 0
            AND IS_FREE_LOCK(CONCAT('oarlock_w_', LOWER(HEX(COALESCE(_before, 0))))) = 0 THEN
            LEAVE decide;
        END IF;
        CALL oarlock_dead(_head, _session, _position, _dead);
        IF _dead IS NULL THEN
            LEAVE decide;
        END IF;
        CALL oarlock_sweep(_head, _stated, _now, _dead, _called);
        SET _changed = TRUE;
    END LOOP;

    IF _outcome = 'granted' AND _fence IS NULL THEN
        SET _fence = GREATEST(_last_fence + 1, _now);
        IF _fence >= 9007199254740992 THEN
            SET _outcome = 'exhausted', _fence = NULL;
        END IF;
        IF _outcome = 'granted' THEN
            SET _changed = TRUE, _last_fence = _fence, _stated = COALESCE(_stated, _capacity);
            IF _arrival IS NULL THEN
                INSERT INTO oarlock_claim (
                    resource, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since,
                    lease, expires
                ) VALUES (
                    _head, _id, _position, _session, _tethered, _kind, _weight, _behind, _label, _value, _fence, _now,
                    _lease, _now + _lease
                );
            ELSE
                SET _lease = COALESCE(_grace, _lease);
                UPDATE oarlock_claim
                SET session = _session, tethered = _tethered, behind = _behind, fence = _fence, since = _now,
                    turn = NULL, expires = _now + _lease, lease = IF(ending IS NULL, _lease, lease)
                WHERE resource = _head AND id = _id;
            END IF;
        END IF;
    ELSEIF _outcome = 'pending' AND _wait THEN
        SET _changed = TRUE, _stated = COALESCE(_stated, _capacity);
        IF _arrival IS NULL THEN
            INSERT INTO oarlock_claim (
                resource, id, arrival, session, tethered, kind, weight, behind, label, value, since, lease, expires
            ) VALUES (
                _head, _id, _position, _session, _tethered, _kind, _weight, _behind, _label, _value, _now, _place,
                _now + _place
            );
        ELSE
            UPDATE oarlock_claim
            SET session = _session, tethered = _tethered, behind = _behind, expires = _now + COALESCE(_grace, _place),
                lease = IF(ending IS NULL, _place, lease)
            WHERE resource = _head AND id = _id;
        END IF;
        SET _waiting = 1;
    ELSEIF _outcome = 'pending' AND _arrival IS NOT NULL THEN
        DELETE FROM oarlock_claim WHERE resource = _head AND id = _id;
        CALL oarlock_settle(_head, _stated, _now, _called);
        SET _changed = TRUE, _waiting = 0;
    END IF;
    -- Before others see the claim: they wait for this lock. The same connection would be given it twice.
    IF _wake THEN
        SET _wake = FALSE;
        IF (_outcome = 'granted' OR (_outcome = 'pending' AND _wait)) AND IS_FREE_LOCK(_lock) = 1 THEN
            SET _wake = COALESCE(GET_LOCK(_lock, 0), FALSE);
        END IF;
    END IF;
    IF _changed THEN
        -- A grant may leave room for more, or take the turn away from one that was called. A claim that has to wait, or
        -- has everything, calls none.
        IF _waiting > 0 AND (_turns > 0 OR (_outcome = 'granted' AND _weight > 0)) THEN
            CALL oarlock_call(_head, _stated, _now, _called);
        END IF;
        UPDATE oarlock_resource
        SET capacity = _stated, arrivals = GREATEST(arrivals, COALESCE(_position, 0)), last_fence = _last_fence,
            used = GREATEST(used, _now)
        WHERE number = _head;
    END IF;
    COMMIT;
    SELECT _outcome AS outcome, _fence AS fence, _lease AS lease, _memo AS memo, _ahead AS ahead, _recheck AS recheck,
        _stored AS limits, IF(_wait AND _fence IS NULL, _position, NULL) AS arrival, _called AS called,
        _before AS `before`, _wake AS wake;
END;

-- Keeps claims alive, holders and waiters. A name that another transaction has locked is left out, so that it does
-- not delay the others; those are asked for again on their own. Then they are waited for, in the order of the
-- batch, which is that of their names, so that two batches cannot wait for each other.
-- Keys: oarlock_resource by name, locked one after the other until the end; oarlock_claim by resource;
--   oarlock_session by number.
-- Arguments: the session that asks (0: none); how many connections were killed (null: look); whether to wait for
--   locked names; a JSON array with an object per claim, in the order of names: a number, name and id in
--   hexadecimal, lease and place in microseconds, behind, value and memo in hexadecimal, for how many microseconds
--   the memo must be kept at least beyond a day, the least fence, how many fences to reserve.
-- Answer: a JSON array with an object per claim: its number; outcome (alive, gone, broken, session, exhausted,
--   busy, newer); lease in microseconds; the largest fence of a holder; by whom and why it was asked to end. And
--   who was called.
CREATE PROCEDURE IF NOT EXISTS oarlock_renew(
    _session BIGINT, _kills BIGINT, _wait BOOLEAN, _batch LONGTEXT CHARACTER SET utf8mb4
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _at, _lease, _place, _behind, _keep, _least, _reserve BIGINT;
    DECLARE _name VARBINARY(1536);
    DECLARE _id BINARY(16);
    DECLARE _value, _memo LONGBLOB;
    DECLARE _value_hex, _memo_hex LONGTEXT CHARACTER SET utf8mb4;
    DECLARE _head, _capacity, _arrivals, _last_fence, _now, _soonest, _fence, _left, _top BIGINT;
    DECLARE _tether, _there BIGINT;
    DECLARE _format SMALLINT;
    DECLARE _kept BLOB;
    DECLARE _found, _changed, _done BOOLEAN DEFAULT FALSE;
    DECLARE _outcome VARCHAR(16);
    DECLARE _ending TEXT CHARACTER SET utf8mb4;
    DECLARE _called MEDIUMTEXT DEFAULT '';
    DECLARE _answers LONGTEXT CHARACTER SET utf8mb4 DEFAULT '';
    DECLARE asked CURSOR FOR
        SELECT at, UNHEX(name), UNHEX(id), lease, place, behind, value, memo, keep, least, reserve
        FROM JSON_TABLE(_batch, '$[*]' COLUMNS (
            at BIGINT PATH '$.at', name VARCHAR(3072) PATH '$.name', id CHAR(32) PATH '$.id',
            lease BIGINT PATH '$.lease', place BIGINT PATH '$.place', behind BIGINT PATH '$.behind',
            value LONGTEXT PATH '$.value',
            memo LONGTEXT PATH '$.memo', keep BIGINT PATH '$.keep',
            least BIGINT PATH '$.least', reserve BIGINT PATH '$.reserve'
        )) AS batch;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    -- Read before anything is kept: who is killed after this is not taken for heard of.
    IF _session <> 0 THEN
        CALL oarlock_kills(_kills);
    END IF;
    OPEN asked;
    next_one: LOOP
        SET _done = FALSE;
        FETCH asked INTO _at, _name, _id, _lease, _place, _behind, _value_hex, _memo_hex, _keep, _least, _reserve;
        IF _done THEN
            LEAVE next_one;
        END IF;
        SET _outcome = 'gone', _fence = NULL, _ending = NULL, _changed = FALSE, _found = FALSE, _top = NULL,
            _value = UNHEX(_value_hex), _memo = UNHEX(_memo_hex);
        SET _left = NULL, _format = NULL, _there = 0;
        IF _wait THEN
            SELECT format INTO _format FROM oarlock_resource WHERE name = _name FOR UPDATE;
        ELSE
            SELECT format INTO _format FROM oarlock_resource WHERE name = _name FOR UPDATE SKIP LOCKED;
            -- Not EXISTS, which would wait for the row here.
            SELECT COUNT(*) INTO _there FROM oarlock_resource WHERE name = _name;
        END IF;
        one: BEGIN
            IF _format > 1 THEN
                SET _outcome = 'newer';
                LEAVE one;
            ELSEIF _format IS NULL AND _there > 0 THEN
                SET _outcome = 'busy';
                LEAVE one;
            END IF;
            CALL oarlock_enter(_name, FALSE, _head, _capacity, _arrivals, _last_fence, _kept);
            SET _now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
            IF EXISTS (SELECT 1 FROM oarlock_claim WHERE resource = _head AND (expires <= _now OR turn <= _now)) THEN
                CALL oarlock_sweep(_head, _capacity, _now, NULL, _called);
                SET _changed = TRUE;
            END IF;
            SELECT TRUE, IF(tethered, session, _session), fence, ending, LEAST(expires, COALESCE(turn, expires)) - _now
            INTO _found, _tether, _fence, _ending, _left FROM oarlock_claim WHERE resource = _head AND id = _id;
            IF NOT _found THEN
                SELECT ending INTO _ending FROM oarlock_grave WHERE resource = _head AND id = _id
                ORDER BY number DESC LIMIT 1;
                SET _outcome = IF(_ending IS NULL, 'gone', 'broken');
            ELSEIF _tether <> _session THEN
                -- It belonged to another session: other clients may see that end.
                SET _outcome = 'session', _ending = NULL, _fence = NULL;
            ELSEIF _fence IS NULL THEN
                UPDATE oarlock_claim
                SET behind = _behind, expires = IF(ending IS NULL, _now + _place, expires),
                    lease = IF(ending IS NULL, _place, lease)
                WHERE resource = _head AND id = _id;
                -- Its turn must be taken by an attempt; staying alive is not enough to sit on it.
                SELECT LEAST(expires, COALESCE(turn, expires)) - _now INTO _left
                FROM oarlock_claim WHERE resource = _head AND id = _id;
                SET _outcome = 'alive', _ending = NULL;
            ELSE
                SET _outcome = 'alive';
                SET _top = GREATEST(_fence, COALESCE(_least, 0), IF(_reserve > 0, _last_fence + _reserve, 0));
                IF _top >= 9007199254740992 THEN
                    SET _outcome = 'exhausted', _top = NULL;
                ELSE
                    SET _changed = _changed OR _top > _last_fence OR _memo IS NOT NULL;
                    SET _last_fence = GREATEST(_last_fence, _top), _kept = COALESCE(_memo, _kept);
                    UPDATE oarlock_claim
                    SET value = _value, fence = GREATEST(fence, COALESCE(_least, 0)),
                        expires = IF(ending IS NULL, _now + _lease, expires), lease = IF(ending IS NULL, _lease, lease)
                    WHERE resource = _head AND id = _id;
                    IF _ending IS NULL THEN
                        SET _left = _lease;
                    END IF;
                END IF;
            END IF;
            IF _changed THEN
                UPDATE oarlock_resource SET capacity = _capacity, last_fence = _last_fence, memo = _kept,
                    used = GREATEST(used, _now + IF(_memo IS NULL, 0, COALESCE(_keep, 0)))
                WHERE number = _head;
            ELSEIF _found THEN
                UPDATE oarlock_resource SET used = _now WHERE number = _head AND used < _now - 3600000000;
            END IF;
        END one;
        SET _answers = CONCAT(_answers, ',{"at":', _at, ',"outcome":"', _outcome, '","lease":', COALESCE(_left, 0),
            ',"fence":', COALESCE(_top, 'null'), ',"ending":', COALESCE(_ending, 'null'), '}');
    END LOOP;
    CLOSE asked;
    IF _session <> 0 THEN
        UPDATE oarlock_session SET kills = _kills WHERE number = _session AND kills <> _kills;
    END IF;
    COMMIT;
    SELECT CONCAT('[', SUBSTRING(_answers, 2), ']') AS answers, _called AS called;
END;

-- Ends a claim, holder or waiter.
-- Keys: oarlock_resource by name, locked; oarlock_claim by resource.
-- Arguments: name, id, a memo to leave (null: none), by whom and why it is broken (null: by its owner), the grace
--   in microseconds.
-- Answer: outcome (released, not_held, asked); whether a claim waits; which were called; whether this connection
--   released the wake-up lock.
CREATE PROCEDURE IF NOT EXISTS oarlock_release(
    _name VARBINARY(1536), _id BINARY(16), _memo BLOB, _ending TEXT CHARACTER SET utf8mb4, _grace BIGINT
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _head, _capacity, _arrivals, _last_fence, _now, _soonest, _claims, _waiting, _session, _fence BIGINT;
    DECLARE _mine BOOLEAN;
    DECLARE _changed, _wake BOOLEAN DEFAULT FALSE;
    DECLARE _left BLOB;
    DECLARE _outcome VARCHAR(16) DEFAULT 'not_held';
    DECLARE _called MEDIUMTEXT DEFAULT '';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL oarlock_enter(_name, FALSE, _head, _capacity, _arrivals, _last_fence, _left);
    SET _now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    look: LOOP
        SELECT MIN(LEAST(expires, COALESCE(turn, expires))), COALESCE(SUM(id <> _id), 0),
            COALESCE(SUM(id <> _id AND fence IS NULL), 0), COALESCE(MAX(id = _id), FALSE),
            MAX(IF(id = _id, session, NULL)), MAX(IF(id = _id, fence, NULL))
        INTO _soonest, _claims, _waiting, _mine, _session, _fence FROM oarlock_claim WHERE resource = _head;
        IF _soonest IS NULL OR _soonest > _now THEN
            LEAVE look;
        END IF;
        CALL oarlock_sweep(_head, _capacity, _now, NULL, _called);
        SET _changed = TRUE;
    END LOOP;
    IF _mine THEN
        SET _changed = TRUE;
        IF _fence IS NOT NULL THEN
            SET _left = COALESCE(_memo, _left);
        END IF;
        IF _ending IS NOT NULL THEN
            SET _called = CONCAT(_called, LOWER(HEX(_id)), '@', _session, ',');
        END IF;
        IF _grace > 0 THEN
            SET _outcome = 'asked';
            UPDATE oarlock_claim SET ending = _ending, expires = LEAST(expires, _now + _grace)
            WHERE resource = _head AND id = _id;
        ELSE
            SET _outcome = 'released';
            DELETE FROM oarlock_claim WHERE resource = _head AND id = _id;
            IF _ending IS NOT NULL THEN
                CALL oarlock_bury(_head, _id, _ending);
            END IF;
            IF _claims = 0 THEN
                SET _capacity = NULL;
            ELSEIF _waiting > 0 THEN
                CALL oarlock_call(_head, _capacity, _now, _called);
            END IF;
        END IF;
    END IF;
    IF _changed THEN
        UPDATE oarlock_resource SET capacity = _capacity, memo = _left, used = GREATEST(used, _now)
        WHERE number = _head;
    END IF;
    COMMIT;
    -- Not before the commit: the client that waits for it looks at once.
    IF _outcome <> 'asked' AND _id IS NOT NULL THEN
        SET _wake = COALESCE(RELEASE_LOCK(CONCAT('oarlock_w_', LOWER(HEX(_id)))), FALSE);
    END IF;
    SELECT _outcome AS outcome, _waiting > 0 AS others, _called AS called, _wake AS wake;
END;

-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock_fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant.
-- Answer: none; an error with the state OAR02 if a larger fence was here before, or may have been: then the writer
--   has lost its lock, and must roll back.
CREATE PROCEDURE IF NOT EXISTS oarlock_check(_name VARBINARY(1536), _fence BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _largest, _used, _forgotten BIGINT;
    DECLARE _now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    IF _name = '' THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'what is protected needs a name';
    END IF;
    -- A new row is marked with a minus until it is known that nothing was forgotten in its place: how many rows were
    -- changed depends on a setting of the client. Noted once a day: a change of what is indexed costs more than another
    -- one.
    INSERT INTO oarlock_fence (name, fence, used) VALUES (_name, _fence, IF(_fence >= 1000000000000000, -1, NULL))
    ON DUPLICATE KEY UPDATE fence = GREATEST(fence, _fence),
        used = IF(used > _now - 86400000000 OR _fence < 1000000000000000, used, _now);
    SELECT fence, used INTO _largest, _used FROM oarlock_fence WHERE name = _name FOR UPDATE;
    IF _largest > _fence THEN
        SIGNAL SQLSTATE 'OAR02' SET MESSAGE_TEXT = 'a larger fence was here before: the lock is lost';
    END IF;
    IF _used = -1 THEN
        -- Locked, because a transaction may see an older picture of all else.
        SELECT fence INTO _forgotten FROM oarlock_fence WHERE name = '' LOCK IN SHARE MODE;
        IF _fence <= _forgotten THEN
            -- Outside of a transaction it would be there at the next try.
            DELETE FROM oarlock_fence WHERE name = _name;
            SIGNAL SQLSTATE 'OAR02'
                SET MESSAGE_TEXT = 'this fence is too old to tell whether a larger one was here: take the lock again';
        END IF;
        UPDATE oarlock_fence SET used = _now WHERE name = _name;
    END IF;
END;

-- Forgets fences of the protected side that were not used for 30 days and are as old themselves: to be called from time
-- to time where locks are rarely taken under new names. Within a transaction it is refused, because it would commit
-- that one. Keys: as for oarlock_forget_some_fences. Arguments: how many at most. Answer: none.
CREATE PROCEDURE IF NOT EXISTS oarlock_forget_fences(_most BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    BEGIN
        DECLARE EXIT HANDLER FOR SQLEXCEPTION
        BEGIN
            ROLLBACK;
            RESIGNAL;
        END;
        START TRANSACTION;
        CALL oarlock_forget_some_fences(_most);
        COMMIT;
    END;
END;

-- The part of it that runs in the transaction of its caller, so that every row stays locked until all of it is
-- committed. The row without a name keeps the largest fence that was forgotten: a fence up to that one is refused where
-- its own row is gone. Only fences from a clock (microseconds since 1970, so above 10^15) are forgotten: small numbers,
-- from stores that count, would all be refused. It waits for no other transaction. Keys: oarlock_fence by name, the one
-- without a name first. Arguments: how many at most. Answer: none.
CREATE PROCEDURE IF NOT EXISTS oarlock_forget_some_fences(_most BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _floor, _fence, _old BIGINT;
    DECLARE _name VARBINARY(1536);
    DECLARE _done BOOLEAN DEFAULT FALSE;
    DECLARE _before BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 2592000000000;
    DECLARE old CURSOR FOR
        SELECT name, fence FROM oarlock_fence
        WHERE used < _before AND fence >= 1000000000000000 AND fence < _before
        ORDER BY used LIMIT _most FOR UPDATE SKIP LOCKED;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    -- Not IF EXISTS: in a procedure that locks what it reads, and waits for an application that has checked an old
    -- fence and not committed.
    SELECT COUNT(*) INTO _old FROM (SELECT 1 FROM oarlock_fence WHERE used < _before LIMIT 1) AS one;
    IF _old > 0 THEN
        SELECT fence INTO _floor FROM oarlock_fence WHERE name = '' FOR UPDATE SKIP LOCKED;
    END IF;
    IF _floor IS NOT NULL THEN
        OPEN old;
        next_one: LOOP
            SET _done = FALSE;
            FETCH old INTO _name, _fence;
            IF _done THEN
                LEAVE next_one;
            END IF;
            -- In this order: KILL QUERY leaves the transaction open, and the next statement of that client may commit
            -- it.
            UPDATE oarlock_fence SET fence = GREATEST(fence, _fence) WHERE name = '';
            DELETE FROM oarlock_fence WHERE name = _name;
        END LOOP;
        CLOSE old;
    END IF;
END;

INSERT INTO oarlock_format (one, version) VALUES (1, 7)
