//! Each verdict, and each reason for it.

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

/// The same on a store that may forget; and on one server after the user's command, but not before it.
#[test]
fn two_believers_are_a_risk_where_the_store_may_forget() {
    let ruling = |consistency: &str, hurt_at: Option<u64>| {
        let mut run = Run::new();
        store(&mut run, consistency, "clocked");
        overlap(&mut run);
        if let Some(at) = hurt_at {
            command(&mut run, at, 0);
        }
        let judged = run.judge();
        assert!(names(&judged).contains(&"Overlap"), "{judged:#?}");
        judged.ruling
    };
    assert_eq!(ruling("best effort", Some(900)), Ruling::RiskSeen);
    assert_eq!(ruling("best effort", None), Ruling::Violation, "no server was broken");
    assert_eq!(ruling("one server", Some(900)), Ruling::RiskSeen);
    assert_eq!(ruling("one server", Some(2500)), Ruling::Violation, "the command came later");
    assert_eq!(ruling("one server", None), Ruling::Violation);
    assert_eq!(ruling("timing", Some(900)), Ruling::RiskSeen);
    assert_eq!(ruling("timing", None), Ruling::Violation);
    assert_eq!(ruling("consensus", Some(900)), Ruling::Violation, "a majority does not forget");
}

/// Two believe at once on a store whose sign of life is `liveness`: worker 0 asks at 1000 ms, worker 1 is granted the lock
/// at 1011 ms, and worker 0 believes until `ends`.
fn over_connections(liveness: &str, ends: u64, fault: impl FnOnce(&mut Run)) -> Ruling {
    let mut run = Run::new();
    store(&mut run, "one server", "clocked");
    (run.record.header.liveness, run.record.header.ttl_ms) = (liveness.to_owned(), 400);
    run.hold(0, 1000, ends - 1000);
    run.hold(1, 1010, ends + 10 - 1010);
    fault(&mut run);
    let judged = run.judge();
    assert!(names(&judged).contains(&"Overlap"), "{judged:#?}");
    judged.ruling
}

/// Where a server takes the end of all connections of a process for its death, a reset can end a lock before its holder
/// knows. Only a reset of that holder, while it held, is an excuse.
#[test]
fn a_reset_is_an_excuse_where_the_connection_is_the_sign_of_life() {
    let ruling = |liveness: &str, at: u64, w: Option<u32>| {
        over_connections(liveness, 1050, |run| {
            run.add(at, What::Fault { id: 5, kind: FaultKind::Refuse, w, host: None });
        })
    };
    assert_eq!(ruling("lease and process", 1005, Some(0)), Ruling::RiskSeen);
    assert_eq!(ruling("lease and process", 1005, None), Ruling::RiskSeen);
    assert_eq!(ruling("session", 1005, Some(0)), Ruling::RiskSeen);
    assert_eq!(ruling("lease", 1005, Some(0)), Ruling::Violation, "nothing but time ends a lease");
    assert_eq!(ruling("lease and process", 1005, Some(1)), Ruling::Violation, "that was another worker");
    assert_eq!(ruling("lease and process", 990, Some(0)), Ruling::Violation, "it had not asked yet");
    assert_eq!(ruling("lease and process", 1020, Some(0)), Ruling::Violation, "both believed already");
    let mut run = Run::new();
    run.record.header.liveness = "session".to_owned();
    overlap(&mut run);
    run.add(1005, What::Fault { id: 5, kind: FaultKind::Refuse, w: Some(0), host: None });
    assert_eq!(run.judge().ruling, Ruling::Violation, "a session of a consensus outlives its connections");
}

/// A fault that resets nothing excuses nothing, neither when it begins nor when it ends.
#[test]
fn only_what_resets_all_connections_is_an_excuse() {
    let ruling = |liveness: &str, kind: FaultKind, reset: bool| {
        over_connections(liveness, 1050, |run| {
            run.add(1002, What::Fault { id: 5, kind, w: Some(0), host: None });
            run.add(1006, What::FaultEnded { id: 5, effect: Some(1), reset });
        })
    };
    let (process, session) = ("lease and process", "session");
    for kind in [FaultKind::Cut, FaultKind::CutRequests, FaultKind::CutReplies, FaultKind::Delay, FaultKind::Strand] {
        for liveness in [process, session] {
            assert_eq!(ruling(liveness, kind, false), Ruling::Violation, "{kind:?}");
        }
        assert_eq!(ruling(process, kind, true), Ruling::RiskSeen, "{kind:?} ended with a reset");
    }
    // A reply is lost with its one connection: that ends a session, and not a process.
    assert_eq!(ruling(process, FaultKind::LostReply, false), Ruling::Violation);
    assert_eq!(ruling(session, FaultKind::LostReply, false), Ruling::RiskSeen);
    assert_eq!(ruling(process, FaultKind::LostReply, true), Ruling::RiskSeen);
}

/// The holder learns of the reset in milliseconds, unless it is stopped.
#[test]
fn a_reset_excuses_no_belief_that_goes_on() {
    let ruling = |ends: u64, stopped: Option<(u32, u64, u64)>| {
        over_connections("lease and process", ends, |run| {
            run.add(1005, What::Fault { id: 5, kind: FaultKind::Reconnect, w: None, host: None });
            if let Some((w, from, to)) = stopped {
                run.add(from, What::Fault { id: 6, kind: FaultKind::Pause, w: Some(w), host: None });
                run.add(to, What::FaultEnded { id: 6, effect: None, reset: false });
            }
        })
    };
    assert_eq!(ruling(1200, None), Ruling::RiskSeen);
    assert_eq!(ruling(1210, None), Ruling::Violation, "half of a lease later it knows");
    assert_eq!(ruling(1300, Some((0, 1004, 1280))), Ruling::RiskSeen, "it was stopped");
    assert_eq!(ruling(1300, Some((0, 1004, 1150))), Ruling::RiskSeen, "it learns of it when it goes on");
    assert_eq!(ruling(1300, Some((1, 1004, 1280))), Ruling::Violation, "another one was stopped");
    assert_eq!(ruling(1300, Some((0, 900, 1000))), Ruling::Violation, "it was stopped before");
}

/// Fences that come from a clock rise even if the store forgot everything.
#[test]
fn a_fence_that_falls_is_a_violation_also_on_a_store_that_forgets() {
    let ruling = |consistency: &str, fencing: &str| {
        let mut run = Run::new();
        store(&mut run, consistency, fencing);
        command(&mut run, 900, 0);
        run.fence -= 10;
        run.hold(0, 1000, 5);
        let judged = run.judge();
        assert!(names(&judged).contains(&"StaleAccepted"), "{judged:#?}");
        assert_eq!(names(&judged).contains(&"FenceOrder"), fencing != "none", "{judged:#?}");
        judged.ruling
    };
    assert_eq!(ruling("best effort", "clocked"), Ruling::Violation);
    assert_eq!(ruling("best effort", "none"), Ruling::RiskSeen);
    assert_eq!(ruling("one server", "strict"), Ruling::RiskSeen);
    assert_eq!(ruling("consensus", "strict"), Ruling::Violation);
}

/// A majority that forgot what it had synced promises nothing; its clock still does.
#[test]
fn a_command_that_loses_data_is_an_excuse_on_every_store_while_it_has_an_effect() {
    let judged = |fencing: &str, at: u64, loses_data: bool, fence: u64| {
        let mut run = Run::new();
        store(&mut run, "consensus", fencing);
        run.record.header.loses_data = loses_data;
        command(&mut run, at, 0);
        overlap(&mut run);
        run.fence -= fence;
        run.hold(0, 1500, 5);
        run.judge().ruling
    };
    assert_eq!(judged("strict", 900, true, 0), Ruling::RiskSeen);
    assert_eq!(judged("strict", 900, true, 10), Ruling::RiskSeen);
    assert_eq!(judged("clocked", 900, true, 10), Ruling::Violation, "a clock keeps them rising");
    assert_eq!(judged("strict", 900, false, 0), Ruling::Violation, "it keeps what it has synced");
    assert_eq!(judged("strict", 2500, true, 0), Ruling::Violation, "the command came later");
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

/// A library that believes until it is asked: a holder is stopped from 1010 to 1200 ms and believes until `ended`, and
/// the next one is granted the lock at `next`.
fn stopped_peer(paused: u32, next: u64, ended: u64) -> Judgement {
    let mut run = Run::new();
    store(&mut run, "unknown", "none");
    run.record.header.lock = "another library".to_owned();
    run.hold(0, 1000, ended - 1000);
    run.add(1010, What::Fault { id: 50, kind: FaultKind::Pause, w: Some(paused), host: None });
    run.add(1200, What::FaultEnded { id: 50, effect: None, reset: false });
    run.hold(1, next, 10);
    run.judge()
}

#[test]
fn a_peer_whose_lease_ended_while_it_was_stopped_is_a_risk_in_words() {
    let risk = stopped_peer(0, 1120, 1210);
    let overlap = risk.findings.iter().find(|finding| finding.name == "Overlap").expect("two believed at once");
    assert_eq!((risk.ruling, overlap.ruling), (Ruling::RiskSeen, Ruling::RiskSeen));
    assert!(overlap.excuse.is_some_and(|words| words.contains("while it was stopped")), "{overlap:?}");
    // Another worker was stopped; its lease cannot have ended yet, for half of it or for all of it; it does not notice when
    // it goes on.
    for (paused, next, ended) in [(1, 1120, 1210), (0, 1030, 1210), (0, 1098, 1210), (0, 1120, 1400)] {
        let judgement = stopped_peer(paused, next, ended);
        assert_eq!(judgement.ruling, Ruling::Violation, "{paused} {next} {ended}");
    }
}

/// A library whose last "yes" was asked for at 1005 ms; then it was stopped from 1010 to `until` ms, when it said "no" or
/// died. The next one is granted the lock at `next`.
fn silent_peer(next: u64, until: u64, died: bool) -> Judgement {
    let mut run = Run::new();
    store(&mut run, "unknown", "none");
    run.record.header.lock = "another library".to_owned();
    let (w, op) = (5, 5000);
    run.add(1000, What::Asked { w, op, lock: "a".to_owned(), units: None });
    run.add(1001, What::Granted { w, op, fence: 0, until: 1001 * MS });
    run.add(1005, What::Until { w, op, until: 1005 * MS });
    run.add(1010, What::Fault { id: 50, kind: FaultKind::Pause, w: Some(w), host: None });
    run.add(until, What::FaultEnded { id: 50, effect: None, reset: false });
    if died {
        run.add(until, What::Died { w, why: "killed".to_owned() });
    } else {
        let lost = Some("no h1".to_owned());
        run.add(1005, What::Ended { w, op, lost, told: None, perhaps: Some(until * MS) });
    }
    run.hold(1, next, 10);
    run.judge()
}

#[test]
fn a_peer_that_may_have_held_is_a_risk_in_words_and_never_a_violation() {
    for died in [false, true] {
        // A whole stop, and a gap between two questions.
        for (next, until) in [(1120, 1400), (1015, 1020)] {
            let risk = silent_peer(next, until, died);
            let risks: Vec<_> = risk.findings.iter().filter(|finding| finding.ruling > Ruling::Inconclusive).collect();
            assert_eq!((risk.ruling, risks.len(), risks[0].name), (Ruling::RiskSeen, 1, "PerhapsOverlap"), "{risk:#?}");
            let words = format!("worker 5 may have held it until 1.{:03}000 s", until - 1000);
            assert!(risks[0].what.contains(&words) && risks[0].what.ends_with("of 1.005000 s"), "{risks:?}");
            assert!(risks[0].excuse.is_some_and(|words| words.contains("last \"yes\"")), "{risks:?}");
        }
        let after = silent_peer(1410, 1400, died);
        assert!(after.ruling < Ruling::RiskSeen, "its \"no\" came first: {after:#?}");
    }
    // What is certain is said once.
    let certain = stopped_peer(1, 1120, 1210);
    assert!(!names(&certain).contains(&"PerhapsOverlap"), "{certain:#?}");
    // Oarlock's belief ends with its lease, whatever its process did.
    let mut run = Run::new();
    run.add(1000, What::Asked { w: 5, op: 1, lock: "a".to_owned(), units: None });
    run.fence += 1;
    let fence = run.fence;
    run.add(1001, What::Granted { w: 5, op: 1, fence, until: 1100 * MS });
    run.add(1400, What::Died { w: 5, why: "killed".to_owned() });
    run.hold(1, 1120, 10);
    assert_eq!(run.judge().ruling, Ruling::Ok);
}

/// Beside Oarlock, in slot 0, is another library, in slot 1.
fn beside() -> Run {
    let mut run = Run::new();
    run.record.header.lock = "another library".to_owned();
    run.record.header.beside = true;
    // What worker 1 did so far has no fence that Oarlock's could be compared with.
    for event in &mut run.record.events {
        match &mut event.what {
            What::Granted { w: 1, fence, until, .. } => (*fence, *until) = (0, event.at),
            What::Wrote { w: 1, fence, accepted, .. } => (*fence, *accepted) = (0, false),
            _ => {}
        }
    }
    run
}

/// The fenced counter has what Oarlock wrote.
fn counted(run: &mut Run) {
    run.record.events.sort_by_key(|event| event.at);
    let mut count = 0;
    for event in &mut run.record.events {
        if let What::Wrote { accepted, fenced, .. } = &mut event.what {
            count += u64::from(*accepted);
            *fenced = accepted.then_some(count);
        }
    }
}

#[test]
fn beside_another_library_only_the_fences_and_the_fenced_counter_of_oarlock_count() {
    let mut run = beside();
    counted(&mut run);
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::Ok, vec![]), "{judged:#?}");
    let figures = &judged.figures.locks["a"];
    assert_eq!((figures.writes, figures.unfenced, figures.refused, figures.fenced), (31, 15, 1, 15));
    // Oarlock's own fences must rise.
    let mut run = beside();
    counted(&mut run);
    run.hold(0, 1000, 10);
    run.fence = 3;
    run.hold(0, 1100, 10);
    let judged = run.judge();
    assert!(names(&judged).contains(&"FenceOrder") && judged.ruling == Ruling::Violation, "{judged:#?}");
}

/// Beside Oarlock the library asked at 1000 ms, said "yes" at 1005 ms, is stopped from 1010 to 1400 ms and says "no" then.
/// A worker of Oarlock or another one of the library gets the lock a millisecond after `next`.
fn taken_from_a_silent_peer(next: u64, by: u32, change: impl FnOnce(&mut Run)) -> Judgement {
    let mut run = beside();
    let (w, op) = (5, 5000);
    run.add(0, What::Started { w, slot: 1 });
    run.add(1000, What::Asked { w, op, lock: "a".to_owned(), units: None });
    run.add(1001, What::Granted { w, op, fence: 0, until: 1001 * MS });
    run.add(1005, What::Until { w, op, until: 1005 * MS });
    run.add(1010, What::Fault { id: 50, kind: FaultKind::Pause, w: Some(w), host: None });
    run.add(1400, What::FaultEnded { id: 50, effect: None, reset: false });
    let lost = Some("no h1".to_owned());
    run.add(1005, What::Ended { w, op, lost, told: None, perhaps: Some(1400 * MS) });
    run.hold(by, next, 10);
    change(&mut run);
    counted(&mut run);
    run.judge()
}

#[test]
fn a_lock_that_oarlock_takes_from_another_library_within_its_lease_is_a_violation() {
    let ruling = |next: u64, by: u32, change: &dyn Fn(&mut Run)| {
        let judged = taken_from_a_silent_peer(next, by, change);
        let found: Vec<_> = judged.findings.iter().filter(|finding| finding.ruling > Ruling::Inconclusive).collect();
        assert_eq!(found.len(), 1, "{judged:#?}");
        (found[0].name, found[0].ruling, found[0].what.clone())
    };
    let (name, found, what) = ruling(1020, 0, &|_| {});
    assert_eq!((name, found), ("Stolen", Ruling::Violation));
    assert!(what.contains("worker 5 is the other library") && what.contains("worker 0 is Oarlock"), "{what}");
    assert!(what.contains("asked at 1.000000 s for a lease of 100 ms, and said \"yes\" at 1.005000 s"), "{what}");

    let perhaps = |next: u64, by: u32, change: &dyn Fn(&mut Run)| {
        let (name, found, _) = ruling(next, by, change);
        (name, found) == ("PerhapsOverlap", Ruling::RiskSeen)
    };
    assert!(perhaps(1100, 0, &|_| {}), "its lease may have ended");
    assert!(perhaps(1020, 1, &|_| {}), "the thief is a library, which may know that the other one gave the lock up");
    assert!(perhaps(1020, 0, &|run| run.record.header.by_hand = true), "a server may have forgotten the lock");
    // A library whose connections are broken may give the lock up by itself.
    let broken = |w: Option<u32>, from: u64, to: Option<u64>| {
        move |run: &mut Run| {
            run.add(from, What::Fault { id: 51, kind: FaultKind::Delay, w, host: None });
            if let Some(to) = to {
                run.add(to, What::FaultEnded { id: 51, effect: Some(1), reset: false });
            }
        }
    };
    assert!(perhaps(1020, 0, &broken(Some(5), 1006, Some(1007))));
    assert!(perhaps(1020, 0, &broken(Some(5), 1006, None)));
    assert!(perhaps(1020, 0, &broken(None, 900, Some(1000))));
    let certain = |change: &dyn Fn(&mut Run)| ruling(1020, 0, change).1 == Ruling::Violation;
    assert!(certain(&broken(Some(0), 1006, Some(1007))), "those of another worker");
    assert!(certain(&broken(Some(5), 900, Some(999))), "before it asked");
    assert!(certain(&broken(Some(5), 1022, Some(1030))), "after the grant");
}

/// From 1001 ms on the worker `first` holds, and says until 1400 ms that it does. It was stopped from 1010 to 1400 ms. The
/// other one is granted the lock at 1301 ms.
fn overlap_beside(first: u32) -> Judgement {
    let mut run = beside();
    counted(&mut run);
    let second = 1 - first;
    run.add(1010, What::Fault { id: 50, kind: FaultKind::Pause, w: Some(first), host: None });
    run.add(1400, What::FaultEnded { id: 50, effect: None, reset: false });
    run.hold(first, 1000, 400);
    run.hold(second, 1300, 20);
    run.judge()
}

#[test]
fn of_two_libraries_each_is_judged_by_what_it_can_know() {
    let overlap = |judged: &Judgement| {
        let found = judged.findings.iter().find(|finding| finding.name == "Overlap");
        found.unwrap_or_else(|| panic!("{judged:#?}")).clone()
    };
    let of_library = overlap(&overlap_beside(1));
    assert_eq!(of_library.ruling, Ruling::RiskSeen, "{of_library:?}");
    assert!(of_library.what.contains("contender 1 is the other library, 0 is Oarlock"), "{of_library:?}");
    // Oarlock's belief ends with its lease, whether it is stopped or not.
    let of_oarlock = overlap(&overlap_beside(0));
    assert_eq!((of_oarlock.ruling, of_oarlock.excuse), (Ruling::Violation, None), "{of_oarlock:?}");
}

#[test]
fn what_is_left_beside_another_library_may_be_its_own() {
    let mut run = beside();
    counted(&mut run);
    run.add(2002, What::Left { lock: "a".to_owned(), holders: Some(1), waiters: Some(0) });
    let judged = run.judge();
    assert_eq!((judged.ruling, names(&judged)), (Ruling::RiskSeen, vec!["Leaked"]), "{judged:#?}");
    // A process of Oarlock that hangs is its own fault, and not one of the other library.
    for (w, ruling) in [(0, Ruling::Violation), (1, Ruling::Inconclusive)] {
        let mut run = beside();
        counted(&mut run);
        run.add(2002, What::Drained { w, failed: Some(crate::run::SILENT.to_owned()) });
        assert_eq!(run.judge().ruling, ruling, "{w}");
    }
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

/// Another library said "yes" at 26 ms, was stopped at 40 ms, and says "no" later.
#[test]
fn a_lock_that_may_have_been_lost_by_a_fault_is_no_false_alarm() {
    let named_at = |no: u64| {
        let mut run = calm_loss_run(&LossReason::Gone.to_string(), 40, false);
        for event in &mut run.record.events {
            if let What::Ended { lost: Some(_), perhaps, .. } = &mut event.what {
                *perhaps = Some(no * MS);
            }
        }
        names(&run.judge()).contains(&"FalseAlarm")
    };
    assert!(named_at(39));
    assert!(!named_at(60));
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
