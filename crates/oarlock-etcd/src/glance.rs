//! A claim that wants everything needs to know little of a line that it cannot pass: who stands right before it. So a long
//! line costs it no more than a short one.
//!
//! Whoever comes second also looks whether the first has taken its turn; those behind look at that when they look again.

use oarlock_core::driver::Pending;
use oarlock_core::{Claim, Result};

use crate::api::{Compare, Is, Op, Range, RangeResponse};
use crate::driver::Etcd;
use crate::keys::Keys;
use crate::lease::Entry;
use crate::link::Outcome;
use crate::queue::Place;

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

/// Reads whether that has changed.
pub(crate) fn once_more(keys: &Keys, entry: &Entry) -> Vec<Op> {
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

    /// The same for a claim that has glanced before: nothing if anything has changed since.
    pub(crate) fn stands_still(&self, claim: &Claim, entry: &Entry, found: Outcome) -> Result<Option<Pending>> {
        let mut reads = found.reads.into_iter();
        let (own, line) = (reads.next(), reads.next().map(|range| range.kvs).unwrap_or_default());
        let (Some(before), Some(oldest)) = (&entry.before, reads.next()) else { return Ok(None) };
        let own = own.and_then(|range| range.kvs.into_iter().next());
        let unchanged = own.is_some_and(|own| own.mod_revision == entry.changed)
            && line.iter().map(|kv| kv.create_revision).max() == Some(before.created);
        let ahead = i64::try_from(line.len()).unwrap_or(i64::MAX);
        let waits = unchanged && has_holder(oldest)?;
        Ok(waits.then(|| self.wait_for(claim, before.key.clone(), found.revision, ahead)))
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

/// Whether the first in line has taken its turn.
fn has_holder(oldest: RangeResponse) -> Result<bool> {
    let first = oldest.kvs.into_iter().next().map_or(Ok(None), Place::read)?;
    Ok(first.is_some_and(|first| first.record.granted))
}
