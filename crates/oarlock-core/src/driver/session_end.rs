//! The end of a session, which a driver tells the engine without the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// The end of a session, as the driver knows it. Clones are of the same session.
///
/// A driver whose claims end with a session makes one for each session, and adds it to each grant that ends with it
/// ([`Grant::ends_with`](super::Grant::ends_with)). It calls [`end`](Self::end) as soon as other clients may see that
/// the session is over, before it opens another one, and before it closes its connections. From then on no holder
/// believes in such a grant. No request and no [`Watch`](super::Watch) is needed for that: the store may be unreachable.
#[derive(Clone, Debug, Default)]
pub struct SessionEnd(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Read each time that a holder is asked whether it holds; the token has a mutex.
    has_ended: AtomicBool,
    token: CancellationToken,
}

impl SessionEnd {
    /// The end of a session that has just begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The session is over, for good.
    pub fn end(&self) {
        self.0.has_ended.store(true, Ordering::Release);
        self.0.token.cancel();
    }

    /// Whether it is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Acquire)
    }

    /// Waits until it is over.
    ///
    /// # Cancel safety
    /// Dropping this future loses nothing.
    pub async fn ended(&self) {
        self.0.token.cancelled().await;
    }
}

/// Whether both are of the same session.
impl PartialEq for SessionEnd {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SessionEnd {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_clones_hear_of_the_end_of_their_session_and_of_no_other() {
        let (one, other) = (SessionEnd::new(), SessionEnd::new());
        let clone = one.clone();
        assert!(one == clone && one != other);
        let waiting = tokio::spawn(async move { clone.ended().await });
        one.end();
        waiting.await.unwrap();
        assert!(one.has_ended() && !other.has_ended());
    }
}
