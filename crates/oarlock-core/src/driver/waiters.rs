//! The claims of a client that wait, and the watches that are notified of their turns.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Hint, HintSender, Listeners, Watch};
use crate::claim::ClaimId;

/// The watches of one client or connection: for the turn of each claim, for changes of resources, and mailboxes for all
/// other notifications.
///
/// A driver that calls [`expect`](Self::expect) before it sends an attempt misses no notification: what comes before
/// the watch is armed is kept for it. A `T` keeps what a notification says besides, such as a grant.
#[derive(Debug)]
pub struct Waiters<T = ()>(Mutex<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    ended: bool,
    mailboxes: Listeners,
    claims: HashMap<ClaimId, Waiter<T>>,
    observers: HashMap<Box<str>, Listeners>,
}

#[derive(Debug, Default)]
struct Waiter<T> {
    turn: Option<HintSender>,
    expected: bool,
    /// Whether a notification came since the claim was last expected.
    notified: bool,
    kept: T,
}

impl<T> Default for Inner<T> {
    fn default() -> Self {
        Self { ended: false, mailboxes: Listeners::default(), claims: HashMap::new(), observers: HashMap::new() }
    }
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Waiters<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for notifications to claims without a watch of their own.
    pub fn mailbox(&self) -> Watch {
        let inner = self.lock();
        if inner.ended { Watch::ended() } else { inner.mailboxes.watch() }
    }

    /// Watches for the turn of a claim, instead of an earlier watch.
    pub fn turn(&self, id: ClaimId) -> Watch {
        let (hints, watch) = Watch::channel();
        self.arm(id, hints, |_| ());
        watch
    }

    /// As [`turn`](Self::turn), for a watch that the caller made. Returns whether the claim is expected.
    pub fn arm(&self, id: ClaimId, hints: HintSender, keep: impl FnOnce(&mut T)) -> bool {
        let mut inner = self.lock();
        if inner.ended {
            return false;
        }
        let waiter = inner.claims.entry(id).or_default();
        // What came since the last attempt was sent was told to the watch before this one, or to none.
        if waiter.notified {
            hints.send(Hint::about(id));
        }
        waiter.turn = Some(hints);
        keep(&mut waiter.kept);
        waiter.expected
    }

    /// Watches for changes of a resource.
    pub fn resource(&self, name: &str) -> Watch {
        let mut inner = self.lock();
        if inner.ended { Watch::ended() } else { inner.observers.entry(name.into()).or_default().watch() }
    }

    /// A resource changed.
    pub fn changed(&self, name: &str) {
        let mut inner = self.lock();
        if inner.observers.get(name).is_some_and(|observers| !observers.tell(Hint::ANY)) {
            inner.observers.remove(name);
        }
    }

    /// A resource changed, and the store will not tell of further changes: ends the watches for them.
    pub fn changed_last(&self, name: &str) {
        if let Some(observers) = self.lock().observers.remove(name) {
            observers.tell(Hint::ANY);
        }
    }

    /// Keeps notifications for a claim whose attempt is about to be sent: it sees what earlier ones were about. False
    /// if no notification will come.
    pub fn expect(&self, id: ClaimId, keep: impl FnOnce(&mut T)) -> bool {
        let mut inner = self.lock();
        if inner.ended {
            return false;
        }
        let waiter = inner.claims.entry(id).or_default();
        if !waiter.expected {
            waiter.kept = T::default();
        }
        (waiter.expected, waiter.notified) = (true, false);
        keep(&mut waiter.kept);
        true
    }

    /// Whether all notifications for this claim were kept since its last attempt was sent.
    #[must_use]
    pub fn expects(&self, id: ClaimId) -> bool {
        self.kept(id, |_| ()).is_some()
    }

    /// Reads or changes what is kept for an expected claim.
    pub fn kept<R>(&self, id: ClaimId, read: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut inner = self.lock();
        inner.claims.get_mut(&id).filter(|waiter| waiter.expected).map(|waiter| read(&mut waiter.kept))
    }

    /// For how many claims notifications are kept.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.lock().claims.values().filter(|waiter| waiter.expected).count()
    }

    /// A notification for this claim, which is kept if the claim is expected. False if no watch for its turn was told;
    /// then the mailboxes were.
    pub fn notify(&self, id: ClaimId, keep: impl FnOnce(&mut T)) -> bool {
        let (mut inner, hint) = (self.lock(), Hint::about(id));
        if let Some(waiter) = inner.claims.get_mut(&id) {
            if waiter.expected {
                waiter.notified = true;
                keep(&mut waiter.kept);
            }
            if waiter.turn.as_ref().is_some_and(|turn| turn.send(hint)) {
                return true;
            }
        }
        inner.mailboxes.tell(hint);
        false
    }

    /// Notifies every watch, after notifications were lost.
    pub fn notify_all(&self) {
        let mut inner = self.lock();
        for (id, waiter) in &mut inner.claims {
            waiter.notified = waiter.expected;
            waiter.turn.as_ref().map(|turn| turn.send(Hint::about(*id)));
        }
        inner.mailboxes.tell(Hint::ANY);
    }

    /// Whether a watch for this claim's turn is armed.
    #[must_use]
    pub fn listens(&self, id: ClaimId) -> bool {
        let inner = self.lock();
        inner.claims.get(&id).and_then(|waiter| waiter.turn.as_ref()).is_some_and(|turn| !turn.is_closed())
    }

    /// The claim is not in the store: its notifications are not kept any more.
    pub fn unexpect(&self, id: ClaimId) {
        let mut inner = self.lock();
        if let Some(waiter) = inner.claims.get_mut(&id) {
            (waiter.expected, waiter.notified) = (false, false);
            if waiter.turn.as_ref().is_none_or(HintSender::is_closed) {
                inner.claims.remove(&id);
            }
        }
    }

    /// The claim does not wait any more.
    pub fn forget(&self, id: ClaimId) {
        self.lock().claims.remove(&id);
    }

    /// The way of some notifications was lost: ends the watches for the turns that `lost` chooses. What is kept for
    /// their claims is dropped unless it is `complete`.
    pub fn lose(&self, mut lost: impl FnMut(&T) -> bool, mut complete: impl FnMut(&T) -> bool) {
        self.lock().claims.retain(|_, waiter| {
            if lost(&waiter.kept) {
                waiter.turn = None;
                waiter.expected &= complete(&waiter.kept);
            }
            waiter.turn.is_some() || waiter.expected
        });
    }

    /// Tells the mailboxes that all claims have to be checked.
    pub fn check_all(&self) {
        self.lock().mailboxes.tell(Hint::ANY);
    }

    /// Ends the mailboxes: they must be armed anew.
    pub fn end_mailboxes(&self) {
        self.lock().mailboxes.end();
    }

    /// Ends all watches for good.
    pub fn end(&self) {
        *self.lock() = Inner { ended: true, ..Inner::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ClaimId = ClaimId::from_bits(1);

    async fn read(watch: &mut Watch) -> Option<Option<Hint>> {
        tokio::time::timeout(std::time::Duration::from_millis(10), watch.changed()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_came_before_its_watch_is_told() {
        let waiters = Waiters::<u32>::default();
        assert!(waiters.expect(ID, |_| ()));
        assert!(!waiters.notify(ID, |kept| *kept = 7), "there is no watch yet");
        assert_eq!(read(&mut waiters.turn(ID)).await, Some(Some(Hint::about(ID))));
        assert_eq!(read(&mut waiters.turn(ID)).await, Some(Some(Hint::about(ID))), "that watch was not read");
        assert_eq!(waiters.kept(ID, |kept| *kept), Some(7));
        assert!(waiters.expect(ID, |_| ()));
        assert_eq!(read(&mut waiters.turn(ID)).await, None, "the next attempt sees what it was about");
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_without_a_watch_is_told_in_the_mailbox_until_the_end() {
        let waiters = Waiters::<()>::default();
        let (mut mailbox, mut turn) = (waiters.mailbox(), waiters.turn(ID));
        assert!(waiters.notify(ID, |()| ()));
        assert_eq!((read(&mut turn).await, read(&mut mailbox).await), (Some(Some(Hint::about(ID))), None));
        drop(turn);
        assert!(!waiters.notify(ID, |()| ()));
        assert_eq!(read(&mut mailbox).await, Some(Some(Hint::about(ID))));
        let mut resource = waiters.resource("deploy");
        waiters.changed("deploy");
        assert_eq!((read(&mut resource).await, read(&mut resource).await), (Some(Some(Hint::ANY)), None));
        waiters.changed_last("deploy");
        assert_eq!((read(&mut resource).await, read(&mut resource).await), (Some(Some(Hint::ANY)), Some(None)));
        waiters.check_all();
        waiters.end();
        assert_eq!((read(&mut mailbox).await, read(&mut mailbox).await), (Some(Some(Hint::ANY)), Some(None)));
        assert_eq!(read(&mut waiters.turn(ID)).await, Some(None));
        assert!(!waiters.expect(ID, |()| ()));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_loss_every_watch_is_notified() {
        let waiters = Waiters::<()>::default();
        let (late, mut mailbox) = (ClaimId::from_bits(2), waiters.mailbox());
        let mut turn = waiters.turn(ID);
        waiters.expect(late, |()| ());
        waiters.notify_all();
        assert_eq!(
            (read(&mut turn).await, read(&mut mailbox).await),
            (Some(Some(Hint::about(ID))), Some(Some(Hint::ANY)))
        );
        assert_eq!(read(&mut waiters.turn(late)).await, Some(Some(Hint::about(late))), "its watch came later");
        let stranger = ClaimId::from_bits(3);
        assert_eq!(read(&mut waiters.turn(stranger)).await, None, "not expected");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_a_claim_that_is_not_expected() {
        let waiters = Waiters::<u32>::default();
        let mut turn = waiters.turn(ID);
        waiters.notify(ID, |kept| *kept = 7);
        assert_eq!((waiters.kept(ID, |kept| *kept), waiters.expected()), (None, 0));
        waiters.expect(ID, |kept| assert_eq!(*kept, 0));
        waiters.notify(ID, |kept| *kept = 8);
        waiters.unexpect(ID);
        waiters.expect(ID, |kept| assert_eq!(*kept, 0, "it may have been taken back"));
        assert_eq!(read(&mut turn).await, Some(Some(Hint::about(ID))), "the watch stays armed");
        assert_eq!(read(&mut turn).await, None);
        waiters.forget(ID);
        assert_eq!(read(&mut turn).await, Some(None));
        assert!(!waiters.expects(ID));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_way_ends_its_watches_and_keeps_what_is_complete() {
        let waiters = Waiters::<(u32, bool)>::default();
        let ids = [1, 2, 3].map(ClaimId::from_bits);
        let kept = [(7, false), (7, true), (8, false)];
        for (id, kept) in ids.iter().zip(kept) {
            waiters.expect(*id, |it| *it = kept);
        }
        let [mut one, mut two, mut three] = ids.map(|id| waiters.turn(id));
        waiters.lose(|(way, _)| *way == 7, |(_, complete)| *complete);
        assert_eq!((read(&mut one).await, read(&mut two).await), (Some(None), Some(None)));
        assert_eq!(read(&mut three).await, None);
        assert_eq!(ids.map(|id| waiters.expects(id)), [false, true, true]);
    }
}
