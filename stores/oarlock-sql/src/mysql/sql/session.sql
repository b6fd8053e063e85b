-- Sessions: how one begins, and when it is over.
-- Keys: oarlock_session by number, oarlock_server by name. Each connection of a session holds one of its sixteen named
-- locks, `oarlock_<number in hexadecimal>_<0 to 15>`.

-- Arguments: how many times a connection was killed on this server, or null to look. Answer: that number. MySQL has it
-- in no table: the client has to ask there, and null stays null. MariaDB alone reads what is in this comment.
CREATE PROCEDURE IF NOT EXISTS oarlock_kills(INOUT _kills BIGINT) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    /*M! IF _kills IS NULL THEN
        SELECT variable_value INTO _kills FROM information_schema.global_status WHERE variable_name = 'COM_KILL';
    END IF; */
END;

-- Answer: the run of this server in which a session can begin; null if none has.
CREATE PROCEDURE IF NOT EXISTS oarlock_boot(OUT _boot BINARY(16)) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    SET _boot = NULL;
    SELECT boot INTO _boot FROM oarlock_server
    WHERE name = UNHEX(LEFT(SHA2(CONCAT_WS('|', @@hostname, @@port, @@server_id, @@datadir), 256), 32));
END;

-- Arguments: a session that has connections, sixteen random bytes, how many were killed (null: look). Writes it down.
-- What this run of the server has not seen, or has not seen alive for a day, is forgotten: that can only make others
-- more patient.
CREATE PROCEDURE IF NOT EXISTS oarlock_begin(_session BIGINT, _random BINARY(16), _kills BIGINT)
    MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _boot BINARY(16);
    DECLARE _now, _old BIGINT;
    DECLARE _dark, _done BOOLEAN DEFAULT FALSE;
    DECLARE old CURSOR FOR SELECT number FROM oarlock_session WHERE begun < _now - 86400000000 ORDER BY begun LIMIT 20;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET _done = TRUE;
    INSERT INTO oarlock_server (name, boot)
    VALUES (UNHEX(LEFT(SHA2(CONCAT_WS('|', @@hostname, @@port, @@server_id, @@datadir), 256), 32)), _random)
    ON DUPLICATE KEY UPDATE boot = boot;
    CALL oarlock_boot(_boot);
    CALL oarlock_kills(_kills);
    SET _now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    INSERT INTO oarlock_session (number, boot, kills, begun) VALUES (_session, _boot, _kills, _now)
    ON DUPLICATE KEY UPDATE boot = _boot, kills = _kills, begun = _now;
    OPEN old;
    forget: LOOP
        SET _done = FALSE;
        FETCH old INTO _old;
        IF _done THEN
            LEAVE forget;
        END IF;
        CALL oarlock_is_dark(_old, _dark);
        IF _dark THEN
            DELETE FROM oarlock_session WHERE number = _old;
        ELSE
            -- Others are looked at before it is again.
            UPDATE oarlock_session SET begun = _now WHERE number = _old;
        END IF;
    END LOOP;
    CLOSE old;
END;

-- Arguments: a session. Answer: whether none of its connections is here.
CREATE PROCEDURE IF NOT EXISTS oarlock_is_dark(_session BIGINT, OUT _dark BOOLEAN) NO SQL SQL SECURITY INVOKER
BEGIN
    DECLARE _witness INT DEFAULT 0;
    SET _dark = TRUE;
    WHILE _dark AND _witness < 16 DO
        SET _dark = IS_FREE_LOCK(CONCAT('oarlock_', LOWER(HEX(_session)), '_', _witness)) = 1;
        SET _witness = _witness + 1;
    END WHILE;
END;

-- Arguments: a session. Answer: whether this run of this server saw it begin, none of its connections is left, and none
-- was killed since its client was last heard of: then it was the client's side that ended them. Where the client has to
-- count, it must count after the connections were found gone. It is told by the state OAR03 (oarlock_doubts) and the
-- list @oarlock_doubt, and asks again with those in @oarlock_dark and the count in @oarlock_kills.
CREATE PROCEDURE IF NOT EXISTS oarlock_is_over(_session BIGINT, OUT _over BOOLEAN) READS SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE _boot, _seen BINARY(16);
    DECLARE _kills, _then BIGINT;
    -- The quick question first: it is the answer nearly always.
    CALL oarlock_is_dark(_session, _over);
    IF _over THEN
        CALL oarlock_boot(_boot);
        SELECT boot, kills INTO _seen, _then FROM oarlock_session WHERE number = _session;
        SET _over = COALESCE(_boot = _seen, FALSE);
    END IF;
    IF _over THEN
        SET _kills = IF(FIND_IN_SET(_session, @oarlock_dark), @oarlock_kills, NULL);
        CALL oarlock_kills(_kills);
        IF _kills IS NULL THEN
            SET @oarlock_doubt = CONCAT_WS(',', @oarlock_doubt, _session);
        END IF;
        SET _over = COALESCE(_kills = _then, FALSE);
    END IF;
END;

-- Raises the state OAR03 if a session is in doubt until the client has counted who was killed.
CREATE PROCEDURE IF NOT EXISTS oarlock_doubts() NO SQL SQL SECURITY INVOKER
BEGIN
    IF @oarlock_doubt IS NOT NULL THEN
        SIGNAL SQLSTATE 'OAR03' SET MESSAGE_TEXT = 'how many connections were killed on this server?';
    END IF;
END
