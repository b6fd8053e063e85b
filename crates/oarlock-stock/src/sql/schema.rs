//! The tables, and the few words that differ between databases.

use oarlock_rows::Dialect;

/// The statements that make the tables, and the one procedure, if they are not there.
pub(super) fn tables(dialect: Dialect) -> Vec<String> {
    // Compared byte by byte everywhere.
    let name = if is_mysql(dialect) { "varbinary(190)" } else { "varchar(190)" };
    let mut statements = vec![
        format!(
            "create table if not exists oarlock_stock_item (sku {name} primary key, segments bigint not null, \
             generation bigint not null, delivered bigint not null)"
        ),
        format!(
            "create table if not exists oarlock_stock_segment (sku {name} not null, segment bigint not null, \
             available bigint not null check (available >= 0), primary key (sku, segment))"
        ),
    ];
    let indexes = "key oarlock_stock_overdue (sku, state, expires)";
    let indexes = if is_mysql(dialect) { format!(", {indexes}") } else { String::new() };
    statements.push(format!(
        "create table if not exists oarlock_stock_reservation (sku {name} not null, id {name} not null, \
         segment bigint not null, quantity bigint not null, state char(1) not null, expires bigint, \
         primary key (sku, id){indexes})"
    ));
    if is_mysql(dialect) {
        statements.push(include_str!("take.sql").to_owned());
    } else {
        let columns = "oarlock_stock_reservation (sku, state, expires)";
        statements.push(format!("create index if not exists oarlock_stock_overdue on {columns}"));
    }
    statements
}

/// The statement with the places for values that this database knows.
pub(super) fn placed(dialect: Dialect, sql: &str) -> String {
    if dialect != Dialect::Postgres {
        return sql.to_owned();
    }
    let mut parts = sql.split('?');
    let mut placed = parts.next().unwrap_or_default().to_owned();
    for (at, part) in parts.enumerate() {
        placed.push_str(&format!("${}{part}", at + 1));
    }
    placed
}

/// These columns as one text, with spaces between.
pub(super) fn joined(dialect: Dialect, columns: &[&str]) -> String {
    if is_mysql(dialect) { format!("concat({})", columns.join(", ' ', ")) } else { columns.join(" || ' ' || ") }
}

/// Milliseconds since 1970 by the database's own clock.
pub(super) fn now(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "(extract(epoch from clock_timestamp()) * 1000)::bigint",
        Dialect::Sqlite => "cast((julianday('now') - 2440587.5) * 86400000 as integer)",
        _ => "cast(unix_timestamp(now(3)) * 1000 as signed)",
    }
}

/// Inserts, unless the key is there.
pub(super) fn insert_new(dialect: Dialect, into: &str) -> String {
    match dialect {
        Dialect::Postgres => format!("insert into {into} on conflict do nothing"),
        Dialect::Sqlite => format!("insert or ignore into {into}"),
        _ => format!("insert ignore into {into}"),
    }
}

/// The end of a query whose rows no other transaction may change until the transaction ends. A transaction of SQLite
/// has them all.
pub(super) fn for_update(dialect: Dialect) -> &'static str {
    if dialect == Dialect::Sqlite { "" } else { " for update" }
}

/// The end of a query that reads what is committed now, and not what the transaction saw at its beginning.
pub(super) fn for_share(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "",
        Dialect::Postgres => " for share",
        _ => " lock in share mode",
    }
}

pub(super) fn is_mysql(dialect: Dialect) -> bool {
    matches!(dialect, Dialect::MySql | Dialect::MariaDb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_where_they_must_be() {
        assert_eq!(placed(Dialect::Postgres, "a = ? and b = ?"), "a = $1 and b = $2");
        assert_eq!(placed(Dialect::MariaDb, "a = ? and b = ?"), "a = ? and b = ?");
    }
}
