-- Ends a claim, holder or waiter.
-- Keys: oarlock.resource by name, locked; oarlock.claim by resource.
-- Arguments: name, id, a memo to leave (null: none), by whom and why it is broken (null: by its owner), the grace in
--   microseconds.
-- Answer: outcome (released, not_held, asked); whether others wait.
CREATE OR REPLACE FUNCTION oarlock.release(
    _name bytea, _id bytea, _memo bytea, _ending text, _grace bigint, OUT outcome text, OUT others boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    head oarlock.resource;
    crowd record;
    now timestamptz;
    changed boolean := false;
    durable boolean;
    unhurried text;
BEGIN
    -- The usual case in one statement: the claim is in the row of its name, so that no other is there, and nothing must
    -- not be lost.
    IF _memo IS NULL AND _ending IS NULL THEN
        UPDATE oarlock.resource SET sole_id = NULL, sole_label = '', sole_value = NULL
        WHERE name = _name AND sole_id = _id AND observers = '{}' AND format = 2
            AND used > clock_timestamp() - interval '1 hour'
            AND sole_expires > clock_timestamp() AND sole_expires <= clock_timestamp() + interval '1 minute'
            AND current_setting('transaction_isolation') = 'read committed';
        IF FOUND THEN
            outcome := 'released';
            others := false;
            unhurried := set_config('synchronous_commit', 'off', true);
            RETURN;
        END IF;
    END IF;
    SELECT * INTO head FROM oarlock.resource WHERE name = _name FOR UPDATE;
    IF NOT FOUND OR head.format > 2 OR head.sole_id IS NOT NULL
        OR current_setting('transaction_isolation') <> 'read committed' THEN
        head := oarlock.enter_2(_name, false);
    END IF;
    now := clock_timestamp();
    LOOP
        SELECT min(ends) FILTER (WHERE id IS NOT NULL) AS soonest, count(*) FILTER (WHERE id <> _id) AS claims,
            count(*) FILTER (WHERE id <> _id AND fence IS NULL) AS waiting, min(slot) FILTER (WHERE id = _id) AS slot,
            min(session) FILTER (WHERE id = _id) AS session, min(fence) FILTER (WHERE id = _id) AS fence,
            min(expires) FILTER (WHERE id = _id) AS expires
        INTO crowd FROM oarlock.claim WHERE resource = head.key;
        EXIT WHEN crowd.soonest IS NULL OR crowd.soonest > now;
        head := oarlock.sweep(head, now, '{}');
        changed := true;
    END LOOP;
    others := crowd.waiting > 0;
    -- What others were given, told or left must not be lost, nor the end of a claim that would come back for long.
    durable := changed OR others OR _memo IS NOT NULL OR _ending IS NOT NULL
        OR coalesce(crowd.expires > now + interval '1 minute', false);
    outcome := 'not_held';
    IF crowd.slot IS NOT NULL THEN
        changed := true;
        IF _ending IS NOT NULL THEN
            PERFORM oarlock.tell(crowd.session, encode(_id, 'hex'));
        END IF;
        IF crowd.fence IS NOT NULL THEN
            head.memo := coalesce(_memo, head.memo);
        END IF;
        IF _grace > 0 THEN
            outcome := 'asked';
            UPDATE oarlock.claim
            SET ending = _ending, expires = least(expires, now + _grace * interval '1 microsecond')
            WHERE resource = head.key AND slot = crowd.slot;
        ELSE
            outcome := 'released';
            PERFORM oarlock.vacate(head.key, crowd.slot);
            IF _ending IS NOT NULL THEN
                head := oarlock.bury(head, _id, _ending);
            END IF;
            IF crowd.claims = 0 THEN
                head.capacity := NULL;
                head.queued := false;
            ELSIF others THEN
                head := oarlock.call(head, now);
            END IF;
        END IF;
    END IF;
    IF changed THEN
        PERFORM oarlock.leave(head, now);
    END IF;
    IF NOT durable THEN
        -- After a crash the claim may be back, and ends with its lease. No later grant can be there without this
        -- release: the log is in order.
        unhurried := set_config('synchronous_commit', 'off', true);
    END IF;
END $$;
