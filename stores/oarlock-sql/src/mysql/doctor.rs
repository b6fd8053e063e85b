//! Examines a server: what its commits are worth, and whether its locks can be used.

use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::Result;
use oarlock_core::doctor::{
    Answers, Check, Doctor, NEWER_FORMAT, OnServer, Report, Severity, examined, list, patience, within,
};
use oarlock_core::guarantees::Promise;
use oarlock_core::state::{Page, Query};
use oarlock_core::url::Url;
use tokio::sync::Mutex;

use crate::config::is_session;
use crate::doctor::{Role, examine_others};
use crate::inspect;
use crate::mysql::config::Config;
use crate::mysql::connection::{dial, is_read_only, probe};
use crate::mysql::driver::INSPECT;
use crate::mysql::error::failed;
use crate::mysql::flavour::Flavour;
use crate::mysql::schema::{FORMAT, version};
use crate::route::Shown;
use crate::row::Row as _;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[
        &LOST_COMMITS,
        &POWER_LOSS,
        &READ_ONLY,
        &REPLICA,
        &FAILOVER,
        &STATEMENTS,
        &TWO_PRIMARIES,
        &CLUSTER,
        &SPLIT,
        &ENGINE,
        &POOLER,
    ],
    examine: |url| Box::pin(examined(url, examine)),
};

static LOST_COMMITS: Check = Check {
    id: "mysql-lost-commits",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the configuration file",
};
static POWER_LOSS: Check = Check {
    id: "mysql-power-loss",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "SET GLOBAL innodb_flush_log_at_trx_commit = 1 and sync_binlog = 1, and in the configuration file",
};
static READ_ONLY: Check = Check {
    id: "mysql-read-only",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "name the primary in the URL; SET GLOBAL read_only = 0 if this is the primary",
};
static REPLICA: Check = Check {
    id: "mysql-replica",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "name the primary in the URL: locks of a replica and locks of its primary do not exclude each other",
};
static FAILOVER: Check = Check {
    id: "mysql-failover",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "use semi-synchronous replication with a wait point after_sync, and a time-out that is not reached",
};
static STATEMENTS: Check = Check {
    id: "mysql-statements",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "SET GLOBAL binlog_format = 'ROW', and in the configuration file",
};
static TWO_PRIMARIES: Check = Check {
    id: "mysql-two-primaries",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "SET GLOBAL read_only = 1 on every server of the URL but the primary, and in their configuration files",
};
static CLUSTER: Check = Check {
    id: "mysql-cluster",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "let all clients use one node: a dead holder is noticed by its lease only, and writes on two nodes conflict",
};
static SPLIT: Check = Check {
    id: "mysql-no-majority",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "restore the majority of the cluster; do not use a node that was cut off",
};
static POOLER: Check = Check {
    id: "mysql-pooler",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "connect to the server itself",
};
static ENGINE: Check = Check {
    id: "mysql-engine",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "ALTER TABLE … ENGINE = InnoDB",
};

/// Variables of both servers; each has some of them.
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog',
    'log_bin', 'binlog_format', 'read_only', 'super_read_only', 'max_connections', 'wsrep_on', 'group_replication_group_name',
    'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'version')";

const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'wsrep_cluster_size',
    'wsrep_cluster_status', 'Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')";

const PROCESS: &str = "SELECT COUNT(*) FROM information_schema.user_privileges WHERE privilege_type = 'PROCESS'
    AND grantee = CONCAT('\\'', REPLACE(CURRENT_USER(), '@', '\\'@\\''), '\\'')";

const ENGINES: &str = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()
    AND table_name IN ('oarlock_format', 'oarlock_resource', 'oarlock_claim', 'oarlock_fence')
    AND engine <> 'InnoDB'";

/// How long connections that hold liveness locks have asked for nothing, in seconds.
const IDLE: &str = "SELECT threads.time FROM oarlock_session
    JOIN (WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 15)
        SELECT n FROM numbers) AS locks
    JOIN information_schema.processlist AS threads
        ON threads.id = IS_USED_LOCK(CONCAT('oarlock_', LOWER(HEX(number)), '_', n))
    WHERE threads.command = 'Sleep'";

/// The members of a replication group, as this one sees them: itself, and whether it can reach the others.
const GROUP: &str = "SELECT member_id = @@server_uuid, member_state FROM performance_schema.replication_group_members";

async fn examine(url: &Url, report: &mut Report) -> Result<()> {
    let config = Config::from_url(url)?;
    let primary = async {
        let mut conn = dial(&config).await?;
        let examined = examine_server(url, &config, &mut conn, report).await;
        // Otherwise the server's log has a warning of each.
        let _ = conn.disconnect().await;
        examined
    };
    let is_cluster = within(patience(url), primary).await?;
    // All nodes of a cluster take writes, which has a finding of its own.
    if !is_cluster {
        examine_others(url, &config.route(), report, &TWO_PRIMARIES, |host| role(config.only(&host))).await;
    }
    Ok(())
}

async fn role(config: Config) -> Result<Role> {
    let mut conn = dial(&config).await?;
    let sent = Instant::now();
    let is_read_only = is_read_only(&mut conn).await.map_err(failed);
    let took = sent.elapsed();
    let _ = conn.disconnect().await;
    Ok(Role { is_read_only: is_read_only?, took })
}

/// Whether the server is a node of a cluster.
async fn examine_server(url: &Url, config: &Config, conn: &mut Conn, report: &mut Report) -> Result<bool> {
    let address = Shown(config.route().current()).to_string();
    let mut on = report.on(&address);
    let sent = Instant::now();
    let micros: Option<i64> =
        conn.query_first("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)").await.map_err(failed)?;
    let took = sent.elapsed();
    on.latency(took);
    on.clock(micros.unwrap_or_default(), took);
    let mut server_info = ServerInfo::default();
    for sql in [VARIABLES, STATUS] {
        let rows: Vec<(String, String)> = conn.query(sql).await.map_err(failed)?;
        server_info.0.merge(rows.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect());
    }
    let is_cluster = server_info.is_cluster();
    server_info.judge(&mut on);
    replication(conn, &server_info, &mut on).await;
    if server_info.is_in_group() {
        group(conn, &mut on).await;
    }
    if is_session(url) {
        return Ok(is_cluster);
    }
    if is_cluster {
        report.guarantees = Some("mysql-pooled");
    }
    let mut on = report.on(&address);
    let Some(found) = version(conn).await? else {
        on.fact("tables", "none; the first client creates them, or oarlock init");
        return Ok(is_cluster);
    };
    let others: Vec<(String, String)> = conn.query(ENGINES).await.map_err(failed)?;
    for (table, engine) in others {
        let reason = format!("{table} uses {engine}, which has no transactions: two clients can be granted one lock");
        on.find(&ENGINE, reason);
    }
    if found != FORMAT {
        on.find(&NEWER_FORMAT, format!("the tables have format {found}, this version needs {FORMAT}"));
        return Ok(is_cluster);
    }
    let idle: Vec<Option<i64>> = conn.query(IDLE).await.map_err(failed)?;
    on.idle(idle.into_iter().filter_map(|seconds| u64::try_from(seconds?).ok()).map(Duration::from_secs));
    let (is_alone, flavour) = probe(conn).await?;
    if !is_alone && !server_info.is_on("wsrep_on") {
        on.find(&POOLER, "a pooler is in between: a dead holder is noticed by its lease only");
    }
    if !is_alone {
        report.guarantees = Some("mysql-pooled");
    }
    let conn = Mutex::new(conn);
    report.locks = list(async |query| page(*conn.lock().await, flavour, &config.prefix, &query).await).await?;
    Ok(is_cluster)
}

/// Lists without a session of a client, which would be written down.
async fn page(conn: &mut Conn, flavour: Flavour, prefix: &str, query: &Query) -> Result<Page> {
    let after = query.after.as_ref().map(|after| format!("{prefix}{after}").into_bytes());
    let most = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
    let params = (prefix.as_bytes(), None::<Vec<u8>>, after, most).into();
    let mut found = Vec::new();
    for row in flavour.query(conn, INSPECT, params).await.map_err(failed)? {
        found.push((row.bytes("name")?, row.integer("arrival")?, row));
    }
    found.sort_by(|(name, arrival, _), (other, later, _)| (name, arrival).cmp(&(other, later)));
    inspect::page(found.into_iter().map(|(_, _, row)| row), query, prefix, |_| false)
}

#[derive(Default)]
struct ServerInfo(Answers);

impl ServerInfo {
    fn text(&self, name: &str) -> &str {
        self.0.text(name)
    }

    fn number(&self, name: &str) -> u64 {
        self.0.number(name).unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.text(name), "ON" | "1" | "YES")
    }

    fn judge(&self, on: &mut OnServer<'_>) {
        on.fact("version", self.text("version"));
        let flush = self.text("innodb_flush_log_at_trx_commit");
        on.fact("commits", format!("innodb_flush_log_at_trx_commit {flush}"));
        if flush == "0" {
            let reason =
                "innodb_flush_log_at_trx_commit is 0: a crash of the server forgets the grants of the last second";
            on.find(&LOST_COMMITS, reason);
        } else if flush != "1" {
            let reason =
                format!("innodb_flush_log_at_trx_commit is {flush}: a power cut forgets the grants of the last second");
            on.find(&POWER_LOSS, reason);
        } else if self.is_on("log_bin") && self.number("sync_binlog") != 1 {
            on.find(
                &POWER_LOSS,
                "sync_binlog is not 1: after a power cut a replica can lack grants that the server has",
            );
        }
        if self.is_on("log_bin") && self.text("binlog_format") == "STATEMENT" {
            let reason = "binlog_format is STATEMENT: a replica runs the statements of locks again, and may come to other \
                          rows than this server; after a failover it can lack grants, or have others";
            on.find(&STATEMENTS, reason);
        }
        if self.is_on("read_only") || self.is_on("super_read_only") {
            on.find(&READ_ONLY, "read_only is on: the server refuses every grant");
        }
        // Without Galera there is no status, or it is disconnected.
        if self.is_on("wsrep_on") && self.text("wsrep_cluster_status") != "Primary" {
            on.find(
                &SPLIT,
                format!("this node is not in the primary component: {}", self.text("wsrep_cluster_status")),
            );
        }
        if self.is_cluster() {
            let reason = "it is a node of Galera or of a replication group. Oarlock is not tested there";
            on.find(&CLUSTER, reason);
        }
        on.connections(self.number("threads_connected"), self.number("max_connections"));
    }

    fn is_cluster(&self) -> bool {
        self.is_on("wsrep_on") || self.is_in_group()
    }

    fn is_in_group(&self) -> bool {
        !self.text("group_replication_group_name").is_empty()
    }

    fn is_semi_synchronous(&self) -> bool {
        self.is_on("rpl_semi_sync_master_status") || self.is_on("rpl_semi_sync_source_status")
    }
}

/// Whether this member of a replication group serves in it, and with a majority.
async fn group(conn: &mut Conn, on: &mut OnServer<'_>) {
    // A server that has a group in its configuration, and not the plugin, has no such table.
    let Ok(members) = conn.query::<(bool, String), _>(GROUP).await else {
        return on.cannot_tell("the state of the replication group (SELECT ON performance_schema.*)");
    };
    let reachable = members.iter().filter(|(_, state)| state != "UNREACHABLE").count();
    let own = members.iter().find(|(is_own, _)| *is_own).map_or("OFFLINE", |(_, state)| state);
    on.fact("group", format!("this member is {own}, {reachable} of {} are reachable", members.len()));
    if own != "ONLINE" {
        on.find(&SPLIT, format!("this member of a replication group is {own}: the group does not see its locks"));
    } else if reachable * 2 <= members.len() {
        let reason =
            format!("{reachable} of {} members of the group are reachable: it waits, or grants alone", members.len());
        on.find(&SPLIT, reason);
    }
}

/// Whether it has replicas, and whether it is one. Both questions need rights that locks do not.
async fn replication(conn: &mut Conn, server_info: &ServerInfo, on: &mut OnServer<'_>) {
    let dumps = "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'";
    // Without this right a server shows only the threads of the same user, and says nothing.
    let sees_all = matches!(conn.query_first::<u64, _>(PROCESS).await, Ok(Some(rights)) if rights > 0);
    match conn.query_first::<u64, _>(dumps).await {
        Ok(Some(replicas)) if replicas > 0 && !server_info.is_semi_synchronous() => {
            let reason = format!("{replicas} replicas follow asynchronously: a failover forgets grants that they lack");
            on.find(&FAILOVER, reason);
        }
        Ok(_) if sees_all => {}
        _ => on.cannot_tell("the replicas of the server (PROCESS)"),
    }
    // MySQL 8.4 has no SLAVE, MariaDB 10.4 no REPLICA.
    for sql in ["SHOW REPLICA STATUS", "SHOW SLAVE STATUS"] {
        if let Ok(row) = conn.query_first::<mysql_async::Row, _>(sql).await {
            if row.is_some() {
                on.find(&REPLICA, "it replicates another server, whose locks it does not see in time");
            }
            return;
        }
    }
    on.cannot_tell("SHOW REPLICA STATUS");
}
