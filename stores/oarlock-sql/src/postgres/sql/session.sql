-- Sessions: how one begins, who answers for it, and when it is over.
-- Keys: oarlock.session by number, and the advisory lock of that number, its liveness lock.

-- Arguments: a session. Takes its liveness lock, which the server releases when this connection ends, and writes its
-- row. What was over for longer than the longest lease that can end with a session is forgotten.
CREATE OR REPLACE FUNCTION oarlock.begin(_session bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock(_session);
    WITH old AS (
        SELECT number FROM oarlock.session
        WHERE server <> pg_postmaster_start_time() OR ended < clock_timestamp() - interval '1 hour'
        FOR UPDATE SKIP LOCKED
    )
    DELETE FROM oarlock.session USING old WHERE session.number = old.number;
    WITH backend AS MATERIALIZED (
        SELECT pid FROM pg_stat_get_activity(NULL) WHERE pid IS NOT NULL
    ), old AS (
        SELECT number FROM oarlock.session
        WHERE ended IS NULL AND pid NOT IN (SELECT pid FROM backend) AND requests NOT IN (SELECT pid FROM backend)
        FOR UPDATE SKIP LOCKED
    )
    UPDATE oarlock.session SET ended = clock_timestamp() FROM old WHERE session.number = old.number;
    INSERT INTO oarlock.session (number, server, pid) VALUES (_session, pg_postmaster_start_time(), pg_backend_pid());
END $$;

-- Answer: how many sessions of this database were ended by an administrator. Exact since version 15, where a backend
-- writes it down before it leaves the list of those that are alive.
CREATE OR REPLACE FUNCTION oarlock.kills() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    here oid := (SELECT oid FROM pg_database WHERE datname = current_database());
BEGIN
    IF current_setting('server_version_num')::integer < 150000 THEN
        RETURN 0;
    END IF;
    RETURN pg_stat_get_db_sessions_killed(here);
END $$;

-- Arguments: a database. Answer: the same for that one, in a form that the planner puts in place of its call. It only
-- decides whether a session is written anew: after an upgrade of the server it may be too small until `oarlock init`,
-- and sessions are then taken for older than they are.
DO $$
BEGIN
    EXECUTE 'CREATE OR REPLACE FUNCTION oarlock.killed(_database oid) RETURNS bigint LANGUAGE sql STABLE AS '
        || CASE WHEN current_setting('server_version_num')::integer < 150000 THEN quote_literal('SELECT 0::bigint')
            ELSE quote_literal('SELECT pg_stat_get_db_sessions_killed(_database)') END;
END $$;

-- Arguments: a session, how many had been killed, whether this connection stands for the session. Makes that one its
-- second liveness lock: a process that dies loses both at once, while the end of one connection of a client has not
-- shown that it is dead. Its other connections do not write here, so that they need not wait for each other, unless
-- there is no second one yet. Taken after all names, so that no deadlock is possible.
CREATE OR REPLACE FUNCTION oarlock.witness(_session bigint, _seen bigint, _witness boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF _session <> 0 THEN
        UPDATE oarlock.session SET requests = pg_backend_pid(), kills = _seen
        WHERE number = _session AND (_witness OR requests = 0) AND (requests <> pg_backend_pid() OR kills <> _seen);
    END IF;
END $$;

-- Arguments: a session. Answer: whether this server saw it begin, neither of its liveness locks is left, and no
-- connection was killed since its client was last heard of: then it was the client's side that ended them.
CREATE OR REPLACE FUNCTION oarlock.is_over(_session bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    known oarlock.session;
BEGIN
    SELECT * INTO known FROM oarlock.session WHERE number = _session AND server = pg_postmaster_start_time();
    -- The quick question first: it is the answer nearly always. Shared, so that two who look do not see each other.
    IF NOT FOUND OR NOT pg_try_advisory_xact_lock_shared(_session) THEN
        RETURN false;
    END IF;
    -- A backend always gets its own liveness lock; that it is alive is seen here.
    IF EXISTS (SELECT FROM pg_stat_get_activity(NULL) WHERE pid IN (known.pid, known.requests)) THEN
        RETURN false;
    END IF;
    RETURN known.kills = oarlock.kills();
END $$;

-- Arguments: a session. Returns once its liveness lock is released, and waits for up to half a second more until its
-- other connection is gone too. Answer: whether it is over; null if nothing happened for a while. As long as a
-- statement lasts, nothing is removed that died after its start, in no table of the database: so it must be asked again
-- and again.
CREATE OR REPLACE FUNCTION oarlock.await_end(_session bigint) RETURNS boolean
    LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
BEGIN
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(_session);
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
    FOR look IN 1..100 LOOP
        -- Inside a transaction the server would show the same picture of its backends for ever.
        PERFORM pg_stat_clear_snapshot();
        IF oarlock.is_over(_session) THEN
            RETURN true;
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
    RETURN false;
END $$;
