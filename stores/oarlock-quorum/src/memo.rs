//! The memo of a resource, of which each node may have another version.
//!
//! A memo reaches a majority, so every later majority has a node that knows it. A memo whose write failed may have
//! reached fewer nodes: a round that sees it there writes it to a majority before the grant that shows it.

use oarlock_core::driver::Grant;
use oarlock_core::driver::memo::Versioned;
use oarlock_core::state::Memo;

/// The newest of the memos that some nodes have.
pub(super) fn newest<'a>(memos: impl Iterator<Item = Option<&'a Memo>>) -> Option<Versioned> {
    memos.flatten().map(Versioned::read).max_by_key(|memo| memo.version)
}

/// Whether this vote came without the newest memo.
pub(super) fn lacks(grant: &Grant, newest: Option<&Versioned>) -> bool {
    grant.memo.as_ref() != newest.map(|newest| &newest.raw)
}

#[cfg(test)]
mod tests {
    use oarlock_core::Fence;
    use oarlock_core::driver::memo::Version;

    use super::*;

    #[test]
    fn the_newest_counts() {
        let old = Versioned::new(b"old", Version::default().next(Fence::new(7)));
        let new = Versioned::new(b"", old.version.next(Fence::new(300)));
        let newer = Versioned::new(b"newer", new.version.next(Fence::new(200)));
        let unversioned: Memo = b"quorum/1 short".as_slice().into();
        let all = [Some(&unversioned), Some(&newer.raw), None, Some(&old.raw), Some(&new.raw)];
        assert_eq!(newest(all.into_iter()), Some(newer));
        assert_eq!(newest([None, Some(&unversioned)].into_iter()).unwrap().memo(), unversioned);
        assert_eq!(newest([None, None].into_iter()), None);
        let alien: Memo = [b"quorum/1 ".as_slice(), &[0xff; 16], b"x"].concat().into();
        assert_eq!(newest([Some(&alien), Some(&old.raw)].into_iter()), Some(old));
    }
}
