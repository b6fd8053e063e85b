-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock.fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant. Answer: none; an error with the state OAR02 if a larger fence was
--   here before: then the writer has lost its lock, and its transaction is undone.
CREATE OR REPLACE FUNCTION oarlock.check(_name text, _fence bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    largest bigint;
BEGIN
    INSERT INTO oarlock.fence AS seen (name, fence) VALUES (_name, _fence)
    ON CONFLICT (name) DO UPDATE SET fence = greatest(seen.fence, _fence) RETURNING fence INTO largest;
    IF largest > _fence THEN
        RAISE EXCEPTION 'a larger fence was here before: the lock is lost' USING ERRCODE = 'OAR02';
    END IF;
END $$;
