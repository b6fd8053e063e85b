//! Another library, alone and beside Oarlock: what it can know, and what cannot be known of it.

use super::*;

/// A library that believes until it is asked: a holder is stopped from 1010 to 1200 ms and believes until `ended`, and
/// the next one is granted the lock at `next`.
fn stopped_peer(paused: u32, next: u64, ended: u64) -> Judgement {
    stopped_peer_by(false, paused, next, ended)
}

/// The same, while a user may break servers by hand.
fn stopped_peer_by(hand: bool, paused: u32, next: u64, ended: u64) -> Judgement {
    let mut run = Run::new();
    run.record.header.by_hand = hand;
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
    // A server that the user broke may have forgotten the first lease.
    assert_eq!(stopped_peer_by(true, 0, 1098, 1210).ruling, Ruling::RiskSeen);
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

/// Worker `first` holds from 1001 to 1100 ms; the library gets the lock at 1050 ms, and at 1060 ms says "no" to its first
/// question, or dies.
fn granted_beside_a_holder(first: u32, died: bool) -> Judgement {
    let mut run = beside();
    run.hold(first, 1000, 99);
    let (w, op) = (5, 5000);
    run.add(0, What::Started { w, slot: 1 });
    run.add(1040, What::Asked { w, op, lock: "a".to_owned(), units: None });
    run.add(1050, What::Granted { w, op, fence: 0, until: 1050 * MS });
    if died {
        run.add(1060, What::Died { w, why: "killed".to_owned() });
    } else {
        let lost = Some("no h1".to_owned());
        run.add(1050, What::Ended { w, op, lost, told: None, perhaps: Some(1060 * MS) });
    }
    counted(&mut run);
    run.judge()
}

#[test]
fn a_grant_to_a_library_that_never_said_yes_is_a_risk_while_another_holds() {
    for (first, died) in [(0, false), (0, true), (1, false), (1, true)] {
        let risk = granted_beside_a_holder(first, died);
        let risks: Vec<_> = risk.findings.iter().filter(|finding| finding.ruling > Ruling::Inconclusive).collect();
        assert_eq!((risk.ruling, risks.len(), risks[0].name), (Ruling::RiskSeen, 1, "PerhapsOverlap"), "{risk:#?}");
        let words = format!("at 1.050000 s worker 5 got \"a\" while worker {first} held it");
        assert!(risks[0].what.contains(&words), "{risks:?}");
    }
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
