//! Memos, of which the newest counts.
//!
//! A memo reaches a majority, so every later majority has a node that knows it; other nodes may have an older one. What goes to
//! the nodes therefore begins with the largest fence of its writer, and how many it had written before. One whose writing failed
//! may have reached a few nodes: whoever sees it there hands it to a majority before the grant that shows it.

use crate::claim::Fence;
use crate::driver::Grant;
use crate::state::Memo;

/// What a memo of a quorum begins with; the digit is the version of its format.
const MARK: &[u8] = b"quorum/1 ";

/// Where a memo stands among all: the fence of its writer, and how many that one had left before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order(u64, u64);

impl Order {
    /// That of the next memo, by a holder whose largest fence is this.
    pub(super) fn next(self, fence: Fence) -> Self {
        if self.0 < fence.get() { Self(fence.get(), 0) } else { Self(self.0, self.1.saturating_add(1)) }
    }
}

/// A memo that a node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamped {
    pub(super) order: Order,
    /// As it is there.
    pub(super) raw: Memo,
}

impl Stamped {
    pub(super) fn new(memo: &[u8], order: Order) -> Self {
        Self { order, raw: [MARK, &order.0.to_be_bytes(), &order.1.to_be_bytes(), memo].concat().into() }
    }

    /// What a node has. Something that is not ours is older than all that is.
    fn of(raw: &Memo) -> Self {
        let order = raw.strip_prefix(MARK).and_then(|rest| Some((rest.first_chunk()?, rest.get(8..)?.first_chunk()?)));
        let order = order.map(|(fence, number)| Order(u64::from_be_bytes(*fence), u64::from_be_bytes(*number)));
        // No writer has such a fence, and none could outrank it.
        let order = order.filter(|order| order.0 < Fence::LIMIT).unwrap_or_default();
        Self { order, raw: raw.clone() }
    }

    /// Whether a node that has `there` must keep it: this one was written before that, and is late.
    fn is_older_than(&self, there: &Self) -> bool {
        self.order != Order::default() && self.order < there.order
    }

    /// What its writer left.
    pub(super) fn memo(&self) -> Memo {
        match self.order {
            Order(0, _) => self.raw.clone(),
            _ => self.raw.get(MARK.len() + 16..).unwrap_or_default().into(),
        }
    }
}

/// Whether a memo that reaches a store must not replace the one that is there. A renewal that was held up on its way may come
/// after a later one of the same hold; only the store can tell then, and only what a quorum wrote says which is newer.
pub(crate) fn is_late(memo: &Memo, there: Option<&Memo>) -> bool {
    there.is_some_and(|there| Stamped::of(memo).is_older_than(&Stamped::of(there)))
}

/// The newest of what some nodes have.
pub(super) fn newest<'a>(memos: impl Iterator<Item = Option<&'a Memo>>) -> Option<Stamped> {
    memos.flatten().map(Stamped::of).max_by_key(|memo| memo.order)
}

/// Whether this vote came without the memo that counts.
pub(super) fn lacks(grant: &Grant, newest: Option<&Stamped>) -> bool {
    grant.memo.as_ref() != newest.map(|newest| &newest.raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_counts_and_reads_as_it_was_written() {
        let order = Order(7, 300);
        let old = Stamped::new(b"old", order);
        let new = Stamped::new(b"", order.next(Fence::new(300)));
        let newer = Stamped::new(b"newer", new.order.next(Fence::new(200)));
        assert_eq!(newer.order, Order(300, 1));
        let foreign: Memo = b"quorum/1 short".as_slice().into();
        let all = [Some(&foreign), Some(&newer.raw), None, Some(&old.raw), Some(&new.raw)];
        assert_eq!(newest(all.into_iter()), Some(newer.clone()));
        assert_eq!((&*newer.memo(), &*new.memo(), &*old.memo()), (&b"newer"[..], &b""[..], &b"old"[..]));
        assert_eq!(newest([None, Some(&foreign)].into_iter()).unwrap().memo(), foreign);
        assert_eq!(newest([None, None].into_iter()), None);
        assert!(is_late(&old.raw, Some(&new.raw)) && is_late(&new.raw, Some(&newer.raw)));
        assert!(!is_late(&newer.raw, Some(&old.raw)) && !is_late(&old.raw, None) && !is_late(&old.raw, Some(&old.raw)));
        assert!(!is_late(&foreign, Some(&old.raw)), "it has no order");
    }

    /// Somebody else's bytes may look like ours, with numbers that no writer has.
    #[test]
    fn what_nobody_can_outrank_has_no_order() {
        let foreign: Memo = [MARK, &[0xff; 16], b"x"].concat().into();
        let old = Stamped::new(b"old", Order(7, 300));
        assert_eq!(newest([Some(&foreign), Some(&old.raw)].into_iter()), Some(old));
        assert_eq!(Order(7, u64::MAX).next(Fence::new(7)), Order(7, u64::MAX));
    }
}
