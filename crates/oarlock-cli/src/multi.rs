//! Several locks as one: taken in the order of their names, all or none, lost if any is lost.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use oarlock::driver::Released;
use oarlock::{Error, Guard, Held, Locks, LossReason, ResourceName};

use crate::settings::{Asking, Mode};

/// The locks in hand, in the order in which they were named. Never empty.
pub(crate) struct Multi(Vec<Guard>);

/// What a release found.
#[derive(Default)]
pub(crate) struct LettingGo {
    /// Locks that were gone already.
    pub(crate) gone: Vec<ResourceName>,
    /// What the store said where it failed.
    pub(crate) errors: Vec<Error>,
}

impl Multi {
    /// Takes all of `names` before `until`, or none.
    pub(crate) async fn acquire(
        locks: &Locks,
        names: &[ResourceName],
        asking: &Asking,
        until: Option<Instant>,
    ) -> Result<Self, Error> {
        // One order for everybody, so that two who want the same names do not wait for each other.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by(|&a, &b| names[a].cmp(&names[b]));
        loop {
            let mut taken = Vec::with_capacity(names.len());
            for &index in &order {
                match one(locks, &names[index], asking, until).await {
                    Ok(guard) => taken.push((index, guard)),
                    Err(error) => {
                        Self(taken.into_iter().map(|(_, guard)| guard).collect()).release().await;
                        return Err(error);
                    }
                }
            }
            taken.sort_by_key(|(index, _)| *index);
            let multi = Self(taken.into_iter().map(|(_, guard)| guard).collect());
            if multi.are_held() {
                return Ok(multi);
            }
            // One was lost while we waited for another.
            multi.release().await;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.0.iter().map(|guard| &**guard)
    }

    /// Whether all may still be believed in.
    pub(crate) fn are_held(&self) -> bool {
        self.iter().all(Held::is_held)
    }

    /// The first that was lost, and why.
    pub(crate) fn loss(&self) -> Option<(&Held, LossReason)> {
        self.iter().find_map(|held| Some((held, held.loss()?)))
    }

    /// The one whose belief ends first.
    pub(crate) fn weakest(&self) -> Option<&Held> {
        self.iter().min_by_key(|held| held.time_left())
    }

    /// Resolves when belief in any will end within `lead`; at once if any was lost.
    pub(crate) async fn ends_within(&self, lead: Duration) {
        let mut ends: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for held in self.iter() {
            if lead.is_zero() {
                ends.push(Box::pin(async move {
                    held.lost().await;
                }));
            } else {
                ends.push(Box::pin(held.ends_within(lead)));
            }
        }
        std::future::poll_fn(|context| {
            if ends.iter_mut().any(|end| end.as_mut().poll(context).is_ready()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Lets all go, last taken first.
    pub(crate) async fn release(self) -> LettingGo {
        let mut done = LettingGo::default();
        for guard in self.0.into_iter().rev() {
            let name = guard.resource().clone();
            match guard.release().await {
                Ok(release) if release.outcome == Released::NotHeld => done.gone.push(name),
                Ok(_) => {}
                Err(error) => done.errors.push(error),
            }
        }
        done
    }
}

/// The choices that every kind of lock has.
macro_rules! tuned {
    ($lock:expr, $asking:expr, $until:expr) => {{
        let mut lock = $lock;
        lock = if $asking.renew { lock.ttl($asking.ttl) } else { lock.lease($asking.ttl) };
        lock = match $until {
            Some(until) => lock.wait(until.saturating_duration_since(Instant::now())),
            None => lock.wait_forever(),
        };
        if let Some(span) = $asking.max_hold {
            lock = lock.max_hold(span);
        }
        lock.label($asking.label.clone())
    }};
}

async fn one(locks: &Locks, name: &ResourceName, asking: &Asking, until: Option<Instant>) -> Result<Guard, Error> {
    let name = name.as_str();
    match asking.mode {
        Mode::Exclusive | Mode::Spin => {
            let mut mutex = tuned!(locks.mutex(name)?, asking, until);
            if asking.fair {
                mutex = mutex.fair();
            }
            if asking.mode == Mode::Spin {
                mutex = mutex.spin();
            }
            mutex.lock().await
        }
        Mode::Shared => tuned!(locks.rwlock(name)?, asking, until).read().await,
        Mode::Permits { of, take } => {
            let mut semaphore = tuned!(locks.semaphore(name, of)?, asking, until);
            if asking.fair {
                semaphore = semaphore.fair();
            }
            semaphore.acquire(take).await
        }
    }
}
