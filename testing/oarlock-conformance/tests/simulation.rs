//! Ten thousand worlds, each from one seed.
//!
//! A failing seed is printed with the command that replays it. `OARLOCK_SEED=n` runs one seed and prints what happened;
//! `OARLOCK_SEEDS=n` changes how many are run; with `OARLOCK_LONG=1` it is a million.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_conformance::sim::{Plan, Tally, run};

const REPLAY: &str = "cargo test -p oarlock-conformance --test simulation";

#[expect(clippy::expect_used, reason = "a seed that is none must not be ignored")]
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("OARLOCK_SEED and OARLOCK_SEEDS must be numbers"))
}

fn seeds() -> u64 {
    let long = std::env::var_os("OARLOCK_LONG").is_some();
    number("OARLOCK_SEEDS").unwrap_or(if long { 1_000_000 } else { 10_000 })
}

#[test]
fn every_seed_keeps_the_rule() {
    if let Some(seed) = number("OARLOCK_SEED") {
        let plan = Plan::draw(seed);
        let outcome = run(&plan);
        println!("{plan:#?}\n{}\n{outcome}", outcome.trace);
        assert!(outcome.is_ok(), "seed {seed} fails");
        return;
    }
    let seeds = seeds();
    let next = AtomicU64::new(0);
    let total = Mutex::new((Tally::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let outcome = run(&Plan::draw(seed));
            let mut total = total.lock().unwrap();
            total.0.add(&outcome.tally);
            if !outcome.is_ok() {
                total.1.push((seed, outcome.to_string()));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    let (tally, mut failures) = total.into_inner().unwrap();
    failures.sort();
    for (seed, outcome) in failures.iter().take(5) {
        println!("seed {seed} fails; replay it with: OARLOCK_SEED={seed} {REPLAY} -- --nocapture\n{outcome}");
    }
    assert!(failures.is_empty(), "{} of {seeds} seeds fail", failures.len());
    println!("{seeds} seeds: {tally:?}");
    if seeds >= 1000 {
        // Rare things must have happened, or their absence from the complaints means nothing.
        let Tally {
            granted, busy, cancelled, failed, lost, suspect, recovered, requeued, faults, outages, kills, ..
        } = tally;
        for (what, count) in [
            ("granted", granted),
            ("busy", busy),
            ("cancelled", cancelled),
            ("failed", failed),
            ("lost", lost),
            ("suspect", suspect),
            ("recovered", recovered),
            ("requeued", requeued),
            ("faults", faults),
            ("outages", outages),
            ("kills", kills),
        ] {
            assert!(count > 20, "{what} happened only {count} times in {seeds} seeds");
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..50 {
        let (first, second) = (run(&Plan::draw(seed)), run(&Plan::draw(seed)));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.tally, second.tally, "seed {seed}");
    }
}
