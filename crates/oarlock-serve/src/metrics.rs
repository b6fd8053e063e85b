//! Metrics for Prometheus. The text format is a few lines to write, so that no crate is built for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock::state::{Kind, Moment};
use oarlock_core::pattern;

use crate::access::{Client, Right};
use crate::board::{self, Listing, Sample};
use crate::state::{State, now, wall_millis};

/// The upper bounds of waits and holds, in seconds.
const SPANS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0];

/// The upper bounds of what was left of a lease, as a part of it. The alert rule compares with one of them, so that it
/// need not guess within a bucket.
const PARTS: [f64; 8] = [0.1, 0.2, 0.33, 0.4, 0.5, 0.6, 0.7, 0.8];

/// More names are not labels, whatever the patterns say.
const MAX_NAMES: usize = 200;

/// The labels of a series, as they are written.
type Labels = String;

/// What was measured.
#[derive(Debug)]
pub(crate) struct Metrics {
    backend: &'static str,
    series: Mutex<Series>,
}

/// The kinds of locks that HTTP clients can take, and why they can lose one. These series begin at zero: Prometheus sees
/// no increase in one that begins with one.
const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Read, Kind::Write, Kind::Semaphore];
const CAUSES: [&str; 4] = ["expired", "gone", "broken", "session"];

#[derive(Debug, Default)]
struct Series {
    waits: BTreeMap<Labels, Histogram>,
    holds: BTreeMap<Labels, Histogram>,
    renewals: BTreeMap<Labels, Histogram>,
    margins: BTreeMap<Labels, Histogram>,
    margin_parts: BTreeMap<Labels, Histogram>,
    waiting: BTreeMap<Labels, u64>,
    lost: BTreeMap<Labels, u64>,
    answers: BTreeMap<Labels, u64>,
}

#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

/// Of spans of time.
impl Default for Histogram {
    fn default() -> Self {
        Self::new(&SPANS)
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    fn add(&mut self, span: Duration) {
        self.add_value(span.as_secs_f64());
    }

    fn add_value(&mut self, value: f64) {
        for (bucket, bound) in self.buckets.iter_mut().zip(self.bounds) {
            *bucket += u64::from(value <= *bound);
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A request that waits, until it is dropped.
pub(crate) struct Waiting<'a> {
    metrics: &'a Metrics,
    labels: Labels,
    began: Moment,
    outcome: &'static str,
}

impl Waiting<'_> {
    /// It is over.
    pub(crate) fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut series = self.metrics.series();
        if let Some(waiting) = series.waiting.get_mut(&self.labels) {
            *waiting -= 1;
        }
        let labels = format!("{},outcome=\"{}\"", self.labels, self.outcome);
        series.waits.entry(labels).or_default().add(now().since(self.began));
    }
}

impl Metrics {
    pub(crate) fn new(backend: &'static str) -> Self {
        let metrics = Self { backend, series: Mutex::default() };
        for labels in KINDS.map(|kind| metrics.labels(kind)) {
            let mut series = metrics.series();
            for cause in CAUSES {
                series.lost.insert(format!("{labels},cause=\"{cause}\""), 0);
            }
            series.waiting.insert(labels, 0);
        }
        metrics
    }

    fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn labels(&self, kind: Kind) -> Labels {
        let (kind, mode) = (kind.family(), kind.mode());
        format!("backend=\"{}\",kind=\"{kind}\",mode=\"{mode}\"", self.backend)
    }

    /// A request begins to wait; if its client goes away, its outcome is `cancelled`.
    pub(crate) fn waiting(&self, kind: Kind) -> Waiting<'_> {
        let labels = self.labels(kind);
        *self.series().waiting.entry(labels.clone()).or_default() += 1;
        Waiting { metrics: self, labels, began: now(), outcome: "cancelled" }
    }

    pub(crate) fn held(&self, kind: Kind, end: &str, span: Duration) {
        let labels = format!("{},end=\"{end}\"", self.labels(kind));
        self.series().holds.entry(labels).or_default().add(span);
    }

    pub(crate) fn renewed(&self, outcome: &str, span: Duration) {
        let labels = format!("backend=\"{}\",outcome=\"{outcome}\"", self.backend);
        self.series().renewals.entry(labels).or_default().add(span);
    }

    /// How much of a lease that was so long was left when it was renewed.
    pub(crate) fn margin(&self, left: Duration, lease: Duration) {
        let (labels, mut series) = (format!("backend=\"{}\"", self.backend), self.series());
        series.margins.entry(labels.clone()).or_default().add(left);
        let part = if lease.is_zero() { 0.0 } else { left.as_secs_f64() / lease.as_secs_f64() };
        series.margin_parts.entry(labels).or_insert_with(|| Histogram::new(&PARTS)).add_value(part);
    }

    pub(crate) fn lost(&self, kind: Kind, cause: &str) {
        *self.series().lost.entry(format!("{},cause=\"{cause}\"", self.labels(kind))).or_default() += 1;
    }

    pub(crate) fn answered(&self, template: &str, method: &str, status: u16) {
        // A method is what the client writes; the known ones are few.
        let method = if ["GET", "HEAD", "POST", "DELETE"].contains(&method) { method } else { "other" };
        let labels = format!("route=\"{template}\",method=\"{method}\",status=\"{status}\"");
        *self.series().answers.entry(labels).or_default() += 1;
    }

    /// Everything, in the text format.
    pub(crate) fn text(&self, state: &State, client: &Client) -> String {
        let mut text = Text::default();
        {
            let series = self.series();
            text.histograms("oarlock_wait_duration_seconds", "How long HTTP clients waited for a lock.", &series.waits);
            text.histograms("oarlock_hold_duration_seconds", "How long HTTP clients held a lock.", &series.holds);
            text.histograms("oarlock_renewal_duration_seconds", "How long the store took to renew.", &series.renewals);
            text.histograms("oarlock_lease_margin_seconds", "Lease left when it was renewed.", &series.margins);
            let help = "Lease left when it was renewed, as a part of the lease.";
            text.histograms("oarlock_lease_margin_ratio", help, &series.margin_parts);
            text.head("oarlock_http_requests_total", "counter", "Requests, by route and status.");
            for (labels, count) in &series.answers {
                text.line("oarlock_http_requests_total", labels, *count);
            }
            text.head("oarlock_waiting", "gauge", "Requests of HTTP clients that wait.");
            for (labels, count) in &series.waiting {
                text.line("oarlock_waiting", labels, *count);
            }
            text.head("oarlock_lost_total", "counter", "Leases of HTTP clients that ended without a release.");
            for (labels, count) in &series.lost {
                text.line("oarlock_lost_total", labels, *count);
            }
        }
        text.head("oarlock_held", "gauge", "Locks that HTTP clients of this server hold.");
        let mut held: BTreeMap<Labels, u64> = KINDS.map(|kind| (self.labels(kind), 0)).into();
        for kind in state.leases.kinds() {
            *held.entry(self.labels(kind)).or_default() += 1;
        }
        for (labels, count) in held {
            text.line("oarlock_held", &labels, count);
        }
        text.gauge("oarlock_viewers", "Pages that are open.", "", state.board.viewers() as u64);
        let help = "Changes of locks that the history lacks, because they could not be written.";
        text.head("oarlock_history_missing_total", "counter", help);
        text.line("oarlock_history_missing_total", "", state.history.missing());
        self.store(&mut text, state, client, &state.board.last());
        text.0
    }

    /// What the last sample of the store shows.
    fn store(&self, text: &mut Text, state: &State, client: &Client, sample: &Sample) {
        let backend = format!("backend=\"{}\"", self.backend);
        text.gauge(
            "oarlock_store_up",
            "Whether the store answered when it was last read.",
            &backend,
            u64::from(sample.is_up),
        );
        text.gauge(
            "oarlock_store_listed",
            "Whether the locks of the store were listed; if not, the other oarlock_store_* say nothing.",
            &backend,
            u64::from(sample.listing != Listing::Unsupported && sample.trouble.is_none()),
        );
        // What could not be read again may have ended long ago: it must not feed an alert.
        if sample.trouble.is_some() || sample.at_ms == 0 || sample.listing == Listing::Unsupported {
            return;
        }
        let totals: BTreeMap<Labels, (usize, usize)> =
            board::totals(sample).into_iter().map(|(kind, totals)| (self.labels(kind), totals)).collect();
        text.head("oarlock_store_held", "gauge", "Claims that hold, in the whole store.");
        for (labels, (held, _)) in &totals {
            text.line("oarlock_store_held", labels, *held as u64);
        }
        text.head("oarlock_store_waiting", "gauge", "Claims that wait, in the whole store.");
        for (labels, (_, waiting)) in &totals {
            text.line("oarlock_store_waiting", labels, *waiting as u64);
        }
        let rows = || sample.rows.values();
        text.gauge(
            "oarlock_store_oldest_waiter_seconds",
            "How long the oldest waiter of the store has waited.",
            &backend,
            rows().map(|row| aged(row.lock.oldest_wait_ms(), row.at_ms)).fold(0.0, f64::max),
        );
        let named = rows().filter(|row| {
            let name = row.lock.name.as_str();
            state.config.metrics_names.iter().any(|wanted| pattern::matches(wanted, name))
                && client.may(Right::Read, name)
        });
        let named: Vec<_> =
            named.take(MAX_NAMES).map(|row| (format!("name=\"{}\"", escaped(&row.lock.name)), row)).collect();
        if named.is_empty() {
            return;
        }
        text.head("oarlock_lock_held_seconds", "gauge", "How long the lock has been held.");
        for (labels, row) in &named {
            let held = row.lock.holders.first();
            let held = aged(held.map(|holder| holder.held_ms), row.at_ms);
            text.line("oarlock_lock_held_seconds", labels, held);
        }
        text.head("oarlock_lock_waiters", "gauge", "How many wait for the lock.");
        for (labels, row) in &named {
            text.line("oarlock_lock_waiters", labels, row.lock.waiting.unwrap_or_default() as u64);
        }
        text.head("oarlock_lock_oldest_waiter_seconds", "gauge", "How long the oldest waiter of the lock has waited.");
        for (labels, row) in &named {
            text.line("oarlock_lock_oldest_waiter_seconds", labels, aged(row.lock.oldest_wait_ms(), row.at_ms));
        }
        text.head("oarlock_lock_token", "gauge", "The fence of the present hold.");
        for (labels, row) in &named {
            let fence = row.lock.holders.first().and_then(|holder| holder.fence.clone());
            text.line("oarlock_lock_token", labels, fence.unwrap_or_else(|| "0".to_owned()));
        }
    }
}

/// An age of a row, now; zero if there is none.
fn aged(ms: Option<u64>, at_ms: i64) -> f64 {
    let Some(ms) = ms else { return 0.0 };
    let since = u64::try_from(wall_millis() - at_ms).unwrap_or_default();
    Duration::from_millis(ms.saturating_add(since)).as_secs_f64()
}

/// A label's value: it comes from the store, and may be anything.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.line(name, labels, value);
    }

    fn histograms(&mut self, name: &str, help: &str, all: &BTreeMap<Labels, Histogram>) {
        self.head(name, "histogram", help);
        for (labels, histogram) in all {
            for (bucket, bound) in histogram.buckets.iter().zip(histogram.bounds) {
                self.line(&format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), *bucket);
            }
            self.line(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), histogram.count);
            self.line(&format!("{name}_sum"), labels, histogram.sum);
            self.line(&format!("{name}_count"), labels, histogram.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_what_is_not_above_its_bounds() {
        let metrics = Metrics::new("mem");
        metrics.held(Kind::Read, "released", Duration::from_millis(5));
        metrics.held(Kind::Read, "released", Duration::from_secs(7200));
        let mut text = Text::default();
        text.histograms("w", "Help.", &metrics.series().holds);
        let labels = r#"backend="mem",kind="rwlock",mode="shared",end="released""#;
        for line in [
            format!("w_bucket{{{labels},le=\"0.001\"}} 0\n"),
            format!("w_bucket{{{labels},le=\"0.005\"}} 1\n"),
            format!("w_bucket{{{labels},le=\"3600\"}} 1\n"),
            format!("w_bucket{{{labels},le=\"+Inf\"}} 2\n"),
            format!("w_sum{{{labels}}} 7200.005\n"),
            format!("w_count{{{labels}}} 2\n"),
        ] {
            assert!(text.0.contains(&line), "{line}\n{}", text.0);
        }
    }

    /// A third is little of any lease, whether it is 10 s or 10 minutes long.
    #[test]
    fn what_is_left_of_a_lease_is_a_part_of_it() {
        let metrics = Metrics::new("mem");
        for (left, lease) in [(3, 10), (4, 10), (190, 600), (400, 600), (0, 0)] {
            metrics.margin(Duration::from_secs(left), Duration::from_secs(lease));
        }
        let mut text = Text::default();
        text.histograms("r", "Help.", &metrics.series().margin_parts);
        for line in [
            "r_bucket{backend=\"mem\",le=\"0.1\"} 1\n",
            "r_bucket{backend=\"mem\",le=\"0.33\"} 3\n",
            "r_bucket{backend=\"mem\",le=\"0.4\"} 4\n",
            "r_bucket{backend=\"mem\",le=\"0.7\"} 5\n",
            "r_count{backend=\"mem\"} 5\n",
        ] {
            assert!(text.0.contains(line), "{line}\n{}", text.0);
        }
    }

    #[test]
    fn a_request_counts_while_it_waits_and_a_client_that_goes_away_has_cancelled() {
        let (metrics, labels) = (Metrics::new("mem"), r#"backend="mem",kind="semaphore",mode="permits""#);
        let (gone, granted) = (metrics.waiting(Kind::Semaphore), metrics.waiting(Kind::Semaphore));
        assert_eq!(metrics.series().waiting[labels], 2);
        drop(gone);
        granted.end("acquired");
        let series = metrics.series();
        assert_eq!((series.waiting[labels], series.waiting.len()), (0, 4));
        for outcome in ["cancelled", "acquired"] {
            assert_eq!(series.waits[&format!("{labels},outcome=\"{outcome}\"")].count, 1, "{outcome}");
        }
    }

    /// Alerts tell a store that does not answer from one that answers, and whose locks cannot be listed any more.
    #[tokio::test]
    async fn a_store_is_up_and_listed_or_its_locks_feed_no_metric() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = State::new(locks, crate::config::Config::default()).unwrap();
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        for (listing, trouble, is_up, is_listed) in [
            (Listing::Index, None, true, true),
            (Listing::Scan, None, true, true),
            (Listing::Scan, Some("to read every key took longer than 2 s"), true, false),
            (Listing::Unsupported, None, true, false),
            (Listing::Index, Some("it does not answer"), false, false),
        ] {
            let trouble = trouble.map(str::to_owned);
            let at_ms = wall_millis();
            state.board.put(Sample { at_ms, listing, trouble, is_up, ..Sample::default() });
            let text = state.metrics.text(&state, &client);
            for (metric, value) in [("up", is_up), ("listed", is_listed)] {
                let line = format!("oarlock_store_{metric}{{backend=\"mem\"}} {}\n", u8::from(value));
                assert!(text.contains(&line), "{listing:?}: {line}{text}");
            }
            assert_eq!(text.contains("\noarlock_store_oldest_waiter_seconds"), is_listed, "{listing:?}: {text}");
        }
    }

    #[test]
    fn a_hold_that_was_seen_at_its_first_moment_grows_older() {
        let at_ms = wall_millis() - 5000;
        assert!(aged(Some(0), at_ms) >= 5.0);
        assert!(aged(None, at_ms) <= 0.0);
    }

    #[test]
    fn a_name_from_the_store_cannot_forge_a_metric() {
        assert_eq!(escaped("a\"} 1\nb{c=\"\\"), "a\\\"} 1\\nb{c=\\\"\\\\");
    }
}
