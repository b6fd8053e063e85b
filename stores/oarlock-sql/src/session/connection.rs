//! What a server must be able to do.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::capabilities::WaiterView;
use oarlock_core::driver::{Hint, Listeners, SessionEnd, Watch};
use oarlock_core::{Label, ResourceName, Result};

/// A server that keeps locks for connections.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// What a lock is called there.
    type Key: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static;
    /// A connection.
    type Connection: Connection<Key = Self::Key>;

    /// The URL scheme.
    const SCHEME: &'static str;
    /// What it shows of those who wait.
    const WAITERS: WaiterView;

    /// Where it is, without secrets.
    fn address(&self) -> String;

    /// How long it keeps a connection on which nothing is asked: at least so long, or belief would end too late.
    fn session_ttl(&self) -> Duration;

    /// What the lock of this name is called.
    ///
    /// # Errors
    /// [`InvalidName`](oarlock_core::ErrorKind::InvalidName) if it cannot have that name.
    fn key(&self, name: &ResourceName) -> Result<Self::Key>;

    /// Opens a connection; `mailbox` is notified when it ends, if that is noticed.
    fn open(self: Arc<Self>, mailbox: Mailbox) -> impl Future<Output = Result<Self::Connection>> + Send;
}

/// A connection. Dropped, it is closed.
pub trait Connection: fmt::Debug + Send + Sync + 'static {
    /// What a lock is called.
    type Key;

    /// Takes a lock if it is free: the server's clock after that, in microseconds. On an error it is not taken, or the
    /// connection is over.
    fn take(&self, key: &Self::Key) -> impl Future<Output = Result<Option<u64>>> + Send;

    /// Waits in the server's queue until it has the lock; false if it was told to stop, or has waited for so long that
    /// it should wait anew. Whatever else is asked waits for it.
    fn queue(&self, key: &Self::Key) -> impl Future<Output = Result<bool>> + Send;

    /// Tells the server to end the wait on this connection.
    fn stop(&self) -> impl Future<Output = Result<()>> + Send;

    /// Releases a lock; false if it was not held.
    fn release(&self, key: &Self::Key) -> impl Future<Output = Result<bool>> + Send;

    /// Checks that the connection is alive: the server's clock in microseconds.
    fn ping(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Who holds a lock, and how many wait.
    fn peek(&self, key: &Self::Key) -> impl Future<Output = Result<Seen>> + Send;

    /// The server's number for this connection.
    fn number(&self) -> u64;

    /// Closes it.
    fn end(&self);

    /// Its end: it was closed, or is known to have ended.
    fn over(&self) -> &SessionEnd;

    /// Whether it was closed, or is known to have ended.
    fn is_over(&self) -> bool {
        self.over().has_ended()
    }
}

/// What a server shows of a lock.
#[derive(Debug, Default)]
pub struct Seen {
    /// The connections that hold it, and whose they are.
    pub holders: Vec<(u64, Label)>,
    /// How many wait, if it tells.
    pub waiting: Option<usize>,
}

/// Notifies a client that a connection has ended.
#[derive(Clone, Debug, Default)]
pub struct Mailbox(Arc<Listeners>);

impl Mailbox {
    /// A connection has ended: look after everything.
    pub fn notify(&self) {
        self.0.tell(Hint::ANY);
    }

    pub(crate) fn watch(&self) -> Watch {
        self.0.watch()
    }

    pub(crate) fn end(&self) {
        self.0.end();
    }
}
