//! Examines a deployment: is it safe, and why not? Nothing is changed.

use std::time::Duration;

use oarlock_core::doctor::{
    CANNOT_TELL, COMMON, Doctor, FENCES_REPEAT, IDLE_CONNECTIONS, MANY_WAITERS, OLD_HOLD, patience, within,
};
pub use oarlock_core::doctor::{Check, Fact, Finding, Report, Severity};
pub use oarlock_core::guarantees::{Guarantees, Promise};
use oarlock_core::state::ResourceState;
use oarlock_core::text;

use crate::Result;
use crate::registry::STORES;
use crate::url::{IntoUrl, Url};

/// Thresholds of an examination: waiters, the age of a hold, idle connections, the last known fence.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// How many claims may wait for one name.
    pub waiters: usize,
    /// How old a hold may be.
    pub max_hold: Duration,
    /// The longest time for which a connection of a client may be idle.
    pub max_idle: Duration,
    /// The largest fence that was seen before, if it is known: the next one must be larger.
    pub seen_fence: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        let hour = Duration::from_secs(3600);
        Self { waiters: 100, max_hold: 24 * hour, max_idle: hour, seen_fence: None }
    }
}

/// How many examples of one finding are listed.
const EXAMPLES: usize = 5;

/// Every check of every store of this build, each of which has a section in `docs/runbook.md`.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    let own = STORES.built_in.iter().filter_map(|store| store.examination()).flat_map(|doctor| doctor.checks);
    COMMON.iter().chain(own).copied()
}

/// What each store of this build promises, in each of its layouts and modes.
pub fn guarantees() -> impl Iterator<Item = &'static Guarantees> {
    STORES.built_in.iter().flat_map(|store| store.promises())
}

/// What the store behind a URL promises, in the layout or mode that the URL names; `None` for a store that promises
/// nothing of its own.
///
/// # Errors
/// As [`examine`].
pub fn guarantees_of(url: impl IntoUrl) -> Result<Option<&'static Guarantees>> {
    let url = url.into_url()?;
    let rows = url.store().promises();
    let chosen = [url.layout(), url.choice("mode")].into_iter().flatten();
    let named = |choice: &str| rows.iter().find(|row| row.choices.contains(&choice));
    Ok(chosen.filter_map(named).next().or(rows.first()))
}

/// Examines the store behind a URL: its servers, as the store knows them, and its locks.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid URL, or if this build has no driver for it. A server that does not answer is a
/// finding.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock::Result<()> {
/// let report = oarlock::doctor::examine("mem:", oarlock::doctor::Limits::default()).await?;
/// assert!(report.findings.is_empty());
/// # Ok(()) }
/// ```
pub async fn examine(url: impl IntoUrl, limits: Limits) -> Result<Report> {
    let url = url.into_url()?;
    let mut report = match url.store().examination() {
        Some(doctor) => ask(doctor, url).await,
        None => Report::default(),
    };
    judge_locks(limits, &mut report);
    judge_connections(limits, &mut report);
    judge_fences(limits, &mut report);
    report.findings.sort_by_key(|finding| std::cmp::Reverse(finding.check.severity));
    Ok(report)
}

/// How long an examination takes at most: as long as all servers may take one after the other.
///
/// # Errors
/// As [`examine`].
pub fn longest(url: impl IntoUrl) -> Result<Duration> {
    url.into_url().map(|url| limit(&url))
}

fn limit(url: &Url) -> Duration {
    let servers = u32::try_from(url.hosts().len()).unwrap_or(u32::MAX);
    patience(url).saturating_mul(servers.saturating_add(2))
}

/// Asks the servers, and ends in time.
async fn ask(doctor: Doctor, url: Url) -> Report {
    let limit = limit(&url);
    let name = url.to_string();
    match within(limit, async { Ok((doctor.examine)(url).await) }).await {
        Ok(report) => report,
        Err(error) => {
            let mut report = Report::default();
            report.on(&name).failed(&error);
            report
        }
    }
}

fn judge_locks(limits: Limits, report: &mut Report) {
    let crowded: Vec<_> = report.locks.iter().filter_map(|state| crowd(state, limits)).collect();
    let old: Vec<_> = report.locks.iter().filter_map(|state| old_hold(state, limits)).collect();
    if let Some(examples) = examples(&crowded) {
        report.find(&MANY_WAITERS, format!("more than {} claims wait for one name: {examples}", limits.waiters));
    }
    if let Some(examples) = examples(&old) {
        report.find(&OLD_HOLD, format!("held for more than {}: {examples}", text::span(limits.max_hold)));
    }
}

fn judge_connections(limits: Limits, report: &mut Report) {
    let idle: Vec<_> = report.idle.iter().filter(|(_, span)| *span > limits.max_idle).collect();
    if let Some((server, longest)) = idle.iter().max_by_key(|(_, span)| *span) {
        let reason = format!(
            "{} connections of Oarlock have asked for nothing for more than {}, the longest for {} on {server}: a client \
             keeps some open for its session, and some may be of clients that are gone",
            idle.len(),
            text::span(limits.max_idle),
            text::span(*longest)
        );
        report.find(&IDLE_CONNECTIONS, reason);
    }
}

fn judge_fences(limits: Limits, report: &mut Report) {
    let Some(seen) = limits.seen_fence else { return };
    match report.last_fence {
        Some(last) if last >= seen => {}
        Some(last) => {
            let reason = format!(
                "the next fence of this store is about {}, and {seen} was seen before: a late holder could write over a \
                 later one",
                last.saturating_add(1)
            );
            report.find(&FENCES_REPEAT, reason);
        }
        None => report.find(&CANNOT_TELL, "no server tells how large the next fence is"),
    }
}

fn crowd(state: &ResourceState, limits: Limits) -> Option<String> {
    let count = state.waiters.count().filter(|count| *count > limits.waiters)?;
    Some(format!("{} ({count} wait)", text::quoted(state.name.as_str())))
}

fn old_hold(state: &ResourceState, limits: Limits) -> Option<String> {
    let holder = state.holders.iter().find(|holder| holder.held_for > limits.max_hold)?;
    let (name, held) = (text::quoted(state.name.as_str()), text::span(holder.held_for));
    Some(format!("{name} (for {held}, by {})", text::holder(&holder.label)))
}

/// The first few, and how many more there are.
fn examples(found: &[String]) -> Option<String> {
    let shown = found.get(..EXAMPLES.min(found.len()))?;
    let more = match found.len() - shown.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}
