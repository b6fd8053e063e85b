//! The list of all locks, for clients that ask for it. Requests share one read of the store, and their answers are made
//! one after another in a thread of its own: renewals must not wait for them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use oarlock::state::ResourceState;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::problem::Problem;
use crate::state::{State, wall_millis};

/// Before the next read, the store and the thread of the renewals rest for so many times as long as the last one took.
const REST: u32 = 4;
const MAX_REST: Duration = Duration::from_secs(1);

/// The last read of the store, and the turn to make an answer.
#[derive(Debug, Default)]
pub(crate) struct Listings(Arc<Mutex<Option<Listed>>>);

/// All locks, as the store told them.
#[derive(Debug)]
pub(crate) struct Listed {
    asked: Instant,
    answered: Instant,
    pub(crate) at_ms: i64,
    pub(crate) locks: Result<Vec<ResourceState>, Problem>,
    /// No request waited for the locks any more, and they were dropped.
    is_forgotten: bool,
}

/// The turn of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(OwnedMutexGuard<Option<Listed>>);

impl Listings {
    /// Waits for its turn; with the locks as they were after this was called.
    pub(crate) async fn turn(&self, state: &State) -> Turn {
        // Counted as one that waits before it needs the locks of a moment: they are not forgotten from then on.
        let last = self.0.clone();
        let called = Instant::now();
        let mut last = last.lock_owned().await;
        if last.as_ref().is_none_or(|last| last.asked < called || last.is_forgotten) {
            if let Some(last) = &*last {
                let rest = (REST * last.answered.saturating_duration_since(last.asked)).min(MAX_REST);
                tokio::time::sleep_until(last.answered + rest).await;
            }
            let asked = Instant::now();
            let locks = state.locks.list().await.map_err(Problem::from);
            *last = Some(Listed { asked, answered: Instant::now(), at_ms: wall_millis(), locks, is_forgotten: false });
        }
        Turn(last)
    }
}

impl Deref for Turn {
    type Target = Option<Listed>;

    fn deref(&self) -> &Option<Listed> {
        &self.0
    }
}

/// A request that comes later needs a later read: without one that waits, the locks are forgotten.
impl Drop for Turn {
    fn drop(&mut self) {
        let waits = Arc::strong_count(OwnedMutexGuard::mutex(&self.0)) > 2;
        if let Some(last) = self.0.as_mut().filter(|_| !waits) {
            (last.locks, last.is_forgotten) = (Ok(Vec::new()), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_wait_share_the_next_read_and_none_has_an_earlier_one() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = State::new(locks, crate::config::Config::default()).unwrap();
        let names = |turn: &Turn| turn.as_ref().unwrap().locks.as_ref().unwrap().len();
        let first = state.listings.turn(&state).await;
        assert_eq!(names(&first), 0);
        let _guard = state.locks.mutex("x").lock().await.unwrap();
        let (mut second, mut third) = (Box::pin(state.listings.turn(&state)), Box::pin(state.listings.turn(&state)));
        std::future::poll_fn(|cx| {
            assert!(second.as_mut().poll(cx).is_pending() && third.as_mut().poll(cx).is_pending(), "one at a time");
            std::task::Poll::Ready(())
        })
        .await;
        drop(first);
        let second = second.await;
        assert_eq!(names(&second), 1, "what was taken before it asked");
        let asked = second.as_ref().unwrap().asked;
        drop(second);
        let third = third.await;
        assert_eq!((names(&third), third.as_ref().unwrap().asked), (1, asked), "they share it");
        drop(third);
        assert!(state.listings.0.lock().await.as_ref().unwrap().locks.as_ref().unwrap().is_empty(), "forgotten");
        let fourth = state.listings.turn(&state).await;
        assert!(names(&fourth) == 1 && fourth.as_ref().unwrap().asked > asked);
    }

    /// A request that noted its moment just before the read, and was counted just after the locks were forgotten.
    #[tokio::test]
    async fn a_list_that_was_forgotten_is_read_again() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = State::new(locks, crate::config::Config::default()).unwrap();
        let _guard = state.locks.mutex("x").lock().await.unwrap();
        drop(state.listings.turn(&state).await);
        if let Some(last) = state.listings.0.lock().await.as_mut() {
            last.asked = Instant::now() + Duration::from_secs(60);
        }
        let turn = state.listings.turn(&state).await;
        assert_eq!(turn.as_ref().unwrap().locks.as_ref().unwrap().len(), 1);
    }
}
