//! A claim that wants everything needs to know little of a line that it cannot pass: who stands right before it. So a long
//! line costs it no more than a short one.
//!
//! Whoever comes second also looks whether the first has taken its turn; those behind look at that when they look again.

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, Result, Weight};

use crate::api::{Compare, Is, Op, Range};
use crate::attempt::look_out;
use crate::config::Layout;
use crate::driver::Etcd;
use crate::keys::Keys;
use crate::lease::Entry;
use crate::link::Outcome;
use crate::queue::{Listing, Place};

/// Whom a claim stands behind.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    key: Range,
    created: i64,
}

impl Before {
    /// It is there no more. Another claim may have its key.
    pub(crate) fn gone(&self) -> Compare {
        Compare::created(&self.key, Is::NotEqual, self.created)
    }
}

/// Reads what a claim that has just come last needs to know.
pub(crate) fn on_arrival(keys: &Keys) -> Vec<Op> {
    vec![keys.line().newest(2)]
}

/// Reads what a claim that has glanced before needs to know.
fn once_more(keys: &Keys, entry: &Entry) -> Vec<Op> {
    vec![keys.claim(entry.seat).get(), keys.line().created_before(entry.created), keys.line().oldest(1)]
}

impl Etcd {
    /// Where a claim that has just come last has to wait; nothing if it has to look closer.
    pub(crate) fn arrived(&self, claim: &Claim, found: Outcome) -> Result<Option<Pending>> {
        let Some(newest) = found.reads.into_iter().next() else { return Ok(None) };
        let ahead = newest.count.saturating_sub(1);
        let mut kvs = newest.kvs.into_iter();
        let own = kvs.next().map_or(Ok(None), Place::read)?;
        let own = own.filter(|own| own.id == claim.id && !own.record.granted);
        let (Some(own), Some(before)) = (own, kvs.next()) else { return Ok(None) };
        let behind = Before { key: Range::key(before.key.clone()), created: before.create_revision };
        let key = behind.key.clone();
        self.leases.edit(claim.id, |entry| {
            entry.note(Some(&own));
            entry.before = Some(behind);
        });
        let waits = ahead > 1 || Place::read(before)?.is_some_and(|first| first.record.granted);
        Ok(waits.then(|| self.wait_for(claim, key, found.revision, ahead)))
    }

    /// Lets a claim that has looked at the whole line, and waits at `at`, do with glances from now on.
    pub(crate) fn glance_next_time(&self, claim: &Claim, listing: &Listing, at: usize) {
        if claim.weight != Weight::All || self.space.layout != Layout::Native {
            return;
        }
        let before = at.checked_sub(1).and_then(|before| listing.places.get(before));
        let before = before.map(|place| Before { key: Range::key(place.key.clone()), created: place.created });
        self.leases.edit(claim.id, |entry| entry.before = before);
    }

    /// The same for a claim that has glanced before. Whoever stood before it may be gone, and another be the next before it.
    pub(crate) async fn still_waits(&self, claim: &Claim, keys: &Keys, entry: &Entry) -> Result<Option<Pending>> {
        let found = self.link.txn(Vec::new(), once_more(keys, entry), Vec::new()).await?;
        let mut reads = found.reads.into_iter().map(|range| range.kvs);
        let (Some(own), Some(line), Some(oldest)) = (reads.next(), reads.next(), reads.next()) else { return Ok(None) };
        let (waiting, ahead) = (line.len(), i64::try_from(line.len()).unwrap_or(i64::MAX));
        let stands = own.first().is_some_and(|own| own.mod_revision == entry.changed);
        let before = line.into_iter().max_by_key(|kv| kv.create_revision);
        let first = oldest.into_iter().next().map_or(Ok(None), Place::read)?;
        let (true, Some(before), Some(first)) = (stands, before, first) else { return Ok(None) };
        let recheck_after = match (first.record.granted, first.record.weight) {
            (true, _) => None,
            // Its turn is open, and nobody else's.
            (false, Weight::All) => {
                let alone = Listing { revision: found.revision, places: vec![first], ..Listing::default() };
                self.pass_the_dead(keys, &alone, 1).await?.map(|after| look_out(after, waiting))
            }
            (false, Weight::Units(_)) => return Ok(None),
        };
        let before = Before { key: Range::key(before.key), created: before.create_revision };
        let mut pending = self.wait_for(claim, before.key.clone(), found.revision, ahead);
        pending.recheck_after = recheck_after;
        self.leases.edit(claim.id, |entry| entry.before = Some(before));
        Ok(Some(pending))
    }

    /// What a claim has to wait for, as seen at this revision: a watch that is armed later begins right after it.
    pub(crate) fn wait_for(&self, claim: &Claim, range: Range, revision: i64, ahead: i64) -> Pending {
        let mut pending = Pending::default();
        (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), crate::watch::cursor(&range));
        pending.watched = true;
        self.leases.edit(claim.id, |entry| entry.waits_for = Some((range, revision)));
        pending
    }
}
