//! The connections of a stock: one that was given, or several that are opened when they are needed.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_rows::Classify as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Error;

type Opened<S> = Pin<Box<dyn Future<Output = Result<S, Error>> + Send>>;
type Open<S> = Box<dyn Fn() -> Opened<S> + Send + Sync>;

pub(crate) struct Pool<S> {
    /// One for each connection that may be in use.
    turns: Arc<Semaphore>,
    idle: Mutex<Vec<S>>,
    /// How to get another one; nothing where the only one was given.
    open: Option<Open<S>>,
}

impl<S> fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("free", &self.turns.available_permits()).finish_non_exhaustive()
    }
}

impl<S> Pool<S> {
    /// This one, and no other.
    pub(crate) fn of(shelf: S) -> Arc<Self> {
        Arc::new(Self { turns: Arc::new(Semaphore::new(1)), idle: Mutex::new(vec![shelf]), open: None })
    }

    /// At most `size` of them; none at all is taken for one.
    pub(crate) fn opened_by<F>(size: usize, open: impl Fn() -> F + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = Result<S, Error>> + Send + 'static,
    {
        let turns = Arc::new(Semaphore::new(size.clamp(1, Semaphore::MAX_PERMITS)));
        Arc::new(Self { turns, idle: Mutex::default(), open: Some(Box::new(move || Box::pin(open()))) })
    }

    /// A connection, when one is free.
    pub(crate) async fn turn(pool: &Arc<Self>) -> Result<Turn<S>, Error> {
        let permit = pool.turns.clone().acquire_owned().await.map_err(Error::store)?;
        let idle = pool.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let turn = Turn { shelf: idle, pool: pool.clone(), permit: Some(permit) };
        if turn.shelf.is_some() { Ok(turn) } else { turn.opened().await }
    }
}

/// A connection in use; it goes back when this is dropped.
pub(crate) struct Turn<S> {
    shelf: Option<S>,
    pool: Arc<Pool<S>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<S> Turn<S> {
    pub(crate) fn shelf(&mut self) -> Result<&mut S, Error> {
        self.shelf.as_mut().ok_or_else(|| Error::Store("the connection is gone".into()))
    }

    /// Looks at what came of a call. After an error that may be the connection's own, one that can be replaced is not
    /// used again: true if so.
    pub(crate) fn ends<T>(&mut self, result: &Result<T, Error>) -> bool {
        let is_broken =
            self.pool.open.is_some() && matches!(result, Err(error @ Error::Store(_)) if error.contention().is_none());
        if is_broken {
            self.shelf = None;
        }
        is_broken
    }

    /// The same turn, with a new connection. Others that are idle were opened before, and may be as broken.
    pub(crate) async fn again(self) -> Result<Self, Error> {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.opened().await
    }

    async fn opened(mut self) -> Result<Self, Error> {
        let open = self.pool.open.as_ref().ok_or_else(|| Error::Store("the connection is gone".into()))?;
        let opened = open();
        self.shelf = Some(opened.await?);
        Ok(self)
    }
}

impl<S> Drop for Turn<S> {
    fn drop(&mut self) {
        // A connection whose call ended in a panic may have a transaction open. The only one stays, as it is.
        let is_usable = self.pool.open.is_none() || !std::thread::panicking();
        if let Some(shelf) = self.shelf.take().filter(|_| is_usable) {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(shelf);
        }
        // Only now may another begin.
        drop(self.permit.take());
    }
}
