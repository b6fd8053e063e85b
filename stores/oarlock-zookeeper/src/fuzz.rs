//! Hostile bytes for what this crate reads: names of nodes and their data, which any client of the ensemble may write.

use std::path::Path;

use oarlock_fuzz::{Seen, fuzz};

use crate::compat::Dialect;
use crate::compat::queue::CompatQueue;
use crate::queue::{Queue, Watched};
use crate::record::{ClaimRecord, ResourceRecord, RootRecord, read};

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

fn lines(input: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(input).split('\n').map(str::to_owned).collect()
}

/// The children of a name, one for each line. Only the first of all claims that exclude each other holds.
#[test]
fn fuzz_children() {
    let words = ["\n", "-a-n-", "-u1-3-", "-u4294967295-i-", "0000000001", "~u1~", "~a~", "memo"];
    fuzz("children", &corpus("children"), &[], &words, |input| {
        let queue = Queue::read(lines(input));
        let held = queue.held;
        let holders = || queue.entries.iter().take(held);
        let alone = holders().any(|entry| entry.weight == oarlock_core::Weight::All);
        assert!(!alone || held <= 1, "{held} hold, and one of them alone");
        let units = |entry: &crate::queue::Entry| match entry.weight {
            oarlock_core::Weight::All => 0,
            oarlock_core::Weight::Units(units) => u64::from(units.get()),
        };
        if let Some(oarlock_core::Limit::Units(most)) = holders().find_map(|entry| entry.capacity) {
            assert!(held <= 1 || holders().map(units).sum::<u64>() <= u64::from(most.get()), "{held} hold too much");
        }
        for at in 0..queue.entries.len().min(8) {
            let cursor = crate::queue::cursor(queue.obstacle(at));
            let _ = Watched::parse(&cursor);
        }
        Seen::of((queue.entries.len().min(16), held.min(16), queue.has_memo))
    });
}

#[test]
fn fuzz_children_of_other_programs() {
    let words = ["\n", "_c_", "-lock-", "-latch-", "__WRIT__", "__READ__", "__lock__", "-lease-", "0000000001"];
    fuzz("children of other programs", &corpus("compat"), &[], &words, |input| {
        let children = lines(input);
        let mut counts = Vec::new();
        for dialect in [Dialect::Curator, Dialect::Kazoo] {
            let queue = CompatQueue::read(dialect, &children);
            let held = (0..queue.entries.len()).filter(|at| queue.holds(*at)).count();
            let alone = (0..queue.entries.len()).any(|at| queue.holds(at) && !queue.entries[at].tag.shares());
            assert!(!alone || held == 1, "{held} hold, and one of them alone");
            counts.push((queue.entries.len().min(16), held.min(16)));
        }
        Seen::of(counts)
    });
}

#[test]
fn fuzz_records() {
    let words = ["format", "kind", "lease", "secs", "nanos", "granted", "fence", "lighter", "units", "label", "ending"];
    fuzz("records", &corpus("records"), &[], &words, |input| {
        let claim = read::<ClaimRecord>("/x", input).map(|record| (record.granted, record.fence.is_some()));
        let others = (read::<ResourceRecord>("/x", input).is_ok(), read::<RootRecord>("/x", input).is_ok());
        Seen::text(&format!("{:?} {others:?}", claim.map_err(|error| error.to_string())))
    });
}
