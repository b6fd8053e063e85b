-- Ends a claim that take.sql wrote, and that no other step has met since: the short way of a release.
-- Keys: oarlock_resource by name.
-- Arguments: whether this connection has the wake-up lock of the claim, that lock, name, id.
-- Answer: one changed row, and one as the last inserted id if the wake-up lock was released. None is changed where the
--   claim has ended, or is in oarlock_claim: oarlock_release then says what is to be done.
-- No client waits for the lock: one that does has made an attempt, and that put the claim into oarlock_claim.
UPDATE oarlock_resource
SET sole_expires = 0, sole_value = NULL, used = GREATEST(used, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    sole_wake = LAST_INSERT_ID(COALESCE(IF(?, RELEASE_LOCK(?), FALSE), FALSE))
WHERE name = ? AND sole_id = ? AND format = 2
    AND sole_expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
