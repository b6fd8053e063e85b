//! A store in memory, an honest client of it, and one whose requests are tampered with.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::driver::{
    Attempt, Driver, End, Hint, HintSender, Info, Interest, Release, Renewal, Renewed, SessionEnd, Watch,
};
use oarlock_core::memory::Kit;
use oarlock_core::state::{Ending, Page, Query, ResourceState};
use oarlock_core::{Claim, ClaimId, DynDriver, Error, Locks, LocksBuilder, Memory, ResourceName, Result};
use tokio::task::AbortHandle;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// How many claims a renewal of the spied client may be for.
pub(crate) const BATCH: usize = 8;

/// What is done to the requests of the spied client, and what they were.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) renewals: AtomicU32,
    /// The largest number of claims that one renewal was for.
    pub(crate) largest_batch: AtomicUsize,
    pub(crate) inspects: AtomicU32,
    pub(crate) attempts: AtomicU32,
    pub(crate) mailboxes: AtomicU32,
    pub(crate) silent_attempts: AtomicBool,
    pub(crate) silent_turns: AtomicBool,
    pub(crate) silent_inspects: AtomicBool,
    pub(crate) silent_releases: AtomicBool,
    pub(crate) silent_close: AtomicBool,
    /// The next release fails, without an effect.
    pub(crate) fail_release: AtomicBool,
    /// The next attempts fail with these.
    pub(crate) refusals: Mutex<Vec<Error>>,
    /// What is inspected next is shown as free, as a server that is behind would.
    pub(crate) stale_once: AtomicBool,
    /// So many inspections and renewals fail, as at a server that is away.
    pub(crate) failing_probes: AtomicU32,
    pub(crate) mailbox_delay: Mutex<Duration>,
    pub(crate) renewal_delay: Mutex<Duration>,
    pub(crate) mailbox: Mutex<Option<(HintSender, AbortHandle)>>,
    /// The test kit of the spied client's connection.
    pub(crate) kit: Mutex<Option<Kit>>,
    /// The session ends while the answer to the next attempt is on its way.
    pub(crate) end_session_after_grant: AtomicBool,
    /// The session that grants name instead of theirs, or that they name none.
    pub(crate) ends_with: Mutex<Option<Option<SessionEnd>>>,
}

impl Hooks {
    /// Sends a hint about everything to the mailbox of the spied client.
    pub(crate) fn hint(&self) {
        let mailbox = self.mailbox.lock().unwrap();
        assert!(mailbox.as_ref().is_some_and(|(mailbox, _)| mailbox.send(Hint::ANY)), "no mailbox");
    }

    fn fails_to_inspect(&self) -> bool {
        self.failing_probes.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    /// Ends the mailbox of the spied client, as a lost connection would.
    pub(crate) fn end_mailbox(&self) {
        if let Some((_, relay)) = self.mailbox.lock().unwrap().take() {
            relay.abort();
        }
    }
}

pub(crate) struct Spy(pub(crate) Memory, pub(crate) Arc<Hooks>);

async fn hush(flag: &AtomicBool) {
    if flag.load(SeqCst) {
        std::future::pending::<()>().await;
    }
}

impl Driver for Spy {
    fn info(&self) -> Info {
        let mut info = Driver::info(&self.0);
        info.batch = BATCH;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.1.attempts.fetch_add(1, SeqCst);
        hush(&self.1.silent_attempts).await;
        if let Some(error) = self.1.refusals.lock().unwrap().pop() {
            return Err(error);
        }
        let mut answer = Driver::attempt(&self.0, claim).await;
        if let (Ok(Attempt::Granted(grant)), Some(session)) = (&mut answer, &*self.1.ends_with.lock().unwrap()) {
            grant.ends_with = session.clone();
        }
        if self.1.end_session_after_grant.swap(false, SeqCst) {
            self.0.kit().end_session();
        }
        answer
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.1.renewals.fetch_add(1, SeqCst);
        self.1.largest_batch.fetch_max(batch.len(), SeqCst);
        let delay = *self.1.renewal_delay.lock().unwrap();
        tokio::time::sleep(delay / 2).await;
        if self.1.fails_to_inspect() {
            return batch.iter().map(|_| Err(Error::unreachable("away"))).collect();
        }
        let answers = Driver::renew(&self.0, batch).await;
        tokio::time::sleep(delay / 2).await;
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        hush(&self.1.silent_releases).await;
        if self.1.fail_release.swap(false, SeqCst) {
            return Err(Error::unreachable("lost on the way"));
        }
        Driver::release(&self.0, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        match interest {
            Interest::Mailbox => {
                self.1.mailboxes.fetch_add(1, SeqCst);
                let delay = *self.1.mailbox_delay.lock().unwrap();
                tokio::time::sleep(delay).await;
            }
            Interest::Turn(..) => hush(&self.1.silent_turns).await,
            _ => {}
        }
        let mut inner = Driver::watch(&self.0, interest).await?;
        let Interest::Mailbox = interest else { return Ok(inner) };
        let (sender, watch) = Watch::channel();
        let ours = sender.clone();
        let relay = tokio::spawn(async move { while inner.changed().await.is_some_and(|hint| sender.send(hint)) {} });
        *self.1.mailbox.lock().unwrap() = Some((ours, relay.abort_handle()));
        Ok(watch)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.1.inspects.fetch_add(1, SeqCst);
        hush(&self.1.silent_inspects).await;
        if self.1.fails_to_inspect() {
            return Err(Error::unreachable("away"));
        }
        let page = Driver::inspect(&self.0, query).await?;
        if self.1.stale_once.swap(false, SeqCst) {
            let resources = page.resources.into_iter().map(|state| ResourceState::free(state.name)).collect();
            return Ok(Page::new(resources, false));
        }
        Ok(page)
    }

    async fn close(&self) -> Result<()> {
        hush(&self.1.silent_close).await;
        Driver::close(&self.0).await
    }
}

pub(crate) struct World {
    /// The store itself.
    pub(crate) raw: Memory,
    pub(crate) honest: Locks,
    pub(crate) spied: Locks,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) clock: Arc<TokioClock>,
}

/// A world whose clients count on tokio's clock.
pub(crate) fn world() -> World {
    world_with(|builder| builder)
}

type Ready = LocksBuilder<Arc<dyn DynDriver>>;

pub(crate) fn world_with(choose: impl FnOnce(Ready) -> Ready) -> World {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let hooks = Arc::new(Hooks::default());
    let connection = store.connect();
    *hooks.kit.lock().unwrap() = Some(connection.kit());
    let spied = Locks::builder(Spy(connection, hooks.clone())).clock(clock.clone());
    let spied = choose(spied).build().unwrap();
    let honest = Locks::builder(store.connect()).clock(clock.clone()).build().unwrap();
    World { raw: store, honest, spied, hooks, clock }
}

/// A client over a driver that others use, too.
pub(crate) fn client_over(driver: &Arc<dyn DynDriver>, clock: &Arc<TokioClock>) -> Locks {
    Locks::builder_over(driver.clone()).clock(clock.clone()).build().unwrap()
}

pub(crate) fn name() -> ResourceName {
    ResourceName::new("a").unwrap()
}

pub(crate) fn ending() -> Ending {
    Ending::new("ops", "stuck")
}
