//! Hostile bytes for the memos that nodes of a quorum show: every client of a node can write there.

use std::path::Path;

use oarlock_core::Fence;
use oarlock_core::driver::memo::{Version, Versioned, is_late};
use oarlock_core::state::Memo;
use oarlock_fuzz::{Seen, fuzz};

use crate::memo::newest;

/// The bytes between two memos of one input.
const NEXT: &[u8] = b"\n--\n";

fn memos(input: &[u8]) -> Vec<Memo> {
    let mut rest = input;
    let mut memos = Vec::new();
    while let Some(at) = rest.windows(NEXT.len()).position(|part| part == NEXT) {
        memos.push(rest[..at].into());
        rest = &rest[at + NEXT.len()..];
    }
    memos.push(rest.into());
    memos
}

/// Whatever is stored, the newest is one of them, reads without its version, and the next memo of a holder replaces it.
#[test]
fn fuzz_memo_of_a_quorum() {
    let written = |text: &[u8], fence: u64| Versioned::new(text, Version::default().next(Fence::new(fence))).raw;
    let largest = Fence::LIMIT - 1;
    let one = [&written(b"first", 7)[..], &written(b"second", 300)[..]].join(NEXT);
    let corpus = [one, written(b"", largest).to_vec(), b"quorum/1 ".to_vec(), b"a memo of another program".to_vec()];
    fuzz("memo_of_a_quorum", Path::new("none"), &corpus, &["quorum/1 ", "quorum/2 ", "\n--\n"], |input| {
        let memos = memos(input);
        let Some(top) = newest(memos.iter().map(Some)) else { panic!("some memo is the newest") };
        assert!(memos.contains(&top.raw));
        assert!(top.raw.ends_with(&top.memo()), "a memo is its bytes without the version");
        // A fence that was granted after the newest memo, as far as there is one, and one that was granted before it.
        for fence in [1, largest] {
            let next = Versioned::new(b"next", top.version.next(Fence::new(fence)));
            assert_eq!(Versioned::read(&next.raw), next);
            assert_eq!(&*next.memo(), b"next");
            assert!(next.version >= top.version && !is_late(&next.raw, Some(&top.raw)));
            let all = memos.iter().chain([&next.raw]).map(Some);
            let again = newest(all).map(|memo| memo.version);
            assert_eq!(again, Some(next.version));
        }
        let late = memos.iter().filter(|memo| is_late(memo, Some(&top.raw))).count();
        Seen::of((memos.len().min(8), late.min(8), top.version == Version::default(), top.memo().len().min(16)))
    });
}
