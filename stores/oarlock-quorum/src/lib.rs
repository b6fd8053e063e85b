//! A lock over several independent stores: the client that has the votes of a majority holds it. This is Redlock.
//!
//! It adds what Redlock libraries lack: fences that rise, rounds that cannot harm each other, and an end to every
//! round. `docs/adr/0005-quorum.md` has the reasons. It is the only driver that decides while some of its servers
//! have not answered: a stopped node must not delay the votes of the others.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | node | one of the stores, through its own driver |
//! | vote | a grant of one node |
//! | round | one request to all nodes for their votes; a lost round returns its votes in the background |
//! | hold | a round that was won |
//! | late | an answer after its caller stopped waiting; a vote that it brings is returned |
//! | confirmed | a node that has the fence of the hold, and has kept the vote since |
//! | won back | a node that lost the vote and has voted again. It counts for the lease, not for the fence |
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `lib`, `error` | the driver; its errors |
//! | `config` | opening a quorum of Redis servers, and its URL (feature `redis`) |
//! | `connection`, `node` | a node that is connected when it can be reached; whether a node answers |
//! | `requests`, `late_answers` | one request to several nodes at once; answers that no caller waits for |
//! | `attempt`, `tally` | a round: the votes, the fence and the memo; the arithmetic of votes |
//! | `renew`, `release`, `watch`, `inspect` | the other verbs |
//! | `rounds`, `crowd`, `memo` | rounds and holds of this client; contended names; which memo is the newest |

mod attempt;
#[cfg(feature = "redis")]
mod config;
mod connection;
mod crowd;
#[cfg(feature = "redis")]
mod doctor;
mod error;
#[cfg(test)]
mod fuzz;
mod guarantees;
mod inspect;
mod late_answers;
mod memo;
mod node;
mod release;
mod renew;
mod requests;
mod rounds;
mod tally;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;

#[cfg(feature = "redis")]
pub use self::config::{STORE, configs, redlock};
pub use self::connection::Later;
use self::crowd::Crowd;
use self::error::{SCHEME, about};
use self::late_answers::LateAnswers;
use self::node::Node;
use self::requests::{Requests, never_mind};
use self::rounds::Registry;
use oarlock_core::claim::{Claim, ClaimId, ResourceName, Weight};
use oarlock_core::driver::{
    Attempt, Driver, DynDriver, End, Info, Interest, Release, Renewal, Renewed, SessionEnd, Watch,
};
use oarlock_core::error::{Error, ErrorKind, Result};
use oarlock_core::state::{Page, Query};

/// The fewest nodes of which one may fail.
const FEWEST: usize = 3;

/// How long to wait for answers that concern no lease.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lock on which a majority of independent stores must agree. See the [crate].
///
/// # Guarantees
/// While leases run at the same rate everywhere and no node forgets a vote, one claim holds at a time. Fences rise from
/// grant to grant without any assumption about time, as long as no node forgets the counter it confirmed. A minority of
/// nodes may be down, stopped or cut off.
///
/// A claim takes the whole resource: votes for parts of it do not add up (three nodes, two units, three claims: each
/// may get two votes).
pub struct Quorum {
    core: Arc<Core>,
    /// The end of this client: its nodes may free what it holds when it is closed.
    end: SessionEnd,
}

struct Core {
    nodes: Vec<Node>,
    majority: usize,
    node_timeout: Option<Duration>,
    registry: Arc<Registry>,
    crowd: Crowd,
    late_answers: LateAnswers,
    /// Background tasks.
    tasks: TaskTracker,
    won: AtomicU64,
    lost: AtomicU64,
    written_back: AtomicU64,
}

/// Counts the rounds of a [`Quorum`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rounds {
    /// Rounds that got the lock.
    pub won: u64,
    /// Rounds that did not.
    pub lost: u64,
    /// Rounds, won or lost, whose votes had different fences or memos, so that the largest had to be written back.
    pub written_back: u64,
}

impl Quorum {
    /// A quorum of these nodes. All clients of a lock must name the same nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for fewer than three nodes.
    pub fn new(nodes: Vec<Arc<dyn DynDriver>>) -> Result<Self> {
        Self::of(nodes.into_iter().map(Node::new).collect())
    }

    fn of(nodes: Vec<Node>) -> Result<Self> {
        if nodes.len() < FEWEST {
            let message = format!("a quorum needs at least {FEWEST} nodes, not {}", nodes.len());
            return Err(Error::new(ErrorKind::Config, message).on(SCHEME));
        }
        let core = Core {
            majority: nodes.len() / 2 + 1,
            nodes,
            node_timeout: None,
            registry: Arc::default(),
            crowd: Crowd::default(),
            late_answers: LateAnswers::default(),
            tasks: TaskTracker::new(),
            won: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            written_back: AtomicU64::new(0),
        };
        Ok(Self { core: Arc::new(core), end: SessionEnd::new() })
    }

    /// Connects to a majority of these nodes. The other nodes are connected when they can be reached.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for fewer than three nodes, [`ErrorKind::Unreachable`] without a majority, and any error
    /// of a node that a retry does not help.
    pub async fn open(nodes: Vec<Later>) -> Result<Self> {
        let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
        let quorum = Self::of(nodes.iter().cloned().map(Node::later).collect())?;
        let mut opening = tokio::task::JoinSet::new();
        for node in nodes {
            opening.spawn(async move { node.reach().await.map(|_| ()) });
        }
        let (mut open, mut last) = (0, None);
        while let Some(opened) = opening.join_next().await {
            match opened.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Internal, "the task that opens a node ended").because(error))
            }) {
                Ok(()) => open += 1,
                Err(error) if error.kind() == ErrorKind::Unreachable => last = Some(error),
                Err(error) => return Err(error),
            }
            if open >= quorum.core.majority {
                // The other nodes go on connecting in the background.
                opening.detach_all();
                break;
            }
        }
        if open >= quorum.core.majority {
            return Ok(quorum);
        }
        let message = format!("{open} of {} nodes can be reached, {} are needed", quorum.len(), quorum.core.majority);
        let error = Error::new(ErrorKind::Unreachable, message).on(SCHEME).during("open").retry_later();
        Err(match last {
            Some(cause) => error.because(cause),
            None => error,
        })
    }

    /// How long a node may take to answer, instead of a part of the lease.
    #[must_use]
    pub fn node_timeout(self, timeout: Duration) -> Self {
        match Arc::try_unwrap(self.core) {
            Ok(core) => Self { core: Arc::new(Core { node_timeout: Some(timeout), ..core }), end: self.end },
            Err(core) => Self { core, end: self.end },
        }
    }

    /// Counts the rounds of this client.
    #[must_use]
    pub fn rounds(&self) -> Rounds {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let Core { won, lost, written_back, .. } = &*self.core;
        Rounds { won: count(won), lost: count(lost), written_back: count(written_back) }
    }

    fn len(&self) -> usize {
        self.core.nodes.len()
    }
}

impl Core {
    /// How long to wait for a node, for the sake of a claim of this lease: a twentieth of it, but enough for a busy
    /// machine, and never so much that there is no time left for another round.
    fn patience(&self, ttl: Duration) -> Duration {
        let part = (ttl / 20).clamp(Duration::from_millis(200), PATIENCE);
        self.node_timeout.unwrap_or(part).min(ttl / 4)
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// How many nodes may fail.
    fn spare(&self) -> usize {
        self.nodes.len() - self.majority
    }

    fn check(claim: &Claim) -> Result<()> {
        if claim.weight == Weight::All {
            return Ok(());
        }
        let message = "a quorum cannot share a resource: votes for parts of one do not add up";
        Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME))
    }
}

impl Driver for Quorum {
    fn info(&self) -> Info {
        let nodes: Vec<_> = self.core.nodes.iter().map(|node| node.driver().info()).collect();
        let addresses: Vec<_> = nodes.iter().map(|node| node.address.as_str()).collect();
        let mut info = Info::new(SCHEME, addresses.join(","), guarantees::capabilities());
        info.batch = nodes.iter().map(|node| node.batch).min().unwrap_or(info.batch);
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = async {
            Core::check(claim)?;
            match self.core.kept(claim).await? {
                Some(grant) => Ok(Attempt::Granted(grant)),
                None => self.core.vote(claim).await,
            }
        };
        let attempt = attempt.await.map_err(|error| about("attempt", &claim.resource, error))?;
        Ok(attempt.ending_with(claim, &self.end))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = self.core.renew(batch).await.into_iter().zip(batch);
        answers.map(|(answer, of)| answer.map_err(|error| about("renew", &of.claim.resource, error))).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.core.release(resource, id, end).await.map_err(|error| about("release", resource, error))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        watch::arm(&self.core, interest).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.core.inspect(query).await.map_err(|error| error.during("inspect"))
    }

    /// Waits a moment for votes that are returned in the background, so that a short-lived process leaves none behind.
    async fn close(&self) -> Result<()> {
        self.end.end();
        self.core.tasks.close();
        let _ = tokio::time::timeout(PATIENCE, self.core.tasks.wait()).await;
        let mut closing = Requests::send(&self.core, self.core.all(), PATIENCE, DynDriver::close, never_mind);
        while closing.next().await.is_some() {}
        Ok(())
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quorum").field("nodes", &self.core.nodes).finish_non_exhaustive()
    }
}
