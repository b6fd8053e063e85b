-- Lets the server compile and plan the verbs now instead of under the first lock: that takes it some milliseconds
-- for each connection. Undone at once, on a name that no other client uses.
-- Keys: one that starts with a zero byte and has the number of this backend.
-- Arguments: none.
-- Answer: none.
BEGIN;
SELECT oarlock.attempt(name, name, 0, false, '', NULL, true, 0, true, 0, 1000000, 1000000, '', NULL, NULL, true),
    oarlock.attempt(name, 'second', 1, false, '', NULL, true, 0, true, 0, 1000000, 1000000, '', NULL, 1, true),
    oarlock.renew(0, true, ARRAY[name], ARRAY[name], '{1000000}', '{1000000}', '{0}', '{NULL}', '{NULL}', '{0}',
        '{NULL}', '{NULL}', '{false}', '{NULL}'),
    oarlock.release(name, name, NULL, NULL, 0), oarlock.release(name, 'second', NULL, NULL, 0),
    oarlock.attempt(name, name, 0, false, '', NULL, true, 0, true, 0, 1000000, 1000000, '', NULL, NULL, true),
    oarlock.release(name, name, NULL, NULL, 0)
FROM (SELECT '\x00'::bytea || int4send(pg_backend_pid()) AS name) AS warm;
ROLLBACK
