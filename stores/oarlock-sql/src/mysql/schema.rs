//! What the driver needs in a database, and its version.

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::Result;

use crate::mysql::config::Config;
use crate::mysql::connection::dial;
use crate::mysql::error::{NO_SUCH_TABLE, STORE, failed};

/// The format of tables and procedures that this code speaks.
pub(crate) const FORMAT: i64 = 9;

const PARTS: [&str; 8] = [
    include_str!("sql/schema.sql"),
    include_str!("sql/session.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/attempt.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/inspect.sql"),
    include_str!("sql/check.sql"),
];

/// Procedures of older formats that have no successor of the same name.
const FORMER: [&str; 1] = ["oarlock_enter"];

const ATTEMPT: &str = "oarlock_attempt";

/// How the procedures are to read what they do, whatever the server's own taste.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";

/// What the `mariadb` and `mysql` programs need to make it by hand, and the rights of the user `grant` if one is given.
#[must_use]
pub fn script(grant: Option<&str>) -> String {
    let mut script = format!("{MODE};\n");
    let (tables, procedures) = (PARTS[0], &PARTS[1..]);
    script += tables.trim_end();
    script += ";\n\n";
    // Those of an older format stay otherwise.
    for procedure in dropped() {
        script += &format!("{};\n", drop_of(procedure));
    }
    script += "\nDELIMITER //\n";
    for part in procedures {
        // The end of a procedure is the only one that is not indented.
        script += &format!("{}\n", part.trim_end()).replace("\nEND;\n", "\nEND//\n").replace("\nEND\n", "\nEND//\n");
    }
    script += "DELIMITER ;\n\n";
    for statement in std::iter::once(made()).chain(grant.into_iter().flat_map(rights)) {
        script += &format!("{statement};\n");
    }
    script
}

/// Makes what is missing, and gives the user `grant` the rights that locks need.
///
/// # Errors
/// As for [`MySql::connect`](crate::mysql::MySql::connect).
pub async fn init(config: Config, grant: Option<&str>) -> Result<()> {
    config.check()?;
    let mut conn = dial(&config).await.map_err(|error| error.during("init"))?;
    if is_older(&mut conn).await? {
        // One at a time: another would drop what was just made, and the rights to it. The lock ends with the
        // connection.
        conn.query_drop(ALONE).await.map_err(failed)?;
        if is_older(&mut conn).await? {
            raise(&mut conn).await?;
        }
    }
    prepare(&mut conn).await?;
    for right in grant.into_iter().flat_map(rights) {
        conn.query_drop(right).await.map_err(failed)?;
    }
    Ok(())
}

/// A table or row that an open transaction has locked is not waited for longer than this: steps of clients wait behind
/// the change of a table.
const PATIENCE: &str = "SET SESSION lock_wait_timeout = 5, innodb_lock_wait_timeout = 5";

/// A step that is under way is waited for: what is half raised serves no client.
const UNTIL_DONE: &str = "SET SESSION lock_wait_timeout = DEFAULT, innodb_lock_wait_timeout = DEFAULT";

/// Waits for its turn to raise the format of this database: a minute at most, after which it goes on.
const ALONE: &str = "DO GET_LOCK(CONCAT('oarlock_init_', LEFT(SHA2(DATABASE(), 256), 32)), 60)";

async fn is_older(conn: &mut Conn) -> Result<bool> {
    Ok(version(conn).await?.is_some_and(|found| found < FORMAT))
}

/// Makes the procedures of this format in place of older ones, which may answer in another way. Tables stay, with what
/// they hold. They come first: where they cannot be changed now, clients go on with the procedures that they have.
async fn raise(conn: &mut Conn) -> Result<()> {
    for statement in [MODE, PATIENCE, PARTS[0]] {
        conn.query_drop(statement).await.map_err(failed)?;
    }
    let granted = granted(conn).await;
    conn.query_drop(UNTIL_DONE).await.map_err(failed)?;
    for procedure in dropped() {
        conn.query_drop(drop_of(procedure)).await.map_err(failed)?;
    }
    make(conn).await?;
    for (procedure, user) in granted {
        conn.query_drop(format!("GRANT EXECUTE ON PROCEDURE {procedure} TO {user}")).await.map_err(failed)?;
    }
    Ok(())
}

fn drop_of(procedure: &str) -> String {
    format!("DROP PROCEDURE IF EXISTS {procedure}")
}

/// Which users are to call which of the procedures: the rights to a procedure go with it. A user who could take locks
/// needs all of today's, also those that the older format did not have. Empty if the server does not let us look.
async fn granted(conn: &mut Conn) -> Vec<(&'static str, String)> {
    let rights =
        "SELECT LOWER(routine_name), CONCAT(QUOTE(user), '@', QUOTE(host)) FROM mysql.procs_priv WHERE db = DATABASE()";
    let rights: Vec<(String, String)> = conn.query(rights).await.unwrap_or_default();
    let of = |(had, user): (String, String)| {
        let needed = procedures().filter(move |procedure| *procedure == had || had == ATTEMPT);
        needed.map(move |procedure| (procedure, user.clone()))
    };
    rights.into_iter().flat_map(of).collect()
}

/// The fewest rights that a client needs, once the tables are made.
fn rights(user: &str) -> Vec<String> {
    let user = user.replace('\\', "\\\\").replace('\'', "''");
    let mut rights = vec![format!("GRANT SELECT ON oarlock_format TO '{user}'")];
    for table in ["resource", "claim", "session", "fence"] {
        rights.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON oarlock_{table} TO '{user}'"));
    }
    rights.push(format!("GRANT SELECT, INSERT, DELETE ON oarlock_grave TO '{user}'"));
    rights.push(format!("GRANT SELECT, INSERT, UPDATE ON oarlock_server TO '{user}'"));
    rights.extend(procedures().map(|name| format!("GRANT EXECUTE ON PROCEDURE {name} TO '{user}'")));
    rights
}

/// The names of all procedures.
fn procedures() -> impl Iterator<Item = &'static str> {
    let made = PARTS[1..].iter().flat_map(|part| part.split("CREATE PROCEDURE IF NOT EXISTS ").skip(1));
    made.filter_map(|rest| rest.split('(').next())
}

/// Those that a client of an older format may have. The last one tells who has rights: if not all are dropped, the next
/// `init` still finds these users.
fn dropped() -> impl Iterator<Item = &'static str> {
    procedures().filter(|procedure| *procedure != ATTEMPT).chain(FORMER).chain([ATTEMPT])
}

/// Says that all of it is there.
fn made() -> String {
    format!(
        "INSERT INTO oarlock_format (one, version) VALUES (1, {FORMAT})
        ON DUPLICATE KEY UPDATE version = GREATEST(version, {FORMAT})"
    )
}

/// Checks the format of what is there, and makes it if there is nothing.
pub(crate) async fn prepare(conn: &mut Conn) -> Result<()> {
    let found = match version(conn).await? {
        Some(found) => found,
        None => {
            make(conn).await?;
            version(conn).await?.ok_or_else(|| STORE.unexpected("its tables are not there"))?
        }
    };
    if found == FORMAT { Ok(()) } else { Err(STORE.other_format(found, FORMAT)) }
}

pub(crate) async fn version(conn: &mut Conn) -> Result<Option<i64>> {
    match conn.query_first("SELECT version FROM oarlock_format").await {
        Err(mysql_async::Error::Server(told)) if told.code == NO_SUCH_TABLE => Ok(None),
        version => version.map_err(failed),
    }
}

/// Every part can be repeated, and the version comes last: a run that was interrupted leaves nothing that is in the
/// way.
async fn make(conn: &mut Conn) -> Result<()> {
    conn.query_drop(MODE).await.map_err(failed)?;
    for part in PARTS {
        conn.query_drop(part).await.map_err(failed)?;
    }
    conn.query_drop(made()).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_ends_each_procedure_where_the_client_looks_for_it() {
        let script = script(Some("app"));
        let made = script.matches("CREATE PROCEDURE").count();
        assert_eq!((script.matches("\nEND//\n").count(), script.matches("\nEND;\n").count()), (made, 0));
        assert!(script.contains("GRANT EXECUTE ON PROCEDURE oarlock_attempt TO 'app';"), "{script}");
        assert_eq!(script.matches("GRANT EXECUTE").count(), made);
    }

    #[test]
    fn a_user_is_only_a_name() {
        assert!(rights("a' OR '1")[0].ends_with("TO 'a'' OR ''1'"));
    }
}
