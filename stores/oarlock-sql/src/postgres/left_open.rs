//! Connections that a client does not use any more, and must not close yet.
//!
//! A server takes a process for dead when both connections that stand for its session are gone. Belief in its claims has
//! to end before that, also where the address leads to another server by now, or a connection does not answer.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

/// Claims that end with a session have run out by then.
const LONGEST: Duration = Duration::from_secs(3600);

type Connections = VecDeque<Arc<dyn Any + Send + Sync>>;

/// The connections, the oldest first. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct LeftOpen {
    /// `None` once the client was closed.
    connections: Arc<Mutex<Option<Connections>>>,
    runtime: Handle,
}

impl LeftOpen {
    pub(super) fn new(runtime: Handle) -> Self {
        Self { connections: Arc::new(Mutex::new(Some(Connections::new()))), runtime }
    }

    /// Keeps this connection open until its claims have run out.
    pub(super) fn keep(&self, connection: Arc<dyn Any + Send + Sync>) {
        if let Some(connections) = lock(&self.connections).as_mut() {
            connections.push_back(connection);
            let kept = Arc::downgrade(&self.connections);
            self.runtime.spawn(async move {
                tokio::time::sleep(LONGEST).await;
                let oldest = kept.upgrade().and_then(|kept| lock(&kept).as_mut()?.pop_front());
                drop(oldest);
            });
        }
    }

    /// Closes them all. Later ones are not kept.
    pub(super) fn close(&self) {
        let connections = lock(&self.connections).take();
        drop(connections);
    }
}

fn lock(connections: &Mutex<Option<Connections>>) -> MutexGuard<'_, Option<Connections>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_for_an_hour_or_until_the_client_is_closed() {
        let (left, connection) = (LeftOpen::new(Handle::current()), Arc::new(()));
        left.keep(connection.clone());
        tokio::time::sleep(LONGEST / 2).await;
        left.keep(connection.clone());
        assert_eq!(Arc::strong_count(&connection), 3);
        tokio::time::sleep(LONGEST / 2 + Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&connection), 2);
        left.close();
        left.keep(connection.clone());
        assert_eq!(Arc::strong_count(&connection), 1);
    }
}
