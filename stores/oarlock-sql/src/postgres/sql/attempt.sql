-- Takes, keeps or refuses a place: one round trip, one transaction.
-- Keys: oarlock.resource by name, locked; oarlock.claim by resource; oarlock.session by number.
-- Arguments: name, id, session (0: none) and whether the claim ends with it, kind, capacity (null: any, 0:
--   unlimited) and whether a stored one is adopted, weight (0: all), wait, behind, lease and place in microseconds,
--   label, value, the ticket of this request (null: it must ask for its grant), whether this connection stands for
--   the session.
-- Answer: outcome (granted, pending, spec, heavy, upgrade, exhausted); fence, lease in microseconds and memo of a
--   grant; how many stand ahead and after how many microseconds something in the way ends; the capacity that
--   applies; the session of the nearest one ahead that ends with it, for a waiter.
CREATE OR REPLACE FUNCTION oarlock.attempt(
    _name bytea, _id bytea, _session bigint, _tethered boolean, _kind text, _capacity bigint, _adopt boolean,
    _weight bigint, _wait boolean, _behind bigint, _lease bigint, _place bigint, _label text, _value bytea,
    _ticket bigint, _witness boolean,
    OUT outcome text, OUT fence bigint, OUT lease bigint, OUT memo bytea, OUT ahead bigint, OUT recheck bigint,
    OUT stored bigint, OUT nearest bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    mine oarlock.claim;
    units numeric;
    whole boolean;
    waiting bigint;
    in_the_way timestamptz;
    soonest timestamptz;
    too_long boolean;
    place bigint;
    free integer;
    own integer;
    last integer;
    dead bigint[];
    changed boolean := false;
    durable boolean;
    unhurried text;
    widens boolean;
    witnessed boolean;
    now timestamptz;
BEGIN
    -- The usual case in one statement: no claim is there, and no session wants to be told. The claim is in the row of
    -- its name, until the next step that takes the long way moves it. The wait for a locked row is before each time.
    UPDATE oarlock.resource
    SET last_fence = greatest(last_fence + 1, oarlock.micros(clock_timestamp() - 'epoch')), arrivals = arrivals + 1,
        capacity = _capacity, used = greatest(used, clock_timestamp()), sole_id = _id, sole_session = _session,
        sole_tethered = _tethered, sole_kind = _kind, sole_weight = _weight, sole_behind = _behind, sole_label = _label,
        sole_value = _value, sole_lease = _lease,
        sole_expires = clock_timestamp() + _lease * interval '1 microsecond'
    WHERE name = _name AND NOT queued AND sole_id IS NULL AND observers = '{}' AND format = 2
        AND (_weight = 0 OR _capacity = 0 OR _weight <= coalesce(_capacity, 1))
        AND greatest(last_fence + 1, oarlock.micros(clock_timestamp() - 'epoch')) < 9007199254740992
        AND current_setting('transaction_isolation') = 'read committed'
    RETURNING last_fence, memo, EXISTS (
        SELECT FROM oarlock.session
        WHERE number = _session AND requests = pg_backend_pid()
            AND kills = oarlock.killed((SELECT oid FROM pg_database WHERE datname = current_database()))
    ) INTO fence, memo, witnessed;
    IF FOUND THEN
        IF NOT witnessed THEN
            PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
        END IF;
        outcome := 'granted';
        lease := _lease;
        RETURN;
    END IF;
    SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
    IF NOT FOUND OR head.format > 2 OR head.sole_id IS NOT NULL
        OR current_setting('transaction_isolation') <> 'read committed' THEN
        head := oarlock.enter_2(_name, true);
    END IF;
    now := clock_timestamp();
    LOOP
        mine := NULL;
        units := 0;
        whole := false;
        waiting := 0;
        ahead := 0;
        in_the_way := NULL;
        nearest := NULL;
        SELECT min(ends) FILTER (WHERE id IS NOT NULL), min(slot) FILTER (WHERE id IS NULL), max(slot),
            min(slot) FILTER (WHERE id = _id),
            coalesce(bool_or(expires > now + lease * interval '1 microsecond') FILTER (WHERE id IS NOT NULL), false)
        INTO soonest, free, last, own, too_long FROM oarlock.claim WHERE resource = head.key;
        IF too_long THEN
            -- The clock was set back. A holder does not believe for longer than a lease from now.
            UPDATE oarlock.claim SET expires = now + lease * interval '1 microsecond'
            WHERE resource = head.key AND id IS NOT NULL AND expires > now + lease * interval '1 microsecond';
            changed := true;
            CONTINUE;
        END IF;
        IF soonest <= now THEN
            head := oarlock.sweep(head, now, '{}');
            changed := true;
            CONTINUE;
        END IF;
        IF own IS NOT NULL THEN
            SELECT * INTO mine FROM oarlock.claim WHERE resource = head.key AND slot = own;
        ELSIF soonest IS NULL THEN
            head.capacity := NULL;
        END IF;

        IF mine.fence IS NOT NULL THEN
            outcome := 'upgrade';
            IF mine.weight = 0 OR _weight BETWEEN 1 AND mine.weight THEN
                UPDATE oarlock.claim
                SET weight = _weight, kind = _kind, session = _session, tethered = _tethered, ticket = NULL,
                    handed = false,
                    lease = CASE WHEN ending IS NULL THEN _lease ELSE lease END,
                    expires = CASE WHEN ending IS NULL THEN now + _lease * interval '1 microsecond' ELSE expires END
                WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
                head := oarlock.call(head, now);
                outcome := 'granted';
                fence := mine.fence;
                lease := oarlock.micros(mine.expires - now);
                memo := head.memo;
            END IF;
            PERFORM oarlock.leave(head, now);
            PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
            RETURN;
        END IF;

        place := coalesce(mine.arrival, head.arrivals + 1);
        IF soonest IS NOT NULL THEN
            SELECT count(*) FILTER (WHERE blocks), coalesce(sum(weight) FILTER (WHERE blocks), 0),
                coalesce(bool_or(weight = 0) FILTER (WHERE blocks), false), min(ends) FILTER (WHERE blocks),
                count(*) FILTER (WHERE fence IS NULL),
                -- Each waiter looks at the one before it, the first at a holder: one death wakes one.
                (array_agg(session ORDER BY fence IS NOT NULL, arrival DESC) FILTER (WHERE tethered AND blocks))[1]
            INTO ahead, units, whole, in_the_way, waiting, nearest
            FROM (
                SELECT *, fence IS NOT NULL OR arrival < place AS blocks FROM oarlock.claim
                WHERE resource = head.key AND id <> _id
            ) AS others;
        END IF;
        stored := coalesce(head.capacity, _capacity, 1);
        outcome := CASE
            WHEN NOT _adopt AND _capacity <> head.capacity THEN 'spec'
            WHEN stored > 0 AND _weight > stored THEN 'heavy'
            WHEN oarlock.bears(ahead, units, whole, stored, _weight) THEN 'granted'
            ELSE 'pending' END;
        EXIT WHEN outcome = 'granted' OR soonest IS NULL;
        -- Something is in the way: only now it matters whether it is alive. A claim that will wait looks at holders, at
        -- claims whose turn has come and at the nearest claim ahead. So an arrival does not cost more where many wait.
        -- The quick question for all of them at once: it is the answer nearly always. A CASE, so that the liveness
        -- locks of no others are tried.
        PERFORM FROM oarlock.claim
        WHERE resource = head.key AND tethered AND session <> _session
            AND CASE WHEN fence IS NOT NULL OR turn IS NOT NULL OR session = nearest
                OR (arrival < place AND NOT (_wait AND outcome = 'pending'))
                THEN pg_try_advisory_xact_lock_shared(session) ELSE false END
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        dead := oarlock.dead(head.key, _session, CASE WHEN _wait AND outcome = 'pending' THEN 0 ELSE place END);
        IF dead IS NULL AND _wait AND nearest <> _session AND oarlock.is_over(nearest) THEN
            dead := ARRAY[nearest];
        END IF;
        EXIT WHEN dead IS NULL;
        head := oarlock.sweep(head, now, dead);
        changed := true;
    END LOOP;

    recheck := oarlock.micros(in_the_way - now);
    -- What others were given must not be lost.
    durable := changed OR outcome = 'granted';
    IF outcome = 'granted' THEN
        fence := greatest(head.last_fence + 1, oarlock.micros(now - 'epoch'));
        IF fence >= 9007199254740992 THEN
            outcome := 'exhausted';
        END IF;
    ELSIF outcome = 'pending' AND NOT _wait AND mine.id IS NOT NULL THEN
        PERFORM oarlock.vacate(head.key, mine.slot);
        head := oarlock.settle(head, now);
        changed := true;
        durable := true;
    END IF;
    IF outcome = 'granted' OR (outcome = 'pending' AND _wait) THEN
        changed := true;
        head.queued := true;
        widens := head.capacity IS NULL AND _capacity IS NOT NULL;
        head.capacity := coalesce(head.capacity, _capacity);
        head.last_fence := coalesce(fence, head.last_fence);
        head.arrivals := greatest(head.arrivals, place);
        lease := CASE WHEN fence IS NULL THEN _place ELSE _lease END;
        memo := head.memo;
        IF mine.id IS NOT NULL THEN
            UPDATE oarlock.claim
            SET session = _session, tethered = _tethered, behind = _behind, fence = attempt.fence,
                lease = CASE WHEN ending IS NULL THEN attempt.lease ELSE lease END,
                since = CASE WHEN attempt.fence IS NULL THEN since ELSE now END,
                turn = CASE WHEN attempt.fence IS NULL THEN turn END,
                ticket = CASE WHEN attempt.fence IS NULL THEN _ticket END,
                -- A claim that was asked to end gets no more time, waiting or holding.
                expires = CASE WHEN ending IS NULL THEN now + attempt.lease * interval '1 microsecond' ELSE expires END
            WHERE resource = head.key AND slot = mine.slot RETURNING * INTO mine;
            lease := oarlock.micros(mine.expires - now);
        ELSIF free IS NOT NULL THEN
            UPDATE oarlock.claim
            SET id = _id, arrival = place, session = _session, tethered = _tethered, kind = _kind, weight = _weight,
                behind = _behind, label = _label, value = _value, fence = attempt.fence, since = now,
                lease = attempt.lease, ticket = CASE WHEN attempt.fence IS NULL THEN _ticket END, handed = false,
                expires = now + attempt.lease * interval '1 microsecond'
            WHERE resource = head.key AND slot = free;
        ELSE
            INSERT INTO oarlock.claim (
                resource, slot, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since, lease,
                expires, ticket
            ) VALUES (
                head.key, coalesce(last, 0) + 1, _id, place, _session, _tethered, _kind, _weight, _behind, _label,
                _value, attempt.fence, now, attempt.lease, now + attempt.lease * interval '1 microsecond',
                CASE WHEN attempt.fence IS NULL THEN _ticket END
            );
        END IF;
        -- A grant may leave room for more, or take the turn away from one that was called. A place at the end changes
        -- nothing for the others, unless this claim is the first to state a capacity.
        IF waiting > 0 AND (outcome = 'granted' OR widens) THEN
            head := oarlock.call(head, now);
            durable := true;
        END IF;
    END IF;
    IF changed THEN
        PERFORM oarlock.leave(head, now);
        PERFORM oarlock.witness(_session, oarlock.kills(), _witness);
    END IF;
    IF NOT durable THEN
        -- A crash can take away a position in the queue, which its client then asks for anew, or nothing. A later grant
        -- that survives keeps it: the log is in order.
        unhurried := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;
