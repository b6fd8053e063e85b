//! The kinds of locks that a task asks for.

use std::num::NonZeroU32;
use std::time::Duration;

use oarlock_core::{
    Guard, Held, Leadership, Lifetime, Limit, Locks, Multi, MultiGuard, Owner, ReentrantGuard, Result, Weight,
    WriteGuard,
};

use super::plan::{Load, Plan, Style};

/// One way to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Mutex,
    Fair,
    Spin,
    Try,
    Read,
    Write,
    Downgrade,
    Permits { taken: u32, of: u32 },
    Leader,
    Once,
    Cohort,
    Reentrant,
    Several,
    Lease,
    Bounded,
    HandOver,
}

impl Request {
    pub(super) fn draw(plan: &Plan, rng: &mut fastrand::Rng) -> Self {
        let permits = |rng: &mut fastrand::Rng, of: u32| Self::Permits { taken: rng.u32(1..=of), of };
        let reads = |rng: &mut fastrand::Rng| [Self::Read, Self::Write, Self::Downgrade][rng.usize(..3)];
        match plan.load {
            Load::Mutex { fair: false } => Self::Mutex,
            Load::Mutex { fair: true } => Self::Fair,
            Load::Spin => Self::Spin,
            Load::Cohort => Self::Cohort,
            Load::ReadWrite => reads(rng),
            Load::Semaphore(of) => permits(rng, of),
            Load::Mixed(of) => match rng.u8(..15) {
                0 => Self::Mutex,
                1 => Self::Fair,
                2 => Self::Spin,
                3 => Self::Try,
                4 => Self::Leader,
                5 => Self::Once,
                6 | 7 => Self::Cohort,
                8 => Self::Reentrant,
                9 => Self::Several,
                10 => Self::Lease,
                11 => Self::Bounded,
                // A claim cannot outlive the session that keeps its node.
                12 if plan.style != Style::Session => Self::HandOver,
                _ => match of {
                    Some(of) => permits(rng, of),
                    None => reads(rng),
                },
            },
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Fair => "fair mutex",
            Self::Spin => "spin lock",
            Self::Try => "try",
            Self::Read => "read lock",
            Self::Write => "write lock",
            Self::Downgrade => "downgraded write lock",
            Self::Permits { .. } => "permits",
            Self::Leader => "leader",
            Self::Once => "once",
            Self::Cohort => "cohort",
            Self::Reentrant => "re-entrant mutex",
            Self::Several => "several locks",
            Self::Lease => "explicit lease",
            Self::Bounded => "bounded hold",
            Self::HandOver => "handed over",
        }
    }

    pub(super) fn weight(self) -> Weight {
        match self {
            Self::Read => Weight::ONE,
            Self::Permits { taken, .. } => units(taken).map_or(Weight::All, Weight::Units),
            _ => Weight::All,
        }
    }

    pub(super) fn capacity(self) -> Option<Limit> {
        match self {
            Self::Read | Self::Write | Self::Downgrade => Some(Limit::Unlimited),
            Self::Permits { of, .. } => units(of).map(Limit::Units),
            _ => None,
        }
    }

    /// Acquires; `None` if the lock is busy.
    pub(super) async fn take(
        self,
        client: Locks,
        names: Vec<String>,
        wait: Duration,
        bound: Duration,
    ) -> Result<Option<Holding>> {
        let name = &names[0];
        let mutex = client.mutex(name).wait(wait);
        let guard = match self {
            // A slot is run where the task has its work.
            Self::Mutex | Self::Once => mutex.lock().await?,
            Self::Fair => mutex.fair().lock().await?,
            Self::Spin => mutex.spin().lock().await?,
            Self::Try => return Ok(mutex.try_lock().await?.map(Holding::Guard)),
            Self::Read => client.rwlock(name).wait(wait).read().await?,
            Self::Write | Self::Downgrade => {
                return client.rwlock(name).wait(wait).write().await.map(Holding::Write).map(Some);
            }
            Self::Permits { taken, of } => client.semaphore(name, of).wait(wait).acquire(taken).await?,
            Self::Leader => {
                return client.election(name).wait(wait).campaign("one").await.map(Holding::Leader).map(Some);
            }
            Self::Cohort => {
                // A wait must be longer than two spans.
                let wait = wait.max(Duration::from_millis(100));
                mutex.wait(wait).cohort(8, wait.mul_f64(0.4)).lock().await?
            }
            Self::Reentrant => {
                let mutex = mutex.reentrant(&Owner::new());
                let outer = mutex.lock().await?;
                let inner = mutex.lock().await?;
                return Ok(Some(Holding::Reentrant(outer, inner)));
            }
            Self::Several => {
                let all = Multi::all(names.iter().map(|name| client.mutex(name)));
                return all.wait(wait).lock().await.map(Holding::Several).map(Some);
            }
            Self::Lease => mutex.no_renewal().lock().await?,
            Self::Bounded => mutex.max_hold(bound).lock().await?,
            Self::HandOver => mutex.lifetime(Lifetime::Lease).lock().await?,
        };
        Ok(Some(Holding::Guard(guard)))
    }
}

fn units(units: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(units)
}

/// What is held.
pub(super) enum Holding {
    Guard(Guard),
    Write(WriteGuard),
    Leader(Leadership),
    Several(MultiGuard),
    Reentrant(ReentrantGuard, ReentrantGuard),
}

impl Holding {
    pub(super) fn helds(&self) -> Vec<Held> {
        match self {
            Self::Guard(guard) => vec![guard.held()],
            Self::Write(guard) => vec![guard.held()],
            Self::Leader(guard) => vec![guard.held()],
            Self::Several(guards) => guards.held().iter().cloned().collect(),
            Self::Reentrant(guard, _) => vec![guard.held()],
        }
    }

    /// Resolves when the first of them is lost.
    pub(super) async fn lost(&self) {
        match self {
            Self::Several(guards) => {
                guards.held().lost().await;
            }
            _ => {
                self.helds()[0].lost().await;
            }
        }
    }

    pub(super) async fn release(self) {
        // An answer may be lost like any other; the check for leftovers comes at the end.
        let _ = match self {
            Self::Guard(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Leader(guard) => guard.resign().await,
            Self::Several(guards) => guards.release().await,
            Self::Reentrant(outer, inner) => {
                drop(inner);
                outer.release().await
            }
        };
    }
}
