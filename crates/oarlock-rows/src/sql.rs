//! The text of the statements, in every dialect.

use crate::Dialect;

/// `"a"."b"` for `a.b`: whatever the name, it stays a name.
pub(crate) fn quoted(dialect: Dialect, name: &str) -> String {
    let mark = match dialect {
        Dialect::MySql | Dialect::MariaDb => "`",
        Dialect::Postgres | Dialect::Sqlite => "\"",
    };
    let part = |part: &str| format!("{mark}{}{mark}", part.replace(mark, &mark.repeat(2)));
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// The place of the value with this number, counted from 1.
pub(crate) fn place(dialect: Dialect, number: usize) -> String {
    match dialect {
        Dialect::Postgres => format!("${number}"),
        Dialect::MySql | Dialect::MariaDb | Dialect::Sqlite => "?".to_owned(),
    }
}

/// The expression as text, the way one connection always writes it.
pub(crate) fn as_text(dialect: Dialect, expression: &str) -> String {
    match dialect {
        Dialect::Postgres => format!("{expression}::text"),
        Dialect::MySql | Dialect::MariaDb => format!("cast({expression} as char)"),
        Dialect::Sqlite => format!("cast({expression} as text)"),
    }
}

/// A time as text, the same on every connection: PostgreSQL writes times as the settings of the connection say
/// (`TimeZone`, `DateStyle`), so there it is the count of microseconds.
pub(crate) fn time_as_text(dialect: Dialect, column: &str) -> String {
    match dialect {
        Dialect::Postgres => format!("(extract(epoch from {column}) * 1000000)::bigint::text"),
        Dialect::MySql | Dialect::MariaDb | Dialect::Sqlite => as_text(dialect, column),
    }
}

/// Now, and in any case later than what the column holds.
pub(crate) fn later(dialect: Dialect, column: &str) -> String {
    const MILLIS: &str = "'%Y-%m-%d %H:%M:%f'";
    match dialect {
        Dialect::Postgres => format!("greatest(clock_timestamp(), {column} + interval '1 microsecond')"),
        Dialect::MySql | Dialect::MariaDb => format!("greatest(now(6), {column} + interval 1 microsecond)"),
        Dialect::Sqlite => {
            format!("max(strftime({MILLIS}, 'now'), strftime({MILLIS}, {column}, '+0.001 seconds'))")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_a_name() {
        assert_eq!(quoted(Dialect::Postgres, "shop.items"), r#""shop"."items""#);
        assert_eq!(quoted(Dialect::Sqlite, r#"a" or "1"#), r#""a"" or ""1""#);
        assert_eq!(quoted(Dialect::MariaDb, "a`b"), "`a``b`");
    }
}
