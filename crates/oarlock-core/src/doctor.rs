//! What can make a deployment unsafe. A store registers its checks and examines its servers; nothing is ever changed.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::ser::SerializeStruct as _;

use crate::driver::BoxFuture;
use crate::engine::DEFAULT_OP_TIMEOUT;
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Promise;
use crate::state::{Page, Query, ResourceState};
use crate::text;
use crate::url::Url;

/// How bad a finding is. A later one is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// No promise is in danger by itself; an operator should know it all the same.
    Note,
    /// It could not be found out, as without a right.
    Unknown,
    /// A promise can be broken by a rare failure, such as a power cut, or a limit is near.
    Warning,
    /// A promise does not hold, or one restart or failover of a server breaks it.
    Void,
}

/// One way in which a deployment can be unsafe.
#[derive(Debug)]
pub struct Check {
    /// Its name, which is its anchor in `docs/runbook.md`. Names do not change.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The promise that it voids or endangers.
    pub promise: Promise,
    /// What to do.
    pub fix: &'static str,
}

/// Something that was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked.
    pub check: &'static Check,
    /// The server that it is about, if it is about one.
    pub server: Option<String>,
    /// What is wrong, and what follows from it.
    pub reason: String,
}

/// Something that was measured or asked, and is fine or not by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fact {
    /// The server that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// What was asked.
    pub what: &'static str,
    /// The answer.
    pub value: String,
}

/// Where the pages are.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs");

impl Finding {
    /// The page of the promise that it is about.
    #[must_use]
    pub fn guarantee(&self) -> String {
        format!("{DOCS}/guarantees.md#{}", self.check.promise.anchor())
    }

    /// How a store with this row in the tables of guarantees keeps the promise, where stores differ.
    #[must_use]
    pub fn store_guarantee(&self, row: &str) -> Option<String> {
        Some(format!("{DOCS}/guarantees.md#{row}-{}", self.check.promise.column()?))
    }

    /// The page that says what to do.
    #[must_use]
    pub fn runbook(&self) -> String {
        format!("{DOCS}/runbook.md#{}", self.check.id)
    }
}

/// With everything that a person needs: the promise, the fix and the pages.
impl Serialize for Finding {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("Finding", 8)?;
        map.serialize_field("id", self.check.id)?;
        map.serialize_field("severity", &self.check.severity)?;
        map.serialize_field("server", &self.server)?;
        map.serialize_field("reason", &self.reason)?;
        map.serialize_field("promise", self.check.promise.title())?;
        map.serialize_field("guarantee", &self.guarantee())?;
        map.serialize_field("fix", self.check.fix)?;
        map.serialize_field("runbook", &self.runbook())?;
        map.end()
    }
}

/// What an examination found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What else was seen.
    pub facts: Vec<Fact>,
    /// The locks, where the store can list them without writing anything.
    pub locks: Vec<ResourceState>,
    /// The anchor of the [guarantees](crate::guarantees::Guarantees) that hold here, where they are not those that the
    /// URL names, as behind a pooler.
    pub guarantees: Option<&'static str>,
    /// How long each connection of a client has asked for nothing, by server, where servers tell.
    pub idle: Vec<(String, Duration)>,
    /// The next fence is larger than this, where servers tell.
    pub last_fence: Option<u64>,
}

impl Report {
    /// Adds a finding about the whole store.
    pub fn find(&mut self, check: &'static Check, reason: impl Into<String>) {
        self.findings.push(Finding { check, server: None, reason: reason.into() });
    }

    /// Adds what was found on another server or by another examination.
    pub fn merge(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.facts.extend(other.facts);
        self.locks.extend(other.locks);
        self.guarantees = self.guarantees.or(other.guarantees);
        self.idle.extend(other.idle);
        self.last_fence = self.last_fence.max(other.last_fence);
    }

    /// The worst severity found; `None` if nothing was found.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.check.severity).max()
    }

    /// What is found from now on is about this server.
    pub fn on<'a>(&'a mut self, server: &'a str) -> OnServer<'a> {
        OnServer { report: self, server }
    }
}

/// A report on one server.
#[derive(Debug)]
pub struct OnServer<'a> {
    report: &'a mut Report,
    server: &'a str,
}

impl OnServer<'_> {
    /// Adds a finding.
    pub fn find(&mut self, check: &'static Check, reason: impl Into<String>) {
        self.report.findings.push(Finding { check, server: Some(self.server.to_owned()), reason: reason.into() });
    }

    /// Adds a fact.
    pub fn fact(&mut self, what: &'static str, value: impl Into<String>) {
        self.report.facts.push(Fact { server: Some(self.server.to_owned()), what, value: value.into() });
    }

    /// Notes how long a request took, and finds it too long.
    pub fn latency(&mut self, took: Duration) {
        self.fact("latency", text::span(took));
        if took > SLOW {
            let reason =
                format!("a request took {}; a renewal takes as long, and waits in the same way", text::span(took));
            self.find(&SLOW_SERVER, reason);
        }
    }

    /// Compares the server's clock, by which the store counts fences, with this machine's. The answer took `took`; the
    /// clock was read in between. Returns how far the server's is ahead, in microseconds.
    pub fn clock(&mut self, micros: i64, took: Duration) -> i64 {
        let Offset { ahead, by, words } = Offset::of(micros, took);
        self.fact("clock", format!("{words} this machine's"));
        self.last_fence(u64::try_from(micros).unwrap_or_default());
        if by > MAX_OFFSET + took {
            self.find(
                &CLOCK_OFFSET,
                format!(
                    "its clock is {words} this machine's. Fences join a counter with that clock: after a loss of data or \
                     a failover to a server with another clock, fences can repeat"
                ),
            );
        }
        ahead
    }

    /// The same for a store whose fences and leases do not depend on that clock.
    pub fn clock_beside(&mut self, micros: i64, took: Duration) {
        let Offset { words, .. } = Offset::of(micros, took);
        self.fact("clock", format!("{words} this machine's; locks of this store do not depend on it"));
    }

    /// Notes that the next fence is larger than this.
    pub fn last_fence(&mut self, fence: u64) {
        self.report.last_fence = self.report.last_fence.max(Some(fence));
    }

    /// Notes how long connections of clients have asked for nothing.
    pub fn idle(&mut self, spans: impl IntoIterator<Item = Duration>) {
        self.report.idle.extend(spans.into_iter().map(|span| (self.server.to_owned(), span)));
    }

    /// Notes that most of the connections that the server admits are in use.
    pub fn connections(&mut self, used: u64, limit: u64) {
        self.fact("connections", format!("{used} of {limit}"));
        if limit > 0 && used.saturating_mul(10) >= limit.saturating_mul(9) {
            let reason =
                format!("{used} of {limit} connections are in use; a client that must reconnect may be refused");
            self.find(&FEW_CONNECTIONS, reason);
        }
    }

    /// Notes that the server could not be asked, and why.
    pub fn failed(&mut self, error: &Error) {
        let check = match error.kind() {
            ErrorKind::Denied => &DENIED,
            ErrorKind::Unreachable | ErrorKind::Closed => &UNREACHABLE,
            ErrorKind::NewerFormat | ErrorKind::Foreign => &NEWER_FORMAT,
            _ => &REFUSED,
        };
        self.find(check, error.to_string());
    }

    /// Notes what the user has no right to ask.
    pub fn cannot_tell(&mut self, what: &str) {
        self.find(&CANNOT_TELL, format!("not checked: this user has no right to read {what}"));
    }
}

/// How far a server's clock is from this machine's.
struct Offset {
    /// How far the server's is ahead, in microseconds.
    ahead: i64,
    by: Duration,
    /// `3 s behind`.
    words: String,
}

impl Offset {
    fn of(micros: i64, took: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ours = i64::try_from((now.saturating_sub(took / 2)).as_micros()).unwrap_or(i64::MAX);
        let by = Duration::from_micros(ours.abs_diff(micros));
        let words = format!("{} {}", text::span(by), if micros > ours { "ahead of" } else { "behind" });
        Self { ahead: micros.saturating_sub(ours), by, words }
    }
}

/// What a server says of itself: names and values. What it leaves out is unknown, and not good.
#[derive(Clone, Debug, Default)]
pub struct Answers(HashMap<String, String>);

impl Answers {
    /// Adds what else the server told; the later answer counts.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The value of `name`, if the server told it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value of `name`; empty if the server did not tell it.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The value of `name` as a number, if the server told one.
    #[must_use]
    pub fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.parse().ok()
    }
}

impl FromIterator<(String, String)> for Answers {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// Runs an examination. That it failed is a finding, too.
pub async fn examined(url: Url, examine: impl AsyncFnOnce(&Url, &mut Report) -> Result<()>) -> Report {
    let mut report = Report::default();
    if let Err(error) = examine(&url, &mut report).await {
        report.on(&servers(&url)).failed(&error);
    }
    report
}

/// The servers of this URL as one text; the URL itself where it names none.
#[must_use]
pub fn servers(url: &Url) -> String {
    let hosts: Vec<_> = url.hosts().iter().map(ToString::to_string).collect();
    if hosts.is_empty() { url.to_string() } else { hosts.join(",") }
}

/// Bounds a question: a server may accept a connection and never answer.
///
/// # Errors
/// Those of `work`; [`ErrorKind::Unreachable`] after `limit`.
pub async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || Error::unreachable(format!("no answer within {}", text::span(limit)));
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

/// How long one server of this URL may take to be asked everything.
#[must_use]
pub fn patience(url: &Url) -> Duration {
    url.connect_timeout().saturating_add(url.op_timeout().unwrap_or(DEFAULT_OP_TIMEOUT))
}

/// Lists all locks with `page`, which must write nothing.
///
/// # Errors
/// Those of `page`.
pub async fn list<F: Future<Output = Result<Page>>>(mut page: impl FnMut(Query) -> F) -> Result<Vec<ResourceState>> {
    let (mut query, mut locks) = (Query::live(), Vec::new());
    loop {
        let Page { resources, more, .. } = page(query.clone()).await?;
        query.after = resources.last().map(|last| last.name.clone());
        locks.extend(resources);
        if !more || query.after.is_none() {
            return Ok(locks);
        }
    }
}

/// A request that takes longer endangers renewals of short leases.
const SLOW: Duration = Duration::from_millis(250);

/// Clocks that differ by more are not kept in step.
const MAX_OFFSET: Duration = Duration::from_secs(1);

/// Checks of every store.
pub const COMMON: &[&Check] = &[
    &UNREACHABLE,
    &DENIED,
    &REFUSED,
    &NEWER_FORMAT,
    &CANNOT_TELL,
    &SLOW_SERVER,
    &CLOCK_OFFSET,
    &FEW_CONNECTIONS,
    &MANY_WAITERS,
    &OLD_HOLD,
    &IDLE_CONNECTIONS,
    &FENCES_REPEAT,
];

/// A server does not answer.
pub static UNREACHABLE: Check = Check {
    id: "unreachable",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "start the server, or remove it from the URL; check the address, the firewall and TLS",
};

/// A server refuses the credentials, or a right is missing.
pub static DENIED: Check = Check {
    id: "denied",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "check the user and the password; the page of the store lists the rights that locks need",
};

/// The driver refuses to use the store as it is.
pub static REFUSED: Check = Check {
    id: "refused",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "do what the reason says; locks cannot be used before that",
};

/// The store holds data of another version.
pub static NEWER_FORMAT: Check = Check {
    id: "other-format",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "use one version of Oarlock on a store, or another prefix, until all clients are upgraded",
};

/// A right to look is missing.
pub static CANNOT_TELL: Check = Check {
    id: "cannot-tell",
    severity: Severity::Unknown,
    promise: Promise::BeliefEndsFirst,
    fix: "run the doctor as a user that may read the server's settings; the locks themselves need no such right",
};

/// A server answers slowly.
pub static SLOW_SERVER: Check = Check {
    id: "slow-server",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "find what keeps the server busy or far away; use leases of at least ten times the slowest request",
};

/// The clocks of a server and of this machine differ.
pub static CLOCK_OFFSET: Check = Check {
    id: "clock-offset",
    severity: Severity::Warning,
    promise: Promise::LargerFence,
    fix: "run NTP (chrony, systemd-timesyncd) on every server and client",
};

/// A server is about to refuse connections.
pub static FEW_CONNECTIONS: Check = Check {
    id: "few-connections",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "raise the server's limit of connections, or end clients that keep connections without need",
};

/// Many claims wait for one name.
pub static MANY_WAITERS: Check = Check {
    id: "many-waiters",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "look with \"oarlock show NAME\"; hold for a shorter time, split the lock, or let callers give up sooner",
};

/// A hold is older than it should be.
pub static OLD_HOLD: Check = Check {
    id: "old-hold",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "ask the holder; set max_hold where a hold has a bound; \"oarlock break NAME --fence N\" ends it",
};

/// Connections of clients ask for nothing.
pub static IDLE_CONNECTIONS: Check = Check {
    id: "idle-connections",
    severity: Severity::Note,
    promise: Promise::LossReported,
    fix: "if their clients are gone, end them on the server, and let it probe connections more often (TCP keepalive)",
};

/// Fences that were given before can be given again.
pub static FENCES_REPEAT: Check = Check {
    id: "fences-repeat",
    severity: Severity::Void,
    promise: Promise::LargerFence,
    fix: "raise the fences of the store before clients use it again: see \"Restore from a backup\" in docs/runbook.md",
};

/// How a store is examined.
#[derive(Clone, Copy)]
pub struct Doctor {
    /// Its own checks.
    pub checks: &'static [&'static Check],
    /// Asks its servers. It changes nothing, and ends by itself.
    pub examine: fn(Url) -> BoxFuture<Report>,
}
