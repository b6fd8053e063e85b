//! The seven verbs.

use std::collections::HashMap;
use std::sync::Arc;

use oarlock_core::driver::{
    Attempt, Driver, End, Fences, Gone, Grant, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed,
    Watch,
};
use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, Waiters};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Fence, Kind, ResourceName, Result, Weight};
use tokio::runtime::Handle;
use tokio::time::timeout_at;

use crate::session::connection::{Connection as _, Server};
use crate::session::guarantees;
use crate::session::pool::{ClaimState, ConnectionLease, Pool};
use crate::session::wait::Wait;

/// Locks that a server keeps for connections. See the [module](crate::session) for what it promises.
#[derive(Debug)]
pub struct SessionLocks<S: Server> {
    pool: Arc<Pool<S>>,
}

impl<S: Server> SessionLocks<S> {
    /// Connects to the server.
    ///
    /// # Errors
    /// Any error that the server returns; [`ErrorKind::Config`] outside of a runtime.
    pub async fn connect(server: S) -> Result<Self> {
        let outside =
            |error| Error::new(ErrorKind::Config, "not called within a tokio runtime").on(S::SCHEME).because(error);
        let locks = Self { pool: Pool::new(server, Handle::try_current().map_err(outside)?) };
        locks.pool.open_first().await.map_err(|error| error.during("connect"))?;
        Ok(locks)
    }

    /// The lease of a claim: no longer than the server keeps a silent connection.
    fn lease(&self, claim: &Claim) -> Lease {
        Lease::of(claim.ttl.min(self.pool.server.session_ttl()))
    }

    async fn try_claim(&self, claim: &Claim) -> Result<Attempt> {
        check::<S>(claim)?;
        let key = self.pool.server.key(&claim.resource)?;
        let mut state = self.pool.claim(claim.id).await;
        let stood = self.attempt_as(claim, &key, &mut state).await;
        self.pool.clear(claim.id, &state);
        stood
    }

    async fn attempt_as(&self, claim: &Claim, key: &S::Key, state: &mut ClaimState<S>) -> Result<Attempt> {
        if let ClaimState::Holding(hold) = &*state {
            if !hold.lease.connection().is_over() {
                // Asked on its own connection, so that its lease counts from here.
                hold.lease.connection().ping().await?;
                return Ok(self.granted(claim, &hold.lease, hold.number));
            }
            *state = ClaimState::Absent;
        }
        if let ClaimState::Waiting(waiting) = &*state {
            match waiting.0.outcome() {
                None if claim.wait => return Ok(pending()),
                None => {
                    self.leave(state).await?;
                    return Ok(pending());
                }
                Some(Ok(true)) => return self.come(claim, state).await,
                // Its connection failed: it begins anew.
                Some(_) => *state = ClaimState::Absent,
            }
        }
        let lease = self.pool.lease_shared(key).await?;
        if let Some(number) = lease.connection().take(key).await? {
            return Ok(self.hold(claim, state, lease, number));
        }
        drop(lease);
        if claim.wait {
            let lease = self.pool.lease_alone(key).await?;
            *state = ClaimState::Waiting(Wait::begin(claim.id, lease, &self.pool.runtime));
        }
        Ok(pending())
    }

    /// The server's queue has come to it.
    async fn come(&self, claim: &Claim, state: &mut ClaimState<S>) -> Result<Attempt> {
        let ClaimState::Waiting(waiting) = &*state else { return Ok(pending()) };
        let ping = waiting.0.lease.connection().ping().await;
        let number = match ping {
            Ok(number) => number,
            Err(error) => {
                waiting.0.lease.connection().end();
                *state = ClaimState::Absent;
                return Err(error.applied_unknown());
            }
        };
        waiting.0.lease.share();
        let lease = waiting.0.lease.clone();
        Ok(self.hold(claim, state, lease, number))
    }

    fn hold(&self, claim: &Claim, state: &mut ClaimState<S>, lease: Arc<ConnectionLease<S>>, number: u64) -> Attempt {
        let granted = self.granted(claim, &lease, number);
        *state = ClaimState::Holding(self.pool.hold(claim.id, lease, number, claim.label.clone()));
        granted
    }

    fn granted(&self, claim: &Claim, lease: &ConnectionLease<S>, number: u64) -> Attempt {
        let mut grant = Grant::new(Fence::new(number), self.lease(claim));
        grant.ends_with = Some(lease.connection().over().clone());
        Attempt::Granted(grant)
    }

    /// Ends whatever a claim has: whether it was there.
    async fn leave(&self, state: &mut ClaimState<S>) -> Result<bool> {
        let left = match &*state {
            ClaimState::Absent => Ok(false),
            ClaimState::Holding(hold) if hold.lease.connection().is_over() => Ok(false),
            ClaimState::Holding(hold) => hold.lease.connection().release(hold.lease.key()).await,
            ClaimState::Waiting(waiting) => {
                let lease = &waiting.0.lease;
                let stopped = waiting.0.stop().await;
                if let Ok(true) = stopped {
                    let _ = lease.connection().release(lease.key()).await;
                }
                // A late request to cancel the wait may still arrive there.
                lease.connection().end();
                stopped.map(|_| true)
            }
        };
        if left.is_ok() {
            *state = ClaimState::Absent;
        }
        left
    }

    /// What became of the connections that hold or wait: asked all at once, for one of them may be silent. The leases
    /// of the others run on meanwhile, so the wait for an answer is at most a third of the shortest.
    async fn keep(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let shortest = batch.iter().map(|renewal| self.lease(&renewal.claim).ttl).min().unwrap_or_default();
        let now = tokio::time::Instant::now();
        let until = now + shortest / 3;
        let mut pings = HashMap::new();
        let mut answers: Vec<Option<Result<HoldState<S>>>> = batch.iter().map(|_| None).collect();
        // First the claims that no other request is busy with.
        for limit in [now, until] {
            for (answer, renewal) in answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none()) {
                let Ok(kept) = timeout_at(limit, self.keep_one(renewal)).await else { continue };
                if let Ok(HoldState::On(connection, _)) = &kept {
                    pings.entry(address_of(connection)).or_insert_with(|| {
                        let connection = connection.clone();
                        self.pool.runtime.spawn(async move { connection.ping().await })
                    });
                }
                *answer = Some(kept);
            }
        }
        let silent = || Error::unreachable("no reply on the connection, which is replaced").on(S::SCHEME);
        let mut heard: HashMap<usize, Result<()>> = HashMap::new();
        for (address, ping) in pings {
            // What has come is heard, also after that time.
            let ping = match timeout_at(until, ping).await {
                Ok(Ok(ping)) => ping.map(drop),
                Ok(Err(_)) => Err(Error::unreachable("the tokio runtime of this client has ended").on(S::SCHEME)),
                Err(_) => Err(silent()),
            };
            heard.insert(address, ping);
        }
        let mut renewed = Vec::with_capacity(batch.len());
        for (answer, renewal) in answers.into_iter().zip(batch) {
            renewed.push(match answer.unwrap_or_else(|| Err(silent())) {
                Ok(HoldState::On(connection, _)) if connection.is_over() => Ok(Renewed::Gone(Gone::Session)),
                Ok(HoldState::On(connection, fence)) => heard
                    .get(&address_of(&connection))
                    .cloned()
                    .unwrap_or(Ok(()))
                    .map(|()| Renewed::Alive { lease: self.lease(&renewal.claim), fence: Some(fence), ending: None }),
                Ok(HoldState::Waits) => {
                    Ok(Renewed::Alive { lease: Lease::of(renewal.claim.waiter_ttl()), fence: None, ending: None })
                }
                Ok(HoldState::Gone(gone)) => Ok(Renewed::Gone(gone)),
                Err(error) => Err(error.during("renew").about(&renewal.claim.resource)),
            });
        }
        renewed
    }

    async fn keep_one(&self, renewal: &Renewal) -> Result<HoldState<S>> {
        self.pool.check()?;
        if renewal.fences != Fences::Keep || renewal.memo.is_some() {
            return Err(
                Error::new(ErrorKind::Unsupported, "mode=session stores no memo and reserves no fences").on(S::SCHEME)
            );
        }
        let id = renewal.claim.id;
        let Some(state) = self.pool.known_claim(id).await else { return Ok(HoldState::Gone(Gone::Unknown)) };
        let kept = match &*state {
            ClaimState::Absent => HoldState::Gone(Gone::Unknown),
            ClaimState::Holding(hold) => HoldState::On(hold.lease.connection().clone(), Fence::new(hold.number)),
            ClaimState::Waiting(waiting) if matches!(waiting.0.outcome(), Some(Err(_) | Ok(false))) => {
                HoldState::Gone(Gone::Session)
            }
            ClaimState::Waiting(_) => HoldState::Waits,
        };
        self.pool.clear(id, &state);
        Ok(kept)
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let Select::Name(name) = &query.select else {
            let message = "mode=session cannot list names: inspect one name";
            return Err(Error::new(ErrorKind::Unsupported, message).on(S::SCHEME));
        };
        let key = self.pool.server.key(name)?;
        let seen = self.pool.peek(&key).await?;
        let mut state = ResourceState::free(name.clone());
        state.waiters = seen.waiting.map_or(Waiters::Hidden, Waiters::Counted);
        for (number, label) in seen.holders {
            let holder = match self.ours(number, &key) {
                Some(ours) => ours,
                None => {
                    let mut theirs = HolderState::new(ClaimId::from_bits(number.into()), Kind::Mutex, Weight::All);
                    theirs.label = Arc::new(label);
                    theirs
                }
            };
            state.holders.push(holder);
        }
        Ok(Page::new(vec![state], false))
    }

    /// The claim of this client that holds `key` on that connection.
    fn ours(&self, number: u64, key: &S::Key) -> Option<HolderState> {
        let hold = self.pool.holds(key).into_iter().find(|hold| hold.lease.connection().number() == number)?;
        let mut ours = HolderState::new(hold.id, Kind::Mutex, Weight::All);
        (ours.fence, ours.label, ours.held_for) =
            (Some(Fence::new(hold.number)), hold.label.clone(), hold.since.elapsed());
        ours.lease_left = self.pool.server.session_ttl();
        Some(ours)
    }
}

/// What tells a connection from another, as long as both are there: two servers may have the same number for theirs.
fn address_of<L>(connection: &Arc<L>) -> usize {
    Arc::as_ptr(connection).addr()
}

/// What there is to renew.
enum HoldState<S: Server> {
    /// It holds on this connection.
    On(Arc<S::Connection>, Fence),
    Waits,
    Gone(Gone),
}

fn pending() -> Attempt {
    let mut pending = Pending::default();
    // A watch that is armed later still reports what happened before.
    pending.watched = true;
    Attempt::Pending(pending)
}

/// What these locks cannot be. Clients that ask for the capabilities do not get here.
fn check<S: Server>(claim: &Claim) -> Result<()> {
    let what = if claim.weight != Weight::All {
        "be shared"
    } else if claim.value.is_some() {
        "publish a value"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Unsupported, format!("a lock that a connection holds cannot {what}")).on(S::SCHEME))
}

impl<S: Server> Driver for SessionLocks<S> {
    fn info(&self) -> Info {
        Info::new(S::SCHEME, self.pool.server.address(), guarantees::capabilities(S::WAITERS))
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.try_claim(claim).await;
        attempt.map_err(|error| error.during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.keep(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let about = |error: Error| error.during("release").about(resource);
        self.pool.check().map_err(about)?;
        let Some(mut state) = self.pool.known_claim(id).await else {
            if matches!(end, End::Broken { .. }) {
                let message =
                    "the lock of another connection cannot be broken from here: end that connection on the server";
                return Err(about(Error::new(ErrorKind::Unsupported, message).on(S::SCHEME)));
            }
            return Ok(Release::new(Released::NotHeld, None));
        };
        let left = self.leave(&mut state).await;
        self.pool.clear(id, &state);
        let outcome = if left.map_err(about)? { Released::Released } else { Released::NotHeld };
        Ok(Release::new(outcome, None))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.pool.check().map_err(|error| error.during("watch"))?;
        match interest {
            Interest::Turn(claim, _) => {
                let Some(state) = self.pool.known_claim(claim.id).await else { return Ok(Watch::never()) };
                let watch = if let ClaimState::Waiting(waiting) = &*state { waiting.0.watch() } else { Watch::never() };
                self.pool.clear(claim.id, &state);
                Ok(watch)
            }
            Interest::Mailbox => Ok(self.pool.mailbox.watch()),
            Interest::Resource(_) => Ok(Watch::never()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.pool.close();
        Ok(())
    }
}

impl<S: Server> Drop for SessionLocks<S> {
    fn drop(&mut self) {
        self.pool.close();
    }
}
