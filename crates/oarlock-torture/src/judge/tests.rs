//! Each verdict, and each reason for it.

mod excuses;
mod libraries;

use super::*;
use crate::record::{Event, Header, LockKind, LockSpec, VERSION};

const MS: u64 = 1_000_000;

/// A run that is OK, of which each test breaks something.
struct Run {
    record: Record,
    fence: u64,
    value: u64,
}

impl Run {
    fn new() -> Self {
        let header = Header {
            oarlock_torture: VERSION,
            run: "r".to_owned(),
            seed: 1,
            url: "etcd://localhost".to_owned(),
            lock: "oarlock".to_owned(),
            also: None,
            beside: false,
            consistency: "consensus".to_owned(),
            liveness: "lease".to_owned(),
            fencing: "strict".to_owned(),
            ttl_ms: 100,
            duration_ms: 5000,
            workers: 2,
            rate: 100,
            started_ms: 0,
            takeover_ms: 500,
            locks: vec![LockSpec { name: "a".to_owned(), kind: LockKind::Mutex }],
            faults: FaultKind::OF_PROCESSES.to_vec(),
            by_hand: false,
            loses_data: false,
            untried: Vec::new(),
        };
        let mut run = Self { record: Record { header, events: Vec::new() }, fence: 0, value: 0 };
        for (at, name) in [(0, "calm"), (0, "scenes"), (1900, "storm"), (1950, "drain")] {
            run.add(at, What::Phase { name: name.to_owned() });
        }
        run.add(0, What::Started { w: 0, slot: 0 });
        run.add(0, What::Started { w: 1, slot: 1 });
        run.add(1, What::Fault { id: 3, kind: FaultKind::KillWaiter, w: Some(9), host: None });
        run.add(1, What::FaultEnded { id: 3, effect: None, reset: false });
        run.add(1, What::Repeated { w: 0, verb: "renew".to_owned() });
        run.add(1, What::Asked { w: 0, op: 99, lock: "a".to_owned(), units: None });
        run.add(1, What::GaveUp { w: 0, op: 99, why: crate::worker::CANCELLED.to_owned() });
        for count in 0..30 {
            run.hold(count % 2, count_at(count), 5);
        }
        // The stopped holder, with a write in flight.
        run.add(500, What::Fault { id: 1, kind: FaultKind::Pause, w: Some(0), host: None });
        run.add(501, What::FaultEnded { id: 1, effect: None, reset: false });
        run.wrote(502, 0, 1, false, 31);
        // The killed holder, and the waiter that follows.
        run.add(600, What::Asked { w: 0, op: 9090, lock: "a".to_owned(), units: None });
        run.fence += 1;
        let fence = run.fence;
        run.add(601, What::Granted { w: 0, op: 9090, fence, until: 700 * MS });
        run.add(602, What::Asked { w: 1, op: 9091, lock: "a".to_owned(), units: None });
        run.add(610, What::Fault { id: 2, kind: FaultKind::Kill, w: Some(0), host: None });
        run.add(610, What::Died { w: 0, why: "killed".to_owned() });
        run.add(611, What::FaultEnded { id: 2, effect: None, reset: false });
        run.fence += 1;
        let fence = run.fence;
        run.add(720, What::Granted { w: 1, op: 9091, fence, until: 900 * MS });
        run.add(730, What::Ended { w: 1, op: 9091, lost: None, told: None, perhaps: None });
        run.add(2000, What::Drained { w: 1, failed: None });
        run.add(2001, What::Left { lock: "a".to_owned(), holders: Some(0), waiters: Some(0) });
        run
    }

    fn add(&mut self, ms: u64, what: What) {
        self.record.events.push(Event { at: ms * MS, what });
    }

    fn hold(&mut self, w: u32, at: u64, span: u64) {
        self.fence += 1;
        let (op, fence) = (at, self.fence);
        self.add(at, What::Asked { w, op, lock: "a".to_owned(), units: None });
        self.add(at + 1, What::Granted { w, op, fence, until: (at + 100) * MS });
        self.value += 1;
        self.wrote(at + 2, w, fence, true, self.value);
        self.add(at + span, What::Ended { w, op, lost: None, told: None, perhaps: None });
    }

    fn wrote(&mut self, at: u64, w: u32, fence: u64, accepted: bool, plain: u64) {
        let (op, lock, fenced) = (0, "a".to_owned(), Some(if accepted { plain } else { 2 }));
        self.add(at, What::Wrote { w, op, lock, fence, fenced, plain, accepted });
    }

    fn judge(mut self) -> Judgement {
        self.add(3000, What::Done);
        self.record.events.sort_by_key(|event| event.at);
        judge(&self.record)
    }
}

fn count_at(count: u32) -> u64 {
    u64::from(count) * 10 + 1
}

fn names(judgement: &Judgement) -> Vec<&'static str> {
    judgement.findings.iter().map(|finding| finding.name).collect()
}

fn store(run: &mut Run, consistency: &str, fencing: &str) {
    (run.record.header.consistency, run.record.header.fencing) = (consistency.to_owned(), fencing.to_owned());
}

/// Two believe at once, at 1000 ms.
fn overlap(run: &mut Run) {
    run.hold(0, 1000, 50);
    run.hold(1, 1010, 20);
}

fn command(run: &mut Run, at: u64, code: i64) {
    run.record.header.faults.push(FaultKind::Command);
    run.add(at, What::Fault { id: 77, kind: FaultKind::Command, w: None, host: None });
    run.add(at + 1, What::FaultEnded { id: 77, effect: Some(code), reset: false });
}

#[test]
fn a_run_in_which_everything_held_is_ok() {
    let judged = Run::new().judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Ok, vec![]), "{judged:#?}");
    let figures = &judged.figures;
    assert_eq!((figures.holds, figures.deaths, figures.takeovers, figures.refused()), (32, 1, 1, 1));
    assert_eq!(figures.slowest_takeover, Some(Duration::from_millis(110)));
    assert_eq!(figures.least_margin, Some(Duration::from_millis(110)));
    // 31 writes, and the plain counter was set to 31 by the last of them: none is missing.
    assert_eq!(figures.lost_without_fence(), 0);
}

#[test]
fn two_believers_are_a_violation() {
    let mut run = Run::new();
    overlap(&mut run);
    let judged = run.judge();
    assert_eq!(judged.ruling, Ruling::Violation);
    let overlap = judged.findings.iter().find(|finding| finding.name == "Overlap").unwrap();
    assert_eq!((overlap.at, overlap.excuse), (Some(1011 * MS), None));
    assert!(overlap.what.contains("contender 1") && overlap.what.contains("contender 0"), "{}", overlap.what);
}

#[test]
fn a_run_that_tried_too_little_is_never_ok() {
    let mut empty = Run::new();
    empty.record.events.clear();
    let judged = empty.judge();
    assert_eq!(judged.ruling, Ruling::Inconclusive);
    assert!(names(&judged).contains(&"Vacuous"), "{judged:#?}");

    let called = |name: &'static str, change: &dyn Fn(&mut Run)| {
        let mut run = Run::new();
        change(&mut run);
        let judged = run.judge();
        assert_eq!((judged.ruling, names(&judged)), (Ruling::Inconclusive, vec![name]), "{judged:#?}");
    };
    let untried = |change: &dyn Fn(&mut Run)| called("Untried", change);
    untried(&|run| run.record.header.faults.push(FaultKind::Strand));
    called(LEFT_OUT, &|run| run.record.header.faults.retain(|kind| *kind != FaultKind::Cancel));
    untried(&|run| run.record.events.retain(|event| !matches!(&event.what, What::Phase { name } if name == "drain")));
    untried(&|run| run.record.events.retain(|event| !matches!(event.what, What::Left { .. })));
    untried(&|run| run.record.events.retain(|event| !matches!(event.what, What::Drained { .. })));
    untried(&|run| run.add(1700, What::Garbled { w: 1 }));
    untried(&|run| {
        run.record.header.faults.push(FaultKind::Cut);
        run.add(1700, What::Fault { id: 8, kind: FaultKind::Cut, w: Some(1), host: None });
        run.add(1800, What::FaultEnded { id: 8, effect: Some(0), reset: false });
    });
    untried(&|run| run.record.header.untried.push("the moon".to_owned()));
    untried(&|run| command(run, 900, 1));
    untried(&|run| run.record.events.retain(|event| !matches!(event.what, What::Wrote { accepted: false, .. })));
    untried(&|run| {
        run.record.header.faults.push(FaultKind::LostReply);
        run.add(900, What::Fault { id: 9, kind: FaultKind::LostReply, w: None, host: None });
        run.add(901, What::FaultEnded { id: 9, effect: Some(0), reset: false });
    });
}

#[test]
fn a_late_takeover_is_a_violation() {
    let mut run = Run::new();
    run.add(1100, What::Asked { w: 3, op: 80, lock: "a".to_owned(), units: None });
    run.add(1101, What::Granted { w: 3, op: 80, fence: 80, until: 1200 * MS });
    run.add(1110, What::Asked { w: 1, op: 81, lock: "a".to_owned(), units: None });
    run.add(1120, What::Died { w: 3, why: "killed".to_owned() });
    run.add(20_000, What::Granted { w: 1, op: 81, fence: 81, until: 20_100 * MS });
    run.add(20_010, What::Ended { w: 1, op: 81, lost: None, told: None, perhaps: None });
    run.add(20_020, What::Done);
    run.record.events.retain(|event| !matches!(&event.what, What::Phase { name } if name == "storm"));
    run.add(20_015, What::Phase { name: "storm".to_owned() });
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Violation, vec!["Starved"]), "{judged:#?}");
}

#[test]
fn an_update_that_the_fence_lost_is_a_violation() {
    let mut run = Run::new();
    let fence = run.fence;
    // The value is that of the write before it.
    run.wrote(1000, 1, fence, true, 30);
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Violation, vec!["LostUpdate"]), "{judged:#?}");

    let mut run = Run::new();
    run.wrote(1000, 1, 3, true, 31);
    assert_eq!(names(&run.judge()), ["StaleAccepted"]);
}

#[test]
fn what_is_left_or_stuck_is_a_violation() {
    let mut run = Run::new();
    run.add(2500, What::Left { lock: "a".to_owned(), holders: Some(0), waiters: Some(1) });
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Violation, vec!["Leaked"]));

    let stuck = |why: &str| {
        let mut run = Run::new();
        run.add(2500, What::Drained { w: 0, failed: Some(why.to_owned()) });
        run.judge()
    };
    assert_eq!(stuck("Busy: worker 1 holds it").ruling, Ruling::Violation);
    assert_eq!(stuck("its process panicked").ruling, Ruling::Violation);
    assert_eq!(stuck("it did not answer").ruling, Ruling::Violation);
    assert_eq!(stuck("its process ended by itself").ruling, Ruling::Inconclusive);
    assert_eq!(stuck("Unreachable: connection refused").ruling, Ruling::Inconclusive);
    let mut run = Run::new();
    run.add(2500, What::Left { lock: "a".to_owned(), holders: None, waiters: None });
    assert_eq!(run.judge().ruling, Ruling::Inconclusive);
}

/// A stopped holder believes until its lease ends, whatever it reports later; a dead one no longer than it lived.
#[test]
fn belief_ends_with_the_lease_or_with_the_process() {
    let mut run = Run::new();
    run.add(1000, What::Asked { w: 5, op: 1, lock: "a".to_owned(), units: None });
    run.add(1001, What::Granted { w: 5, op: 1, fence: 90, until: 1100 * MS });
    run.add(1050, What::Until { w: 5, op: 1, until: 1150 * MS });
    run.add(1200, What::Died { w: 5, why: "killed".to_owned() });
    run.add(1300, What::Asked { w: 6, op: 1, lock: "a".to_owned(), units: None });
    run.add(1301, What::Granted { w: 6, op: 1, fence: 91, until: 1400 * MS });
    run.add(1350, What::Died { w: 6, why: "killed".to_owned() });
    run.add(1500, What::Done);
    let found = beliefs(&run.record);
    let end = |w: u32| found.iter().find(|belief| belief.w == w).map(|belief| belief.ended / MS);
    assert_eq!((end(5), end(6)), (Some(1150), Some(1350)));
}

/// A worker that was stopped before it could report its grant: its reports are in another order than what happened.
#[test]
fn a_grant_that_is_reported_after_its_lease_is_judged_by_its_lease() {
    for ended in [true, false] {
        let mut run = Run::new();
        run.add(1000, What::Asked { w: 5, op: 1, lock: "a".to_owned(), units: None });
        // Its lease ended at 1100, and the next holder came; then it could report.
        run.add(1400, What::Granted { w: 5, op: 1, fence: 40, until: 1100 * MS });
        run.fence = 40;
        run.hold(1, 1200, 20);
        if ended {
            run.add(1100, What::Ended { w: 5, op: 1, lost: Some("expired".to_owned()), told: None, perhaps: None });
        }
        run.add(1500, What::Died { w: 5, why: "killed".to_owned() });
        let mut again = Run { record: run.record.clone(), fence: run.fence, value: run.value };
        let judged = run.judge();
        assert_eq!((judged.ruling, names(&judged)), (Ruling::Ok, vec![]), "{judged:#?}");
        // Its fence is compared all the same.
        again.fence = 39;
        again.hold(1, 1600, 20);
        assert!(names(&again.judge()).contains(&"FenceRepeated"), "ended {ended}");
    }
}

#[test]
fn a_long_list_is_shortened_and_counted() {
    let mut run = Run::new();
    for count in 0..50 {
        run.add(2500, What::Left { lock: format!("l{count}"), holders: Some(1), waiters: None });
    }
    let judged = run.judge();
    assert_eq!(judged.findings.len(), LISTED + 1);
    assert!(
        judged.findings.iter().any(|finding| finding.what == format!("and {} more like this", 50 - LISTED)),
        "{judged:#?}"
    );
}

#[test]
fn a_fault_that_was_left_out_is_told_apart_from_one_that_failed() {
    let mut run = Run::new();
    run.record.header.faults.retain(|kind| *kind == FaultKind::Kill);
    let judgement = run.judge();
    assert_eq!(judgement.ruling, Ruling::Inconclusive);
    assert!(names(&judgement).iter().all(|name| *name == LEFT_OUT), "{judgement:?}");
    // Where there are connections, their faults are missing, too; and a server that no worker used has its own name.
    // Of several servers not all are needed.
    for (bytes, unused) in [([1, 1], false), ([1, 0], false), ([0, 0], true)] {
        let mut run = Run::new();
        for bytes in bytes {
            run.add(2000, What::Carried { host: "localhost:2379".to_owned(), bytes });
        }
        let judgement = run.judge();
        assert_eq!(judgement.ruling, Ruling::Inconclusive);
        let names = names(&judgement);
        assert!(names.contains(&LEFT_OUT) && names.iter().all(|name| [LEFT_OUT, UNUSED].contains(name)), "{names:?}");
        assert_eq!(names.contains(&UNUSED), unused, "{names:?}");
    }
}

#[test]
fn a_holder_that_is_told_late_of_its_loss_is_found_and_one_that_was_stopped_is_not() {
    let run_of = |told: u64, stopped: Option<(u64, u64)>| {
        let mut run = Run::new();
        run.add(1000, What::Asked { w: 1, op: 7, lock: "a".to_owned(), units: None });
        run.fence += 1;
        let fence = run.fence;
        run.add(1001, What::Granted { w: 1, op: 7, fence, until: 1100 * MS });
        run.add(
            1100,
            What::Ended { w: 1, op: 7, lost: Some("expired".to_owned()), told: Some(told * MS), perhaps: None },
        );
        if let Some((from, to)) = stopped {
            run.add(from, What::Fault { id: 91, kind: FaultKind::Pause, w: Some(1), host: None });
            run.add(to, What::FaultEnded { id: 91, effect: None, reset: false });
        }
        run
    };
    let others_run = |run: &mut Run| {
        for second in 1..7 {
            run.add(1000 * second + 100, What::Repeated { w: 2, verb: "renew".to_owned() });
        }
    };
    let lost = |told, stopped| {
        let mut run = run_of(told, stopped);
        others_run(&mut run);
        run.judge()
    };
    let in_time = lost(1130, None);
    assert_eq!((in_time.ruling, in_time.figures.latest_told), (Ruling::Ok, Some(Duration::from_millis(30))));
    let late = lost(6101, None);
    assert_eq!((late.ruling, names(&late)), (Ruling::Violation, vec!["ToldLate"]));
    let stopped = lost(6101, Some((1050, 6000)));
    assert_eq!((stopped.ruling, stopped.figures.latest_told), (Ruling::Ok, Some(Duration::from_millis(101))));
    let stopped_before = lost(6101, Some((1010, 1100)));
    assert_eq!(names(&stopped_before), ["ToldLate"]);
    let ruling = |change: fn(&mut Run)| {
        let mut run = run_of(6101, None);
        change(&mut run);
        run.judge().ruling
    };
    assert_eq!(ruling(|_| {}), Ruling::Inconclusive, "no other worker ran, either");
    assert_eq!(ruling(|run| run.record.header.by_hand = true), Ruling::RiskSeen, "the user may have stopped it");
}

/// A worker loses its lock at 26 ms, for this reason.
fn calm_loss_run(why: &str, fault_at: u64, by_hand: bool) -> Run {
    let mut run = Run::new();
    store(&mut run, "one server", "clocked");
    run.record.header.by_hand = by_hand;
    run.record.events.retain(|event| !matches!(event.what, What::Fault { kind: FaultKind::KillWaiter, .. }));
    run.add(fault_at, What::Fault { id: 3, kind: FaultKind::KillWaiter, w: Some(9), host: None });
    for event in &mut run.record.events {
        if let What::Ended { lost, .. } = &mut event.what
            && event.at == 26 * MS
        {
            *lost = Some(why.to_owned());
        }
    }
    run
}

fn calm_loss(why: &str, fault_at: u64, by_hand: bool) -> Judgement {
    calm_loss_run(why, fault_at, by_hand).judge()
}

#[test]
fn a_lock_that_is_lost_while_nothing_is_broken_changes_the_verdict() {
    let (gone, expired) = (LossReason::Gone.to_string(), LossReason::Expired.to_string());
    let ruling = |why: &str, fault_at: u64, by_hand: bool| {
        let judged = calm_loss(why, fault_at, by_hand);
        (judged.ruling, names(&judged).contains(&"FalseAlarm"))
    };
    assert_eq!(ruling(&gone, 100, false), (Ruling::Violation, true));
    assert_eq!(ruling(&expired, 100, false), (Ruling::Inconclusive, true), "the machine may be too slow");
    assert_eq!(ruling(EXPIRED, 100, false), (Ruling::Inconclusive, true));
    assert_eq!(ruling(&gone, 100, true), (Ruling::RiskSeen, true), "the server was restarted by hand");
    assert_eq!(ruling(&gone, 1, false), (Ruling::Ok, false), "something was broken before");
}

#[test]
fn a_worker_that_ended_by_itself_is_told() {
    let mut run = Run::new();
    run.add(1500, What::Died { w: 1, why: crate::workers::BY_ITSELF.to_owned() });
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Inconclusive, vec!["Crashed"]), "{judged:#?}");
}

/// No single wait is as long as the bound of a takeover: refusals show that the lock of the dead is not free.
#[test]
fn a_lock_of_the_dead_that_is_never_granted_again_is_found() {
    let starved = |why: &str| {
        let mut run = Run::new();
        run.record.header.takeover_ms = 300;
        run.add(1100, What::Asked { w: 3, op: 80, lock: "a".to_owned(), units: None });
        run.add(1101, What::Granted { w: 3, op: 80, fence: 80, until: 1200 * MS });
        run.add(1105, What::Asked { w: 1, op: 81, lock: "a".to_owned(), units: None });
        run.add(1110, What::Died { w: 3, why: "killed".to_owned() });
        run.add(1400, What::GaveUp { w: 1, op: 81, why: why.to_owned() });
        run.add(1450, What::Asked { w: 1, op: 82, lock: "a".to_owned(), units: None });
        run.add(1650, What::GaveUp { w: 1, op: 82, why: why.to_owned() });
        run.judge().ruling
    };
    assert_eq!(starved("Busy: worker 3 holds it"), Ruling::Violation);
    assert_eq!(starved("Unreachable: connection refused"), Ruling::Ok, "the store said nothing about it");
}

/// A claim that waits for a free lock for longer than 5 s, where nothing is broken.
#[test]
fn a_claim_that_waits_for_a_free_lock_is_found_where_nothing_is_broken() {
    let idle = |change: &dyn Fn(&mut Run)| {
        let mut run = Run::new();
        // The storm comes later.
        for event in &mut run.record.events {
            if matches!(&event.what, What::Phase { name } if name == "storm" || name == "drain") {
                event.at += 20_000 * MS;
            }
        }
        run.record.header.takeover_ms = 9000;
        run.add(12_000, What::Asked { w: 1, op: 70, lock: "a".to_owned(), units: None });
        run.add(18_000, What::GaveUp { w: 1, op: 70, why: "Busy: no one holds it".to_owned() });
        change(&mut run);
        let judged = run.judge();
        (judged.ruling, names(&judged))
    };
    assert_eq!(idle(&|_| {}), (Ruling::Violation, vec!["Starved"]));
    assert_eq!(idle(&|run| run.record.header.by_hand = true), (Ruling::Ok, vec![]));
    let fault = |run: &mut Run, kind: FaultKind| {
        run.add(11_000, What::Fault { id: 60, kind, w: Some(0), host: None });
        run.add(11_500, What::FaultEnded { id: 60, effect: Some(0), reset: false });
    };
    assert_eq!(
        idle(&|run| fault(run, FaultKind::Delay)),
        (Ruling::Violation, vec!["Starved"]),
        "refused after a takeover"
    );
    assert_eq!(idle(&|run| fault(run, FaultKind::Command)), (Ruling::Ok, vec![]), "the server was away");
}
