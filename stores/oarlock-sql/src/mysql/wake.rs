//! The named locks by which waiters of other processes learn that a claim of this client has left.
//!
//! The server has no notifications. So each claim in the store has a named lock of its own, `oarlock_w_<id>`: the call
//! that writes the claim down takes it before others can see the claim, and the call that removes the claim releases
//! it. Until then the next in line waits for it (see [`listener`](crate::mysql::listener)). A named lock belongs to a
//! connection, and only that connection can release it. The call that removes a claim runs there if the connection is
//! idle. If not, the connection owes the release, and pays after its present request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::ClaimId;

/// The most named locks of one connection: a server may look through all of them for each table that a step uses.
/// Claims beyond that have none, and those who wait for them poll.
pub(crate) const MOST: usize = 256;

/// Locks for which no other client waits are released together, so many at a time.
const TOGETHER: usize = 32;

/// Which connection of a client holds the lock of which claim.
#[derive(Debug, Default)]
pub(crate) struct WakeLocks(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held: HashMap<ClaimId, Held>,
    connections: HashMap<u64, Owing>,
    last: u64,
}

#[derive(Debug)]
struct Held {
    by: u64,
    /// Whether the claim was for everything.
    whole: bool,
    /// When the claim ends by itself, unless it is renewed.
    until: Instant,
}

/// What one connection has to release.
#[derive(Debug, Default)]
struct Owing {
    held: usize,
    owed: Vec<ClaimId>,
    pressing: bool,
}

/// A connection that can hold locks. They are gone with it.
#[derive(Debug)]
pub(crate) struct Keyring {
    pub(crate) number: u64,
    locks: Arc<WakeLocks>,
}

impl Drop for Keyring {
    fn drop(&mut self) {
        let mut inner = self.locks.lock();
        inner.connections.remove(&self.number);
        inner.held.retain(|_, held| held.by != self.number);
    }
}

/// The name of the lock of a claim.
pub(crate) fn lock_name(id: ClaimId) -> String {
    format!("oarlock_w_{id}")
}

impl Inner {
    fn owe(&mut self, id: ClaimId, is_pressing: bool) -> Option<u64> {
        let held = self.held.remove(&id)?;
        let owing = self.connections.get_mut(&held.by)?;
        owing.owed.push(id);
        owing.pressing |= is_pressing || owing.owed.len() >= TOGETHER;
        owing.pressing.then_some(held.by)
    }

    /// Claims that ended without this client: their locks are of no use.
    fn forget_ended(&mut self) {
        let now = Instant::now();
        let ended: Vec<_> = self.held.iter().filter(|(_, held)| held.until <= now).map(|(id, _)| *id).collect();
        for id in ended {
            self.owe(id, false);
        }
    }
}

impl WakeLocks {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection.
    pub(crate) fn keyring(self: &Arc<Self>) -> Keyring {
        let mut inner = self.lock();
        inner.last += 1;
        let number = inner.last;
        inner.connections.insert(number, Owing::default());
        drop(inner);
        Keyring { number, locks: self.clone() }
    }

    /// Whether the connection `by` is to take the lock of this claim: it has room, and no other one holds it.
    pub(crate) fn may_take(&self, id: ClaimId, by: u64) -> bool {
        let mut inner = self.lock();
        let has_room = |inner: &Inner| inner.connections.get(&by).is_some_and(|owing| owing.held < MOST);
        if !has_room(&inner) {
            inner.forget_ended();
        }
        has_room(&inner) && inner.held.get(&id).is_none_or(|held| held.by == by)
    }

    /// The connection `by` was told to take the lock of a claim that lives for `span`.
    pub(crate) fn took(&self, id: ClaimId, by: u64, whole: bool, span: Duration) {
        let mut inner = self.lock();
        let until = Instant::now() + span;
        if let Some(held) = inner.held.get_mut(&id) {
            held.until = until;
        } else if let Some(owing) = inner.connections.get_mut(&by) {
            owing.held += 1;
            inner.held.insert(id, Held { by, whole, until });
        }
    }

    /// The claim was renewed for `span`.
    pub(crate) fn keep(&self, id: ClaimId, span: Duration) {
        if let Some(held) = self.lock().held.get_mut(&id) {
            held.until = Instant::now() + span;
        }
    }

    /// The connection that holds the lock of this claim.
    pub(crate) fn holder(&self, id: ClaimId) -> Option<u64> {
        self.lock().held.get(&id).map(|held| held.by)
    }

    /// Whether the lock of this claim was taken when the claim was for everything.
    pub(crate) fn is_whole(&self, id: ClaimId) -> bool {
        self.lock().held.get(&id).is_some_and(|held| held.whole)
    }

    /// The connection `by` released the lock of this claim, if it was the one that held it.
    pub(crate) fn released(&self, id: ClaimId, by: u64) {
        let mut inner = self.lock();
        if inner.held.get(&id).is_some_and(|held| held.by == by) {
            inner.held.remove(&id);
            if let Some(owing) = inner.connections.get_mut(&by) {
                owing.held -= 1;
            }
        }
    }

    /// The claim has left, and its lock is to be released: soon if another client may wait for it. Answers with the
    /// connection that has to do so now.
    pub(crate) fn owe(&self, id: ClaimId, is_pressing: bool) -> Option<u64> {
        self.lock().owe(id, is_pressing)
    }

    /// Whether a connection has to release locks now.
    pub(crate) fn is_due(&self, by: u64) -> bool {
        self.lock().connections.get(&by).is_some_and(|owing| owing.pressing)
    }

    /// All that the connection `by` owes, which it is about to release.
    pub(crate) fn take_owed(&self, by: u64) -> Vec<ClaimId> {
        let mut inner = self.lock();
        let Some(owing) = inner.connections.get_mut(&by) else { return Vec::new() };
        owing.pressing = false;
        let owed = std::mem::take(&mut owing.owed);
        owing.held -= owed.len();
        owed
    }
}

/// The statement that releases the locks of these claims.
pub(crate) fn release_of(ids: &[ClaimId]) -> String {
    let locks: Vec<_> = ids.iter().map(|id| format!("RELEASE_LOCK('{}')", lock_name(*id))).collect();
    format!("DO {}", locks.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn id(bits: usize) -> ClaimId {
        ClaimId::from_bits(bits as u128)
    }

    #[test]
    fn a_lock_is_released_where_it_is_held_and_at_once_if_another_waits() {
        let locks = Arc::new(WakeLocks::default());
        let [one, other] = [locks.keyring(), locks.keyring()];
        assert!(locks.may_take(id(1), one.number));
        locks.took(id(1), one.number, true, LONG);
        assert!(!locks.may_take(id(1), other.number), "another connection holds it");
        locks.took(id(1), other.number, true, LONG);
        assert_eq!(locks.holder(id(1)), Some(one.number));
        locks.released(id(1), other.number);
        assert_eq!(locks.holder(id(1)), Some(one.number), "released by a connection that does not hold it");
        assert_eq!(locks.owe(id(1), true), Some(one.number));
        assert!(locks.is_due(one.number) && !locks.is_due(other.number));
        assert_eq!(locks.take_owed(one.number), [id(1)]);
        assert!(!locks.is_due(one.number));
        assert_eq!(locks.owe(id(1), true), None, "it was released already");
    }

    #[test]
    fn locks_that_no_other_waits_for_are_released_together() {
        let locks = Arc::new(WakeLocks::default());
        let one = locks.keyring();
        let due: Vec<_> = (0..TOGETHER)
            .filter_map(|bits| {
                locks.took(id(bits), one.number, true, LONG);
                locks.owe(id(bits), false)
            })
            .collect();
        assert_eq!(due, [one.number], "once");
        assert_eq!(locks.take_owed(one.number).len(), TOGETHER);
    }

    #[test]
    fn a_connection_has_so_many_and_what_ended_makes_room() {
        let locks = Arc::new(WakeLocks::default());
        let one = locks.keyring();
        for bits in 0..MOST {
            let span = if bits == 0 { Duration::ZERO } else { LONG };
            assert!(locks.may_take(id(bits), one.number), "{bits}");
            locks.took(id(bits), one.number, true, span);
        }
        assert!(!locks.may_take(id(MOST), one.number), "what ended is still to be released");
        assert_eq!(locks.take_owed(one.number), [id(0)]);
        assert!(locks.may_take(id(MOST), one.number));
        drop(one);
        assert!(locks.lock().held.is_empty(), "a connection that is gone holds nothing");
    }
}
