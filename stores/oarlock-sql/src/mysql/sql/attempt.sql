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
    CALL oarlock_enter_2(_name, TRUE, _head, _stated, _arrivals, _last_fence, _memo);
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
            used = GREATEST(used, _now), queued = TRUE
        WHERE number = _head;
    END IF;
    COMMIT;
    SELECT _outcome AS outcome, _fence AS fence, _lease AS lease, _memo AS memo, _ahead AS ahead, _recheck AS recheck,
        _stored AS limits, IF(_wait AND _fence IS NULL, _position, NULL) AS arrival, _called AS called,
        _before AS `before`, _wake AS wake;
END
