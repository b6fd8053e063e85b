//! The connections of one client, and what is done on each.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use oarlock_core::{ClaimId, Error, ErrorKind, Label, Result};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::line::{Line as _, Mailbox, Seen, Server};
use crate::wait::Waiting;

/// So many connections are kept although nothing is done on them, for the next ones who have to wait.
const IDLE_LINES: usize = 4;

#[derive(Debug)]
pub(crate) struct Desk<S: Server> {
    pub(crate) server: Arc<S>,
    /// Where the connections live, whoever asks for a new one.
    pub(crate) runtime: Handle,
    pub(crate) mailbox: Mailbox,
    closed: AtomicBool,
    book: Mutex<Book<S>>,
}

#[derive(Debug)]
struct Book<S: Server> {
    rows: Vec<Row<S>>,
    places: HashMap<ClaimId, Arc<tokio::sync::Mutex<Place<S>>>>,
    /// What is held, for those who look: they must not wait for a request of another claim.
    holds: HashMap<ClaimId, Weak<Hold<S>>>,
}

/// One connection.
#[derive(Debug)]
struct Row<S: Server> {
    line: Arc<S::Line>,
    /// What is tried, waited for or held on it.
    keys: HashSet<S::Key>,
    /// Questions under way, besides.
    looks: usize,
    /// Somebody waits on it, so that nobody else can use it.
    alone: bool,
    used: Instant,
}

/// Where a claim stands.
#[derive(Debug, Default)]
pub(crate) enum Place<S: Server> {
    #[default]
    Nowhere,
    Waits(Waiting<S>),
    Holds(Arc<Hold<S>>),
}

/// What a claim holds.
#[derive(Debug)]
pub(crate) struct Hold<S: Server> {
    pub(crate) id: ClaimId,
    pub(crate) seat: Arc<Seat<S>>,
    pub(crate) number: u64,
    pub(crate) since: Instant,
    pub(crate) label: Arc<Label>,
}

impl<S: Server> Drop for Hold<S> {
    fn drop(&mut self) {
        self.seat.desk.lock().holds.remove(&self.id);
    }
}

/// A share in a connection, for one key.
#[derive(Debug)]
pub(crate) struct Seat<S: Server> {
    desk: Arc<Desk<S>>,
    line: Arc<S::Line>,
    key: S::Key,
}

impl<S: Server> Seat<S> {
    pub(crate) fn line(&self) -> &Arc<S::Line> {
        &self.line
    }

    pub(crate) fn key(&self) -> &S::Key {
        &self.key
    }

    /// The wait is over: others may use the connection too.
    pub(crate) fn share(&self) {
        if let Some(row) = self.desk.lock().row(&self.line) {
            row.alone = false;
        }
    }
}

impl<S: Server> Drop for Seat<S> {
    fn drop(&mut self) {
        let mut book = self.desk.lock();
        if let Some(row) = book.row(&self.line) {
            row.keys.remove(&self.key);
            (row.alone, row.used) = (false, Instant::now());
        }
        book.prune();
    }
}

impl<S: Server> Book<S> {
    fn row(&mut self, line: &Arc<S::Line>) -> Option<&mut Row<S>> {
        self.rows.iter_mut().find(|row| Arc::ptr_eq(&row.line, line))
    }

    fn prune(&mut self) {
        let mut idle = 0;
        self.rows.retain(|row| {
            idle += usize::from(row.is_idle());
            !row.line.is_over() && (!row.is_idle() || idle <= IDLE_LINES)
        });
    }
}

impl<S: Server> Row<S> {
    fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.looks == 0 && !self.alone
    }
}

impl<S: Server> Desk<S> {
    pub(crate) fn new(server: S, runtime: Handle) -> Arc<Self> {
        let book = Mutex::new(Book { rows: Vec::new(), places: HashMap::new(), holds: HashMap::new() });
        let (server, mailbox, closed) = (Arc::new(server), Mailbox::default(), AtomicBool::new(false));
        Arc::new(Self { server, runtime, mailbox, closed, book })
    }

    fn lock(&self) -> MutexGuard<'_, Book<S>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "this store was closed").on(S::SCHEME);
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// A share in a connection on which `key` is not in use.
    pub(crate) async fn sit(self: &Arc<Self>, key: &S::Key) -> Result<Arc<Seat<S>>> {
        self.seat(key, false).await
    }

    /// A connection of which nobody else has a share, to wait for `key`.
    pub(crate) async fn sit_alone(self: &Arc<Self>, key: &S::Key) -> Result<Arc<Seat<S>>> {
        self.seat(key, true).await
    }

    async fn seat(self: &Arc<Self>, key: &S::Key, alone: bool) -> Result<Arc<Seat<S>>> {
        self.check()?;
        if let Some(line) = self.find(alone, Some(key)) {
            return Ok(Arc::new(Seat { desk: self.clone(), line, key: key.clone() }));
        }
        let line = self.open().await?;
        let (keys, used) = (HashSet::from([key.clone()]), Instant::now());
        self.lock().rows.push(Row { line: line.clone(), keys, looks: 0, alone, used });
        let seat = Arc::new(Seat { desk: self.clone(), line, key: key.clone() });
        // Closed meanwhile: nobody else would close it.
        self.check().inspect_err(|_| seat.line.end())?;
        Ok(seat)
    }

    fn find(&self, alone: bool, key: Option<&S::Key>) -> Option<Arc<S::Line>> {
        // The server ends a connection on which nothing was asked for so long: not that it happens just now.
        let fresh = self.server.session_ttl() / 2;
        let mut book = self.lock();
        book.rows.retain(|row| !row.line.is_over() && (!row.is_idle() || row.used.elapsed() < fresh));
        let fits = |row: &&mut Row<S>| {
            !row.alone && (!alone || row.is_idle()) && key.is_none_or(|key| !row.keys.contains(key))
        };
        let row = book.rows.iter_mut().find(fits)?;
        row.alone = alone;
        match key {
            Some(key) => drop(row.keys.insert(key.clone())),
            None => row.looks += 1,
        }
        Some(row.line.clone())
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<S::Line>> {
        let opening = self.server.clone().open(self.mailbox.clone());
        let gone = |error| Error::new(ErrorKind::Closed, "its runtime is gone").on(S::SCHEME).because(error);
        Ok(Arc::new(self.runtime.spawn(opening).await.map_err(gone)??))
    }

    /// Opens the first connection.
    pub(crate) async fn greet(self: &Arc<Self>) -> Result<()> {
        self.open_idle(0).await.map(drop)
    }

    async fn open_idle(self: &Arc<Self>, looks: usize) -> Result<Arc<S::Line>> {
        let line = self.open().await?;
        let (keys, used) = (HashSet::new(), Instant::now());
        self.lock().rows.push(Row { line: line.clone(), keys, looks, alone: false, used });
        Ok(line)
    }

    /// Looks at a lock, on any connection that can be asked.
    pub(crate) async fn look(self: &Arc<Self>, key: &S::Key) -> Result<Seen> {
        self.check()?;
        let found = self.find(false, None);
        let line = match found {
            Some(line) => line,
            None => self.open_idle(1).await?,
        };
        let answer = line.look(key).await;
        if let Some(row) = self.lock().row(&line) {
            row.looks = row.looks.saturating_sub(1);
            row.used = Instant::now();
        }
        answer
    }

    /// Where a claim stands, for one at a time.
    pub(crate) async fn place(&self, id: ClaimId) -> OwnedMutexGuard<Place<S>> {
        loop {
            let place = self.lock().places.entry(id).or_default().clone();
            let guard = place.clone().lock_owned().await;
            // Whoever was there before may have cleared it away.
            if self.lock().places.get(&id).is_some_and(|current| Arc::ptr_eq(current, &place)) {
                return guard;
            }
        }
    }

    /// The same, if it stands anywhere.
    pub(crate) async fn place_if_any(&self, id: ClaimId) -> Option<OwnedMutexGuard<Place<S>>> {
        let known = self.lock().places.contains_key(&id);
        if known { Some(self.place(id).await) } else { None }
    }

    /// Forgets a claim that stands nowhere.
    pub(crate) fn clear(&self, id: ClaimId, place: &OwnedMutexGuard<Place<S>>) {
        if matches!(**place, Place::Nowhere) {
            self.lock().places.remove(&id);
        }
    }

    /// Notes that a claim has the lock of its seat.
    pub(crate) fn hold(&self, id: ClaimId, seat: Arc<Seat<S>>, number: u64, label: Arc<Label>) -> Arc<Hold<S>> {
        let hold = Arc::new(Hold { id, seat, number, since: Instant::now(), label });
        self.lock().holds.insert(id, Arc::downgrade(&hold));
        hold
    }

    /// What the claims of this client hold of `key`.
    pub(crate) fn holds(&self, key: &S::Key) -> Vec<Arc<Hold<S>>> {
        // Let go of after the lock: the last one to let go of a hold needs it.
        let holds: Vec<_> = self.lock().holds.values().filter_map(Weak::upgrade).collect();
        holds.into_iter().filter(|hold| hold.seat.key() == key).collect()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.mailbox.end();
        let (rows, places) = {
            let mut book = self.lock();
            (std::mem::take(&mut book.rows), std::mem::take(&mut book.places))
        };
        for row in &rows {
            row.line.end();
        }
        drop(places);
    }
}
