//! One follower of the store for each lock that is watched, however many streams show it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock::state::{Moment, ResourceName, ResourceState};
use tokio::sync::watch;

use crate::state::{State, now};

/// How often a lock that is followed is read, besides the notifications of the store.
const POLL: Duration = Duration::from_millis(500);

/// Notifications in a burst are one.
const REST: Duration = Duration::from_millis(50);

/// What the store said of a lock, or why it could not be read.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// When it was asked.
    pub(crate) asked: Moment,
    /// When it had answered.
    pub(crate) answered: Moment,
    pub(crate) lock: Result<Arc<ResourceState>, String>,
}

/// `None` before the first answer of the store.
type Sender = Arc<watch::Sender<Option<Seen>>>;

/// The locks that are followed.
#[derive(Debug, Default)]
pub(crate) struct Followers(Mutex<HashMap<ResourceName, Sender>>);

impl Followers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, Sender>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a follower, unless a stream began to use it just now.
    fn end(&self, name: &ResourceName, sender: &Sender) -> bool {
        let mut followers = self.lock();
        let unused = sender.receiver_count() == 0;
        if unused {
            followers.remove(name);
        }
        unused
    }
}

/// Removes the follower when its task ends in another way: by a panic of a driver. Its streams end then, and the next
/// one starts another follower.
struct RemoveOnDrop {
    state: Arc<State>,
    name: ResourceName,
    sender: Sender,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let mut followers = self.state.followers.lock();
        if followers.get(&self.name).is_some_and(|present| Arc::ptr_eq(present, &self.sender)) {
            followers.remove(&self.name);
        }
    }
}

/// Follows a lock, until the receiver is dropped.
pub(crate) fn follow(state: &Arc<State>, name: &ResourceName) -> watch::Receiver<Option<Seen>> {
    let mut followers = state.followers.lock();
    if let Some(sender) = followers.get(name) {
        return sender.subscribe();
    }
    let sender = Arc::new(watch::Sender::new(None));
    let receiver = sender.subscribe();
    followers.insert(name.clone(), sender.clone());
    drop(followers);
    tokio::spawn(run(state.clone(), name.clone(), sender));
    receiver
}

/// Follows a lock while a stream shows it.
async fn run(state: Arc<State>, name: ResourceName, sender: Sender) {
    let follower = RemoveOnDrop { state, name, sender };
    let RemoveOnDrop { state, name, sender } = &follower;
    let read = read(state, name, sender);
    tokio::pin!(read);
    loop {
        tokio::select! {
            never = &mut read => match never {},
            () = state.closing.cancelled() => return,
            () = sender.closed() => if state.followers.end(name, sender) { return },
        }
    }
}

/// Reads the lock on each notification, and every half second.
async fn read(state: &State, name: &ResourceName, sender: &Sender) -> Infallible {
    let mut watch = None;
    loop {
        // Armed before reading, so that no change slips through between the two.
        if watch.is_none() {
            watch = state.locks.watch(name).await.ok();
        }
        let asked = now();
        let lock = state.locks.inspect(name).await.map(Arc::new).map_err(|error| error.to_string());
        if lock.is_err() {
            watch = None;
        }
        sender.send_replace(Some(Seen { asked, answered: now(), lock }));
        let notified = async {
            match &mut watch {
                Some(watch) => watch.changed().await.is_some(),
                None => std::future::pending().await,
            }
        };
        let alive = tokio::time::timeout(POLL, notified).await;
        if alive.is_ok() {
            tokio::time::sleep(REST).await;
        }
        if let Ok(false) = alive {
            watch = None;
        }
    }
}
