-- What every verb is made of. The row of a name is locked first; a step changes it in variables and writes it once.
-- Keys: oarlock_resource by name, oarlock_claim by resource. Times are the server's, read once the row is locked.

-- Arguments: name, whether to make its row. Answer: the row, locked; nulls if there is none. A claim that take.sql wrote
-- to the row becomes one like all others. Its name has the format of rows: a step of another format that is still under
-- way must not find it.
CREATE PROCEDURE IF NOT EXISTS oarlock_enter_2(
    _name VARBINARY(1536), _make BOOLEAN, OUT _head BIGINT, OUT _capacity BIGINT, OUT _arrivals BIGINT,
    OUT _last_fence BIGINT, OUT _memo BLOB
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _format SMALLINT DEFAULT 0;
    DECLARE _queued BOOLEAN DEFAULT TRUE;
    DECLARE _sole BIGINT DEFAULT 0;
    SET _head = NULL;
    SELECT number, format, capacity, arrivals, last_fence, memo, queued, sole_expires
    INTO _head, _format, _capacity, _arrivals, _last_fence, _memo, _queued, _sole
    FROM oarlock_resource WHERE name = _name FOR UPDATE;
    IF _head IS NULL AND _make THEN
        -- Not INSERT IGNORE: two who both share the row that a third made would wait for each other.
        INSERT INTO oarlock_resource (name, used)
        VALUES (_name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) ON DUPLICATE KEY UPDATE name = _name;
        SELECT number, format, capacity, arrivals, last_fence, memo, queued, sole_expires
        INTO _head, _format, _capacity, _arrivals, _last_fence, _memo, _queued, _sole
        FROM oarlock_resource WHERE name = _name FOR UPDATE;
        CALL oarlock_forget(_head);
    END IF;
    IF _format > 2 THEN
        SIGNAL SQLSTATE 'OAR01' SET MESSAGE_TEXT = 'this name was written by a newer version';
    END IF;
    IF _sole > 0 THEN
        INSERT INTO oarlock_claim (
            resource, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since, lease, expires
        ) SELECT number, sole_id, arrivals, sole_session, sole_tethered, sole_kind, 0, sole_behind, sole_label,
            sole_value, last_fence, sole_expires - sole_lease, sole_lease, sole_expires
        FROM oarlock_resource WHERE number = _head;
        UPDATE oarlock_resource SET queued = TRUE, sole_expires = 0 WHERE number = _head;
    ELSEIF NOT _queued THEN
        -- Of a claim that has left: without claims there is none.
        SET _capacity = NULL;
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
        ) AND sole_expires <= _now AND used <= _now - 86400000000 AND last_fence <= _now - 86400000000 FOR UPDATE SKIP LOCKED;
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
END
