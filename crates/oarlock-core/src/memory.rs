//! The store in memory: the model behind a mutex, in this process, with a test kit that injects faults.
//!
//! Each [`Memory`] is one connection; [`Memory::connect`] opens another one to the same store, as a second process
//! would. With its [`Kit`] a test can lose a lock, pause renewals, drop a reply, cut the connection or step the clock,
//! to test how the code under test reacts.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::capabilities::{Capabilities, Liveness};
use crate::claim::{Claim, ClaimId, ResourceName};
use crate::clock::{BootClock, Clock, Moment};
use crate::driver::{
    Attempt, Driver, End, Hint, Info, Interest, Listeners, Release, Renewal, Renewed, SessionEnd, Waiters, Watch,
};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Guarantees;
use crate::model::{Entry, Notified, Now, Resource, Session};
use crate::state::{Ending, Page, Query, ResourceState, Select};

/// One connection to a store in memory.
///
/// # Examples
/// ```
/// # use oarlock_core::{Ended, Locks, LossReason, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let store = Memory::new();
/// let locks = Locks::over(store.connect())?;
/// let guard = locks.mutex("outbox").lock().await?;
/// store.kit().lose("outbox")?;
/// assert_eq!(guard.ended().await, Ended::Lost(LossReason::Gone));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Memory {
    store: Arc<Store>,
    connection: Arc<Connection>,
}

/// The number of the next store.
static STORES: AtomicU64 = AtomicU64::new(0);

/// The store that all connections share.
#[derive(Debug)]
struct Store {
    /// Distinguishes this store from others in this process.
    number: u64,
    clock: Arc<StepClock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    resources: BTreeMap<ResourceName, Resource>,
    waiters: Waiters,
    mailboxes: HashMap<Session, Listeners>,
    sessions: Session,
}

/// The connection of one client, with its injected faults.
#[derive(Debug)]
struct Connection {
    life: Mutex<Life>,
    faults: watch::Sender<Faults>,
}

/// The session of a connection.
#[derive(Clone, Debug)]
struct Life {
    session: Session,
    end: SessionEnd,
}

impl Connection {
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug, Default)]
struct Faults {
    cut: bool,
    dead: bool,
    renewals_paused: bool,
    drop_reply: Option<Verb>,
}

/// The verbs whose reply can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// [`Driver::attempt`].
    Attempt,
    /// [`Driver::renew`].
    Renew,
    /// [`Driver::release`].
    Release,
}

impl Memory {
    /// A new, empty store on the boot clock.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::new(BootClock))
    }

    /// A new, empty store on this clock.
    #[must_use]
    pub fn on(clock: Arc<dyn Clock>) -> Self {
        let clock = Arc::new(StepClock { inner: clock, steps_nanos: AtomicU64::new(0) });
        Self::open(Arc::new(Store { number: STORES.fetch_add(1, Ordering::Relaxed), clock, state: Mutex::default() }))
    }

    /// Another connection to the same store, as another process would open it.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self::open(self.store.clone())
    }

    fn open(store: Arc<Store>) -> Self {
        let life = Mutex::new(store.begin_session());
        Self { store, connection: Arc::new(Connection { life, faults: watch::Sender::default() }) }
    }

    /// The test kit of this connection and its store.
    #[must_use]
    pub fn kit(&self) -> Kit {
        Kit { store: self.store.clone(), connection: self.connection.clone() }
    }

    /// Sends a request to the store and returns its answer, unless a fault prevents it.
    async fn call<T>(&self, verb: Option<Verb>, step: impl FnOnce(&Store) -> T) -> Result<T> {
        let mut faults = self.connection.faults.subscribe();
        if faults.borrow().cut {
            // A silent network partition: no answer until it heals, and then the request fails.
            let _ = faults.wait_for(|faults| !faults.cut || faults.dead).await;
            return Err(Error::unreachable("the connection was cut").on("mem"));
        }
        let now = faults.borrow().clone();
        if now.dead {
            return Err(Error::new(ErrorKind::Closed, "this connection was killed").on("mem"));
        }
        if now.renewals_paused && verb == Some(Verb::Renew) {
            return Err(Error::unreachable("renewals are paused").on("mem"));
        }
        let answer = step(&self.store);
        if verb.is_some() && now.drop_reply == verb {
            self.connection.faults.send_modify(|faults| faults.drop_reply = None);
            return Err(Error::unreachable("the reply was lost").on("mem"));
        }
        Ok(answer)
    }
}

/// What this store promises.
pub const GUARANTEES: Guarantees = Guarantees {
    anchor: "mem",
    urls: "`mem:`",
    choices: &[],
    decides: "this process",
    dead_holder: "(for tests)",
    hung_holder: "after its lease",
    fences: "counter joined with the clock",
    forgets: "with the process",
    capabilities: || {
        let mut can = Capabilities::of_the_model();
        can.liveness = Liveness::LeaseAndProcess;
        can
    },
};

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Driver for Memory {
    fn info(&self) -> Info {
        Info::new("mem", format!("this process, store {}", self.store.number), (GUARANTEES.capabilities)())
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let Life { session, end } = self.connection.life().clone();
        self.call(Some(Verb::Attempt), |store| {
            let attempt =
                store.step(&claim.resource, |resource, now, notified| resource.attempt(claim, session, now, notified));
            if let Ok(Attempt::Granted(_)) = attempt {
                store.lock().waiters.forget(claim.id);
            }
            attempt.map(|attempt| attempt.ending_with(claim, &end))
        })
        .await?
        .map_err(|error| error.on("mem").during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let renewed = self
            .call(Some(Verb::Renew), |store| {
                let renew = |renewal: &Renewal| {
                    store
                        .step(&renewal.claim.resource, |resource, now, notified| resource.renew(renewal, now, notified))
                };
                batch.iter().map(renew).collect()
            })
            .await;
        renewed.unwrap_or_else(|error| vec![Err(error); batch.len()])
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.call(Some(Verb::Release), |store| {
            let release = store.step(resource, |resource, now, notified| resource.release(id, end, now, notified));
            store.lock().waiters.forget(id);
            release
        })
        .await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let session = self.connection.life().session;
        self.call(None, |store| {
            let mut state = store.lock();
            match interest {
                Interest::Turn(claim, _) => state.waiters.turn(claim.id),
                Interest::Resource(name) => state.waiters.resource(name.as_str()),
                Interest::Mailbox => state.mailboxes.entry(session).or_default().watch(),
            }
        })
        .await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.call(None, |store| {
            let now = store.now();
            let state = store.lock();
            let show = |name: &ResourceName| match state.resources.get(name) {
                Some(resource) => resource.state(name.clone(), now),
                None => ResourceState::free(name.clone()),
            };
            let resources = match &query.select {
                Select::Name(name) => vec![show(name)],
                Select::Live => state.resources.keys().map(show).filter(|state| !state.is_free()).collect(),
            };
            Page::cut(resources, query)
        })
        .await
    }

    async fn close(&self) -> Result<()> {
        let end = self.connection.life().end.clone();
        end.end();
        self.kit().kill();
        Ok(())
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        Now { boot: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    fn begin_session(&self) -> Life {
        let mut state = self.lock();
        state.sessions += 1;
        Life { session: state.sessions, end: SessionEnd::new() }
    }

    /// Releases what ends with this session.
    fn end_session(&self, dead: Session) {
        let names: Vec<_> = self.lock().resources.keys().cloned().collect();
        for name in &names {
            self.step(name, |resource, now, notified| {
                resource.end_sessions(now, notified, |session| session != dead);
            });
        }
        self.lock().mailboxes.remove(&dead);
    }

    /// One atomic step on one resource; the claims concerned are notified.
    fn step<T>(&self, name: &ResourceName, step: impl FnOnce(&mut Resource, Now, &mut Notified) -> T) -> T {
        let now = self.now();
        let mut notified = Notified::new();
        let mut state = self.lock();
        let resource = match state.resources.get_mut(name) {
            Some(resource) => resource,
            None => state.resources.entry(name.clone()).or_default(),
        };
        let answer = step(resource, now, &mut notified);
        let forget = resource.is_forgettable(now);
        state.tell(name, &notified);
        if forget {
            state.resources.remove(name);
        }
        answer
    }
}

impl State {
    fn tell(&self, name: &ResourceName, notified: &Notified) {
        for (id, session) in notified {
            if !self.waiters.notify(*id, |()| ())
                && let Some(mailboxes) = self.mailboxes.get(session)
            {
                mailboxes.tell(Hint::about(*id));
            }
        }
        self.waiters.changed(name.as_str());
    }
}

/// The content of a store at one moment, for [`Kit::fall_back`].
#[derive(Clone, Debug)]
pub struct Snapshot(BTreeMap<ResourceName, Resource>);

/// The test kit: injects faults into a connection and its store.
#[derive(Clone, Debug)]
pub struct Kit {
    store: Arc<Store>,
    connection: Arc<Connection>,
}

impl Kit {
    /// The store's clock. Give it to the client too, and [`step_clock`](Self::step_clock) moves both.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock.clone()
    }

    /// Asks the holders of `name` to end within `grace`, as an operator would with a graceful break.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::InvalidClaim`] while the lock is free, so that a test cannot pass
    /// without the request: wait until the code under test holds it.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory, state::Ending};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let locks = Locks::over(store.connect())?;
    /// let guard = locks.mutex("outbox").lock().await?;
    /// store.kit().ask_to_end("outbox", &Ending::new("ops", "maintenance"), Duration::from_secs(5))?;
    /// assert_eq!(guard.asked_to_end().await.map(|ending| ending.by).as_deref(), Some("ops"));
    /// # Ok(()) }
    /// ```
    pub fn ask_to_end(&self, name: impl AsRef<str>, ending: &Ending, grace: Duration) -> Result<()> {
        self.for_each_holder(name, |resource, holder, now, notified| {
            resource.release(holder.id, &End::Broken { ending: ending.clone(), grace }, now, notified);
        })
    }

    /// Takes `name` away from its holders, as an eviction would; they are notified at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::InvalidClaim`] while the lock is free, so that a test cannot pass
    /// without the loss: wait until the code under test holds it.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, LossReason, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let locks = Locks::over(store.connect())?;
    /// let guard = locks.mutex("outbox").lock().await?;
    /// store.kit().lose("outbox")?;
    /// assert_eq!(guard.lost().await, LossReason::Gone);
    /// # Ok(()) }
    /// ```
    pub fn lose(&self, name: impl AsRef<str>) -> Result<()> {
        self.for_each_holder(name, |resource, holder, now, notified| {
            resource.release(holder.id, &End::Withdrawn, now, notified);
            notified.push((holder.id, holder.session));
        })
    }

    /// Does something to each holder of `name`, of which there must be one.
    fn for_each_holder(
        &self,
        name: impl AsRef<str>,
        act: impl Fn(&mut Resource, &Entry, Now, &mut Notified),
    ) -> Result<()> {
        let name = ResourceName::new(name)?;
        let count = self.store.step(&name, |resource, now, notified| {
            let held: Vec<_> = resource.entries().iter().filter(|entry| entry.is_held()).cloned().collect();
            held.iter().for_each(|holder| act(resource, holder, now, notified));
            held.len()
        });
        if count == 0 {
            let message = "no claim holds it: wait until the code under test does";
            return Err(Error::new(ErrorKind::InvalidClaim, message).on("mem").about(&name));
        }
        Ok(())
    }

    /// Fails every renewal of this connection from now on.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Belief, Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// let guard = locks.mutex("outbox").ttl(Duration::from_millis(90)).lock().await?;
    /// kit.pause_renewals();
    /// guard.lost().await;
    /// # Ok(()) }
    /// ```
    pub fn pause_renewals(&self) {
        self.connection.faults.send_modify(|faults| faults.renewals_paused = true);
    }

    /// Ends [`pause_renewals`](Self::pause_renewals).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// kit.pause_renewals();
    /// kit.resume_renewals();
    /// locks.mutex("outbox").lock().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn resume_renewals(&self) {
        self.connection.faults.send_modify(|faults| faults.renewals_paused = false);
    }

    /// Lets the next `verb` of this connection take effect, but drops its reply.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::memory::Verb;
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// kit.drop_reply(Verb::Attempt);
    /// let guard = locks.mutex("outbox").lock().await?; // asked again: the same grant
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn drop_reply(&self, verb: Verb) {
        self.connection.faults.send_modify(|faults| faults.drop_reply = Some(verb));
    }

    /// Cuts this connection: requests neither arrive nor fail.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// let guard = locks.mutex("outbox").ttl(Duration::from_millis(90)).lock().await?;
    /// kit.cut();
    /// guard.lost().await; // although the store cannot be reached
    /// # Ok(()) }
    /// ```
    pub fn cut(&self) {
        self.connection.faults.send_modify(|faults| faults.cut = true);
    }

    /// Ends a [`cut`](Self::cut).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// kit.cut();
    /// kit.heal();
    /// locks.mutex("outbox").lock().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn heal(&self) {
        self.connection.faults.send_modify(|faults| faults.cut = false);
    }

    /// Ends this connection as the death of its process would.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// let _guard = locks.mutex("outbox").lock().await?;
    /// kit.kill();
    /// let other = Locks::over(store)?;
    /// assert!(other.mutex("outbox").try_lock().await?.is_some(), "the store noticed at once");
    /// # Ok(()) }
    /// ```
    pub fn kill(&self) {
        self.connection.faults.send_modify(|faults| faults.dead = true);
        let dead = self.connection.life().session;
        self.store.end_session(dead);
    }

    /// Ends the session of this connection, as a reset of all its connections would: the store takes it for the death of
    /// the process. The client goes on with a new session.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, LossReason, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// let guard = locks.mutex("outbox").lock().await?;
    /// kit.end_session();
    /// assert!(!guard.is_held()); // before another client can get it
    /// assert_eq!(guard.lost().await, LossReason::Session);
    /// # Ok(()) }
    /// ```
    pub fn end_session(&self) {
        let next = self.store.begin_session();
        let before = std::mem::replace(&mut *self.connection.life(), next);
        before.end.end();
        self.store.end_session(before.session);
    }

    /// The present content of the store.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.store.lock().resources.clone())
    }

    /// Restores a snapshot, as a restart from a backup or a failover to a lagging replica would; no client is notified.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, LossReason, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let code = store.connect(); // the connection of the code under test
    /// let kit = code.kit();
    /// let locks = Locks::over(code)?;
    /// let before = kit.snapshot();
    /// let guard = locks.mutex("outbox").ttl(Duration::from_millis(90)).lock().await?;
    /// kit.fall_back(&before);
    /// assert_eq!(guard.lost().await, LossReason::Gone); // at the next renewal
    /// # Ok(()) }
    /// ```
    pub fn fall_back(&self, to: &Snapshot) {
        self.store.lock().resources.clone_from(&to.0);
    }

    /// Moves the store's clock ahead.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, LossReason, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let store = Memory::new();
    /// let kit = store.kit();
    /// let locks = Locks::builder(store).clock(kit.clock()).build()?;
    /// let guard = locks.mutex("outbox").lock().await?;
    /// kit.step_clock(Duration::from_secs(60)); // as a suspend would
    /// assert_eq!(guard.lost().await, LossReason::Expired);
    /// # Ok(()) }
    /// ```
    pub fn step_clock(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.store.clock.steps_nanos.fetch_add(nanos, Ordering::SeqCst);
    }
}

/// A clock that can be moved ahead.
#[derive(Debug)]
struct StepClock {
    inner: Arc<dyn Clock>,
    steps_nanos: AtomicU64,
}

impl StepClock {
    fn steps(&self) -> Duration {
        Duration::from_nanos(self.steps_nanos.load(Ordering::SeqCst))
    }
}

impl Clock for StepClock {
    fn now(&self) -> Moment {
        self.inner.now() + self.steps()
    }

    fn wall_micros(&self) -> u64 {
        let steps = u64::try_from(self.steps().as_micros()).unwrap_or(u64::MAX);
        self.inner.wall_micros().saturating_add(steps)
    }
}
