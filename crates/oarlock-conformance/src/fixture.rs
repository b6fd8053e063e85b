//! What a store must offer to be tested: a way in, and ways to make it fail.

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
    /// It cannot, and why; cases that need it are skipped with these words.
    Lacks(&'static str),
}

/// What a fixture can do to its store and to the ways there.
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
    /// None at all: only the calm cases run.
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

    /// These powers, with lines that can be cut.
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

/// Where a store may differ from the model without breaking the rule. Cases that compare the two keep clear of it.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Habits {
    /// A waiter that does not take its turn is only passed when a waiter behind it looks, and the capacity is what live claims say.
    pub queues: bool,
    /// How much sooner than at its time a lease may end, counted from the request that began it.
    pub ends_early: Duration,
    /// How much later than at its time a lease may end.
    pub ends_late: Duration,
}

impl Habits {
    /// Those of the model itself.
    #[must_use]
    pub const fn of_the_model() -> Self {
        Self { queues: false, ends_early: Duration::ZERO, ends_late: Duration::ZERO }
    }

    /// These habits, with a queue for everybody.
    #[must_use]
    pub const fn queues(mut self) -> Self {
        self.queues = true;
        self
    }

    /// These habits, with leases that end so much earlier or later.
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

    /// What it does in its own way.
    fn habits(&self) -> Habits {
        Habits::of_the_model()
    }

    /// Opens another connection, as another process would. Called on the runtime that the connection will live on.
    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>>;

    /// Stops the server and starts it again with its data. All cases that run meanwhile are disturbed, so cases that
    /// need this run alone, after the others.
    fn restart(&self) -> BoxFuture<Result<()>> {
        lacking("restart its server")
    }

    /// Stops the server without ending it, as a long garbage collection or a paused machine would. Such cases run
    /// alone too.
    fn pause(&self) -> BoxFuture<Result<()>> {
        lacking("pause its server")
    }

    /// Ends a [`pause`](Self::pause).
    fn resume(&self) -> BoxFuture<Result<()>> {
        lacking("resume its server")
    }

    /// Remembers the state of the store, for [`fall_back`](Self::fall_back). It resolves when whatever comes after it will be
    /// forgotten: a snapshot was taken, or the replica that is to be promoted applies nothing more.
    fn remember(&self) -> BoxFuture<Result<()>> {
        lacking("remember a state")
    }

    /// Takes the store back to the state it had at the last [`remember`](Self::remember), as a restart from a snapshot or a
    /// failover to a replica that is behind would. Clients reach it where they did before. Such cases run alone too.
    fn fall_back(&self) -> BoxFuture<Result<()>> {
        lacking("fall back to an earlier state")
    }
}

/// One client's way to the store.
pub trait Connection: Send + Sync + 'static {
    /// The driver on it.
    fn driver(&self) -> Arc<dyn DynDriver>;

    /// Ends its session as the death of its process would.
    fn kill(&self) -> BoxFuture<Result<()>> {
        lacking("kill a session")
    }

    /// Cuts it off: requests neither arrive nor fail.
    fn cut(&self) -> BoxFuture<Result<()>> {
        lacking("cut a line")
    }

    /// Ends a [`cut`](Self::cut).
    fn heal(&self) -> BoxFuture<Result<()>> {
        lacking("heal a line")
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
