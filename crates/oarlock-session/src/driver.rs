//! The seven verbs.

use std::collections::HashMap;
use std::sync::Arc;

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::driver::{
    Attempt, Driver, End, Fences, Gone, Grant, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed,
    Watch,
};
use oarlock_core::state::{HolderState, Page, Query, ResourceState, Select, Waiters};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Fence, Kind, ResourceName, Result, Weight};
use tokio::runtime::Handle;
use tokio::time::timeout_at;

use crate::desk::{Desk, Place, Seat};
use crate::line::{Line as _, Seen, Server};
use crate::wait::Wait;

/// Locks that a server keeps for connections. See the [crate](crate) for what it promises.
#[derive(Debug)]
pub struct SessionLocks<S: Server> {
    desk: Arc<Desk<S>>,
}

impl<S: Server> SessionLocks<S> {
    /// Connects.
    ///
    /// # Errors
    /// What the server says; [`ErrorKind::Config`] outside of a runtime.
    pub async fn connect(server: S) -> Result<Self> {
        let outside = |error| Error::new(ErrorKind::Config, "connect on a runtime").on(S::SCHEME).because(error);
        let locks = Self { desk: Desk::new(server, Handle::try_current().map_err(outside)?) };
        locks.desk.greet().await.map_err(|error| error.during("connect"))?;
        Ok(locks)
    }

    /// The lease of a claim: no longer than the server keeps a silent connection.
    fn lease(&self, claim: &Claim) -> Lease {
        Lease::of(claim.ttl.min(self.desk.server.session_ttl()))
    }

    async fn stand(&self, claim: &Claim) -> Result<Attempt> {
        check::<S>(claim)?;
        let key = self.desk.server.key(&claim.resource)?;
        let mut place = self.desk.place(claim.id).await;
        let stood = self.stand_at(claim, &key, &mut place).await;
        self.desk.clear(claim.id, &place);
        stood
    }

    async fn stand_at(&self, claim: &Claim, key: &S::Key, place: &mut Place<S>) -> Result<Attempt> {
        if let Place::Holds(hold) = &*place {
            if !hold.seat.line().is_over() {
                // Asked on its own connection, so that its lease counts from here.
                hold.seat.line().beat().await?;
                return Ok(self.granted(claim, hold.number));
            }
            *place = Place::Nowhere;
        }
        if let Place::Waits(waiting) = &*place {
            match waiting.0.outcome() {
                None if claim.wait => return Ok(pending()),
                None => {
                    self.leave(place).await?;
                    return Ok(pending());
                }
                Some(Ok(true)) => return self.come(claim, place).await,
                // Its connection failed: it begins anew.
                Some(_) => *place = Place::Nowhere,
            }
        }
        let seat = self.desk.sit(key).await?;
        if let Some(number) = seat.line().take(key).await? {
            return Ok(self.hold(claim, place, seat, number));
        }
        drop(seat);
        if claim.wait {
            let seat = self.desk.sit_alone(key).await?;
            *place = Place::Waits(Wait::begin(claim.id, seat, &self.desk.runtime));
        }
        Ok(pending())
    }

    /// The server's queue has come to it.
    async fn come(&self, claim: &Claim, place: &mut Place<S>) -> Result<Attempt> {
        let Place::Waits(waiting) = &*place else { return Ok(pending()) };
        let beat = waiting.0.seat.line().beat().await;
        let number = match beat {
            Ok(number) => number,
            Err(error) => {
                waiting.0.seat.line().end();
                *place = Place::Nowhere;
                return Err(error.applied_unknown());
            }
        };
        waiting.0.seat.share();
        let seat = waiting.0.seat.clone();
        Ok(self.hold(claim, place, seat, number))
    }

    fn hold(&self, claim: &Claim, place: &mut Place<S>, seat: Arc<Seat<S>>, number: u64) -> Attempt {
        *place = Place::Holds(self.desk.hold(claim.id, seat, number, claim.label.clone()));
        self.granted(claim, number)
    }

    fn granted(&self, claim: &Claim, number: u64) -> Attempt {
        Attempt::Granted(Grant::new(Fence::new(number), self.lease(claim)))
    }

    /// Ends whatever a claim has: whether it was there.
    async fn leave(&self, place: &mut Place<S>) -> Result<bool> {
        let left = match &*place {
            Place::Nowhere => Ok(false),
            Place::Holds(hold) if hold.seat.line().is_over() => Ok(false),
            Place::Holds(hold) => hold.seat.line().give(hold.seat.key()).await,
            Place::Waits(waiting) => {
                let seat = &waiting.0.seat;
                let stopped = waiting.0.stop().await;
                if let Ok(true) = stopped {
                    let _ = seat.line().give(seat.key()).await;
                }
                // A late word to stop may still be on its way to it.
                seat.line().end();
                stopped.map(|_| true)
            }
        };
        if left.is_ok() {
            *place = Place::Nowhere;
        }
        left
    }

    /// What became of the connections that hold or wait: asked all at once, for one of them may be silent. The leases of the others
    /// run on meanwhile, so nobody is waited for for longer than a third of the shortest.
    async fn keep(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let shortest = batch.iter().map(|renewal| self.lease(&renewal.claim).ttl).min().unwrap_or_default();
        let now = tokio::time::Instant::now();
        let until = now + shortest / 3;
        let mut beats = HashMap::new();
        let mut answers: Vec<Option<Result<Kept<S>>>> = batch.iter().map(|_| None).collect();
        // Those first with which nobody else is busy.
        for limit in [now, until] {
            for (answer, renewal) in answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none()) {
                let Ok(kept) = timeout_at(limit, self.keep_one(renewal)).await else { continue };
                if let Ok(Kept::On(line, _)) = &kept {
                    beats.entry(place_of(line)).or_insert_with(|| {
                        let line = line.clone();
                        self.desk.runtime.spawn(async move { line.beat().await })
                    });
                }
                *answer = Some(kept);
            }
        }
        let silent = || Error::unreachable("its connection is silent").on(S::SCHEME);
        let mut heard: HashMap<usize, Result<()>> = HashMap::new();
        for (place, beat) in beats {
            // What has come is heard, also after that time.
            let beat = match timeout_at(until, beat).await {
                Ok(Ok(beat)) => beat.map(drop),
                Ok(Err(_)) => Err(Error::unreachable("its runtime is gone").on(S::SCHEME)),
                Err(_) => Err(silent()),
            };
            heard.insert(place, beat);
        }
        let mut renewed = Vec::with_capacity(batch.len());
        for (answer, renewal) in answers.into_iter().zip(batch) {
            renewed.push(match answer.unwrap_or_else(|| Err(silent())) {
                Ok(Kept::On(line, _)) if line.is_over() => Ok(Renewed::Gone(Gone::Session)),
                Ok(Kept::On(line, fence)) => heard
                    .get(&place_of(&line))
                    .cloned()
                    .unwrap_or(Ok(()))
                    .map(|()| Renewed::Alive { lease: self.lease(&renewal.claim), fence: Some(fence), ending: None }),
                Ok(Kept::Waits) => {
                    Ok(Renewed::Alive { lease: Lease::of(renewal.claim.place_ttl()), fence: None, ending: None })
                }
                Ok(Kept::Gone(gone)) => Ok(Renewed::Gone(gone)),
                Err(error) => Err(error.during("renew").about(&renewal.claim.resource)),
            });
        }
        renewed
    }

    async fn keep_one(&self, renewal: &Renewal) -> Result<Kept<S>> {
        self.desk.check()?;
        if renewal.fences != Fences::Keep || renewal.memo.is_some() {
            return Err(Error::new(ErrorKind::Unsupported, "nothing can be written beside this lock").on(S::SCHEME));
        }
        let id = renewal.claim.id;
        let Some(place) = self.desk.place_if_any(id).await else { return Ok(Kept::Gone(Gone::Unknown)) };
        let kept = match &*place {
            Place::Nowhere => Kept::Gone(Gone::Unknown),
            Place::Holds(hold) => Kept::On(hold.seat.line().clone(), Fence::new(hold.number)),
            Place::Waits(waiting) if matches!(waiting.0.outcome(), Some(Err(_) | Ok(false))) => {
                Kept::Gone(Gone::Session)
            }
            Place::Waits(_) => Kept::Waits,
        };
        self.desk.clear(id, &place);
        Ok(kept)
    }

    async fn show(&self, query: &Query) -> Result<Page> {
        let Select::Name(name) = &query.select else {
            let message = "the server's own locks have numbers or hashes, not names: look at one name";
            return Err(Error::new(ErrorKind::Unsupported, message).on(S::SCHEME));
        };
        let key = self.desk.server.key(name)?;
        let is_lost = self.has_lost(&key).await;
        let seen = match self.desk.look(&key).await {
            // What this client held is gone for certain, whatever else is true.
            Err(_) if is_lost => Seen::default(),
            seen => seen?,
        };
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
        Ok(Page { resources: vec![state], more: false })
    }

    /// Whether a connection on which this client held `key` has ended: only by asking is that seen everywhere.
    async fn has_lost(&self, key: &S::Key) -> bool {
        let Some(hold) = self.desk.holds(key).into_iter().next() else { return false };
        let line = hold.seat.line();
        let beat = if line.is_over() { None } else { Some(line.beat().await) };
        beat.is_none() || line.is_over()
    }

    /// The claim of this client that holds `key` on that connection.
    fn ours(&self, number: u64, key: &S::Key) -> Option<HolderState> {
        let hold = self.desk.holds(key).into_iter().find(|hold| hold.seat.line().number() == number)?;
        let mut ours = HolderState::new(hold.id, Kind::Mutex, Weight::All);
        (ours.fence, ours.label, ours.held_for) =
            (Some(Fence::new(hold.number)), hold.label.clone(), hold.since.elapsed());
        ours.lease_left = self.desk.server.session_ttl();
        Some(ours)
    }
}

/// What tells a connection from another, as long as both are there: two servers may have the same number for theirs.
fn place_of<L>(line: &Arc<L>) -> usize {
    Arc::as_ptr(line).addr()
}

/// What there is to renew.
enum Kept<S: Server> {
    /// It holds on this connection.
    On(Arc<S::Line>, Fence),
    Waits,
    Gone(Gone),
}

fn pending() -> Attempt {
    let mut pending = Pending::default();
    // Whoever watches its turn later is told what happened before.
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
        let mut can = Capabilities::of_the_model();
        (can.order, can.units, can.raises_fences, can.tether_lease) = (false, false, false, false);
        (can.records, can.listing, can.memo) = (false, false, false);
        (can.fencing, can.liveness, can.waiters) = (Fencing::None, Liveness::Session, S::WAITERS);
        // Waiters are told by the server; whoever only looks on has to ask.
        (can.notify, can.consistency) = (Notify::Poll, Consistency::Single);
        Info::new(S::SCHEME, self.desk.server.address(), can)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.stand(claim).await;
        attempt.map_err(|error| error.during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.keep(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let about = |error: Error| error.during("release").about(resource);
        self.desk.check().map_err(about)?;
        let Some(mut place) = self.desk.place_if_any(id).await else {
            if matches!(end, End::Broken { .. }) {
                let message = "the lock of another connection ends with that connection alone: end it on the server";
                return Err(about(Error::new(ErrorKind::Unsupported, message).on(S::SCHEME)));
            }
            return Ok(Release::new(Released::NotHeld, None));
        };
        let left = self.leave(&mut place).await;
        self.desk.clear(id, &place);
        let outcome = if left.map_err(about)? { Released::Released } else { Released::NotHeld };
        Ok(Release::new(outcome, None))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.desk.check().map_err(|error| error.during("watch"))?;
        match interest {
            Interest::Turn(claim, _) => {
                let Some(place) = self.desk.place_if_any(claim.id).await else { return Ok(Watch::never()) };
                let watch = if let Place::Waits(waiting) = &*place { waiting.0.watch() } else { Watch::never() };
                self.desk.clear(claim.id, &place);
                Ok(watch)
            }
            Interest::Mailbox => Ok(self.desk.mailbox.watch()),
            _ => Ok(Watch::never()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.desk.close();
        Ok(())
    }
}

impl<S: Server> Drop for SessionLocks<S> {
    fn drop(&mut self) {
        self.desk.close();
    }
}
