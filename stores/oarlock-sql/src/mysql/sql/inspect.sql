-- What there is: a row per live claim; a name without one has nulls.
-- Keys: oarlock_resource by name; oarlock_claim by resource. Nothing is locked.
-- Arguments: the prefix of all names, one name or null for all that are live, names after this or null, how many
--   names at most.
-- Answer: rows in no order that can be relied on.
CREATE PROCEDURE IF NOT EXISTS oarlock_inspect(
    _prefix VARBINARY(1536), _name VARBINARY(1536), _after VARBINARY(1536), _most BIGINT
) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _gone LONGTEXT DEFAULT '';
    DECLARE _last VARBINARY(1536);
    DECLARE _skipped BIGINT DEFAULT _most - 1;
    DECLARE _now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    CALL oarlock_gone(_name, _gone);
    IF _name IS NULL THEN
        SELECT name INTO _last FROM oarlock_resource
        WHERE LEFT(name, LENGTH(_prefix)) = _prefix AND (_after IS NULL OR name > _after)
            AND ((sole_expires > _now AND NOT (sole_tethered AND FIND_IN_SET(sole_session, _gone))) OR EXISTS (
                SELECT 1 FROM oarlock_claim
                WHERE resource = oarlock_resource.number AND LEAST(expires, COALESCE(turn, expires)) > _now
                    AND NOT (tethered AND FIND_IN_SET(session, _gone))
            ))
        ORDER BY name LIMIT _skipped, 1;
        SELECT name, capacity, last_fence, memo, id, arrival, session, tethered, kind, weight, behind, label, value,
            fence, ending, _now - since AS age,
            -- It may have been renewed a moment later.
            LEAST(expires - _now, COALESCE(turn, expires) - _now, COALESCE(lease, expires - _now)) AS left_over
        FROM oarlock_resource JOIN oarlock_claim ON resource = number
        WHERE LEFT(name, LENGTH(_prefix)) = _prefix AND (_after IS NULL OR name > _after)
            AND (_last IS NULL OR name <= _last)
            AND LEAST(expires, COALESCE(turn, expires)) > _now AND NOT (tethered AND FIND_IN_SET(session, _gone))
        UNION ALL
        SELECT name, capacity, last_fence, memo, sole_id, arrivals, sole_session, sole_tethered, sole_kind, 0,
            sole_behind, sole_label, sole_value, last_fence, NULL, _now - sole_expires + sole_lease,
            LEAST(sole_expires - _now, sole_lease)
        FROM oarlock_resource
        WHERE LEFT(name, LENGTH(_prefix)) = _prefix AND (_after IS NULL OR name > _after)
            AND (_last IS NULL OR name <= _last)
            AND sole_expires > _now AND NOT (sole_tethered AND FIND_IN_SET(sole_session, _gone));
    ELSE
        SELECT name, IF(queued, capacity, NULL) AS capacity, last_fence, memo, id, arrival, session, tethered, kind, weight, behind, label, value,
            fence, ending, _now - since AS age,
            -- It may have been renewed a moment later.
            LEAST(expires - _now, COALESCE(turn, expires) - _now, COALESCE(lease, expires - _now)) AS left_over
        FROM oarlock_resource LEFT JOIN oarlock_claim
            ON resource = number AND LEAST(expires, COALESCE(turn, expires)) > _now
                AND NOT (tethered AND FIND_IN_SET(session, _gone))
        WHERE name = _name AND NOT (sole_expires > _now AND NOT (sole_tethered AND FIND_IN_SET(sole_session, _gone)))
        UNION ALL
        SELECT name, capacity, last_fence, memo, sole_id, arrivals, sole_session, sole_tethered, sole_kind, 0,
            sole_behind, sole_label, sole_value, last_fence, NULL, _now - sole_expires + sole_lease,
            LEAST(sole_expires - _now, sole_lease)
        FROM oarlock_resource
        WHERE name = _name AND sole_expires > _now AND NOT (sole_tethered AND FIND_IN_SET(sole_session, _gone));
    END IF;
END;

-- Arguments: a name, or null for all. Answer: the sessions of its claims that are over, with commas between.
CREATE PROCEDURE IF NOT EXISTS oarlock_gone(_name VARBINARY(1536), OUT _gone LONGTEXT)
    READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _suspect BIGINT;
    DECLARE _over, _done BOOLEAN DEFAULT FALSE;
    DECLARE suspects CURSOR FOR
        SELECT DISTINCT session FROM oarlock_claim
        WHERE tethered
            AND (_name IS NULL OR resource = (SELECT number FROM oarlock_resource WHERE name = _name))
        UNION
        SELECT sole_session FROM oarlock_resource
        WHERE sole_tethered AND sole_expires > 0 AND (_name IS NULL OR name = _name);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    SET _gone = '';
    OPEN suspects;
    next_one: LOOP
        SET _done = FALSE;
        FETCH suspects INTO _suspect;
        IF _done THEN
            LEAVE next_one;
        END IF;
        CALL oarlock_is_over(_suspect, _over);
        IF _over THEN
            SET _gone = CONCAT(_gone, IF(_gone = '', '', ','), _suspect);
        END IF;
    END LOOP;
    CLOSE suspects;
    CALL oarlock_doubts();
END
