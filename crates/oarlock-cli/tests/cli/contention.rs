//! Many processes, one counter.

use super::support::{Running, TestContext};

/// Eight processes add one to a file, 25 times each, with nothing but the lock between them.
#[test]
fn a_counter_is_exact_and_fences_rise() {
    const PROCESSES: usize = 8;
    const ROUNDS: usize = 25;
    let context = TestContext::new();
    let (counter, log) = (context.path("counter"), context.path("log"));
    std::fs::write(&counter, "0").unwrap();
    let add = format!("n=$(cat {counter}); echo $((n + 1)) > {counter}; echo $OARLOCK_FENCE >> {log}");
    let this = env!("CARGO_BIN_EXE_oarlock");
    let script = format!("for i in $(seq {ROUNDS}); do {this} run -w 60 x -c '{add}' || exit 1; done");
    let start = |_| Running::start(context.shell(&script));
    let all: Vec<Running> = (0..PROCESSES).map(start).collect();
    for one in all {
        let done = one.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    assert_eq!(std::fs::read_to_string(counter).unwrap().trim(), (PROCESSES * ROUNDS).to_string());
    let fences: Vec<u64> = std::fs::read_to_string(log).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(fences.len(), PROCESSES * ROUNDS);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}
