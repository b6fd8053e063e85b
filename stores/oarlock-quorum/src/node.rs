//! One of the stores, and whether it answers.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Later;
use super::{Core, SCHEME};
use oarlock_core::claim::ResourceName;
use oarlock_core::driver::DynDriver;
use oarlock_core::error::{Applied, Error, ErrorKind, Result};

/// A node that owes more answers than this, and has given none for a while, is not asked any more until it gives one:
/// requests to a stopped server must not pile up without end.
const MOST_OWED: usize = 256;
const A_WHILE: Duration = Duration::from_secs(1);

/// A node that could not be reached is not tried again for so long, while there is a majority without it: to be refused
/// a connection takes as much work as a vote.
const REST: Duration = Duration::from_millis(50);

/// A store that votes.
pub(super) struct Node {
    driver: Arc<dyn DynDriver>,
    /// The same, where it is one that is connected to when it can be.
    later: Option<Arc<Later>>,
    address: String,
    /// Unanswered requests whose caller has stopped waiting.
    owed: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    answered: Option<Instant>,
    absent: Option<Instant>,
}

impl Node {
    pub(super) fn new(driver: Arc<dyn DynDriver>) -> Self {
        let address = driver.info().address;
        Self { driver, later: None, address, owed: AtomicUsize::new(0), seen: Mutex::default() }
    }

    pub(super) fn later(later: Arc<Later>) -> Self {
        Self { later: Some(later.clone()), ..Self::new(later) }
    }

    /// The driver to ask: the store itself, once it is connected.
    pub(super) fn driver(&self) -> Arc<dyn DynDriver> {
        self.later.as_ref().and_then(|later| later.opened()).unwrap_or_else(|| self.driver.clone())
    }

    fn see<T>(&self, see: impl FnOnce(&mut Seen) -> T) -> T {
        see(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that it answered, and whether it could be reached.
    pub(super) fn note_answer<T>(&self, answer: &Result<T>) {
        let absent = |error: &Error| error.kind() == ErrorKind::Unreachable && error.applied() == Applied::No;
        let (now, absent) = (Instant::now(), answer.as_ref().is_err_and(absent));
        self.see(|seen| (seen.answered, seen.absent) = (Some(now), absent.then_some(now)));
    }

    fn is_silent(&self) -> bool {
        let owes = self.owed.load(Ordering::Relaxed) > MOST_OWED;
        owes && self.see(|seen| seen.answered.is_none_or(|answered| answered.elapsed() >= A_WHILE))
    }

    fn is_absent(&self) -> bool {
        self.see(|seen| seen.absent.is_some_and(|absent| absent.elapsed() < REST))
    }

    fn is_there(&self) -> bool {
        !self.is_silent() && !self.is_absent()
    }

    /// By which a name has a node that is asked first.
    pub(super) fn weight(&self, name: &ResourceName) -> u64 {
        super::crowd::weight(name, &self.address)
    }
}

/// A request to a node that is not waited for any more. It is owed until it is answered, or dropped with its runtime.
pub(super) struct Owed {
    core: Arc<Core>,
    node: usize,
}

impl Owed {
    pub(super) fn new(core: Arc<Core>, node: usize) -> Self {
        if let Some(node) = core.nodes.get(node) {
            node.owed.fetch_add(1, Ordering::Relaxed);
        }
        Self { core, node }
    }

    /// It was answered.
    pub(super) fn paid<T>(self, answer: &Result<T>) {
        self.core.nodes.get(self.node).inspect(|node| node.note_answer(answer));
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(node) = self.core.nodes.get(self.node) {
            node.owed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Core {
    /// Why a node is not asked now. Nothing was sent.
    pub(super) fn refrain(&self, node: &Node) -> Option<Error> {
        let spared = || self.nodes.iter().filter(|node| node.is_there()).count() >= self.majority;
        let why = if node.is_silent() {
            "it has not answered for a while"
        } else if node.is_absent() && spared() {
            "it could not be reached a moment ago"
        } else {
            return None;
        };
        Some(Error::new(ErrorKind::Unreachable, why).on(SCHEME).retry_later())
    }

    /// The node that all clients ask first for this name, of those that answer.
    pub(super) fn first(&self, name: &ResourceName) -> Option<usize> {
        let nodes = self.nodes.iter().enumerate().filter(|(_, node)| node.is_there());
        nodes.max_by_key(|(_, node)| node.weight(name)).map(|(at, _)| at)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.address).field("owed", &self.owed).finish_non_exhaustive()
    }
}
