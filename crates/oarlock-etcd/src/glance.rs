//! A claim that wants everything needs to know little of a line that it cannot pass: who stands right before it, and that the
//! first of all has taken its turn. So a long line costs it no more than a short one.
//!
//! It glances when it arrives and once more when it watches; every later look is at the whole line.

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, Result};

use crate::api::{Op, Range, RangeResponse};
use crate::driver::Etcd;
use crate::keys::Keys;
use crate::lease::Entry;
use crate::queue::Place;
use crate::watch;

/// Whom a claim stands behind.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    key: Range,
    created: i64,
}

/// Reads what a claim that has just come last needs to know.
pub(crate) fn on_arrival(keys: &Keys) -> Vec<Op> {
    vec![keys.line().newest(2), keys.line().oldest(1)]
}

/// Reads whether that has changed.
pub(crate) fn once_more(claim: &Claim, keys: &Keys, entry: &Entry) -> Vec<Op> {
    vec![keys.claim(claim.id).get(), keys.line().created_before(entry.created), keys.line().oldest(1)]
}

impl Etcd {
    /// Where a claim that has just come last has to wait; nothing if it has to look closer.
    pub(crate) fn arrived(&self, claim: &Claim, reads: Vec<RangeResponse>) -> Result<Option<Pending>> {
        let mut reads = reads.into_iter();
        let (Some(newest), Some(oldest)) = (reads.next(), reads.next()) else { return Ok(None) };
        let ahead = newest.count.saturating_sub(1);
        let (own, before) = (newest.kvs.first().cloned(), newest.kvs.get(1));
        let own = own.map_or(Ok(None), Place::read)?.filter(|own| own.id == claim.id && !own.record.granted);
        let (Some(own), Some(before)) = (own, before) else { return Ok(None) };
        let before = Before { key: Range::key(before.key.clone()), created: before.create_revision };
        self.leases.edit(claim.id, |entry| {
            entry.note(Some(&own));
            entry.before = Some(before.clone());
        });
        Ok(has_holder(oldest)?.then(|| before.pending(ahead)))
    }

    /// The same for a claim that has glanced before: nothing if anything has changed since.
    pub(crate) fn stands_still(
        &self,
        claim: &Claim,
        entry: &Entry,
        reads: Vec<RangeResponse>,
    ) -> Result<Option<Pending>> {
        self.leases.edit(claim.id, |entry| entry.before = None);
        let mut reads = reads.into_iter();
        let (own, line) = (reads.next(), reads.next().map(|range| range.kvs).unwrap_or_default());
        let (Some(before), Some(oldest)) = (&entry.before, reads.next()) else { return Ok(None) };
        let own = own.and_then(|range| range.kvs.into_iter().next());
        let unchanged = own.is_some_and(|own| own.mod_revision == entry.changed)
            && line.iter().map(|kv| kv.create_revision).max() == Some(before.created);
        let ahead = i64::try_from(line.len()).unwrap_or(i64::MAX);
        Ok((unchanged && has_holder(oldest)?).then(|| before.pending(ahead)))
    }
}

impl Before {
    fn pending(&self, ahead: i64) -> Pending {
        let mut pending = Pending::default();
        (pending.ahead, pending.cursor) = (u32::try_from(ahead).ok(), watch::cursor(&self.key));
        pending
    }
}

/// Whether the first in line has taken its turn.
fn has_holder(oldest: RangeResponse) -> Result<bool> {
    let first = oldest.kvs.into_iter().next().map_or(Ok(None), Place::read)?;
    Ok(first.is_some_and(|first| first.record.granted))
}
