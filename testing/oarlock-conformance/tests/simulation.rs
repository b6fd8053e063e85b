//! Six thousand worlds, each from one seed.
//!
//! A failing world is printed with the command that replays it, and made smaller. `OARLOCK_PLAN` runs one world, given
//! as a seed or as JSON, and prints what happened. `OARLOCK_SEEDS=n` changes how many are run, `OARLOCK_FROM=n` where
//! they begin, `OARLOCK_JOBS=n` how many threads run them. `cargo xtask simulate` sets these.

use oarlock_conformance::sim::{Plan, campaign, run, shrink};

const REPLAY: &str = "cargo xtask simulate --replay";

#[expect(clippy::expect_used, reason = "a number that is none must not be ignored")]
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("OARLOCK_SEEDS, OARLOCK_FROM and OARLOCK_JOBS must be numbers"))
}

#[expect(clippy::expect_used, reason = "a plan that is none must not be ignored")]
fn given_plan() -> Option<Plan> {
    let text = std::env::var("OARLOCK_PLAN").ok()?;
    Some(text.parse().map_or_else(|_| serde_json::from_str(&text).expect("OARLOCK_PLAN is a seed or JSON"), Plan::draw))
}

#[test]
fn every_seed_keeps_the_rule() {
    if let Some(plan) = given_plan() {
        let outcome = run(&plan);
        println!("{plan:#?}\n{}\n{outcome}", outcome.trace);
        assert!(outcome.is_ok(), "{}", outcome.failure().unwrap_or_default());
        return;
    }
    let seeds = number("OARLOCK_SEEDS").unwrap_or(6000);
    let from = number("OARLOCK_FROM").unwrap_or(0);
    // A fixed number, so that every run has the same worlds.
    let jobs = number("OARLOCK_JOBS").and_then(|jobs| usize::try_from(jobs).ok()).unwrap_or(2);
    assert!(seeds > 0 && from.checked_add(seeds).is_some(), "no seeds to run");
    let report = campaign(from..from + seeds, jobs, 20);
    println!("{report}");
    for (plan, outcome) in report.failures.iter().take(2) {
        println!("seed {} fails; replay it with: {REPLAY} '{}'\n{outcome}", plan.seed, json(plan));
        if let Some((smaller, tried)) = shrink(plan) {
            let outcome = run(&smaller);
            println!("made smaller in {tried} runs: {REPLAY} '{}'\n{}\n{outcome}", json(&smaller), outcome.trace);
        }
    }
    assert!(report.failed == 0, "{} of {} seeds fail", report.failed, report.worlds);
    if seeds >= 100 {
        // Some worlds are calm on purpose, and must stay so.
        let (granted, faulty) = (report.granted * 10 / report.worlds, report.faulty * 10 / report.worlds);
        assert!(granted >= 9 && faulty >= 8, "too many worlds in which nothing happens");
    }
    if seeds >= 3000 {
        // Rare things must have happened, or their absence from the complaints means nothing.
        let missed = report.coverage.missed(if seeds >= 10_000 { 20 } else { 1 });
        assert!(missed.is_empty(), "too rare in {seeds} seeds: {}", missed.join("; "));
    }
}

fn json(plan: &Plan) -> String {
    serde_json::to_string(plan).unwrap_or_default()
}

/// One world in each line. The first one stops a process between a grant and the task that was granted the lock, for longer
/// than its lease: the task recorded a belief that it never had.
const MENDED: &str = include_str!("mended.jsonl");

#[test]
fn worlds_that_failed_once_keep_the_rule() {
    for line in MENDED.lines() {
        let plan: Plan = serde_json::from_str(line).unwrap();
        let outcome = run(&plan);
        assert!(outcome.is_ok(), "{REPLAY} '{line}'\n{}", outcome.failure().unwrap_or_default());
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..50 {
        let plan = Plan::draw(seed);
        let read: Plan = serde_json::from_str(&json(&plan)).unwrap();
        assert_eq!(plan, read, "seed {seed}");
        let (first, second) = (run(&plan), run(&read));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.coverage, second.coverage, "seed {seed}");
    }
}
