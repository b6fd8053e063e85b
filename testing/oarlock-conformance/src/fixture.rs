//! What the suite needs from a store: a way to connect, and ways to make it fail.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::Verb;
use oarlock_core::{DynDriver, Error, ErrorKind, Result};

/// Whether a fixture can do something to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// It can.
    Has,
    /// It cannot, for this reason; cases that need it are skipped with it.
    Lacks(&'static str),
}

/// What a fixture can do to its store and to its connections.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Powers {
    /// [`Connection::kill`].
    pub kill: Power,
    /// [`Connection::cut`] and [`Connection::heal`].
    pub cut: Power,
    /// [`Connection::drop_reply`].
    pub drop_reply: Power,
    /// [`Fixture::restart`].
    pub restart: Power,
    /// [`Fixture::pause`] and [`Fixture::resume`].
    pub pause: Power,
    /// [`Fixture::remember`] and [`Fixture::fall_back`].
    pub fall_back: Power,
}

impl Powers {
    /// None at all: only cases without faults run.
    #[must_use]
    pub const fn none() -> Self {
        let lacks = Power::Lacks("this fixture cannot do that");
        Self { kill: lacks, cut: lacks, drop_reply: lacks, restart: lacks, pause: lacks, fall_back: lacks }
    }

    /// These powers, with sessions that can be killed.
    #[must_use]
    pub const fn kill(mut self, power: Power) -> Self {
        self.kill = power;
        self
    }

    /// These powers, with connections that can be cut.
    #[must_use]
    pub const fn cut(mut self, power: Power) -> Self {
        self.cut = power;
        self
    }

    /// These powers, with replies that can be dropped.
    #[must_use]
    pub const fn drop_reply(mut self, power: Power) -> Self {
        self.drop_reply = power;
        self
    }

    /// These powers, with a server that can be stopped for a while.
    #[must_use]
    pub const fn pause(mut self, power: Power) -> Self {
        self.pause = power;
        self
    }

    /// These powers, with a store that can fall back to an earlier state.
    #[must_use]
    pub const fn fall_back(mut self, power: Power) -> Self {
        self.fall_back = power;
        self
    }

    /// These powers, with a server that can be restarted.
    #[must_use]
    pub const fn restart(mut self, power: Power) -> Self {
        self.restart = power;
        self
    }
}

/// The times that suit a store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pace {
    /// The shortest lease that this store keeps well, with room for a busy test machine.
    pub ttl: Duration,
    /// The bound for everything that should happen at once.
    pub soon: Duration,
}

impl Pace {
    /// Leases of `ttl`; what should happen at once may take two seconds.
    #[must_use]
    pub const fn of(ttl: Duration) -> Self {
        Self { ttl, soon: Duration::from_secs(2) }
    }

    /// This pace, with another bound for what should happen at once.
    #[must_use]
    pub const fn soon(mut self, soon: Duration) -> Self {
        self.soon = soon;
        self
    }
}

/// Where a store differs from the model without breaking the rule. Cases that compare the two allow for it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Deviations {
    /// A waiter that does not take its turn is only skipped when a waiter behind it attempts, and live claims determine
    /// the capacity.
    pub queues: bool,
    /// How much earlier than agreed a lease may end, counted from the request that began it.
    pub ends_early: Duration,
    /// How much later than agreed a lease may end.
    pub ends_late: Duration,
}

impl Deviations {
    /// No deviations.
    #[must_use]
    pub const fn of_the_model() -> Self {
        Self { queues: false, ends_early: Duration::ZERO, ends_late: Duration::ZERO }
    }

    /// These deviations, with [`queues`](Self::queues) set.
    #[must_use]
    pub const fn queues(mut self) -> Self {
        self.queues = true;
        self
    }

    /// These deviations, with leases that end so much earlier or later.
    #[must_use]
    pub const fn ends(mut self, early: Duration, late: Duration) -> Self {
        (self.ends_early, self.ends_late) = (early, late);
        self
    }
}

/// A store under test. Cases run in parallel on it, each with its own connections and its own fresh names.
pub trait Fixture: Send + Sync + 'static {
    /// What to call it in the report, such as `redis` or `etcd/go`.
    fn name(&self) -> String;

    /// What it can do.
    fn powers(&self) -> Powers {
        Powers::none()
    }

    /// The times that suit it.
    fn pace(&self) -> Pace {
        Pace::of(Duration::from_millis(1000))
    }

    /// Where it differs from the model.
    fn deviations(&self) -> Deviations {
        Deviations::of_the_model()
    }

    /// Opens another connection, as another process would. Called on the runtime that the connection will live on.
    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>>;

    /// Stops the server and starts it again with its data. All cases that run meanwhile are disturbed, so cases that
    /// need this run alone, after the others.
    fn restart(&self) -> BoxFuture<Result<()>> {
        lacking("restart its server")
    }

    /// Stops the server without ending it, as a long GC pause or a paused machine would. Such cases run
    /// alone too.
    fn pause(&self) -> BoxFuture<Result<()>> {
        lacking("pause its server")
    }

    /// Ends a [`pause`](Self::pause).
    fn resume(&self) -> BoxFuture<Result<()>> {
        lacking("resume its server")
    }

    /// Remembers the state of the store, for [`fall_back`](Self::fall_back). It resolves when every later change will
    /// be forgotten: a snapshot was taken, or the replica that is to be promoted applies nothing more.
    fn remember(&self) -> BoxFuture<Result<()>> {
        lacking("remember a state")
    }

    /// Takes the store back to the state it had at the last [`remember`](Self::remember), as a restart from a snapshot
    /// or a failover to a replica that is behind would. Clients reach it where they did before. Such cases run alone
    /// too.
    fn fall_back(&self) -> BoxFuture<Result<()>> {
        lacking("fall back to an earlier state")
    }
}

/// The connection of one client.
pub trait Connection: Send + Sync + 'static {
    /// Its driver.
    fn driver(&self) -> Arc<dyn DynDriver>;

    /// Ends its session as the death of its process would.
    fn kill(&self) -> BoxFuture<Result<()>> {
        lacking("kill a session")
    }

    /// Cuts the connection: requests neither arrive nor fail.
    fn cut(&self) -> BoxFuture<Result<()>> {
        lacking("cut a connection")
    }

    /// Ends a [`cut`](Self::cut).
    fn heal(&self) -> BoxFuture<Result<()>> {
        lacking("heal a connection")
    }

    /// Lets the next `verb` take effect, but loses the answer.
    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        let _ = verb;
        lacking("drop a reply")
    }
}

fn lacking(what: &'static str) -> BoxFuture<Result<()>> {
    let error = Error::new(ErrorKind::Unsupported, format!("this fixture said it can {what}, and cannot"));
    Box::pin(std::future::ready(Err(error)))
}
