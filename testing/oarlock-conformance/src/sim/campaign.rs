//! Many worlds, one after another: half of them drawn at random, half of them changed from worlds that reached something
//! new.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::coverage::{Coverage, FAULT};
use super::plan::{Chances, Plan, Style};
use super::world::{Outcome, run};

/// The most worlds that are kept for being changed.
const MOST_KEPT: usize = 4096;

/// What became of many worlds.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many were run.
    pub worlds: u64,
    /// How many of them were changed from another.
    pub changed: u64,
    /// In how many of them a lock was granted.
    pub granted: u64,
    /// In how many of them a fault happened.
    pub faulty: u64,
    /// What they reached.
    pub coverage: Coverage,
    /// How many combinations of faults, kinds and outcomes they reached.
    pub combinations: usize,
    /// The failures, with what was wrong.
    pub failures: Vec<(Plan, String)>,
    /// How many failed.
    pub failed: u64,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.changed += other.changed;
        self.granted += other.granted;
        self.faulty += other.faulty;
        self.failed += other.failed;
        self.coverage.add(&other.coverage);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worlds, changed, combinations, failed, .. } = self;
        let rate = f64::from(u32::try_from(*worlds).unwrap_or(u32::MAX)) / self.took.as_secs_f64().max(0.001);
        write!(f, "{worlds} seeds in {:.1} s, {rate:.0} seeds/s; ", self.took.as_secs_f64())?;
        writeln!(f, "{changed} of them chosen by coverage, {combinations} combinations reached; {failed} failed")?;
        writeln!(f, "a lock was granted in {} of them, and a fault happened in {}", self.granted, self.faulty)?;
        writeln!(f, "{}", self.coverage)?;
        let missed = self.coverage.missed(1);
        if !missed.is_empty() {
            writeln!(f, "never reached: {}", missed.join("; "))?;
        }
        Ok(())
    }
}

/// Runs the worlds of these seeds in `jobs` threads. Each job has every `jobs`-th seed and its own coverage, so the same
/// call runs the same worlds. Ends early after so many failures.
#[must_use]
pub fn campaign(seeds: Range<u64>, jobs: usize, most_failures: u64) -> Report {
    let (started, jobs, failed) = (Instant::now(), jobs.max(1), AtomicU64::new(0));
    let work = &|first: usize| {
        let (mut pool, mut report, mut seen) = (Pool::default(), Report::default(), HashSet::new());
        for seed in seeds.clone().skip(first).step_by(jobs) {
            if failed.load(Ordering::Relaxed) >= most_failures {
                break;
            }
            let (plan, changed) = pool.next(seed);
            let outcome = run(&plan);
            let before = seen.len();
            seen.extend(features(&plan, &outcome));
            if seen.len() > before {
                pool.keep(&plan);
            }
            let granted = outcome.coverage.iter().any(|(_, what, _)| what == "granted");
            let faulty = outcome.coverage.iter().any(|(group, ..)| group == FAULT);
            report.worlds += 1;
            report.changed += u64::from(changed);
            report.granted += u64::from(granted);
            report.faulty += u64::from(faulty);
            report.coverage.add(&outcome.coverage);
            if !outcome.is_ok() {
                report.failed += 1;
                failed.fetch_add(1, Ordering::Relaxed);
                report.failures.push((plan, outcome.to_string()));
            }
        }
        (report, seen)
    };
    let mut total = (Report::default(), HashSet::new());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..jobs).map(|first| scope.spawn(move || work(first))).collect();
        for job in running {
            // A panic in the tool itself is the caller's.
            let (report, seen) = job.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            total.0.add(report);
            total.1.extend(seen);
        }
    });
    let (mut report, seen) = total;
    (report.combinations, report.took) = (seen.len(), started.elapsed());
    report.failures.sort_by_key(|(plan, _)| plan.seed);
    report
}

/// Worlds that reached something new.
#[derive(Default)]
struct Pool(Vec<Plan>);

impl Pool {
    /// The plan of this seed, and whether it was changed from another.
    fn next(&self, seed: u64) -> (Plan, bool) {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x706f_6f6c);
        if self.0.is_empty() || rng.bool() {
            return (Plan::draw(seed), false);
        }
        let mut plan = self.0[rng.usize(..self.0.len())].clone();
        plan.seed = seed;
        let other = Plan::draw(seed);
        for _ in 0..rng.u8(1..=3) {
            match rng.u8(..8) {
                0 => plan.load = other.load,
                1 => (plan.clients, plan.tasks) = (other.clients, other.tasks),
                2 => (plan.rounds, plan.names) = (rng.u32(2..=8), other.names),
                3 => (plan.ttl, plan.delay) = (other.ttl, other.delay),
                4 => (plan.brisk, plan.handed) = (other.brisk, other.handed),
                _ => {
                    let at = rng.usize(..Chances::MOST.len());
                    let most = Chances::MOST[at] * 2.0;
                    *plan.chances.each()[at] = (rng.f64() * most * 10_000.0).round() / 10_000.0;
                    // Beyond this, no margin promises anything.
                    plan.chances.drift = plan.chances.drift.min(0.01);
                }
            }
        }
        (plan.possible(), true)
    }

    fn keep(&mut self, plan: &Plan) {
        if self.0.len() < MOST_KEPT {
            self.0.push(plan.clone());
        }
    }
}

/// What a world reached: each thing that happened together with each fault, and roughly how often.
type Feature = (Style, bool, &'static str, &'static str, &'static str, u32);

fn features(plan: &Plan, outcome: &Outcome) -> Vec<Feature> {
    let faults: Vec<_> =
        outcome.coverage.iter().filter(|(group, ..)| *group == FAULT).map(|(_, what, _)| what).collect();
    let mut all = Vec::new();
    for (group, what, count) in outcome.coverage.iter() {
        all.push((plan.style, plan.handed, group, what, "", count.ilog2().min(4)));
        all.extend(faults.iter().map(|fault| (plan.style, plan.handed, group, what, *fault, 0)));
    }
    all
}
