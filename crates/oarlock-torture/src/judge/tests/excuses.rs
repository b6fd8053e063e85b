//! What a store does not promise to prevent, and what it promises all the same.

use super::*;

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
