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
END
