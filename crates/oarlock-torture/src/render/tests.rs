//! The page says what was found, and nothing in a history becomes markup.

use super::*;
use crate::judge::judge;
use crate::record::{Event, Header, LockSpec, VERSION};

fn record(name: &str) -> Record {
    let header = Header {
        oarlock_torture: VERSION,
        run: name.to_owned(),
        seed: 1,
        url: name.to_owned(),
        lock: "oarlock".to_owned(),
        also: None,
        beside: false,
        consistency: name.to_owned(),
        liveness: "lease".to_owned(),
        fencing: name.to_owned(),
        ttl_ms: 1000,
        duration_ms: 5000,
        workers: 2,
        rate: 1,
        started_ms: 0,
        takeover_ms: 500,
        locks: vec![LockSpec { name: name.to_owned(), kind: LockKind::Mutex }],
        faults: Vec::new(),
        by_hand: false,
        loses_data: false,
        untried: vec![name.to_owned()],
    };
    let lock = || name.to_owned();
    let at = |ms: u64, what: What| Event { at: ms * 1_000_000, what };
    let events = vec![
        at(0, What::Phase { name: lock() }),
        at(1, What::Started { w: 0, slot: 0 }),
        at(1, What::Started { w: 1, slot: 1 }),
        at(10, What::Asked { w: 0, op: 1, lock: lock(), units: None }),
        at(20, What::Granted { w: 0, op: 1, fence: 1_234_567, until: 900_000_000 }),
        at(30, What::Fault { id: 1, kind: FaultKind::Cut, w: Some(0), host: Some(lock()) }),
        at(40, What::Asked { w: 1, op: 1, lock: lock(), units: None }),
        at(50, What::Granted { w: 1, op: 1, fence: 1_234_568, until: 900_000_000 }),
        at(60, What::Wrote { w: 0, op: 1, lock: lock(), fence: 1_234_567, fenced: None, plain: 1, accepted: false }),
        at(90, What::Ended { w: 1, op: 1, lost: None, told: None, perhaps: None }),
        at(95, What::Ended { w: 0, op: 1, lost: Some(lock()), told: None, perhaps: None }),
        at(99, What::FaultEnded { id: 1, effect: None, reset: false }),
        at(100, What::Left { lock: lock(), holders: Some(1), waiters: None }),
        at(101, What::Done),
    ];
    Record { header, events }
}

#[test]
fn an_overlap_is_shown_in_words_and_in_red() {
    let record = record("orders");
    let page = page(&record, &judge(&record));
    for part in [
        "<h1 class=\"bad\">VIOLATION</h1>",
        "contender 1 (fence 1234568) got &quot;orders&quot; while contender 0 (fence 1234567) still believed in it",
        "last fault before it: cut off both ways of worker 0 to orders, 20 ms before",
        "Around 0.050 s: Overlap",
        "fill=\"#d00\" fill-opacity=\"0.35\"",
        "worker 0 held orders with fence 1234567 from 0.0200 s to 0.0950 s, lost: orders",
        "write with fence 1234567: refused",
        "\u{2026}234567",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn nothing_in_a_history_becomes_markup() {
    let record = record("<script>alert('x')</script>\"&\u{1b}[31m");
    let page = page(&record, &judge(&record));
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains("alert('x')"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"), "{page}");
    // Every quote that is left ends an attribute of ours.
    assert!(!page.contains("http://") || page.matches("http://").count() == page.matches("www.w3.org").count());
}
