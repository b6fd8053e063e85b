-- Ends a claim, holder or waiter.
-- Keys: oarlock_resource by name, locked; oarlock_claim by resource.
-- Arguments: name, id, a memo to leave (null: none), by whom and why it is broken (null: by its owner), the grace
--   in microseconds.
-- Answer: outcome (released, not_held, asked); whether a claim waits; whether the name has a memo; which were called; whether this connection
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
    CALL oarlock_enter_2(_name, FALSE, _head, _capacity, _arrivals, _last_fence, _left);
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
        UPDATE oarlock_resource SET capacity = _capacity, memo = _left, used = GREATEST(used, _now),
            queued = _claims > 0 OR _outcome = 'asked'
        WHERE number = _head;
    END IF;
    COMMIT;
    -- Not before the commit: the client that waits for it looks at once.
    IF _outcome <> 'asked' AND _id IS NOT NULL THEN
        SET _wake = COALESCE(RELEASE_LOCK(CONCAT('oarlock_w_', LOWER(HEX(_id)))), FALSE);
    END IF;
    SELECT _outcome AS outcome, _waiting > 0 AS others, _left IS NOT NULL AS memo, _called AS called, _wake AS wake;
END
