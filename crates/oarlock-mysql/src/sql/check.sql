-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock_fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant. Answer: none; an error with the state OAR02 if a larger fence was
--   here before: then the writer has lost its lock, and must roll back.
CREATE PROCEDURE IF NOT EXISTS oarlock_check(_name VARBINARY(1536), _fence BIGINT) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _largest BIGINT;
    INSERT INTO oarlock_fence (name, fence) VALUES (_name, _fence)
    ON DUPLICATE KEY UPDATE fence = GREATEST(fence, _fence);
    SELECT fence INTO _largest FROM oarlock_fence WHERE name = _name FOR UPDATE;
    IF _largest > _fence THEN
        SIGNAL SQLSTATE 'OAR02' SET MESSAGE_TEXT = 'a larger fence was here before: the lock is lost';
    END IF;
END
