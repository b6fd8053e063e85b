//! What `run` and `hold` ask for, as one lock of the library.

use std::time::{Duration, Instant};

use oarlock::state::ResourceName;
use oarlock::{Error, Locks, Multi, MultiGuard, Part, Released};

use crate::observe::EngineEvents;
use crate::settings::{Asking, Mode};
use crate::store::FAREWELL;

/// Takes all of `names` before `until`, or none.
pub(crate) async fn acquire(
    locks: &Locks,
    names: &[ResourceName],
    asking: &Asking,
    until: Option<Instant>,
) -> Result<MultiGuard, Error> {
    let parts: Vec<_> = names.iter().map(|name| one(locks, name, asking)).collect();
    let multi = match until {
        Some(until) => Multi::all(parts).wait(until.saturating_duration_since(Instant::now())),
        None => Multi::all(parts).wait_forever(),
    };
    multi.lock().await
}

/// What a store that answers needs at most, also when the lease is over.
const LEAST: Duration = Duration::from_millis(300);

/// Releases all of them. A store that is silent is given until the end of the lease: from then on there is nothing to
/// release.
pub(crate) async fn release(multi: MultiGuard, events: &EngineEvents) -> Releases {
    let left = multi.iter().map(oarlock::Held::time_left).max().unwrap_or_default();
    let mut done = Releases::default();
    match tokio::time::timeout(left.saturating_sub(FAREWELL).max(LEAST), multi.release_each()).await {
        Ok(each) => {
            for (name, released) in each {
                match released {
                    Ok(Released::NotHeld) => done.gone.push(name),
                    Ok(_) => {}
                    Err(error) => done.errors.push(error),
                }
            }
        }
        Err(_) => done.errors.push(Error::unreachable("the store did not answer before the lease was over")),
    }
    if !done.errors.is_empty() {
        events.give_up();
    }
    done
}

/// What the releases found.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// Locks that had ended before.
    pub(crate) gone: Vec<ResourceName>,
    pub(crate) errors: Vec<Error>,
}

/// The choices that every kind of lock has.
macro_rules! tuned {
    ($lock:expr, $asking:expr) => {{
        let mut lock = $lock;
        lock = if $asking.renew { lock.ttl($asking.ttl) } else { lock.ttl($asking.ttl).no_renewal() };
        if let Some(span) = $asking.max_hold {
            lock = lock.max_hold(span);
        }
        // The time to end a command in order is longer than the lease that a handed on lock may begin with.
        lock.whole_lease().label($asking.label.clone())
    }};
}

fn one(locks: &Locks, name: &ResourceName, asking: &Asking) -> Part {
    let name = name.as_str();
    match asking.mode {
        Mode::Exclusive | Mode::Spin => {
            let mut mutex = tuned!(locks.mutex(name), asking);
            if asking.fair {
                mutex = mutex.fair();
            }
            if asking.mode == Mode::Spin {
                mutex = mutex.spin();
            }
            mutex.into()
        }
        Mode::Shared => tuned!(locks.rwlock(name), asking).for_reading(),
        Mode::Permits { of, take } => {
            let mut semaphore = tuned!(locks.semaphore(name, of), asking);
            if asking.fair {
                semaphore = semaphore.fair();
            }
            semaphore.permits(take)
        }
    }
}
