//! Hints from a store: one stream for each watch, and the set of watches that a driver notifies.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::claim::ClaimId;

/// How many claims unread hints name one by one; more become one hint about everything.
const MOST_NAMED: usize = 1024;

/// A hint that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hint {
    /// The claim it is about, if the store tells; `None` can concern all claims.
    pub claim: Option<ClaimId>,
}

impl Hint {
    /// A hint that can be about everything.
    pub const ANY: Self = Self { claim: None };

    /// A hint about this claim.
    #[must_use]
    pub const fn about(claim: ClaimId) -> Self {
        Self { claim: Some(claim) }
    }
}

/// Hints that were not read yet. A hint only says "check again", so several about one claim are merged.
#[derive(Debug, Default)]
struct Unread {
    any: bool,
    claims: BTreeSet<ClaimId>,
}

impl Unread {
    fn add(&mut self, hint: Hint) {
        match hint.claim {
            Some(claim) if !self.any && self.claims.len() < MOST_NAMED => {
                self.claims.insert(claim);
            }
            _ => {
                self.any = true;
                self.claims.clear();
            }
        }
    }

    fn take(&mut self) -> Option<Hint> {
        if std::mem::take(&mut self.any) {
            return Some(Hint::ANY);
        }
        self.claims.pop_first().map(Hint::about)
    }
}

/// A stream of hints, armed from the moment it is returned. Dropping it disarms it.
///
/// Hints that come while the watch is not read are merged: a slow reader checks once, not once for each hint.
#[must_use = "a watch that is dropped at once reports nothing"]
pub struct Watch {
    hints: Pin<Box<dyn Stream<Item = Hint> + Send>>,
    unread: Unread,
    ended: bool,
}

#[oarlock_macros::blocking]
impl Watch {
    /// A watch over `hints`.
    #[blocking(none)]
    pub fn new(hints: impl Stream<Item = Hint> + Send + 'static) -> Self {
        Self { hints: Box::pin(hints), unread: Unread::default(), ended: false }
    }

    /// A watch and its sender. It ends when every clone of the sender is dropped.
    #[blocking(none)]
    pub fn channel() -> (HintSender, Self) {
        let channel = Arc::new(Channel::default());
        channel.lock().senders = 1;
        (HintSender(channel.clone()), Self::new(Receiver(channel)))
    }

    /// A watch that has ended: the engine checks its claims and arms another one.
    #[blocking(none)]
    pub fn ended() -> Self {
        Self { ended: true, ..Self::never() }
    }

    /// A watch that never fires, for stores that cannot push.
    #[blocking(none)]
    pub fn never() -> Self {
        struct Never;
        impl Stream for Never {
            type Item = Hint;

            fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Hint>> {
                Poll::Pending
            }
        }
        Self::new(Never)
    }

    /// The next hint; `None` when the watch has ended and must be armed anew.
    ///
    /// # Cancel safety
    /// Dropping this future loses no hint.
    #[blocking(within)]
    pub async fn changed(&mut self) -> Option<Hint> {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// [`changed`](Self::changed), for streams over other watches.
    #[blocking(none)]
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        // Takes all pending hints at once, with a bound for a stream that always has more.
        for _ in 0..MOST_NAMED {
            if self.ended {
                break;
            }
            match self.hints.as_mut().poll_next(cx) {
                Poll::Ready(Some(hint)) => self.unread.add(hint),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => break,
            }
        }
        match self.unread.take() {
            Some(hint) => Poll::Ready(Some(hint)),
            None if self.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Sends hints to one [`Watch`]. Unread hints take a bounded amount of memory.
#[derive(Debug)]
#[must_use = "a watch ends when its last sender is dropped"]
pub struct HintSender(Arc<Channel>);

#[derive(Debug, Default)]
struct Channel(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    unread: Unread,
    reader: Option<Waker>,
    senders: usize,
    closed: bool,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HintSender {
    /// Sends a hint; false if the watch was dropped.
    pub fn send(&self, hint: Hint) -> bool {
        let mut state = self.0.lock();
        if state.closed {
            return false;
        }
        state.unread.add(hint);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }

    /// Whether the watch was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl Clone for HintSender {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl Drop for HintSender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        let reader = if state.senders == 0 { state.reader.take() } else { None };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

struct Receiver(Arc<Channel>);

impl Stream for Receiver {
    type Item = Hint;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        let mut state = self.0.lock();
        if let Some(hint) = state.unread.take() {
            return Poll::Ready(Some(hint));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let reader = state.reader.take();
        drop((state, reader));
    }
}

/// The watches of one topic. Several clients can share a driver, and each has a mailbox of its own: a new one does not
/// replace another.
#[derive(Debug, Default)]
pub struct Listeners(Mutex<Vec<HintSender>>);

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, Vec<HintSender>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watch, which gets all hints until it is dropped or these [end](Self::end).
    pub fn watch(&self) -> Watch {
        let (sender, watch) = Watch::channel();
        let mut senders = self.lock();
        senders.retain(|sender| !sender.is_closed());
        senders.push(sender);
        watch
    }

    /// Sends a hint to all watches; false if there are none.
    pub fn tell(&self, hint: Hint) -> bool {
        let mut senders = self.lock();
        senders.retain(|sender| sender.send(hint));
        !senders.is_empty()
    }

    /// Ends all watches: they must be armed anew.
    pub fn end(&self) {
        self.lock().clear();
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut senders = self.lock();
        senders.retain(|sender| !sender.is_closed());
        senders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(id: u128) -> Hint {
        Hint::about(ClaimId::from_bits(id))
    }

    async fn read(watch: &mut Watch) -> Option<Option<Hint>> {
        tokio::time::timeout(std::time::Duration::from_millis(10), watch.changed()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn unread_hints_are_merged() {
        let (sender, mut watch) = Watch::channel();
        for _ in 0..10_000 {
            assert!(sender.send(hint(1)) && sender.send(hint(2)));
        }
        assert_eq!(read(&mut watch).await, Some(Some(hint(1))));
        assert_eq!(read(&mut watch).await, Some(Some(hint(2))));
        assert_eq!(read(&mut watch).await, None, "each claim is named once");
        sender.send(hint(1));
        sender.send(Hint::ANY);
        sender.send(hint(2));
        assert_eq!(read(&mut watch).await, Some(Some(Hint::ANY)));
        assert_eq!(read(&mut watch).await, None, "everything includes each claim");
    }

    #[tokio::test(start_paused = true)]
    async fn unread_hints_take_a_bounded_room() {
        let (sender, mut watch) = Watch::channel();
        for id in 0..100_000 {
            sender.send(hint(id));
        }
        assert!(sender.0.lock().unread.claims.len() <= MOST_NAMED);
        let mut named = 0;
        while read(&mut watch).await.flatten().is_some_and(|hint| hint != Hint::ANY) {
            named += 1;
        }
        assert!(named <= MOST_NAMED, "{named} claims, and none of them stands for all");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_told_before_the_end_is_heard() {
        let (sender, mut watch) = Watch::channel();
        let other = sender.clone();
        sender.send(hint(1));
        drop(sender);
        assert_eq!(read(&mut watch).await, Some(Some(hint(1))));
        assert_eq!(read(&mut watch).await, None, "there is one more sender");
        drop(other);
        assert_eq!(read(&mut watch).await, Some(None));
    }

    #[tokio::test(start_paused = true)]
    async fn every_listener_is_told() {
        let listeners = Listeners::default();
        assert!(!listeners.tell(Hint::ANY));
        let (mut one, other) = (listeners.watch(), listeners.watch());
        assert!(listeners.tell(hint(1)));
        assert_eq!(read(&mut one).await, Some(Some(hint(1))));
        drop(other);
        assert!(listeners.tell(hint(2)));
        assert_eq!(listeners.lock().len(), 1, "who is gone is forgotten");
        listeners.end();
        assert_eq!(read(&mut one).await, Some(Some(hint(2))));
        assert_eq!(read(&mut one).await, Some(None));
        assert!(listeners.is_empty());
    }
}
