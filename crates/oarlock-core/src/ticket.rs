//! Handing a lock over to another process, with a ticket.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::belief::{BeliefCell, LossReason};
use crate::claim::{Capacity, Claim, ClaimId, Fence, Kind, Label, Lifetime, ResourceName, Weight};
use crate::clock::Moment;
use crate::driver::{Grant, Lease, Renewal, Renewed};
use crate::engine::{Core, MAX_HAND_OFFS, check_ttl};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::Held;
use crate::locks::Locks;
use crate::state::{Ending, MAX_VALUE_BYTES, Query};

/// The format of tickets; a newer one is refused.
const FORMAT: u32 = 1;

/// Everything that another process needs to continue a hold. Treat it as a secret: a process that has the ticket can
/// take the lock. Made by [`Guard::hand_over`], used by [`Locks::adopt`].
///
/// # Guarantees
/// - The lock stays the same: same claim, same fence. The protected resource sees no new holder.
/// - Until it is adopted it lives by its lease alone. If no process adopts it in time, it is free.
///
/// # Examples
/// ```
/// # use oarlock_core::{Lifetime, Locks, LockTicket, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("import").lifetime(Lifetime::Lease).lock().await?;
/// let ticket = guard.hand_over()?;
/// # let json = |_: serde_json::Error| oarlock_core::Error::unreachable("no JSON");
/// let sent = serde_json::to_string(&ticket).map_err(json)?; // on a way that others cannot read
/// let ticket: LockTicket = serde_json::from_str(&sent).map_err(json)?;
/// locks.adopt(&ticket).await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "without its ticket a lock that was handed over ends with its lease"]
pub struct LockTicket {
    format: u32,
    scheme: String,
    resource: ResourceName,
    id: ClaimId,
    fence: Fence,
    kind: Kind,
    capacity: Capacity,
    weight: Weight,
    ttl_ms: u64,
    renewed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Arc<str>>,
    /// The fence of the first holder, where the lock was handed on within a process: what the store knows is that one,
    /// or the last of those that were reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted: Option<Fence>,
}

impl LockTicket {
    /// The name of the lock.
    #[must_use]
    pub fn resource(&self) -> &ResourceName {
        &self.resource
    }

    /// The fence of the lock, the same before and after.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether the lock is renewed: false for one that was taken with `no_renewal()`.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// Whether a grant with this fence is the one that was handed over.
    fn is_of(&self, fence: Fence) -> bool {
        let Some(granted) = self.granted else { return fence == self.fence };
        // Stores may reserve more fences than they were asked for; a later grant is ahead by the time that has passed,
        // in µs.
        let last = granted.get().saturating_add(2 * u64::from(MAX_HAND_OFFS));
        (granted.get()..=last).contains(&fence.get())
    }

    /// The claim, on behalf of its new holder.
    fn claim(&self, label: Arc<Label>) -> Claim {
        let mut claim = Claim::new(self.id, self.resource.clone());
        claim.kind = self.kind;
        claim.capacity = self.capacity;
        claim.weight = self.weight;
        claim.lifetime = Lifetime::Lease;
        claim.ttl = Duration::from_millis(self.ttl_ms);
        claim.label = label;
        claim.value.clone_from(&self.value);
        claim
    }
}

/// Without the id of the claim: a process that has it can take the lock.
impl fmt::Debug for LockTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockTicket")
            .field("resource", &self.resource)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[oarlock_macros::blocking]
impl Guard {
    /// Makes a ticket for another process, and ends belief here. The lock is not released: it lives for the rest of its
    /// lease, until another process [adopts](Locks::adopt) it.
    ///
    /// The lock must have been taken with [`Lifetime::Lease`]. `max_hold` does not apply after the hand-over.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] for a lock that ends with its process, or that is to [leave a
    /// memo](Guard::leave_memo), [`ErrorKind::Lost`] for one that was lost.
    /// The lock is released then.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, LockTicket, Memory, Lifetime};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let store = Memory::new();
    /// # let (here, there) = (Locks::over(store.connect())?, Locks::over(store.connect())?);
    /// let guard = here.mutex("import").lifetime(Lifetime::Lease).lock().await?;
    /// let fence = guard.fence();
    /// let ticket: LockTicket = guard.hand_over()?; // `LockTicket` is serde's `Serialize` and `Deserialize`
    /// let guard = there.adopt(&ticket).await?;
    /// assert_eq!(guard.fence(), fence);
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn hand_over(self) -> Result<LockTicket> {
        let claim = self.claim();
        if claim.lifetime != Lifetime::Lease {
            let message = "this lock ends with its process: to hand it over, take it with Lifetime::Lease";
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&claim.resource));
        }
        if let Some(reason) = self.loss() {
            return Err(Error::lost(reason).about(&claim.resource));
        }
        if self.leaves_memo() {
            let message = "a ticket has no memo: leave it where the lock is released";
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&claim.resource));
        }
        let ticket = LockTicket {
            format: FORMAT,
            scheme: self.scheme().to_owned(),
            resource: claim.resource.clone(),
            id: claim.id,
            fence: self.fence(),
            kind: claim.kind,
            capacity: claim.capacity,
            weight: claim.weight,
            ttl_ms: u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX),
            renewed: self.is_renewed(),
            value: claim.value.clone(),
            granted: self.granted_in_a_cohort(),
        };
        self.leave_to_its_lease();
        Ok(ticket)
    }
}

#[oarlock_macros::blocking]
impl Locks {
    /// Continues a hold that another process handed over, with the same fence, and renews it from here.
    ///
    /// A lock with `no_renewal()` has the rest of its lease. Give a ticket to one process only: a second client
    /// that adopts it believes in the lock as the first does, and for up to a lease after the first has released it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock lives on to the end of its lease, and can still be adopted.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it has ended, with the reason where the store knows it; [`ErrorKind::InvalidClaim`] if
    /// this client holds it already; [`ErrorKind::Config`] for a ticket of another kind of store or a newer format;
    /// [`ErrorKind::Unsupported`] where the store cannot do it; any error that the store returns, and then a retry is
    /// possible.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Lifetime, Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let store = Memory::new();
    /// # let (here, locks) = (Locks::over(store.connect())?, Locks::over(store.connect())?);
    /// # let ticket = here.mutex("import").lifetime(Lifetime::Lease).lock().await?.hand_over()?;
    /// let guard = locks.adopt(&ticket).await?; // in the other process
    /// assert_eq!(guard.fence(), ticket.fence());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn adopt(&self, ticket: &LockTicket) -> Result<Guard> {
        let core = &self.core;
        core.check_open()?;
        check(core, ticket)?;
        let claim = Arc::new(ticket.claim(core.label.clone()));
        let sent = core.clock.now();
        let kept = if ticket.renewed { renewed(core, &claim).await } else { found(core, &claim).await };
        let StoredHold { lease, ending, fence } = kept.map_err(|error| error.about(&claim.resource))?;
        // The store fell back to an earlier state and granted the claim again: others may have held the lock in
        // between.
        if fence.is_some_and(|fence| !ticket.is_of(fence)) {
            return Err(Error::lost(LossReason::Gone).about(&ticket.resource));
        }
        let from = lease.from.map_or(sent, |from| from.min(core.clock.now()));
        if core.watchdog.keeps(ticket.id) {
            let message = "this client holds the lock already: it was adopted here, or never handed over";
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&ticket.resource));
        }
        let belief = BeliefCell::new(core.clock.clone(), from, lease.ttl, None);
        if let Some(ending) = ending {
            belief.end_by(from, lease.ttl, LossReason::Broken(ending));
        }
        let grant = Grant::new(fence.unwrap_or(ticket.fence), lease);
        let now = core.clock.now();
        let held = Held::new(claim, &grant, belief, now, now.since(sent)).with_fence(ticket.fence);
        if let Some(reason) = held.loss() {
            return Err(Error::lost(reason).about(&ticket.resource));
        }
        let guard = Guard::new(core.clone(), held, (from, lease.ttl), ticket.renewed, None);
        guard.report();
        Ok(guard)
    }
}

/// The state of a lock that was handed over, as the store has it.
struct StoredHold {
    lease: Lease,
    ending: Option<Ending>,
    /// The fence of its grant, where the store tells.
    fence: Option<Fence>,
}

fn check(core: &Core, ticket: &LockTicket) -> Result<()> {
    let config = |message: String| Err(Error::new(ErrorKind::Config, message).about(&ticket.resource));
    if ticket.format > FORMAT {
        return config(format!("this ticket has format {}; this version reads formats up to {FORMAT}", ticket.format));
    }
    if ticket.scheme != core.info.scheme {
        return config(format!("this ticket is for a store of scheme {}:, not {}:", ticket.scheme, core.info.scheme));
    }
    if ticket.value.as_ref().is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
        return config(format!("the value of this ticket has more than {MAX_VALUE_BYTES} bytes"));
    }
    core.check_lifetime(Lifetime::Lease, &ticket.resource)?;
    check_ttl(Duration::from_millis(ticket.ttl_ms))
}

/// Renews it, to learn whether it is alive and for how long.
async fn renewed(core: &Core, claim: &Arc<Claim>) -> Result<StoredHold> {
    let request = core.driver.clone().renew(vec![Renewal::of(claim.clone())]);
    let one = Box::pin(async move { Ok(request.await.pop()) });
    let answer = core.in_time(one, "adopt").await?;
    match answer
        .unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "the driver returned no answer to a renewal")))?
    {
        Renewed::Alive { lease, ending, fence: fence @ Some(_) } => Ok(StoredHold { lease, ending, fence }),
        Renewed::Alive { fence: None, .. } => {
            Err(Error::new(ErrorKind::InvalidClaim, "this ticket is for a claim that waits"))
        }
        Renewed::Gone(gone) => Err(Error::lost(gone.into())),
    }
}

/// Inspects it: a renewal would extend an explicit lease.
async fn found(core: &Core, claim: &Claim) -> Result<StoredHold> {
    let page = core.in_time(core.driver.clone().inspect(Query::name(claim.resource.clone())), "adopt").await?;
    let mut holders = page.resources.into_iter().flat_map(|state| state.holders);
    let Some(holder) = holders.find(|holder| holder.id == claim.id) else {
        return Err(Error::lost(LossReason::Gone));
    };
    // Counted from when the request was sent, which is earlier than when the store read its clock.
    let lease = Lease { from: None::<Moment>, ttl: holder.lease_left };
    Ok(StoredHold { lease, ending: holder.ending, fence: holder.fence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(fence: u64, granted: Option<u64>) -> LockTicket {
        let id = ClaimId::from_bits(1);
        LockTicket {
            format: FORMAT,
            scheme: "mem".to_owned(),
            resource: ResourceName::new("deploy").unwrap(),
            id,
            fence: Fence::new(fence),
            kind: Kind::Mutex,
            capacity: Capacity::Any,
            weight: Weight::All,
            ttl_ms: 30_000,
            renewed: true,
            value: None,
            granted: granted.map(Fence::new),
        }
    }

    #[test]
    fn a_ticket_does_not_print_its_secret() {
        let ticket = ticket(7, None);
        assert_eq!(format!("{ticket:?}"), r#"LockTicket { resource: "deploy", fence: Fence(7), .. }"#);
        assert!(serde_json::to_string(&ticket).unwrap().contains(&ticket.id.to_string()), "it is no ticket without");
    }

    #[test]
    fn a_ticket_is_of_its_grant_and_not_of_a_later_one() {
        let alone = ticket(7, None);
        assert!(alone.is_of(Fence::new(7)));
        assert!(!alone.is_of(Fence::new(6)) && !alone.is_of(Fence::new(8)));
        // Of a cohort the store knows the first fence, or the last that was reserved.
        let (first, last) = (1_000_000, 1_000_000 + 2 * u64::from(MAX_HAND_OFFS));
        let cohort = ticket(first + 3, Some(first));
        assert!(cohort.is_of(Fence::new(first)) && cohort.is_of(Fence::new(last)));
        assert!(!cohort.is_of(Fence::new(first - 1)) && !cohort.is_of(Fence::new(last + 1)), "a later grant");
    }
}
