-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock_fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant. Answer: none; an error with the state OAR02 if a larger fence was
--   here before, or may have been: then the writer has lost its lock, and must roll back.
CREATE PROCEDURE IF NOT EXISTS oarlock_check(_name VARBINARY(1536), _fence BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _largest, _used, _forgotten BIGINT;
    DECLARE _now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    IF _name = '' THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'what is protected needs a name';
    END IF;
    -- A new row is marked with a minus until it is known that nothing was forgotten in its place: how many rows were changed depends on a
    -- setting of the client. Noted once a day: a change of what is indexed costs more than another one.
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

-- Forgets fences of the protected side that were not used for 30 days and are as old themselves. The row without a name keeps the largest of
-- them: a fence up to that one is refused where its own row is gone. Only fences from a clock (microseconds since 1970, so above 10^15)
-- are forgotten: small numbers, from stores that count, would all be refused. It waits for no other transaction.
-- Keys: oarlock_fence by name, the one without a name first. Arguments: how many at most. Answer: none.
CREATE PROCEDURE IF NOT EXISTS oarlock_forget_fences(_most BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _floor, _fence BIGINT;
    DECLARE _name VARBINARY(1536);
    DECLARE _done BOOLEAN DEFAULT FALSE;
    DECLARE _before BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 2592000000000;
    DECLARE old CURSOR FOR
        SELECT name, fence FROM oarlock_fence
        WHERE used < _before AND fence >= 1000000000000000 AND fence < _before
        ORDER BY used LIMIT _most FOR UPDATE SKIP LOCKED;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    IF EXISTS (SELECT 1 FROM oarlock_fence WHERE used < _before) THEN
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
            DELETE FROM oarlock_fence WHERE name = _name;
            SET _floor = GREATEST(_floor, _fence);
        END LOOP;
        CLOSE old;
        UPDATE oarlock_fence SET fence = _floor WHERE name = '';
    END IF;
END
