-- Keeps claims alive, holders and waiters. A name that another transaction has locked is left out, so that it does
-- not delay the others; those are asked for again on their own. Then they are waited for, in the order of their
-- names, so that two batches cannot wait for each other, and for a second at most.
-- Keys: oarlock.resource by name, locked one after the other until the end; oarlock.claim by resource;
--   oarlock.session by number.
-- Arguments: the session that asks (0: none); whether to wait for locked names; arrays with one element per claim:
--   name, id, lease and place in microseconds, behind, value, memo, for how many microseconds that must be kept at
--   least beyond a day, the least fence, how many fences to reserve, whether its client knows that it holds, the
--   ticket of this request (null: it must ask for its grant).
-- Answer: per claim its place in the arrays; outcome (alive, gone, broken, session, exhausted, busy, newer); lease
--   in microseconds; the largest fence of a holder; by whom and why it was asked to end.
CREATE OR REPLACE FUNCTION oarlock.renew(
    _session bigint, _wait boolean, _names bytea[], _ids bytea[], _leases bigint[], _places bigint[],
    _behind bigint[], _values bytea[], _memos bytea[], _keeps bigint[], _least bigint[], _reserve bigint[],
    _held boolean[], _tickets bigint[]
) RETURNS TABLE (at bigint, outcome text, lease bigint, fence bigint, ending text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    mine oarlock.claim;
    asked record;
    now timestamptz;
    changed boolean;
    form smallint;
    -- Read before anything is kept: who is killed after this is not taken for heard of.
    seen bigint := oarlock.kills();
BEGIN
    IF _wait THEN
        PERFORM set_config('lock_timeout', '1s', true);
    END IF;
    FOR asked IN
        SELECT * FROM unnest(
            _names, _ids, _leases, _places, _behind, _values, _memos, _keeps, _least, _reserve, _held, _tickets
        ) WITH ORDINALITY AS batch(name, id, lease, place, behind, value, memo, keep, least, reserve, held, ticket, at)
        ORDER BY name, at
    LOOP
        at := asked.at;
        outcome := 'gone';
        lease := NULL;
        fence := NULL;
        ending := NULL;
        changed := false;
        IF _wait THEN
            SELECT format INTO form FROM oarlock.resource WHERE name = asked.name FOR UPDATE;
        ELSE
            SELECT format INTO form FROM oarlock.resource WHERE name = asked.name FOR UPDATE SKIP LOCKED;
        END IF;
        IF form > 2
            OR (form IS NULL AND NOT _wait AND EXISTS (SELECT FROM oarlock.resource WHERE name = asked.name)) THEN
            outcome := CASE WHEN form > 2 THEN 'newer' ELSE 'busy' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        head := oarlock.enter_2(asked.name, false);
        now := clock_timestamp();
        IF EXISTS (SELECT FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL AND ends <= now) THEN
            head := oarlock.sweep(head, now, '{}');
            changed := true;
        END IF;
        SELECT * INTO mine FROM oarlock.claim WHERE resource = head.key AND id = asked.id;
        IF NOT FOUND THEN
            ending := head.epitaphs[array_position(head.graves, asked.id)];
            outcome := CASE WHEN ending IS NULL THEN 'gone' ELSE 'broken' END;
        ELSIF mine.tethered AND mine.session <> _session THEN
            -- It belonged to a session that is no longer its client's: other clients may have seen that end.
            outcome := 'session';
        ELSIF mine.fence IS NULL THEN
            UPDATE oarlock.claim
            SET behind = asked.behind, ticket = CASE WHEN session = _session THEN asked.ticket END,
                lease = CASE WHEN ending IS NULL THEN asked.place ELSE lease END,
                expires = CASE WHEN ending IS NULL THEN now + asked.place * interval '1 microsecond' ELSE expires END
            WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
            outcome := 'alive';
            -- Its turn must be taken by an attempt; staying alive is not enough to sit on it.
            lease := oarlock.micros(mine.ends - now);
        ELSIF mine.handed AND NOT asked.held AND asked.least IS NULL AND asked.reserve IS NULL
            AND asked.memo IS NULL THEN
            -- Its client does not know of the grant: to keep it would let a client sit on a lock that it does not use.
            outcome := 'alive';
            lease := oarlock.micros(mine.ends - now);
        ELSE
            outcome := 'alive';
            fence := greatest(mine.fence, asked.least,
                CASE WHEN asked.reserve > 0 THEN head.last_fence + asked.reserve END);
            IF fence >= 9007199254740992 THEN
                outcome := 'exhausted';
            ELSE
                changed := changed OR fence > head.last_fence OR asked.memo IS NOT NULL;
                head.last_fence := greatest(head.last_fence, fence);
                IF asked.memo IS NOT NULL THEN
                    head.memo := asked.memo;
                    -- As if it had been used then: no later use shortens that.
                    head.used := greatest(head.used, now + asked.keep * interval '1 microsecond');
                END IF;
                UPDATE oarlock.claim
                SET value = asked.value, handed = false, ticket = NULL, fence = greatest(mine.fence, asked.least),
                    lease = CASE WHEN ending IS NULL THEN asked.lease ELSE lease END,
                    expires = CASE WHEN ending IS NULL THEN now + asked.lease * interval '1 microsecond'
                        ELSE expires END
                WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
                lease := oarlock.micros(mine.expires - now);
                ending := mine.ending;
            END IF;
        END IF;
        IF changed THEN
            PERFORM oarlock.leave(head, now);
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM oarlock.witness(_session, seen, true);
END $$;
