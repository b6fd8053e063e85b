//! A run of a broken lock: calm, scenes, a storm, a drain, and a look at what is left; as of a real store, in memory.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::memory::Kit;
use oarlock_core::{Claim, ClaimId, DynDriver, Error, ErrorKind, Guard, Lifetime, Locks, ResourceName, Result};

use super::journal::Journal;
use super::{BrokenStore, scenes};
use crate::record::{FaultKind, LockKind, Record, What as Happened};
use crate::repeat::Repeating;
use crate::worker::{CANCELLED, EXPIRED};

pub(super) const TTL: Duration = Duration::from_millis(240);

/// How long a takeover may take.
const TAKEOVER: Duration = Duration::from_secs(3);

/// Long enough to see that no waiter is served after a death.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);

/// How long nothing is broken.
const CALM: Duration = Duration::from_millis(500);

/// Runs `contenders` on `broken`, with a storm of `span`: they hold, wait, give up, are cut off, stay in the queue as
/// ghosts, and die. The scenes before it show what a storm hides.
///
/// # Errors
/// Any error that the store returns.
pub async fn storm(broken: Arc<BrokenStore>, contenders: u32, span: Duration) -> Result<Record> {
    let journal = Journal::new();
    journal.phase("calm");
    let calm = async {
        let until = now() + CALM;
        all((0..contenders).map(|_| contend(broken.clone(), journal.clone(), until, false))).await
    };
    let (calm, quiet) = tokio::join!(calm, scenes::calm(&broken, &journal));
    calm?;
    quiet?;
    journal.phase("scenes");
    scenes::all(&broken, &journal).await?;
    journal.phase("storm");
    let until = now() + span;
    all((0..contenders).map(|_| contend(broken.clone(), journal.clone(), until, true))).await?;
    journal.phase("drain");
    all((0..contenders).map(|_| drain(broken.clone(), journal.clone()))).await?;
    journal.phase("leaks");
    let mut locks =
        vec![("mutex", LockKind::Mutex), ("queue", LockKind::Mutex), ("permits", LockKind::Semaphore(PERMITS))];
    locks.extend(scenes::LOCKS.iter().map(|name| (*name, LockKind::Mutex)));
    leaks(&broken, &journal, &locks).await?;
    let millis = |span: Duration| span.as_millis().try_into().unwrap_or(u64::MAX);
    Ok(journal.record(millis(TTL), millis(TAKEOVER), &locks))
}

async fn all(tasks: impl Iterator<Item = impl Future<Output = Result<()>> + Send + 'static>) -> Result<()> {
    let mut running: tokio::task::JoinSet<_> = tasks.collect();
    while let Some(done) = running.join_next().await {
        done.map_err(|error| Error::new(ErrorKind::Internal, "a contender panicked").because(error))??;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum What {
    Mutex,
    Fair,
    Semaphore,
}

impl What {
    const ALL: [Self; 3] = [Self::Mutex, Self::Fair, Self::Semaphore];

    fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "queue",
            Self::Semaphore => "permits",
        }
    }
}

const PERMITS: u32 = 3;

/// The highest of the fates that are a death.
const DEATH: u32 = 29;

/// A worker: one client of the store, and what it reports.
pub(super) struct Contender {
    driver: Arc<dyn DynDriver>,
    pub(super) kit: Kit,
    pub(super) client: Locks,
    pub(super) journal: Arc<Journal>,
    pub(super) w: u32,
    pub(super) op: u64,
}

impl Contender {
    fn new(broken: &BrokenStore, journal: &Arc<Journal>) -> Result<Self> {
        Self::with_ttl(broken, journal, TTL)
    }

    pub(super) fn with_ttl(broken: &BrokenStore, journal: &Arc<Journal>, ttl: Duration) -> Result<Self> {
        let (driver, kit) = broken.open();
        let (w, journal) = (journal.worker(), journal.clone());
        let told = journal.clone();
        let repeated = move |verb: &str| told.add(Happened::Repeated { w, verb: verb.to_owned() });
        let driver: Arc<dyn DynDriver> = Arc::new(Repeating::new(driver, fastrand::u64(..), 25, repeated));
        let client = Locks::builder_over(driver.clone()).ttl(ttl).op_timeout(ttl * 2).build()?;
        Ok(Self { driver, kit, client, journal, w, op: 0 })
    }

    async fn take(&self, what: What, units: NonZeroU32, wait: Duration) -> Result<Guard> {
        match what {
            What::Mutex => self.client.mutex(what.name()).wait(wait).lock().await,
            What::Fair => self.client.mutex(what.name()).fair().wait(wait).lock().await,
            What::Semaphore => self.client.semaphore(what.name(), PERMITS).wait(wait).acquire(units.get()).await,
        }
    }

    pub(super) fn asks(&mut self, lock: &str, units: Option<u32>) {
        self.op += 1;
        self.journal.add(Happened::Asked { w: self.w, op: self.op, lock: lock.to_owned(), units });
    }

    /// Asks for a mutex. `None` if the store refused it, or failed: a broken one may fail as it likes.
    pub(super) async fn lock(&mut self, name: &str, wait: Duration) -> Option<Guard> {
        self.asks(name, None);
        let taken = self.client.mutex(name).wait(wait).lock().await;
        self.answered(taken)
    }

    fn answered(&self, taken: Result<Guard>) -> Option<Guard> {
        match taken {
            Ok(guard) => {
                self.journal.granted(self.w, self.op, &guard);
                Some(guard)
            }
            Err(error) => {
                self.gave_up(format!("{:?}: {error}", error.kind()));
                None
            }
        }
    }

    fn gave_up(&self, why: String) {
        self.journal.add(Happened::GaveUp { w: self.w, op: self.op, why });
    }

    /// Belief ended then: the lock is released, or was lost.
    pub(super) fn ended(&self, at: Moment, guard: &Guard) {
        let lost = (!guard.is_held()).then(|| guard.loss().map_or_else(|| EXPIRED.to_owned(), |why| why.to_string()));
        self.journal.add_at(at, Happened::Ended { w: self.w, op: self.op, lost, told: None, perhaps: None });
    }

    /// It believes nothing after that moment. The last sign of life is before the kill.
    pub(super) fn died(&self, at: Moment) {
        self.kit.kill();
        self.journal.add_at(at, Happened::Died { w: self.w, why: "killed".to_owned() });
    }

    /// It takes no further part.
    pub(super) fn done(&self) {
        self.journal.add(Happened::Drained { w: self.w, failed: None });
    }

    /// A waiter that is neither renewed nor withdrawn.
    pub(super) async fn leave_ghost(&self, name: &str) -> Result<()> {
        let mut ghost = Claim::new(ClaimId::from_bits(fastrand::u128(..)), ResourceName::new(name)?);
        (ghost.wait, ghost.ttl, ghost.lifetime) = (true, TTL, Lifetime::Lease);
        // If it is granted on the spot, it is the ghost of a holder instead.
        self.driver.clone().attempt(Arc::new(ghost)).await.map(drop)
    }
}

async fn contend(broken: Arc<BrokenStore>, journal: Arc<Journal>, until: Moment, stormy: bool) -> Result<()> {
    let mut random = fastrand::Rng::new();
    // In calm no lease may run out, also on a busy machine.
    let mut contender = Contender::with_ttl(&broken, &journal, if stormy { TTL } else { scenes::LONG_TTL })?;
    let (mut holds, mut has_died) = (0, false);
    while now() < until {
        let what = What::ALL[random.usize(0..3)];
        let units = NonZeroU32::MIN.saturating_add(random.u32(0..PERMITS));
        let wait = if random.u32(0..5) == 0 { Duration::from_millis(random.u64(1..20)) } else { PATIENCE };
        contender.asks(what.name(), matches!(what, What::Semaphore).then_some(units.get()));
        let taking = contender.take(what, units, wait);
        let taken = if random.u32(0..16) == 0 {
            tokio::time::timeout(Duration::from_millis(random.u64(0..20)), taking).await.ok()
        } else {
            Some(taking.await)
        };
        let guard = match taken {
            None => {
                contender.gave_up(CANCELLED.to_owned());
                continue;
            }
            Some(taken) => contender.answered(taken),
        };
        let Some(guard) = guard else { continue };
        holds += 1;
        // Random kills may hit no client, so each client is also killed once while the others wait.
        let due = holds > 5 && !has_died && matches!(what, What::Fair);
        let fate = match stormy {
            true if due => DEATH,
            true => random.u32(0..100),
            false => u32::MAX,
        };
        let (w, op, fence) = (contender.w, contender.op, guard.fence());
        if !matches!(what, What::Semaphore) && guard.is_held() {
            let read = journal.read(w, op, what.name(), fence);
            tokio::time::sleep(Duration::from_millis(random.u64(0..4))).await;
            journal.write(w, op, what.name(), fence, read);
        }
        let stay = match fate {
            0..=9 => TTL + TTL / 2,
            _ => Duration::from_millis(random.u64(0..15)),
        };
        let mut ended = stayed(&guard, stay).await;
        if guard.is_held() {
            match fate {
                // Cut off, without an error.
                10..=14 => {
                    let fault = journal.fault(FaultKind::Cut, w);
                    contender.kit.cut();
                    ended = stayed(&guard, TTL * 4).await;
                    contender.kit.heal();
                    journal.ended(fault);
                }
                15..=24 => {
                    let fault = journal.fault(FaultKind::KillWaiter, w);
                    // A broken store may refuse what it should not.
                    let _ = contender.leave_ghost(What::Fair.name()).await;
                    journal.ended(fault);
                    ended = believed_until(&guard);
                }
                25..=DEATH => {
                    has_died = true;
                    let fault = journal.fault(FaultKind::Kill, w);
                    contender.died(believed_until(&guard));
                    journal.ended(fault);
                    drop(guard);
                    contender = Contender::new(&broken, &journal)?;
                    continue;
                }
                _ => {}
            }
        }
        contender.ended(ended, &guard);
        let _ = guard.release().await;
    }
    contender.done();
    Ok(())
}

/// After all faults: every lock once.
async fn drain(broken: Arc<BrokenStore>, journal: Arc<Journal>) -> Result<()> {
    let mut contender = Contender::new(&broken, &journal)?;
    let end = now() + PATIENCE;
    let mut failed = None;
    for what in What::ALL {
        contender.asks(what.name(), None);
        let taken = contender.take(what, NonZeroU32::MIN.saturating_add(PERMITS - 1), end.since(now())).await;
        match contender.answered(taken) {
            Some(guard) => {
                contender.ended(believed_until(&guard), &guard);
                let _ = guard.release().await;
            }
            None => failed = Some(format!("Busy: {}", what.name())),
        }
    }
    journal.add(Happened::Drained { w: contender.w, failed });
    Ok(())
}

/// What is left once every lease could have ended.
async fn leaks(broken: &BrokenStore, journal: &Arc<Journal>, locks: &[(&str, LockKind)]) -> Result<()> {
    let (driver, _kit) = broken.open();
    let client = Locks::builder_over(driver).build()?;
    let end = now() + TAKEOVER;
    for (name, _) in locks {
        let (holders, waiters) = loop {
            let state = client.inspect(name).await?;
            let left = (state.holders.len() as u64, state.waiters.count().map(|count| count as u64));
            if (left.0, left.1.unwrap_or(0)) == (0, 0) || now() >= end {
                break left;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        journal.add(Happened::Left { lock: (*name).to_owned(), holders: Some(holders), waiters });
    }
    Ok(())
}

/// Stays for `span`, or until the lock is lost; the moment at which belief ended or was last seen.
pub(super) async fn stayed(guard: &Guard, span: Duration) -> Moment {
    tokio::select! {
        _ = guard.lost() => {}
        () = tokio::time::sleep(span) => {}
    }
    believed_until(guard)
}

/// Now, or the end of belief if that has passed: on a busy machine this task runs again later than it could.
pub(super) fn believed_until(guard: &Guard) -> Moment {
    now().min(guard.ends_at())
}

pub(super) fn now() -> Moment {
    BootClock.now()
}
