//! What the driver needs in a database, and its version.

use oarlock_core::Result;
use tokio_postgres::Client;

use crate::postgres::config::Config;
use crate::postgres::connection::dial;
use crate::postgres::error::{STORE, failed};
use crate::postgres::pooler::first;

/// The format of tables and functions that this code speaks.
pub(crate) const FORMAT: i32 = 11;

/// Makes what is missing; run by at most one client at a time.
const PARTS: [&str; 8] = [
    include_str!("sql/schema.sql"),
    include_str!("sql/session.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/attempt.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/observe.sql"),
    include_str!("sql/check.sql"),
];

/// Functions of an older format go, for they may have other arguments; tables stay, with what they hold.
const RAISE: &str = include_str!("sql/raise.sql");
const LOCK: i64 = 0x006f_6172_6c6f_636b;

/// A table that an open transaction has locked is not waited for longer than this: steps of clients wait behind the
/// change of a table.
const PATIENCE: &str = "SET LOCAL lock_timeout = '5s';";

/// What makes it all, in one transaction, and the rights of the role `grant` if one is given.
#[must_use]
pub fn script(grant: Option<&str>) -> String {
    let (parts, rights) = (PARTS.join("\n"), grant.map(rights).unwrap_or_default());
    let made = format!(
        "INSERT INTO oarlock.format (version) VALUES ({FORMAT})
ON CONFLICT (singleton) DO UPDATE SET version = excluded.version WHERE format.version < excluded.version;"
    );
    format!("BEGIN;\nSELECT pg_advisory_xact_lock({LOCK});\n{PATIENCE}\n{RAISE}\n{parts}\n{made}\n{rights}COMMIT;\n")
}

/// The fewest rights that a client needs, once the schema exists.
fn rights(role: &str) -> String {
    let role = role.replace('"', "\"\"");
    format!(
        "GRANT USAGE ON SCHEMA oarlock TO \"{role}\";\nGRANT SELECT ON oarlock.format TO \"{role}\";\n\
         GRANT SELECT, INSERT, UPDATE, DELETE ON oarlock.resource, oarlock.claim, oarlock.session, oarlock.fence TO \"{role}\";\n"
    )
}

/// Makes what is missing, and gives the role `grant` the rights that locks need.
///
/// # Errors
/// As for [`Postgres::connect`](crate::postgres::Postgres::connect).
pub async fn init(config: Config, grant: Option<&str>) -> Result<()> {
    let (client, connection) = dial(&config).await?;
    tokio::spawn(connection);
    if is_there(&client).await? && version(&client).await? > FORMAT {
        return check(&client).await;
    }
    client.batch_execute(&script(grant)).await.map_err(failed)?;
    check(&client).await
}

/// Checks the format of what is there, makes it if there is nothing, and tries it. After an error the connection is of
/// no more use.
pub(crate) async fn prepare(client: &Client) -> Result<()> {
    if !is_there(client).await? {
        client.batch_execute(&script(None)).await.map_err(failed)?;
    }
    check(client).await?;
    client.batch_execute(include_str!("sql/warm.sql")).await.map_err(failed)
}

async fn is_there(client: &Client) -> Result<bool> {
    first(client, "SELECT to_regclass('oarlock.format') IS NOT NULL, $1::bigint AS echo").await
}

async fn version(client: &Client) -> Result<i32> {
    first(client, "SELECT version, $1::bigint AS echo FROM oarlock.format").await
}

async fn check(client: &Client) -> Result<()> {
    match version(client).await? {
        FORMAT => Ok(()),
        other => Err(STORE.other_format(other.into(), FORMAT.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_same_wherever_it_is_written() {
        let raises = format!("(SELECT version FROM oarlock.format) < {FORMAT}");
        assert!(RAISE.contains(&raises) && PARTS[0].contains(&raises));
    }

    #[test]
    fn a_role_is_only_a_name() {
        assert!(script(Some("a\"; DROP")).contains("TO \"a\"\"; DROP\";"));
        assert!(!script(None).contains("GRANT"));
    }
}
