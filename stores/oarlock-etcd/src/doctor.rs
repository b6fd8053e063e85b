//! Examines the members of a cluster: is there a leader, space, and a majority to spare?

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use oarlock_core::doctor::{Check, Doctor, OnServer, Report, Severity, examined, list, patience, within};
use oarlock_core::driver::Driver as _;
use oarlock_core::guarantees::Promise;
use oarlock_core::{ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::Etcd;
use crate::config::Config;
use crate::connection::Connection;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[&NO_LEADER, &LEARNER, &NO_SPACE, &CORRUPT, &VERSION, &EVEN, &SINGLE, &UNLISTED, &TWO_CLUSTERS, &NO_AUTH],
    examine: |url| {
        Box::pin(examined(url, async |url, report| {
            examine(Config::from_url(url)?, patience(url), report).await;
            Ok(())
        }))
    },
};

static NO_LEADER: Check = Check {
    id: "etcd-no-leader",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "start the members that are missing; without a majority no lock is granted or renewed",
};
static LEARNER: Check = Check {
    id: "etcd-learner",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "name voting members in the URL, or promote the learner: etcdctl member promote",
};
static NO_SPACE: Check = Check {
    id: "etcd-no-space",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "etcdctl compact, etcdctl defrag on each member, then etcdctl alarm disarm; raise --quota-backend-bytes",
};
static CORRUPT: Check = Check {
    id: "etcd-corrupt",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "replace the member that is corrupt: etcdctl member remove, and add it again with an empty data directory",
};
static VERSION: Check = Check {
    id: "etcd-version",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "upgrade every member to 3.4.31, 3.5.13 or later",
};
static EVEN: Check = Check {
    id: "etcd-even",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "use an odd number of voting members",
};
static SINGLE: Check = Check {
    id: "etcd-single",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "run three members on machines of their own",
};
static UNLISTED: Check = Check {
    id: "etcd-unlisted",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "name all voting members in the URL of every client",
};
static NO_AUTH: Check = Check {
    id: "etcd-no-auth",
    severity: Severity::Note,
    promise: Promise::BeliefEndsFirst,
    fix: "etcdctl user add root, then the user and the role that docs/backends/etcd.md names, then etcdctl auth enable",
};
static TWO_CLUSTERS: Check = Check {
    id: "etcd-two-clusters",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "name the members of one cluster only",
};

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    cluster: u64,
    #[prost(uint64, tag = "2")]
    member: u64,
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, ::prost::Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(int64, tag = "3")]
    size: i64,
    #[prost(uint64, tag = "4")]
    leader: u64,
    #[prost(bool, tag = "10")]
    learner: bool,
    /// Only from 3.6 on.
    #[prost(int64, tag = "12")]
    quota: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
struct Alarms {
    #[prost(message, repeated, tag = "2")]
    alarms: Vec<Alarm>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
struct Alarm {
    #[prost(uint64, tag = "1")]
    member: u64,
    /// 1 = no space, 2 = corrupt.
    #[prost(int32, tag = "2")]
    kind: i32,
}

#[derive(Clone, PartialEq, ::prost::Message)]
struct MemberList {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
struct Member {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, repeated, tag = "4")]
    clients: Vec<String>,
    #[prost(bool, tag = "5")]
    learner: bool,
}

impl Member {
    /// One that was added and not started has no name.
    fn shown(&self) -> String {
        if self.name.is_empty() { format!("{:x}", self.id) } else { self.name.clone() }
    }
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
struct AuthStatus {
    #[prost(bool, tag = "2")]
    enabled: bool,
}

async fn examine(config: Config, limit: Duration, report: &mut Report) {
    let (mut clusters, mut alarms) = (BTreeMap::<u64, Vec<&str>>::new(), BTreeSet::new());
    let (mut voters, mut listed, mut is_open) = (None, BTreeSet::new(), false);
    for member in &config.members {
        let mut on = report.on(member);
        match within(limit, ask(&config, member, &mut on)).await {
            Ok(seen) => {
                clusters.entry(seen.cluster).or_default().push(member);
                listed.insert(seen.member);
                alarms.extend(seen.alarms);
                voters = voters.or(seen.voters);
                is_open |= seen.is_open;
            }
            Err(error) => on.failed(&error),
        }
    }
    // One that does not answer may be any of them, and so may one that a balancer chooses.
    let (mut named, answered) = (clusters.keys(), clusters.values().map(Vec::len).sum::<usize>());
    if let (Some(&cluster), None) = (named.next(), named.next())
        && answered == config.members.len()
        && !within(limit, async { Ok(is_ambiguous(&config).await) }).await.unwrap_or(true)
    {
        let cluster = Cluster { id: cluster, voters: voters.as_deref().unwrap_or_default(), listed: &listed };
        alarms.extend(unlisted(&config, &cluster, limit, report).await);
    }
    if clusters.len() > 1 {
        let named: Vec<_> = clusters.values().map(|members| members.join(",")).collect();
        let reason = format!("they are of different clusters: {}. Two clients can hold one lock", named.join(" and "));
        report.find(&TWO_CLUSTERS, reason);
    }
    if is_open {
        report.find(&NO_AUTH, "authentication is off: every client that reaches it may delete every lock");
    }
    for (kind, member) in alarms {
        match kind {
            1 => report.find(&NO_SPACE, format!("member {member:x} is out of space: the cluster refuses grants")),
            2 => report.find(&CORRUPT, format!("member {member:x} has other data than the rest of the cluster")),
            _ => {}
        }
    }
    match voters.map(|voters| voters.len()) {
        Some(1) => report.find(&SINGLE, "the cluster has one member: while it is down, no lock can be used"),
        Some(count) if count % 2 == 0 => {
            report.find(&EVEN, format!("{count} members tolerate no more failures than {}", count - 1));
        }
        _ => {}
    }
    if clusters.len() == 1
        && let Err(error) = within(limit, list_locks(config.clone(), report)).await
    {
        report.on(&config.members.join(",")).failed(&error);
    }
}

/// What the members of the URL say of their cluster.
struct Cluster<'a> {
    id: u64,
    voters: &'a [Member],
    /// The members that answered.
    listed: &'a BTreeSet<u64>,
}

/// Whether a host of the URL may stand for several members, as the name of a service does.
async fn is_ambiguous(config: &Config) -> bool {
    for member in &config.members {
        if tokio::net::lookup_host(member).await.is_ok_and(|found| found.count() > 1) {
            return true;
        }
    }
    false
}

/// Looks at the members that the URL does not name, at the addresses that they advertise. Returns their alarms.
async fn unlisted(config: &Config, cluster: &Cluster<'_>, limit: Duration, report: &mut Report) -> Vec<(i32, u64)> {
    let Cluster { voters, listed, .. } = cluster;
    let (known, others): (Vec<_>, Vec<_>) = voters.iter().partition(|voter| listed.contains(&voter.id));
    if !others.is_empty() && known.len() <= (voters.len() - 1) / 2 {
        let names: Vec<_> = others.iter().map(|other| other.shown()).collect();
        let reason = format!(
            "{} of {} members answered at the addresses of the URL, and not {}: if those fail that the URL names, locks \
             cannot be used, although the others have a majority",
            known.len(),
            voters.len(),
            names.join(", ")
        );
        report.find(&UNLISTED, reason);
    }
    let mut alarms = Vec::new();
    for other in others {
        let Some(address) = other.clients.iter().find_map(|url| url.split_once("://").map(|(_, rest)| rest)) else {
            continue;
        };
        let mut seen = Report::default();
        let asked = within(limit, ask_member(config, cluster.id, other.id, address, &mut seen)).await;
        match asked {
            Ok(Some(found)) => {
                report.on(address).fact("member", "not in the URL");
                alarms.extend(found.alarms);
                report.merge(seen);
            }
            Ok(None) => {
                let what = format!("{} advertises this address, which is another server from here", other.shown());
                report.on(address).fact("member", what);
            }
            Err(error) => report.on(address).fact("member", format!("not in the URL; did not answer: {error}")),
        }
    }
    alarms
}

/// Asks the member with this id at the address that it advertises. `None` if another server is there, as where members
/// advertise `localhost`: it gets no password, and its answers count for nothing.
async fn ask_member(
    config: &Config,
    cluster: u64,
    id: u64,
    address: &str,
    report: &mut Report,
) -> Result<Option<Seen>> {
    let stranger = Config { user: None, password: None, password_file: None, ..one(config, address) };
    let status: Status = Connection::unasked(&stranger)?.unary("/etcdserverpb.Maintenance/Status", Empty {}).await?;
    if status.header.is_none_or(|header| (header.cluster, header.member) != (cluster, id)) {
        return Ok(None);
    }
    ask(config, address, &mut report.on(address)).await.map(Some)
}

/// The same for one address.
fn one(config: &Config, address: &str) -> Config {
    Config { members: vec![address.to_owned()], ..config.clone() }
}

/// A client of this store writes nothing before it asks for a lock.
async fn list_locks(config: Config, report: &mut Report) -> Result<()> {
    let store = Etcd::open(config).await?;
    if store.info().capabilities.listing {
        report.locks = list(async |query| store.inspect(&query).await).await?;
    }
    store.close().await
}

struct Seen {
    /// Authentication is off.
    is_open: bool,
    cluster: u64,
    member: u64,
    voters: Option<Vec<Member>>,
    alarms: Vec<(i32, u64)>,
}

async fn ask(config: &Config, address: &str, on: &mut OnServer<'_>) -> Result<Seen> {
    let member = Connection::unasked(&one(config, address))?;
    let sent = Instant::now();
    let status: Status = member.unary("/etcdserverpb.Maintenance/Status", Empty {}).await?;
    on.latency(sent.elapsed());
    on.fact("version", &status.version);
    on.fact("size", format!("{} MiB", status.size >> 20));
    if is_faulty(&status.version) {
        let reason =
            format!("version {} can expire a lease that was renewed, after a change of the leader", status.version);
        on.find(&VERSION, reason);
    }
    if status.learner {
        on.find(&LEARNER, "it is a learner, which serves no requests of locks");
    }
    if status.leader == 0 {
        on.find(&NO_LEADER, "it knows no leader: requests fail until there is one");
    }
    if status.quota > 0 && status.size.saturating_mul(10) >= status.quota.saturating_mul(9) {
        on.find(&NO_SPACE, format!("its database has {} of {} bytes", status.size, status.quota));
    }
    let Header { cluster, member: id, revision } = status.header.unwrap_or_default();
    on.last_fence(u64::try_from(revision).unwrap_or_default());
    clock(config, address, on).await;
    // These are denied to a user that is not root, and a learner does not answer them.
    let list = member.unary::<_, MemberList>("/etcdserverpb.Cluster/MemberList", Empty {}).await;
    let voters = list.map(|list| list.members.into_iter().filter(|member| !member.learner).collect());
    let alarms = member.unary::<_, Alarms>("/etcdserverpb.Maintenance/Alarm", Empty {}).await;
    if let Some(error) = voters.as_ref().err().or(alarms.as_ref().err()).filter(|_| !status.learner) {
        if error.kind() == ErrorKind::Denied {
            on.cannot_tell("the members and the alarms of the cluster");
        } else {
            on.failed(error);
        }
    }
    let is_open = is_open(config, &member).await;
    if let Some(is_open) = is_open {
        on.fact("authentication", if is_open { "off" } else { "on" });
    }
    let is_open = is_open == Some(true);
    let alarms = alarms.map(|found| found.alarms.iter().map(|alarm| (alarm.kind, alarm.member)).collect());
    Ok(Seen { cluster, member: id, voters: voters.ok(), alarms: alarms.unwrap_or_default(), is_open })
}

/// The longest answer to a question about the time, and how long it may take.
const LONGEST: usize = 4096;
const SOON: Duration = Duration::from_secs(1);

/// Compares the clock of a member with this machine's. Only its web server tells the time, to the second.
async fn clock(config: &Config, address: &str, on: &mut OnServer<'_>) {
    if config.tls.is_some() {
        return on.fact("clock", "not measured on encrypted ports; locks of this store do not depend on it");
    }
    let sent = Instant::now();
    // What speaks HTTP/2 alone, as some proxies do, may not answer at all.
    match tokio::time::timeout(SOON, date(address)).await {
        Ok(Ok(Some(seconds))) => {
            on.clock_beside(seconds.saturating_mul(1_000_000).saturating_add(500_000), sent.elapsed());
        }
        _ => on.fact("clock", "cannot be measured: the member does not tell its time"),
    }
}

/// The time in seconds since 1970 that an answer over HTTP carries.
async fn date(address: &str) -> std::io::Result<Option<i64>> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
    let mut stream = TcpStream::connect(&found[..]).await?;
    let request = format!("GET /version HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while answer.len() < LONGEST && stream.read_buf(&mut answer).await? > 0 {}
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let mut dates = answer.lines().filter_map(|line| line.split_once(": "));
    let date = dates.find(|(name, _)| name.eq_ignore_ascii_case("date")).map(|(_, date)| date);
    Ok(date.and_then(seconds_of))
}

/// The seconds since 1970 of a date as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds_of(date: &str) -> Option<i64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = date.split(' ').skip(1);
    let number = |word: &str| word.parse::<u16>().ok().map(i64::from);
    let (day, month, year) = (number(words.next()?)?, words.next()?, number(words.next()?)?);
    let month = i64::try_from(MONTHS.find(month)? / 3 + 1).ok()?;
    let mut time = words.next()?.split(':').map(number);
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

/// Whether authentication is off; `None` if that is not to be seen.
async fn is_open(config: &Config, member: &Connection) -> Option<bool> {
    if let Ok(auth) = member.unary::<_, AuthStatus>("/etcdserverpb.Auth/AuthStatus", Empty {}).await {
        return Some(!auth.enabled);
    }
    // Before 3.5 there is no such request. A client without a name sees the users only while authentication is off.
    let listed = member.unary::<_, Empty>("/etcdserverpb.Auth/UserList", Empty {}).await;
    config.user.is_none().then(|| listed.is_ok())
}

/// Versions in which a member that was the leader before can expire leases by its own clock.
fn is_faulty(version: &str) -> bool {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or_default());
    let (major, minor, patch) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match (major, minor) {
        (3, 4) => patch < 31,
        (3, 5) => patch < 13,
        (3, minor) => minor < 4,
        (major, _) => major < 3,
    }
}

#[cfg(test)]
mod tests {
    use super::{VERSION, is_faulty, seconds_of};

    #[test]
    fn dates_of_a_web_server_are_read() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 29 Feb 2024 23:59:59 GMT", 1_709_251_199),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
        ] {
            assert_eq!(seconds_of(date), Some(seconds), "{date}");
        }
        let huge = "Sun, 06 Nov 9223372036854775807 08:49:37 GMT";
        for wrong in ["", "today", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT", huge] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn versions_with_the_fault_of_leases_are_known() {
        assert_eq!(VERSION.id, "etcd-version");
        for version in ["3.3.27", "3.4.30", "3.5.0", "3.5.12", "2.3.8"] {
            assert!(is_faulty(version), "{version}");
        }
        for version in ["3.4.31", "3.5.13", "3.5.13-rc.1", "3.6.0", "4.0.0"] {
            assert!(!is_faulty(version), "{version}");
        }
    }
}
