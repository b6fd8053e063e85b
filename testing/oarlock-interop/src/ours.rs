//! Oarlock itself as a peer, on any URL.

use std::time::Duration;

use oarlock::Released;
use oarlock::state::Ending;
use oarlock::state::ResourceName;
use oarlock::{ErrorKind, Guard, Locks, Owner, ReentrantGuard};

use crate::peer::{Client, Lock, Loss, Refusal};

/// How often and how long a cohort keeps the lock: as the example of its page.
const COHORT: (u32, Duration) = (64, Duration::from_millis(20));

/// A connection.
#[derive(Debug)]
pub struct Ours {
    locks: Locks,
}

impl Ours {
    /// Connects to `url`.
    ///
    /// # Errors
    /// As [`oarlock::connect`].
    pub async fn connect(url: &str) -> oarlock::Result<Self> {
        Ok(Self { locks: oarlock::connect(url).await? })
    }
}

impl Client for Ours {
    type Lock = OurLock;

    fn version(&self) -> String {
        "this".to_owned()
    }

    async fn lock(&self, kind: &str, name: &str) -> Result<OurLock, Refusal> {
        let (kind, permits) = kind.split_once(':').unwrap_or((kind, "0"));
        let kind = match kind {
            "mutex" => Kind::Reentrant,
            "cohort" => Kind::Cohort,
            // As `mutex()` of the library, without an owner.
            "single" => Kind::Mutex { fair: false, spin: false },
            "fair" => Kind::Mutex { fair: true, spin: false },
            "spin" => Kind::Mutex { fair: false, spin: true },
            "read" => Kind::Read,
            "write" => Kind::Write,
            "semaphore" => Kind::Semaphore(permits.parse()?),
            "election" => Kind::Election,
            other => return Err(Refusal::Cannot(format!("oarlock has no {other} lock"))),
        };
        Ok(OurLock { locks: self.locks.clone(), kind, name: name.to_owned(), owner: Owner::new(), hold: None })
    }

    async fn force_unlock(&self, name: &str) -> Result<bool, Refusal> {
        let name = ResourceName::new(name)?;
        let mut freed = false;
        for holder in self.locks.inspect(&name).await?.holders {
            let ending = Ending::new("interop", "force-unlock");
            match self.locks.break_claim(&name, holder.id, ending, Duration::ZERO).await {
                Ok(broken) => freed |= broken != Released::NotHeld,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Err(Refusal::Cannot(
                        "here a hold of another client is ended on the server alone".to_owned(),
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(freed)
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One that its owner can enter again.
    Reentrant,
    Mutex {
        fair: bool,
        spin: bool,
    },
    /// One that goes round the tasks of a process for a while.
    Cohort,
    Read,
    Write,
    Semaphore(u32),
    Election,
}

/// A lock of ours.
#[derive(Debug)]
pub struct OurLock {
    locks: Locks,
    kind: Kind,
    name: String,
    owner: Owner,
    hold: Option<Hold>,
}

#[derive(Debug)]
enum Hold {
    One(Box<Guard>),
    /// A lock that is entered again, as often as there are guards.
    Entered(Box<oarlock::ReentrantMutex>, Vec<ReentrantGuard>),
}

/// What waiting too long means.
fn unless_busy<T>(result: oarlock::Result<T>) -> oarlock::Result<Option<T>> {
    match result {
        Ok(hold) => Ok(Some(hold)),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
        Err(error) => Err(error),
    }
}

macro_rules! tuned {
    ($lock:expr, $lease:expr, $wait:expr, $renewed:expr) => {{
        let lock = $lock.wait($wait);
        if $renewed { lock.ttl($lease) } else { lock.ttl($lease).no_renewal() }
    }};
}

impl OurLock {
    /// One try without a wait, else a wait.
    async fn take(&self, lease: Duration, wait: Duration, renewed: bool) -> oarlock::Result<Option<Hold>> {
        let one = |guard: Option<Guard>| guard.map(|guard| Hold::One(Box::new(guard)));
        let once = wait.is_zero();
        match self.kind {
            Kind::Reentrant => {
                let lock = tuned!(self.locks.mutex(&self.name), lease, wait, renewed).reentrant(&self.owner);
                let guard = if once { lock.try_lock().await? } else { unless_busy(lock.lock().await)? };
                Ok(guard.map(|guard| Hold::Entered(Box::new(lock), vec![guard])))
            }
            Kind::Cohort => {
                // It is always kept alive.
                let (hand_offs, span) = COHORT;
                let lock = self.locks.mutex(&self.name).wait(wait).ttl(lease).cohort(hand_offs, span);
                if once { lock.try_lock().await.map(one) } else { unless_busy(lock.lock().await).map(one) }
            }
            Kind::Mutex { fair, spin } => {
                let mut lock = tuned!(self.locks.mutex(&self.name), lease, wait, renewed);
                if fair {
                    lock = lock.fair();
                }
                if spin {
                    lock = lock.spin();
                }
                if once { lock.try_lock().await.map(one) } else { unless_busy(lock.lock().await).map(one) }
            }
            Kind::Read => {
                let lock = tuned!(self.locks.rwlock(&self.name), lease, wait, renewed);
                if once { lock.try_read().await.map(one) } else { unless_busy(lock.read().await).map(one) }
            }
            Kind::Write => {
                let lock = tuned!(self.locks.rwlock(&self.name), lease, wait, renewed);
                let guard = if once { lock.try_write().await? } else { unless_busy(lock.write().await)? };
                Ok(one(guard.map(oarlock::WriteGuard::into_guard)))
            }
            Kind::Semaphore(permits) => {
                let lock = tuned!(self.locks.semaphore(&self.name, permits), lease, wait, renewed);
                if once { lock.try_acquire(1).await.map(one) } else { unless_busy(lock.acquire(1).await).map(one) }
            }
            Kind::Election => {
                // A leader is always kept alive.
                let lock = self.locks.election(&self.name).wait(wait).ttl(lease);
                let leads = if once {
                    lock.try_campaign("oarlock").await?
                } else {
                    unless_busy(lock.campaign("oarlock").await)?
                };
                Ok(one(leads.map(oarlock::Leadership::into_guard)))
            }
        }
    }

    fn held(&self) -> Option<&oarlock::Held> {
        match self.hold.as_ref()? {
            Hold::One(guard) => Some(guard),
            Hold::Entered(_, guards) => guards.last().map(|guard| &**guard),
        }
    }
}

impl Lock for OurLock {
    async fn acquire(&mut self, lease: Duration, wait: Duration, renewed: bool) -> Result<bool, Refusal> {
        self.hold = self.take(lease, wait, renewed).await?;
        Ok(self.hold.is_some())
    }

    fn fence(&self) -> Option<u64> {
        self.held().map(|held| held.fence().get())
    }

    async fn again(&mut self) -> Result<bool, Refusal> {
        let Some(Hold::Entered(lock, guards)) = &mut self.hold else {
            return Err(Refusal::Cannot("not a lock to enter again".to_owned()));
        };
        let Some(guard) = lock.try_lock().await? else { return Ok(false) };
        guards.push(guard);
        Ok(true)
    }

    async fn loss(&mut self) -> Result<Option<Loss>, Refusal> {
        let held = self.held().ok_or("nothing is held")?;
        // The reason is known as soon as belief ends, without a request to the store.
        Ok(if held.is_held() { None } else { Some(held.check().err().map_or_else(String::new, |e| e.to_string())) })
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        let loss = self.loss().await?;
        let released = match &mut self.hold {
            Some(Hold::Entered(_, guards)) => match guards.pop() {
                Some(guard) => Some(guard.release().await?),
                None => None,
            },
            hold => match hold.take() {
                Some(Hold::One(guard)) => Some(guard.release().await?),
                _ => None,
            },
        };
        let gone = released == Some(Released::NotHeld);
        Ok(loss.or_else(|| gone.then(|| "the store did not know it any more".to_owned())))
    }
}
