//! Memos with a version, of which the newest counts.
//!
//! A memo of a quorum reaches a majority of the nodes; the other nodes may keep an older one. Therefore each memo
//! begins with its version: the largest fence of its writer, and how many memos that writer has left before. A store
//! that receives a memo late compares the versions and keeps the newer one. A memo without a version always replaces
//! the one that is stored.

use crate::claim::Fence;
use crate::state::Memo;

/// The first bytes of a versioned memo; the digit is the version of the format.
const MARK: &[u8] = b"quorum/1 ";

/// The version of a memo: the fence of its writer, and how many memos that writer has left before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u64, u64);

impl Version {
    /// The version of the next memo, written by a holder whose largest fence is `fence`.
    #[must_use]
    pub fn next(self, fence: Fence) -> Self {
        if self.0 < fence.get() { Self(fence.get(), 0) } else { Self(self.0, self.1.saturating_add(1)) }
    }
}

/// A memo as a store keeps it, with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Versioned {
    /// Its version. A memo that has none is older than every memo that has one.
    pub version: Version,
    /// Its bytes in the store.
    pub raw: Memo,
}

impl Versioned {
    /// The memo `memo` with this version.
    #[must_use]
    pub fn new(memo: &[u8], version: Version) -> Self {
        Self { version, raw: [MARK, &version.0.to_be_bytes(), &version.1.to_be_bytes(), memo].concat().into() }
    }

    /// Reads the bytes that a store keeps.
    #[must_use]
    pub fn read(raw: &Memo) -> Self {
        let version =
            raw.strip_prefix(MARK).and_then(|rest| Some((rest.first_chunk()?, rest.get(8..)?.first_chunk()?)));
        let version = version.map(|(fence, number)| Version(u64::from_be_bytes(*fence), u64::from_be_bytes(*number)));
        // No writer has such a fence, so no later memo could replace this one.
        let version = version.filter(|version| version.0 < Fence::LIMIT).unwrap_or_default();
        Self { version, raw: raw.clone() }
    }

    fn is_older_than(&self, stored: &Self) -> bool {
        self.version != Version::default() && self.version < stored.version
    }

    /// The memo as its writer gave it.
    #[must_use]
    pub fn memo(&self) -> Memo {
        match self.version {
            Version(0, _) => self.raw.clone(),
            _ => self.raw.get(MARK.len() + 16..).unwrap_or_default().into(),
        }
    }
}

/// Whether a memo that reaches a store must not replace the stored one. A delayed renewal can arrive after a later one
/// of the same hold; only the store can detect that.
#[must_use]
pub fn is_late(memo: &Memo, stored: Option<&Memo>) -> bool {
    stored.is_some_and(|stored| Versioned::read(memo).is_older_than(&Versioned::read(stored)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_reads_as_it_was_written_and_an_older_one_is_late() {
        let old = Versioned::new(b"old", Version(7, 300));
        let new = Versioned::new(b"", old.version.next(Fence::new(300)));
        let newer = Versioned::new(b"newer", new.version.next(Fence::new(200)));
        assert_eq!(newer.version, Version(300, 1));
        let unversioned: Memo = b"quorum/1 short".as_slice().into();
        assert_eq!((&*newer.memo(), &*new.memo(), &*old.memo()), (&b"newer"[..], &b""[..], &b"old"[..]));
        assert_eq!(Versioned::read(&newer.raw), newer);
        assert_eq!(Versioned::read(&unversioned).memo(), unversioned);
        assert!(is_late(&old.raw, Some(&new.raw)) && is_late(&new.raw, Some(&newer.raw)));
        assert!(!is_late(&newer.raw, Some(&old.raw)) && !is_late(&old.raw, None) && !is_late(&old.raw, Some(&old.raw)));
        assert!(!is_late(&unversioned, Some(&old.raw)), "it has no version");
    }

    /// Bytes of another program may look like a version, with numbers that no writer has.
    #[test]
    fn a_version_that_no_later_memo_could_replace_does_not_count() {
        let alien: Memo = [MARK, &[0xff; 16], b"x"].concat().into();
        assert_eq!(Versioned::read(&alien).version, Version::default());
        assert_eq!(Version(7, u64::MAX).next(Fence::new(7)), Version(7, u64::MAX));
    }
}
