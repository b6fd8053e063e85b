-- What every verb is made of. `head` is the locked row of a name: a step changes it in memory and writes it once.
-- Keys: oarlock.resource by name, oarlock.claim by resource. Times are the server's, read once the row is locked.

-- Arguments: a span. Answer: its whole microseconds. Simple enough for the planner to put it in place of its calls.
CREATE OR REPLACE FUNCTION oarlock.micros(_span interval) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT floor(extract(epoch FROM _span) * 1000000)::bigint;
$$;

-- Arguments: the locked row. Answer: the row, whose claim is in oarlock.claim now, like all others.
CREATE OR REPLACE FUNCTION oarlock.unfold(head oarlock.resource) RETURNS oarlock.resource LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO oarlock.claim AS old (
        resource, slot, id, arrival, session, tethered, kind, weight, behind, label, value, fence, since, lease, expires
    ) VALUES (
        head.key, 1, head.sole_id, head.arrivals, head.sole_session, head.sole_tethered, head.sole_kind,
        head.sole_weight, head.sole_behind, head.sole_label, head.sole_value, head.last_fence,
        head.sole_expires - head.sole_lease * interval '1 microsecond', head.sole_lease, head.sole_expires
    ) ON CONFLICT (resource, slot) DO UPDATE
    SET id = excluded.id, arrival = excluded.arrival, session = excluded.session, tethered = excluded.tethered,
        kind = excluded.kind, weight = excluded.weight, behind = excluded.behind, label = excluded.label,
        value = excluded.value, fence = excluded.fence, since = excluded.since, lease = excluded.lease,
        expires = excluded.expires, ticket = NULL, handed = false, turn = NULL, ending = NULL;
    UPDATE oarlock.resource SET queued = true, sole_id = NULL, sole_label = '', sole_value = NULL WHERE key = head.key;
    head.queued := true;
    head.sole_id := NULL;
    RETURN head;
END $$;

-- Arguments: name, whether to make its row. Answer: the row, locked, without a claim in it; nulls if there is none. Its
-- name has the format of rows: a step of another format that is still under way must not find it.
CREATE OR REPLACE FUNCTION oarlock.enter_2(_name bytea, _make boolean) RETURNS oarlock.resource LANGUAGE plpgsql AS $$
DECLARE
    head oarlock.resource;
    idle bigint[];
BEGIN
    -- Each statement of a step must see what others committed before the row was locked.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'locks need READ COMMITTED, not %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported';
    END IF;
    LOOP
        SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
        EXIT WHEN FOUND OR NOT _make;
        INSERT INTO oarlock.resource (name) VALUES (_name) ON CONFLICT (name) DO NOTHING;
        -- Each new name looks at ten old ones, and forgets those that were not used for a day. The clock alone then
        -- decides their next fence, so a fence that was given while the clock was ahead is kept. It waits for no other
        -- step.
        idle := ARRAY(
            SELECT old.key
            FROM (
                SELECT key FROM oarlock.resource
                WHERE key >= (SELECT floor(random() * max(key))::bigint FROM oarlock.resource) ORDER BY key LIMIT 10
            ) AS few JOIN oarlock.resource AS old USING (key)
            WHERE old.used < clock_timestamp() - interval '24 hours'
                AND (old.sole_id IS NULL OR old.sole_expires < clock_timestamp())
                AND old.last_fence < oarlock.micros(clock_timestamp() - interval '24 hours' - 'epoch')
                AND NOT EXISTS (
                    SELECT FROM oarlock.claim
                    WHERE resource = old.key AND id IS NOT NULL AND ends > clock_timestamp()
                )
                AND NOT EXISTS (SELECT FROM oarlock.session WHERE number = ANY (old.observers) AND ended IS NULL)
            FOR UPDATE OF old SKIP LOCKED
        );
        -- Looked at once more now that they are locked: a renewal is written to its claim alone.
        WITH gone AS (
            DELETE FROM oarlock.resource AS old
            WHERE key = ANY (idle)
                AND NOT EXISTS (
                    SELECT FROM oarlock.claim
                    WHERE resource = old.key AND id IS NOT NULL AND ends > clock_timestamp()
                )
            RETURNING key
        )
        DELETE FROM oarlock.claim USING gone WHERE resource = gone.key;
        -- A role that only takes locks may lack the right.
        IF has_table_privilege('oarlock.fence', 'SELECT') AND has_table_privilege('oarlock.fence', 'UPDATE')
            AND has_table_privilege('oarlock.fence', 'DELETE') THEN
            PERFORM oarlock.forget_fences(10);
        END IF;
    END LOOP;
    IF head.format > 2 THEN
        RAISE EXCEPTION 'this name was written by a newer version' USING ERRCODE = 'OAR01';
    END IF;
    IF head.sole_id IS NOT NULL THEN
        RETURN oarlock.unfold(head);
    END IF;
    RETURN head;
END $$;

-- Arguments: the row, the time. Writes it back, and notifies the sessions that watch the next change.
CREATE OR REPLACE FUNCTION oarlock.leave(head oarlock.resource, _now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(head.observers) > 0 THEN
        PERFORM oarlock.tell(session, 'r' || encode(head.name, 'hex')) FROM unnest(head.observers) AS session;
    END IF;
    UPDATE oarlock.resource
    SET capacity = head.capacity, arrivals = head.arrivals, last_fence = head.last_fence, memo = head.memo,
        used = greatest(head.used, _now), graves = head.graves, epitaphs = head.epitaphs, observers = '{}',
        queued = head.queued
    WHERE key = head.key;
END $$;

-- Arguments: a session (0: a client that does not listen), the hexadecimal id of a claim or `r` and that of a name.
-- Sent with the commit. A transaction whose notice does not fit into the queue of the server cannot commit at all, so
-- none is sent when the queue is nearly full: the session looks by itself.
CREATE OR REPLACE FUNCTION oarlock.tell(_session bigint, _what text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('oarlock_' || to_hex(_session), _what) WHERE _session <> 0 AND pg_notification_queue_usage() < 0.9;
$$;

-- Arguments: the row, the time. Answer: the row. Grants to the waiters that fit now and can be told so: each holds from
-- now on, for two seconds, until its client asks or renews. The notification has all that the client needs: id, fence,
-- the ticket of the last request, the lease of the grant in microseconds, and the memo in hexadecimal. The client
-- believes from that request on: it was before this step, by its own clock. A notification of another role has no
-- ticket. Other waiters are called: each has two seconds to come. If one of them was silent for so long that it may
-- hang, the next one is told to look, and learns when those two seconds are over; where many wait, one of them looks
-- soon enough.
CREATE OR REPLACE FUNCTION oarlock.call(head oarlock.resource, _now timestamptz) RETURNS oarlock.resource
    LANGUAGE plpgsql AS $$
DECLARE
    room bigint := coalesce(head.capacity, 1);
    claims bigint := 0;
    units numeric := 0;
    whole boolean := false;
    doubtful boolean := false;
    next_fence bigint;
    waiter record;
BEGIN
    -- The holders come first.
    FOR waiter IN
        SELECT slot, id, arrival, weight, session, fence, turn, ticket, ending, expires, lease FROM oarlock.claim
        WHERE resource = head.key AND id IS NOT NULL ORDER BY fence IS NULL, arrival
    LOOP
        IF waiter.fence IS NULL AND NOT oarlock.bears(claims, units, whole, room, waiter.weight) THEN
            UPDATE oarlock.claim SET turn = NULL
            WHERE resource = head.key AND id IS NOT NULL AND fence IS NULL AND turn IS NOT NULL
                AND arrival >= waiter.arrival;
            IF doubtful AND (SELECT count(*) FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL) <= 32 THEN
                PERFORM oarlock.tell(waiter.session, encode(waiter.id, 'hex'));
            END IF;
            -- A claim that does not fit holds back those behind it.
            EXIT;
        END IF;
        claims := claims + 1;
        units := units + waiter.weight;
        whole := whole OR waiter.weight = 0;
        CONTINUE WHEN waiter.fence IS NOT NULL OR waiter.turn IS NOT NULL;
        doubtful := doubtful
            OR _now - waiter.expires + waiter.lease * interval '1 microsecond' > interval '200 milliseconds';
        next_fence := greatest(head.last_fence + 1, oarlock.micros(_now - 'epoch'));
        IF waiter.ticket IS NOT NULL AND waiter.session <> 0 AND waiter.ending IS NULL AND next_fence < 9007199254740992
            AND coalesce(length(head.memo), 0) <= 3000 AND pg_notification_queue_usage() < 0.9 THEN
            head.last_fence := next_fence;
            UPDATE oarlock.claim
            SET fence = next_fence, handed = true, since = _now, lease = least(lease, 2000000),
                expires = least(expires, _now + interval '2 seconds')
            WHERE resource = head.key AND slot = waiter.slot;
            PERFORM pg_notify(
                'oarlock_' || to_hex(waiter.session),
                concat_ws(' ', encode(waiter.id, 'hex'), next_fence, waiter.ticket, least(waiter.lease, 2000000),
                    encode(head.memo, 'hex'))
            );
        ELSE
            UPDATE oarlock.claim SET turn = _now + interval '2 seconds'
            WHERE resource = head.key AND slot = waiter.slot;
            PERFORM oarlock.tell(waiter.session, encode(waiter.id, 'hex'));
        END IF;
    END LOOP;
    RETURN head;
END $$;

-- Arguments: what stands there (claims, units, whether one took all), the capacity, a weight. Answer: whether it fits.
CREATE OR REPLACE FUNCTION oarlock.bears(_claims bigint, _units numeric, _whole boolean, _room bigint, _weight bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _weight = 0 THEN _claims = 0
        ELSE NOT _whole AND (_room = 0 OR _units + _weight <= _room) END;
$$;

-- Arguments: the row, the time. Answer: the row, once claims were removed: an empty one has no capacity.
CREATE OR REPLACE FUNCTION oarlock.settle(head oarlock.resource, _now timestamptz) RETURNS oarlock.resource
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM oarlock.claim WHERE resource = head.key AND id IS NOT NULL) THEN
        head := oarlock.call(head, _now);
    ELSE
        head.capacity := NULL;
        head.queued := false;
    END IF;
    RETURN head;
END $$;

-- Arguments: the row, a broken claim, by whom and why. Answer: the row, which remembers the last eight.
CREATE OR REPLACE FUNCTION oarlock.bury(head oarlock.resource, _id bytea, _ending text) RETURNS oarlock.resource
LANGUAGE plpgsql AS $$
BEGIN
    head.graves := (ARRAY[_id] || head.graves)[:8];
    head.epitaphs := (ARRAY[_ending] || head.epitaphs)[:8];
    RETURN head;
END $$;

-- Arguments: a resource, a slot. Frees it; of the free ones only a few are kept.
CREATE OR REPLACE FUNCTION oarlock.vacate(_resource bigint, _slot integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF _slot > 8 THEN
        DELETE FROM oarlock.claim WHERE resource = _resource AND slot = _slot;
    ELSE
        UPDATE oarlock.claim
        SET id = NULL, fence = NULL, tethered = false, turn = NULL, ending = NULL, label = '', value = NULL
        WHERE resource = _resource AND slot = _slot;
    END IF;
END $$;

-- Arguments: the row, the time, dead sessions. Answer: the row, without what has run out or ended with them.
CREATE OR REPLACE FUNCTION oarlock.sweep(head oarlock.resource, _now timestamptz, _dead bigint[])
RETURNS oarlock.resource LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    FOR gone IN
        SELECT slot, id, ending FROM oarlock.claim
        WHERE resource = head.key AND id IS NOT NULL AND (ends <= _now OR (tethered AND session = ANY (_dead)))
    LOOP
        PERFORM oarlock.vacate(head.key, gone.slot);
        IF gone.ending IS NOT NULL THEN
            head := oarlock.bury(head, gone.id, gone.ending);
        END IF;
    END LOOP;
    RETURN oarlock.settle(head, _now);
END $$;

-- Arguments: a resource, the session that asks, an arrival. Answer: the dead sessions of holders, of waiters whose turn
-- has come, and of waiters that arrived before.
CREATE OR REPLACE FUNCTION oarlock.dead(_resource bigint, _me bigint, _before bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    suspect bigint;
    dead bigint[];
BEGIN
    FOR suspect IN
        SELECT DISTINCT session FROM oarlock.claim
        WHERE resource = _resource AND tethered AND session <> _me
            AND (fence IS NOT NULL OR turn IS NOT NULL OR arrival < _before)
    LOOP
        IF oarlock.is_over(suspect) THEN
            dead := dead || suspect;
        END IF;
    END LOOP;
    RETURN dead;
END $$;
