-- Tells a session of the next change of a name, once.
-- Keys: oarlock.resource by name, locked.
-- Arguments: name, session.
-- Answer: none.
CREATE OR REPLACE FUNCTION oarlock.observe(_name bytea, _session bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head oarlock.resource := oarlock.enter_2(_name, true);
BEGIN
    UPDATE oarlock.resource
    SET used = greatest(used, clock_timestamp()), observers = array_append(array_remove(observers, _session), _session)
    WHERE key = head.key;
END $$;
