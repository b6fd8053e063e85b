-- Removes the functions of an older format: what replaces them may have other arguments.
-- Keys: none.
-- Arguments: none.
-- Answer: none.
DO $$
DECLARE
    old regprocedure;
BEGIN
    IF to_regclass('oarlock.format') IS NOT NULL THEN
        IF (SELECT version FROM oarlock.format) < 11 THEN
            FOR old IN SELECT oid FROM pg_proc WHERE pronamespace = 'oarlock'::regnamespace LOOP
                EXECUTE 'DROP FUNCTION ' || old;
            END LOOP;
        END IF;
    END IF;
END $$;
