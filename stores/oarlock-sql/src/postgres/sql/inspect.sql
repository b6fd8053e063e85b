-- What there is: a row per live claim, in order of names and arrival; a name without one has nulls.
-- Keys: oarlock.resource by name; oarlock.claim by resource. Nothing is locked.
-- Arguments: $1 the prefix of all names, $2 one name or null for all that are live, $3 names after this or null, $4 how
--   many names at most, $5 what comes back in every row. There is always one, if only of nulls.
WITH backend AS MATERIALIZED (
    SELECT pid FROM pg_stat_get_activity(NULL) WHERE pid IS NOT NULL
), over AS MATERIALIZED (
    SELECT number FROM oarlock.session
    WHERE server = pg_postmaster_start_time()
        AND pid NOT IN (SELECT pid FROM backend) AND requests NOT IN (SELECT pid FROM backend)
        AND kills = (SELECT oarlock.kills())
), live AS MATERIALIZED (
    SELECT resource, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since, ends, ending
    FROM oarlock.claim
    WHERE id IS NOT NULL AND ends > clock_timestamp() AND NOT (tethered AND session IN (SELECT number FROM over))
        AND ($2::bytea IS NULL OR resource = (SELECT key FROM oarlock.resource WHERE name = $2))
    UNION ALL
    SELECT key, sole_id, arrivals, sole_session, sole_tethered, sole_kind, sole_weight, sole_behind, sole_label,
        sole_value, last_fence, sole_expires - sole_lease * interval '1 microsecond', sole_expires, NULL
    FROM oarlock.resource
    WHERE sole_id IS NOT NULL AND sole_expires > clock_timestamp()
        AND NOT (sole_tethered AND sole_session IN (SELECT number FROM over)) AND ($2::bytea IS NULL OR name = $2)
), page AS (
    SELECT * FROM oarlock.resource
    WHERE CASE WHEN $2::bytea IS NULL
        THEN substring(name FOR length($1::bytea)) = $1 AND key IN (SELECT resource FROM live)
        ELSE name = $2 END
        AND ($3::bytea IS NULL OR name > $3)
    ORDER BY name LIMIT $4::bigint
)
SELECT page.name, CASE WHEN live.id IS NOT NULL THEN page.capacity END AS capacity, page.last_fence, page.memo,
    live.id, live.session, live.tethered, live.kind, live.weight, live.behind, live.label, live.value, live.fence,
    live.ending, oarlock.micros(clock_timestamp() - live.since) AS age,
    oarlock.micros(live.ends - clock_timestamp()) AS left_over, asked.echo
FROM (SELECT $5::bigint AS echo) AS asked LEFT JOIN page ON true LEFT JOIN live ON live.resource = page.key
ORDER BY page.name, live.arrival
