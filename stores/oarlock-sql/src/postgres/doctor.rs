//! Examines a server: what its commits are worth, and whether its locks can be used.

use std::time::{Duration, Instant};

use oarlock_core::Result;
use oarlock_core::doctor::{
    Answers, Check, DENIED, Doctor, NEWER_FORMAT, OnServer, Report, Severity, examined, list, patience, within,
};
use oarlock_core::guarantees::Promise;
use oarlock_core::state::{Page, Query};
use oarlock_core::url::Url;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::config::is_session;
use crate::doctor::{Role, examine_others};
use crate::inspect;
use crate::postgres::config::Config;
use crate::postgres::driver::INSPECT;
use crate::postgres::error::failed;
use crate::postgres::pooler::is_our_own;
use crate::postgres::raw;
use crate::postgres::schema::FORMAT;
use crate::route::Shown;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[
        &FSYNC,
        &ASYNC_COMMIT,
        &READ_ONLY,
        &FAILOVER,
        &TWO_PRIMARIES,
        &ISOLATION,
        &POOLER,
        &NOTIFY_QUEUE,
        &UNLOGGED,
    ],
    examine: |url| Box::pin(examined(url, examine)),
};

static FSYNC: Check = Check {
    id: "postgres-fsync",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "ALTER SYSTEM SET fsync = on; ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
};
static ASYNC_COMMIT: Check = Check {
    id: "postgres-async-commit",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "ALTER ROLE … RESET synchronous_commit and ALTER DATABASE … RESET synchronous_commit, or set it on the server",
};
static READ_ONLY: Check = Check {
    id: "postgres-read-only",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "name the primary in the URL; RESET default_transaction_read_only for the user of the locks",
};
static FAILOVER: Check = Check {
    id: "postgres-failover",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "set synchronous_standby_names, and synchronous_commit to on, so that a standby has a grant before it counts",
};
static ISOLATION: Check = Check {
    id: "postgres-isolation",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the user of the locks",
};
static TWO_PRIMARIES: Check = Check {
    id: "postgres-two-primaries",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "stop every server of the URL that takes writes but one, and make it a standby of that one (pg_rewind)",
};
static POOLER: Check = Check {
    id: "postgres-pooler",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "connect to the server itself, or use a pooler of sessions",
};
static NOTIFY_QUEUE: Check = Check {
    id: "postgres-notify-queue",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "end the session that listens in a transaction that never ends: see pg_stat_activity, oldest xact_start",
};
static UNLOGGED: Check = Check {
    id: "postgres-unlogged",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "ALTER TABLE … SET LOGGED",
};

/// Read with the other settings of this session, as the user and the database have them.
const SERVER_INFO: &str = "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes',
    'synchronous_commit', 'synchronous_standby_names', 'default_transaction_read_only',
    'default_transaction_isolation', 'max_connections', 'superuser_reserved_connections', 'server_version')
UNION ALL SELECT 'standby', pg_is_in_recovery()::text
UNION ALL SELECT 'micros', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text
UNION ALL SELECT 'used', sum(numbackends)::text FROM pg_stat_database
UNION ALL SELECT 'role_used', count(*)::text FROM pg_stat_activity WHERE usename = current_user
UNION ALL SELECT 'role_limit', rolconnlimit::text FROM pg_roles WHERE rolname = current_user
UNION ALL SELECT 'idle', coalesce(string_agg(extract(epoch FROM clock_timestamp() - state_change)::bigint::text, ' '), '')
    FROM pg_stat_activity WHERE application_name = 'oarlock' AND state = 'idle' AND datname = current_database()
UNION ALL SELECT 'queue', (pg_notification_queue_usage() * 100)::int::text
UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
UNION ALL SELECT 'tables', (count(*) > 0)::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'oarlock' AND relname = 'format'
UNION ALL SELECT 'may_use', coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace
    WHERE nspname = 'oarlock'), true)::text
UNION ALL SELECT 'may_create', has_database_privilege(current_database(), 'CREATE')::text
UNION ALL SELECT 'unlogged', coalesce(string_agg(relname, ', '), '') FROM pg_class
    JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = 'oarlock' AND relkind = 'r' AND relpersistence <> 'p' AND relname <> 'session'";

async fn examine(url: &Url, report: &mut Report) -> Result<()> {
    let config = Config::from_url(url)?;
    within(patience(url), primary(url, &config, report)).await?;
    examine_others(url, &config.route(), report, &TWO_PRIMARIES, |host| role(config.only(&host))).await;
    Ok(())
}

async fn role(config: Config) -> Result<Role> {
    let client = raw::connect(&config).await?;
    let sent = Instant::now();
    let answers = ask(&client, "SELECT 'read_only', current_setting('transaction_read_only')").await?;
    Ok(Role { is_read_only: answers.text("read_only") == "on", took: sent.elapsed() })
}

/// The server that serves the clients.
async fn primary(url: &Url, config: &Config, report: &mut Report) -> Result<()> {
    let client = raw::connect(config).await?;
    let sent = Instant::now();
    let server_info = ServerInfo(ask(&client, SERVER_INFO).await?);
    let took = sent.elapsed();
    let address = Shown(config.route().current()).to_string();
    let mut on = report.on(&address);
    on.latency(took);
    on.clock(server_info.number("micros"), took);
    server_info.judge(&mut on);
    if !is_our_own(&client).await? {
        let reason =
            "a pooler of transactions is in between: a dead holder is noticed by its lease only, and waiters poll";
        on.find(&POOLER, reason);
        report.guarantees = Some("postgres-pooled");
    }
    if is_session(url) {
        return Ok(());
    }
    if server_info.text("tables") == "true" {
        if server_info.rights(&client, &mut report.on(&address)).await? {
            report.locks = list(async |query| page(&client, &config.prefix, &query).await).await?;
        }
    } else {
        let mut on = report.on(&address);
        on.fact("tables", "none; the first client creates them, or oarlock init");
        if server_info.text("may_create") != "true" {
            let reason = "the tables are missing, and this user may not create a schema: run oarlock init --grant";
            on.find(&DENIED, reason);
        }
    }
    Ok(())
}

/// Lists without a session of a client, which would be written down.
async fn page(client: &Client, prefix: &str, query: &Query) -> Result<Page> {
    let after = query.after.as_ref().map(|after| format!("{prefix}{after}").into_bytes());
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
    let rows = client
        .query_typed(
            INSPECT,
            &[
                (&prefix.as_bytes(), Type::BYTEA),
                (&None::<Vec<u8>>, Type::BYTEA),
                (&after, Type::BYTEA),
                (&limit, Type::INT8),
                (&0_i64, Type::INT8),
            ],
        )
        .await
        .map_err(failed)?;
    inspect::page(rows, query, prefix, |_| false)
}

/// Asks in the simple protocol, which every pooler passes on.
async fn ask(client: &Client, sql: &str) -> Result<Answers> {
    let answers = client.simple_query(sql).await.map_err(failed)?;
    let pairs = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some((row.get(0)?.to_owned(), row.get(1).unwrap_or_default().to_owned())),
        _ => None,
    });
    Ok(pairs.collect())
}

struct ServerInfo(Answers);

impl ServerInfo {
    fn text(&self, name: &str) -> &str {
        self.0.text(name)
    }

    fn number(&self, name: &str) -> i64 {
        self.0.number(name).unwrap_or_default()
    }

    fn judge(&self, on: &mut OnServer<'_>) {
        on.fact("version", self.text("server_version"));
        self.commits(on);
        self.writes(on);
        self.limits(on);
        if !self.text("unlogged").is_empty() {
            let reason = format!(
                "unlogged tables: {}. A crash empties them, and every grant is forgotten",
                self.text("unlogged")
            );
            on.find(&UNLOGGED, reason);
        }
    }

    /// What survives a crash, and a failover.
    fn commits(&self, on: &mut OnServer<'_>) {
        for setting in ["fsync", "full_page_writes"] {
            if self.text(setting) == "off" {
                let reason = format!("{setting} is off: a power cut or a crash of the machine damages the database");
                on.find(&FSYNC, reason);
            }
        }
        let commit = self.text("synchronous_commit");
        on.fact("commits", format!("synchronous_commit {commit}"));
        if commit == "off" {
            on.find(&ASYNC_COMMIT, "synchronous_commit is off: a crash of the server forgets the last grants");
        }
        let (standbys, named) = (self.number("standbys"), self.text("synchronous_standby_names"));
        on.fact("standbys", format!("{standbys}, synchronous: {}", if named.is_empty() { "none" } else { named }));
        if standbys > 0 && (named.is_empty() || matches!(commit, "local" | "off")) {
            let reason =
                format!("{standbys} standbys replicate asynchronously: a failover forgets grants that they lack");
            on.find(&FAILOVER, reason);
        }
    }

    /// Whether locks can be taken at all.
    fn writes(&self, on: &mut OnServer<'_>) {
        if self.text("standby") == "true" {
            on.find(&READ_ONLY, "it is a standby, which refuses writes");
        } else if self.text("default_transaction_read_only") == "on" {
            on.find(&READ_ONLY, "default_transaction_read_only is on: the server refuses every grant");
        }
        let isolation = self.text("default_transaction_isolation");
        if isolation != "read committed" {
            let reason =
                format!("default_transaction_isolation is {isolation}; the functions of locks need read committed");
            on.find(&ISOLATION, reason);
        }
    }

    fn limits(&self, on: &mut OnServer<'_>) {
        let count = |name| u64::try_from(self.number(name)).unwrap_or_default();
        let limit = count("max_connections").saturating_sub(count("superuser_reserved_connections"));
        // A limit of the role may be reached first; -1 is none.
        if self.number("role_limit") > 0 && count("role_limit") < limit {
            on.connections(count("role_used"), count("role_limit"));
        } else {
            on.connections(count("used"), limit);
        }
        let idle = self.text("idle").split(' ').filter_map(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        on.idle(idle);
        let queue = self.number("queue");
        on.fact("notification queue", format!("{queue} %"));
        if queue >= 50 {
            let reason =
                format!("the queue of notifications is {queue} % full; from 90 % on waiters poll, out of order");
            on.find(&NOTIFY_QUEUE, reason);
        }
    }

    /// The tables are there: may they be used, and does this version know them? If not, that is found.
    async fn rights(&self, client: &Client, on: &mut OnServer<'_>) -> Result<bool> {
        let missing = "may not use the tables of schema oarlock: run oarlock init --grant USER as their owner";
        if self.text("may_use") != "true" {
            on.find(&DENIED, format!("this user {missing}"));
            return Ok(false);
        }
        let tables = ask(client, RIGHTS).await?;
        if tables.text("rights") != "true" {
            on.find(&DENIED, format!("this user {missing}"));
            return Ok(false);
        }
        let format: i64 = ask(client, "SELECT 'format', version::text FROM oarlock.format")
            .await?
            .number("format")
            .unwrap_or_default();
        if format != i64::from(FORMAT) {
            let reason = format!("the tables have format {format}, this version needs {FORMAT}");
            on.find(&NEWER_FORMAT, reason);
        }
        Ok(format == i64::from(FORMAT))
    }
}

const RIGHTS: &str =
    "SELECT 'rights', bool_and(has_table_privilege(name, 'SELECT') AND has_table_privilege(name, 'INSERT')
    AND has_table_privilege(name, 'UPDATE') AND has_table_privilege(name, 'DELETE'))::text
FROM unnest(ARRAY['oarlock.resource', 'oarlock.claim', 'oarlock.session', 'oarlock.fence']) AS name";

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of a server has 8 GiB, which a test does not fill: what a server answers is judged instead.
    #[test]
    fn a_queue_of_notifications_that_fills_up_is_found() {
        let ids = |queue: &str| {
            let told =
                [("queue", queue), ("default_transaction_isolation", "read committed"), ("max_connections", "100")];
            let server_info =
                ServerInfo(told.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect());
            let mut report = Report::default();
            server_info.judge(&mut report.on("db:5432"));
            report.findings.iter().map(|finding| finding.check.id).collect::<Vec<_>>()
        };
        assert_eq!(ids("49"), [""; 0]);
        assert_eq!(ids("50"), ["postgres-notify-queue"]);
    }
}
