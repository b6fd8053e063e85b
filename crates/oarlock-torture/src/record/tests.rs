//! What is written is read again; what is cut off, foreign or hostile is refused with a line and a reason.

use super::*;
use crate::judge::judge;
use crate::render::page;

pub(crate) fn header() -> Header {
    Header {
        oarlock_torture: VERSION,
        run: "r".to_owned(),
        seed: 7,
        url: "redis://localhost".to_owned(),
        lock: "oarlock".to_owned(),
        also: None,
        beside: false,
        consistency: "one server".to_owned(),
        liveness: "lease".to_owned(),
        fencing: "clocked".to_owned(),
        ttl_ms: 1000,
        duration_ms: 60_000,
        workers: 2,
        rate: 100,
        started_ms: 0,
        takeover_ms: 2000,
        locks: vec![LockSpec { name: "a".to_owned(), kind: LockKind::Mutex }],
        faults: Vec::new(),
        by_hand: false,
        loses_data: false,
        untried: Vec::new(),
    }
}

fn written(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.write(&mut bytes).unwrap();
    bytes
}

fn small() -> Record {
    let events = vec![
        Event { at: 1, what: What::Started { w: 0, slot: 0 } },
        Event { at: 2, what: What::Asked { w: 0, op: 1, lock: "a".to_owned(), units: None } },
        Event { at: 3, what: What::Granted { w: 0, op: 1, fence: (1 << 53) - 1, until: 9 } },
        Event { at: 4, what: What::Fault { id: 1, kind: FaultKind::LostReply, w: Some(0), host: None } },
        Event { at: 5, what: What::FaultEnded { id: 1, effect: Some(1), reset: false } },
        Event { at: 6, what: What::Ended { w: 0, op: 1, lost: Some("expired".to_owned()), told: None, perhaps: None } },
        Event { at: 7, what: What::Done },
    ];
    Record { header: header(), events }
}

#[test]
fn what_is_written_is_read_again() {
    let bytes = written(&small());
    assert_eq!(Record::read(&bytes[..]).unwrap(), small());
    let first = String::from_utf8(bytes).unwrap();
    assert!(first.starts_with("{\"oarlock_torture\":1,"), "{first}");
    assert!(first.contains("{\"at\":3,\"ev\":\"granted\",\"w\":0,\"op\":1,\"fence\":9007199254740991,"), "{first}");
}

/// Wherever a file is cut, it is refused.
#[test]
fn a_history_that_is_cut_off_anywhere_is_refused() {
    let bytes = written(&small());
    for length in 0..bytes.len() {
        let error = Record::read(&bytes[..length]).unwrap_err().to_string();
        assert!(error.contains("cut off") || error.contains("empty") || error.contains("end is missing"), "{error}");
    }
}

#[test]
fn a_foreign_file_is_refused_with_a_reason() {
    let read = |text: &str| Record::read(text.as_bytes()).unwrap_err().to_string();
    assert!(read("not JSON\n").contains("line 1: this is not the first line of a history"));
    assert!(read("{\"oarlock_torture\":2}\n").contains("version 2 of the format, and this build reads 1"));
    assert!(read("{\"oarlock_torture\":1}\n").contains("missing field"));
    let mut bytes = written(&small());
    bytes.extend(b"{\"at\":8,\"ev\":\"done\"}\n");
    assert!(Record::read(&bytes[..]).unwrap_err().to_string().contains("line 9: something follows"), "after the end");
    let long = format!("{}\n", "x".repeat(100_000));
    assert!(read(&long).contains("line 1: the line is too long"));
}

/// Random damage: an error or a history, and no panic in the checker or on the page.
#[test]
fn a_damaged_history_never_panics() {
    let bytes = written(&small());
    let mut random = fastrand::Rng::with_seed(3);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(0..damaged.len());
            damaged[at] = if random.bool() { random.u8(b'0'..=b'9') } else { random.u8(..) };
        }
        if let Ok(record) = Record::read(&damaged[..]) {
            read += 1;
            let judged = judge(&record);
            assert!(page(&record, &judged).ends_with("</html>\n"));
        }
    }
    assert!(read > 100, "{read} of the damaged ones could be read: the checker saw too little");
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let most = u64::MAX;
    let mut record = small();
    (record.header.ttl_ms, record.header.takeover_ms) = (most, most);
    record.header.locks.push(LockSpec { name: "p".to_owned(), kind: LockKind::Semaphore(u32::MAX) });
    record.events = vec![
        Event { at: 0, what: What::Started { w: 1, slot: u32::MAX } },
        Event { at: 0, what: What::Asked { w: 1, op: most, lock: "p".to_owned(), units: Some(u32::MAX) } },
        Event { at: 1, what: What::Granted { w: 1, op: most, fence: most, until: most } },
        Event { at: 1, what: What::Asked { w: 2, op: 0, lock: "p".to_owned(), units: Some(u32::MAX) } },
        Event { at: 2, what: What::Granted { w: 2, op: 0, fence: 0, until: 0 } },
        Event { at: 2, what: What::Fault { id: most, kind: FaultKind::LostReply, w: None, host: None } },
        Event { at: 2, what: What::FaultEnded { id: most, effect: Some(i64::MAX), reset: false } },
        Event { at: 2, what: What::FaultEnded { id: most, effect: Some(i64::MAX), reset: false } },
        Event { at: 2, what: What::FaultEnded { id: most, effect: Some(i64::MAX), reset: false } },
        Event { at: 2, what: What::FaultEnded { id: most, effect: Some(i64::MIN), reset: false } },
        Event { at: most, what: What::Left { lock: "p".to_owned(), holders: Some(most), waiters: Some(most) } },
        Event {
            at: most,
            what: What::Wrote {
                w: 1,
                op: 0,
                lock: "p".to_owned(),
                fence: most,
                fenced: Some(most),
                plain: most,
                accepted: true,
            },
        },
        Event { at: most, what: What::Done },
    ];
    let judged = judge(&record);
    assert!(page(&record, &judged).contains("VIOLATION"));
}
