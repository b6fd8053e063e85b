//! Everything that can happen to a few contenders at once, and the history of what they believed.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::memory::Kit;
use oarlock_core::{
    Claim, ClaimId, DynDriver, Error, ErrorKind, Guard, Lifetime, Limit, Locks, ResourceName, Result, Weight,
};

use super::BrokenStore;
use crate::history::{History, Hold};

const TTL: Duration = Duration::from_millis(240);

/// Long enough to see that no waiter is served after a death.
const PATIENCE: Duration = Duration::from_millis(2500);

/// Lets `contenders` loose on `broken` for `span`: they hold, wait, give up, are cut off, stay in the queue as ghosts,
/// and die. A few short schedules run beside them, for what such a storm does not show.
///
/// # Errors
/// What the store says.
pub async fn storm(broken: Arc<BrokenStore>, contenders: u64, span: Duration) -> Result<History> {
    let until = now() + span;
    let mut tasks = tokio::task::JoinSet::new();
    for owner in 0..contenders {
        tasks.spawn(contend(broken.clone(), owner, until));
    }
    let beside = tokio::spawn(super::schedules::all(broken));
    let mut history = History::new();
    while let Some(done) = tasks.join_next().await {
        if let Ok(theirs) = done {
            history.merge(theirs?);
        }
    }
    let beside = beside.await.map_err(|error| Error::new(ErrorKind::Internal, "a schedule panicked").because(error))?;
    history.merge(beside?);
    Ok(history)
}

#[derive(Clone, Copy)]
enum What {
    Mutex,
    Fair,
    Semaphore,
}

impl What {
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

pub(super) struct Contender {
    driver: Arc<dyn DynDriver>,
    pub(super) kit: Kit,
    pub(super) client: Locks,
}

impl Contender {
    fn new(broken: &BrokenStore) -> Result<Self> {
        Self::with_ttl(broken, TTL)
    }

    pub(super) fn with_ttl(broken: &BrokenStore, ttl: Duration) -> Result<Self> {
        let (driver, kit) = broken.open();
        let client = Locks::builder_over(driver.clone()).ttl(ttl).op_timeout(ttl * 2).build()?;
        Ok(Self { driver, kit, client })
    }

    async fn take(&self, what: What, units: NonZeroU32, wait: Duration) -> Result<Guard> {
        match what {
            What::Mutex => self.client.mutex(what.name()).wait(wait).lock().await,
            What::Fair => self.client.mutex(what.name()).fair().wait(wait).lock().await,
            What::Semaphore => self.client.semaphore(what.name(), PERMITS).wait(wait).acquire(units.get()).await,
        }
    }

    /// A waiter that is neither renewed nor withdrawn.
    async fn leave_ghost(&self, what: What) -> Result<()> {
        let mut ghost = Claim::new(ClaimId::from_bits(fastrand::u128(..)), ResourceName::new(what.name())?);
        (ghost.wait, ghost.ttl, ghost.lifetime) = (true, TTL, Lifetime::Lease);
        // If it is granted on the spot, it is the ghost of a holder instead.
        self.driver.clone().attempt(Arc::new(ghost)).await.map(drop)
    }
}

async fn contend(broken: Arc<BrokenStore>, owner: u64, until: Moment) -> Result<History> {
    let mut random = fastrand::Rng::new();
    let mut history = History::new();
    let mut contender = Contender::new(&broken)?;
    let (mut holds, mut has_died) = (0, false);
    while now() < until {
        let what = [What::Mutex, What::Fair, What::Semaphore][random.usize(0..3)];
        let units = NonZeroU32::MIN.saturating_add(random.u32(0..PERMITS));
        let impatient = random.u32(0..5) == 0;
        let wait = if impatient { Duration::from_millis(random.u64(1..20)) } else { PATIENCE };
        let asked = now();
        let taken = contender.take(what, units, wait).await;
        let granted = now();
        let Ok(guard) = taken else {
            history.waited(what.name(), asked, granted);
            continue;
        };
        holds += 1;
        // Random kills may hit no client, so each client is also killed once while the others wait.
        let due = holds > 5 && !has_died && matches!(what, What::Fair);
        let fate = if due { DEATH } else { random.u32(0..100) };
        let stay = match fate {
            0..=9 => TTL + TTL / 2,
            _ => Duration::from_millis(random.u64(0..15)),
        };
        let mut ended = stayed(&guard, stay).await;
        if guard.is_held() {
            match fate {
                // Cut off, without an error.
                10..=14 => {
                    contender.kit.cut();
                    ended = stayed(&guard, TTL * 4).await;
                    contender.kit.heal();
                }
                15..=24 => {
                    contender.leave_ghost(What::Fair).await?;
                    ended = believed_until(&guard);
                }
                // The last sign of life is before the kill: belief dies with its process.
                25..=DEATH => {
                    has_died = true;
                    ended = believed_until(&guard);
                    contender.kit.kill();
                    history.death(what.name(), ended);
                }
                _ => {}
            }
        }
        let (weight, capacity) = match what {
            What::Mutex | What::Fair => (Weight::All, None),
            What::Semaphore => (Weight::Units(units), NonZeroU32::new(PERMITS).map(Limit::Units)),
        };
        let (resource, fence, queued) = (what.name().to_owned(), guard.fence(), None);
        history.hold(Hold { resource, owner, weight, capacity, fence, asked, granted, ended, queued });
        if (25..=DEATH).contains(&fate) {
            drop(guard);
            contender = Contender::new(&broken)?;
        } else {
            // A broken store may refuse what it should not.
            let _ = guard.release().await;
        }
    }
    Ok(history)
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
fn believed_until(guard: &Guard) -> Moment {
    now().min(guard.ends_at())
}

pub(super) fn now() -> Moment {
    BootClock.now()
}
