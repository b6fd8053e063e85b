//! Reconnecting, for drivers: connections that are opened when needed, and again after they have ended.
//!
//! One task opens the connection for all requests that need it. A request that waits for it holds no lock: its caller
//! may stop polling it, or drop it, without delaying other requests.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;

pub use crate::engine::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};

/// Work that one task does for all callers that need it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// use oarlock_core::reconnect::SharedTask;
///
/// let learning = SharedTask::new("redis");
/// let (first, second) = (learning.join(|| async { Ok(()) }), learning.join(|| async { unreachable!() }));
/// second.done().await?;
/// first.done().await
/// # }
/// ```
#[derive(Debug)]
pub struct SharedTask {
    scheme: &'static str,
    runtime: Option<Handle>,
    last: Mutex<Option<Outcome>>,
}

type Outcome = watch::Receiver<Option<Result<()>>>;

/// The result of shared work. The work goes on whether or not the result is awaited.
#[derive(Debug)]
pub struct Joined {
    scheme: &'static str,
    outcome: Outcome,
}

impl SharedTask {
    /// Work for the store of this scheme, on the runtime of the first caller.
    #[must_use]
    pub fn new(scheme: &'static str) -> Self {
        Self { scheme, runtime: None, last: Mutex::default() }
    }

    /// Runs the work on `runtime`, whatever runtime the caller is on.
    #[must_use]
    pub fn on(self, runtime: Handle) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    /// Joins the running work, or starts `work`.
    pub fn join<F>(&self, work: impl FnOnce() -> F) -> Joined
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = |outcome: &&Outcome| outcome.borrow().is_none() && outcome.has_changed().is_ok();
        if let Some(outcome) = last.as_ref().filter(under_way) {
            return Joined { scheme: self.scheme, outcome: outcome.clone() };
        }
        let ((done, outcome), work) = (watch::channel(None), work());
        let work = async move {
            done.send_replace(Some(work.await));
        };
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(work)),
            None => drop(tokio::spawn(work)),
        }
        Joined { scheme: self.scheme, outcome: last.insert(outcome).clone() }
    }
}

impl Joined {
    /// Waits for the result.
    ///
    /// # Errors
    /// The error of the work; [`ErrorKind::Unreachable`] if its runtime ended before it was done.
    ///
    /// # Cancel safety
    /// Dropping this future does not stop the work.
    pub async fn done(mut self) -> Result<()> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Unreachable, "the runtime that opened this connection ended")
                .on(self.scheme)
                .retry_later())
        })
    }
}

/// A connection, which can end by itself.
pub trait Ends {
    /// Whether it has ended, so that another one is needed.
    fn is_ended(&self) -> bool;

    /// Ends one that was opened while the client was shut down, unless dropping it is enough.
    fn end(&self) {}
}

impl<T: Ends> Ends for Arc<T> {
    fn is_ended(&self) -> bool {
        (**self).is_ended()
    }

    fn end(&self) {
        (**self).end();
    }
}

/// One `T` that all requests share: opened when needed, and again after it has ended.
pub struct Reopened<T> {
    current: Arc<Mutex<Slot<T>>>,
    opening: SharedTask,
}

enum Slot<T> {
    Vacant,
    Open(Arc<T>),
    Closed,
}

impl<T> Reopened<T> {
    /// For the store of this scheme, opened on the runtime of the first caller.
    #[must_use]
    pub fn new(scheme: &'static str) -> Self {
        Self { current: Arc::new(Mutex::new(Slot::Vacant)), opening: SharedTask::new(scheme) }
    }

    /// Opens it on `runtime`, whatever runtime the caller is on.
    #[must_use]
    pub fn on(self, runtime: Handle) -> Self {
        Self { opening: self.opening.on(runtime), ..self }
    }
}

impl<T: Ends + Send + Sync + 'static> Reopened<T> {
    /// The open `T`, or the result of `open`. Requests that come while it is being opened share the result.
    ///
    /// # Errors
    /// The error of `open`; [`ErrorKind::Closed`] after [`close`](Self::close).
    ///
    /// # Cancel safety
    /// Opening goes on when this future is dropped or not polled any more: other requests are not delayed.
    pub async fn get<F>(&self, open: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if let Some(current) = self.current() {
            return Ok(current);
        }
        self.check_open()?;
        let opened = self.opening.join(|| {
            let (current, open) = (self.current.clone(), open());
            async move {
                // Another task may have opened it since the caller checked.
                if living(&current).is_some() {
                    return Ok(());
                }
                let opened = Arc::new(open.await?);
                if let Err(not_needed) = put(&current, opened) {
                    not_needed.end();
                }
                Ok(())
            }
        });
        opened.done().await?;
        self.check_open()?;
        let lost = || {
            Error::new(ErrorKind::Unreachable, "the connection was lost at once").on(self.opening.scheme).retry_later()
        };
        self.current().ok_or_else(lost)
    }

    /// The open `T`, if it has not ended.
    #[must_use]
    pub fn current(&self) -> Option<Arc<T>> {
        living(&self.current)
    }

    /// Sets a `T` that was opened by other means; returns it after [`close`](Self::close).
    ///
    /// # Errors
    /// The `T` itself, which the caller has to close.
    pub fn put(&self, opened: Arc<T>) -> std::result::Result<(), Arc<T>> {
        put(&self.current, opened)
    }

    /// Drops this one, unless another has replaced it.
    pub fn discard(&self, failed: &Arc<T>) {
        let mut slot = lock(&self.current);
        if matches!(&*slot, Slot::Open(current) if Arc::ptr_eq(current, failed)) {
            *slot = Slot::Vacant;
        }
    }

    /// Drops the open `T`; the next request opens another.
    #[must_use = "dropping it here may be what ends it"]
    pub fn take(&self) -> Option<Arc<T>> {
        let mut slot = lock(&self.current);
        if matches!(*slot, Slot::Closed) { None } else { std::mem::replace(&mut *slot, Slot::Vacant).into_open() }
    }

    /// Drops the open `T` for good. One that is being opened meanwhile is dropped, too.
    #[must_use = "dropping it here may be what ends it"]
    pub fn close(&self) -> Option<Arc<T>> {
        std::mem::replace(&mut *lock(&self.current), Slot::Closed).into_open()
    }

    fn check_open(&self) -> Result<()> {
        if matches!(*lock(&self.current), Slot::Closed) {
            return Err(Error::new(ErrorKind::Closed, "this client was shut down").on(self.opening.scheme));
        }
        Ok(())
    }
}

/// Sets the open `T`; the previous one is dropped after the lock is released.
fn put<T>(current: &Mutex<Slot<T>>, opened: Arc<T>) -> std::result::Result<(), Arc<T>> {
    let _before;
    let mut slot = lock(current);
    if matches!(*slot, Slot::Closed) {
        return Err(opened);
    }
    _before = std::mem::replace(&mut *slot, Slot::Open(opened));
    Ok(())
}

/// The open `T`. One that has ended is dropped after the lock is released: its `Drop` may do anything.
fn living<T: Ends>(current: &Mutex<Slot<T>>) -> Option<Arc<T>> {
    let _ended;
    let mut slot = lock(current);
    match &*slot {
        Slot::Open(current) if !current.is_ended() => Some(current.clone()),
        Slot::Open(_) => {
            _ended = std::mem::replace(&mut *slot, Slot::Vacant);
            None
        }
        Slot::Vacant | Slot::Closed => None,
    }
}

impl<T> Slot<T> {
    fn into_open(self) -> Option<Arc<T>> {
        match self {
            Self::Open(current) => Some(current),
            Self::Vacant | Self::Closed => None,
        }
    }
}

impl<T> fmt::Debug for Reopened<T> {
    /// Without the connection, which may show its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match *lock(&self.current) {
            Slot::Vacant => "vacant",
            Slot::Open(_) => "open",
            Slot::Closed => "closed",
        };
        f.debug_tuple("Reopened").field(&state).finish()
    }
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Debug, Default)]
    struct FakeConnection(AtomicBool);

    impl Ends for FakeConnection {
        fn is_ended(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    const SOON: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_polled_any_more_holds_up_no_other() {
        let connections = Reopened::<FakeConnection>::new("test");
        let (answer, server) = oneshot::channel();
        let mut first = pin!(connections.get(|| async move {
            server.await.map_err(|_| Error::unreachable("gone"))?;
            Ok(FakeConnection::default())
        }));
        // Polled once: it opens the connection. Then its caller does something else.
        assert!(matches!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        answer.send(()).unwrap();
        let second = connections.get(|| async { unreachable!("it is being opened") });
        tokio::time::timeout(SOON, second).await.expect("the second request to go on").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_request_does_not_stop_the_opening() {
        let connections = Reopened::<FakeConnection>::new("test");
        let opened = Arc::new(AtomicU32::new(0));
        let count = opened.clone();
        let slow = async move {
            tokio::time::sleep(SOON / 2).await;
            count.fetch_add(1, Ordering::SeqCst);
            Ok(FakeConnection::default())
        };
        assert!(tokio::time::timeout(SOON / 4, connections.get(|| slow)).await.is_err());
        tokio::time::timeout(SOON, connections.get(|| async { unreachable!("it is being opened") }))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_ended_one_is_opened_again_and_a_failure_is_shared_but_not_kept() {
        let connections = Reopened::<FakeConnection>::new("test");
        let first = connections.get(|| async { Ok(FakeConnection::default()) }).await.unwrap();
        first.0.store(true, Ordering::SeqCst);
        let refused = connections.get(|| async { Err(Error::unreachable("refused")) }).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unreachable);
        let second = connections.get(|| async { Ok(FakeConnection::default()) }).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        connections.discard(&first);
        assert!(connections.current().is_some(), "another had taken its place");
        connections.discard(&second);
        assert!(connections.current().is_none());
    }

    #[tokio::test]
    async fn nothing_is_left_open_after_a_close() {
        let connections = Arc::new(Reopened::<FakeConnection>::new("test"));
        let (answer, server) = oneshot::channel::<()>();
        let held = Arc::new(());
        let seen = Arc::downgrade(&held);
        let opening = tokio::spawn({
            let connections = connections.clone();
            async move {
                let open = || async move {
                    let _ = server.await;
                    drop(held);
                    Ok(FakeConnection::default())
                };
                connections.get(open).await.map(drop)
            }
        });
        tokio::task::yield_now().await;
        assert!(connections.close().is_none());
        answer.send(()).unwrap();
        assert_eq!(opening.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert!(seen.upgrade().is_none());
        assert!(connections.current().is_none());
        assert!(connections.put(Arc::default()).is_err());
        let after = connections.get(|| async { unreachable!("closed") }).await.unwrap_err();
        assert_eq!(after.kind(), ErrorKind::Closed);
    }
}
