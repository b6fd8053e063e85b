//! Releases: a claim of this client, or another's that is broken, now or after a grace.

use std::time::Duration;

use oarlock_core::driver::{End, Release, Released};
use oarlock_core::state::Ending;
use oarlock_core::{ClaimId, ResourceName, Result};

use crate::Etcd;
use crate::api::{Compare, Is, Op, Range};
use crate::connection::transaction;
use crate::error::ended;
use crate::keys::Keys;
use crate::lease::{Leased, seconds};
use crate::operations::{delete, put};
use crate::queue::{Notification, Record, StoredClaim, memo_bytes};

/// The longest that a request to move a claim takes: its last lease outlasts the belief of its holder by this.
const MOVE_TAKES: Duration = Duration::from_secs(5);

/// How long a notification stays in its mailbox after the end that it reports.
const NOTIFICATION_TTL: Duration = Duration::from_secs(60);

impl Etcd {
    /// Releases a claim, or breaks another client's claim.
    pub(crate) async fn release_claim(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let keys = self.keys(resource);
        let memo = match end {
            End::Broken { ending, grace } => {
                return self.break_claim(&keys, id, ending, *grace).await;
            }
            End::Done { memo } => memo.as_ref(),
            End::Withdrawn => None,
        };
        let Some((named, created)) = self.keys_of(&keys, id).await? else {
            self.end_leases(self.leases.forget(id, false)).await;
            return Ok(Release::new(Released::NotHeld, None));
        };
        let (own, shared) = (keys.claim(named), keys.shared_key(named));
        let parts: Vec<_> = std::iter::once(&own).chain(&shared).collect();
        // The next claim on the same lease has the same keys: a late release must not remove it.
        let ours = |part: &Range| Compare::created(part, Is::Equal, created);
        let mut then: Vec<_> = parts.iter().map(|part| delete(&part.key)).collect();
        if let Some(memo) = memo
            && self.is_held(&own, created).await?
        {
            then.push(put(&keys.memo(), memo_bytes(memo), 0));
        }
        let when = parts.iter().map(|part| ours(part)).collect();
        // One part alone is no claim, and is not left behind.
        let rest = |part: &&Range| Op::Txn(transaction(vec![ours(part)], vec![delete(&part.key)], Vec::new()));
        let otherwise = shared.iter().flat_map(|_| &parts).map(rest).collect();
        let succeeded = self.connection.txn(when, then, otherwise).await?.succeeded;
        self.end_leases(self.leases.forget(id, succeeded)).await;
        // Whether others wait need not be known: they watch this key. The server would go through all of them for it.
        Ok(Release::new(if succeeded { Released::Released } else { Released::NotHeld }, None))
    }

    /// Whether the claim that was made there at this revision holds.
    async fn is_held(&self, own: &Range, created: i64) -> Result<bool> {
        let (_, kvs) = self.connection.read(own).await?;
        let stored = kvs.into_iter().next().map_or(Ok(None), StoredClaim::read)?;
        Ok(stored.is_some_and(|stored| stored.created == created && stored.record.granted))
    }

    /// Ends another client's claim, now or after a grace, and notifies that client.
    async fn break_claim(&self, keys: &Keys, id: ClaimId, ending: &Ending, grace: Duration) -> Result<Release> {
        let listing = self.poll(keys).await?;
        let waiting = Some(listing.others_wait(id));
        let Some(at) = listing.position(id) else { return Ok(Release::new(Released::NotHeld, waiting)) };
        let outcome = self.break_stored(keys, &listing.claims[at], ending, grace).await?;
        Ok(Release::new(outcome, waiting))
    }

    /// The same for a claim that was read.
    pub(crate) async fn break_stored(
        &self,
        keys: &Keys,
        stored: &StoredClaim,
        ending: &Ending,
        grace: Duration,
    ) -> Result<Released> {
        let mut leases = Vec::new();
        let mut notify = None;
        if !stored.external {
            let notification = self.connection.grant(seconds(NOTIFICATION_TTL + grace)).await?;
            leases.push(notification.id);
            notify = Some(put(
                &self.space.notification(&stored.record.client, stored.id),
                Notification::bytes(ending),
                notification.id,
            ));
        }
        let (mut change, outcome) = if grace.is_zero() {
            (keys.remove(stored), Released::Released)
        } else {
            let last = match self.last_lease(stored, grace).await {
                Ok(last) => last,
                Err(error) => {
                    self.end_leases(leases).await;
                    return Err(error);
                }
            };
            leases.push(last.id);
            let record = Record { ending: Some(ending.clone()), ..stored.edited() };
            (keys.move_to(stored, &record, last.id), Released::Asked)
        };
        change.extend(notify);
        if !self.connection.txn(keys.unchanged(stored), change, Vec::new()).await?.succeeded {
            self.end_leases(leases).await;
            return Err(ended("another client changed the claim"));
        }
        Ok(outcome)
    }

    /// The last lease of a claim that is to end after a grace. No client keeps it alive, so the claim ends by the
    /// store's clock, whatever its holder does.
    async fn last_lease(&self, stored: &StoredClaim, grace: Duration) -> Result<Leased> {
        let longest = if stored.record.ending.is_some() {
            // Asked before: asking again gives it no more time.
            self.connection.left(stored.lease).await?
        } else {
            // Its own may be kept alive until it is moved, so what it has left now is not what it will have then.
            self.connection.whole(stored.lease).await? + MOVE_TAKES
        };
        self.connection.grant(seconds(grace.min(longest))).await
    }
}
