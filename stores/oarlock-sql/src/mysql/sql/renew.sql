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
            IF _format > 2 THEN
                SET _outcome = 'newer';
                LEAVE one;
            ELSEIF _format IS NULL AND _there > 0 THEN
                SET _outcome = 'busy';
                LEAVE one;
            END IF;
            CALL oarlock_enter_2(_name, FALSE, _head, _capacity, _arrivals, _last_fence, _kept);
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
END
