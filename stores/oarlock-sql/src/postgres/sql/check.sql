-- For the protected side: call it in the transaction of a write that a lock protects, before the write.
-- Keys: oarlock.fence by name, locked until that transaction ends.
-- Arguments: what is protected, the fence of the writer's grant.
-- Answer: none; an error with the state OAR02 if a larger fence was here before, or may have been: then the writer
--   has lost its lock, and its transaction is undone.
CREATE OR REPLACE FUNCTION oarlock.check(_name text, _fence bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    largest bigint;
    forgotten bigint;
    now timestamptz := clock_timestamp();
BEGIN
    IF _name = '' THEN
        RAISE EXCEPTION 'what is protected needs a name' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Noted once a day: a change of what is indexed costs more than another one.
    UPDATE oarlock.fence
    SET fence = greatest(fence, _fence),
        used = CASE WHEN used > now - interval '1 day' OR _fence < 1000000000000000 THEN used ELSE now END
    WHERE name = _name RETURNING fence INTO largest;
    IF NOT FOUND THEN
        INSERT INTO oarlock.fence AS seen (name, fence, used)
        VALUES (_name, _fence, CASE WHEN _fence >= 1000000000000000 THEN now END)
        ON CONFLICT (name) DO UPDATE SET fence = greatest(seen.fence, _fence) RETURNING fence INTO largest;
        -- A row that was forgotten before this one was made is seen here. Where all statements of a transaction see the
        -- same picture, the server ends it if the row has changed since.
        IF current_setting('transaction_isolation') = 'read committed' THEN
            SELECT fence INTO forgotten FROM oarlock.fence WHERE name = '';
        ELSE
            SELECT fence INTO forgotten FROM oarlock.fence WHERE name = '' FOR SHARE;
        END IF;
        IF _fence >= 1000000000000000 AND _fence <= forgotten THEN
            RAISE EXCEPTION 'this fence is too old to tell whether a larger one was here: take the lock again'
                USING ERRCODE = 'OAR02';
        END IF;
    END IF;
    IF largest > _fence THEN
        RAISE EXCEPTION 'a larger fence was here before: the lock is lost' USING ERRCODE = 'OAR02';
    END IF;
END $$;

-- Forgets fences of the protected side that were not used for 30 days and are as old themselves. The row without a name
-- keeps the largest of them: a fence up to that one is refused where its own row is gone. Only fences from a clock
-- (microseconds since 1970, so above 10^15) are forgotten: small numbers, from stores that count, would all be refused.
-- It waits for no other transaction. Keys: oarlock.fence by name, the one without a name first. Arguments: how many at
-- most. Answer: how many.
CREATE OR REPLACE FUNCTION oarlock.forget_fences(_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    before timestamptz := clock_timestamp() - interval '30 days';
    largest bigint;
    many bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM oarlock.fence WHERE used < before) THEN
        RETURN 0;
    END IF;
    PERFORM FROM oarlock.fence WHERE name = '' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT name FROM oarlock.fence
        WHERE used < before AND fence >= 1000000000000000 AND fence < oarlock.micros(before - 'epoch')
        ORDER BY used LIMIT _most FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM oarlock.fence AS seen USING old WHERE seen.name = old.name RETURNING seen.fence
    )
    SELECT max(fence), count(*) INTO largest, many FROM gone;
    IF many > 0 THEN
        UPDATE oarlock.fence SET fence = greatest(fence, largest) WHERE name = '';
    END IF;
    RETURN many;
END $$;
