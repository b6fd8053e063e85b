-- The server must not take a silent client for dead before its leases have ended: two hours, and leases that end
-- with a session are at most one hour long. The wait for a row that another transaction keeps locked is ten seconds
-- at most. Settings that a server does not have are left out.
-- Keys: none.
-- Arguments: none.
-- Answer: how many were set.
SELECT count(set_config(name, value, false)) FROM pg_settings JOIN (VALUES
    ('idle_session_timeout', '0'), ('tcp_keepalives_idle', '3600'), ('tcp_user_timeout', '7200000'),
    ('lock_timeout', '10000')
) AS wanted(name, value) USING (name)
