-- Takes everything of a name that has no claims: the short way of an attempt, one statement without a procedure.
-- Keys: oarlock_resource by name.
-- Arguments: capacity, id, session (zero: none) and whether the claim ends with it, kind, behind, label, value, lease
--   in microseconds twice, whether this connection takes the wake-up lock of the claim, that lock, name.
-- Answer: the fence as the last inserted id, with one changed row. None is changed where the name is new, has claims
--   or a memo, or is of a newer version: oarlock_attempt then says what is to be done.
-- The time is that of the start of the statement. A lease that ends sooner, because the row was locked by another
-- transaction meanwhile, is not sooner than belief, which counts from before the statement was sent.
UPDATE oarlock_resource
SET last_fence = LAST_INSERT_ID(
        GREATEST(last_fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
    ),
    used = GREATEST(used, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    arrivals = arrivals + 1, capacity = ?, sole_id = ?, sole_session = ?, sole_tethered = ?, sole_kind = ?,
    sole_behind = ?, sole_label = ?, sole_value = ?, sole_lease = ?,
    sole_expires = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
    sole_wake = COALESCE(IF(?, GET_LOCK(?, 0), FALSE), FALSE)
WHERE name = ? AND NOT queued AND sole_expires = 0 AND memo IS NULL AND format = 2
    AND GREATEST(last_fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))) < 9007199254740992
