//! The rule over the claims of one name, in order of arrival. A pure function of a listing.
//!
//! Every client that reads the same claims comes to the same verdict: whether a claim holds depends only on earlier
//! claims, and those can only end or become lighter. A claim *may* hold when everything up to and including it fits;
//! it *does* hold once its record says so.

use std::collections::HashMap;
use std::sync::Arc;

use oarlock_core::clock::wall_micros;
use oarlock_core::driver::Versioned;
use oarlock_core::queue::{Load, UNSTATED, admit, obstacle};
use oarlock_core::state::{Ending, Memo};
use oarlock_core::{Capacity, Claim, ClaimId, Error, ErrorKind, Fence, Kind, Label, Lifetime, Limit, Result, Weight};
use serde::{Deserialize, Serialize};

use crate::api::KeyValue;
use crate::error::SCHEME;
use crate::keys::{Keys, lease_in};
use crate::lease::Majority;

/// The format of every record.
const FORMAT: u32 = 1;

/// What is stored of one claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) format: u32,
    pub(crate) id: ClaimId,
    pub(crate) kind: Kind,
    pub(crate) weight: Weight,
    pub(crate) capacity: Option<Limit>,
    pub(crate) lifetime: Lifetime,
    pub(crate) behind: u32,
    /// The client that is notified of its end.
    pub(crate) client: String,
    /// When it arrived and, once granted, when that was: by its client's clock, for people.
    pub(crate) since_micros: u64,
    pub(crate) granted: bool,
    /// By how much its fence is ahead of the revision that granted it.
    #[serde(default)]
    pub(crate) offset: u64,
    /// Its fence, once another revision than that of its grant has changed the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    pub(crate) label: Arc<Label>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<Ending>,
}

impl Record {
    pub(crate) fn of(claim: &Claim, client: &str, stated: Option<Limit>, granted: bool) -> Self {
        let capacity = match claim.capacity {
            Capacity::Any => None,
            Capacity::Fixed(limit) => Some(limit),
            Capacity::Stored(limit) => Some(stated.unwrap_or(limit)),
        };
        Self {
            format: FORMAT,
            id: claim.id,
            kind: claim.kind,
            weight: claim.weight,
            capacity,
            lifetime: claim.lifetime,
            behind: claim.behind,
            client: client.to_owned(),
            since_micros: wall_micros(),
            granted,
            offset: 0,
            fence: None,
            label: claim.label.clone(),
            value: claim.value.clone(),
            ending: None,
        }
    }

    /// A claim of another program, which has only a shared key.
    fn external(id: ClaimId, shared: &KeyValue) -> Self {
        let value = std::str::from_utf8(&shared.value).ok().filter(|value| !value.is_empty());
        let label = Label::default().reason(format!("another program, lease {:x}", shared.lease));
        Self {
            format: FORMAT,
            id,
            kind: if value.is_some() { Kind::Election } else { Kind::Mutex },
            weight: Weight::All,
            capacity: None,
            lifetime: Lifetime::Process,
            behind: 0,
            client: String::new(),
            since_micros: wall_micros(),
            granted: false,
            offset: 0,
            fence: None,
            label: Arc::new(label),
            value: value.map(Arc::from),
            ending: None,
        }
    }

    /// What other programs are shown of it: a leader's value, else nothing.
    pub(crate) fn published(&self) -> Vec<u8> {
        self.value.as_ref().map(|value| value.as_bytes().to_vec()).unwrap_or_default()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let unreadable = |error| Error::new(ErrorKind::Foreign, "a claim cannot be read").on(SCHEME).because(error);
        let version: Versioned = serde_json::from_slice(bytes).map_err(unreadable)?;
        version.check(FORMAT, "a claim").map_err(|error| error.on(SCHEME))?;
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // Writing to memory cannot fail, and every map here has keys of text.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// One claim as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct StoredClaim {
    pub(crate) id: ClaimId,
    /// The key that later waiters watch: its shared key if it has one, else its record.
    pub(crate) key: Vec<u8>,
    /// The value of its shared key.
    pub(crate) published: Vec<u8>,
    /// It is another program's: there is no record of it.
    pub(crate) external: bool,
    /// The lease that its keys are named after: the one it was made on.
    pub(crate) named_after: i64,
    pub(crate) created: i64,
    pub(crate) changed: i64,
    pub(crate) lease: i64,
    pub(crate) record: Record,
}

impl StoredClaim {
    /// `None` if the key is not that of a claim.
    pub(crate) fn read(kv: KeyValue) -> Result<Option<Self>> {
        let Some(named_after) = lease_in(&kv.key) else { return Ok(None) };
        let record = Record::read(&kv.value)?;
        let (created, changed, lease) = (kv.create_revision, kv.mod_revision, kv.lease);
        let (id, published, external) = (record.id, Vec::new(), false);
        Ok(Some(Self { id, key: kv.key, published, external, named_after, created, changed, lease, record }))
    }

    fn external(shared: KeyValue) -> Self {
        let named_after = lease_in(&shared.key).unwrap_or(shared.lease);
        let id = ClaimId::from_bits(named_after.unsigned_abs().into());
        let record = Record::external(id, &shared);
        let KeyValue { key, create_revision, mod_revision, value, lease } = shared;
        let (created, changed) = (create_revision, mod_revision);
        Self { id, key, published: value, external: true, named_after, created, changed, lease, record }
    }

    /// The same with its shared key, if this is it.
    pub(crate) fn with_shared_key(self, shared: Option<KeyValue>) -> Option<Self> {
        let shared = shared.filter(|shared| shared.create_revision == self.created)?;
        Some(Self { key: shared.key, published: shared.value, ..self })
    }

    /// Its fence, if it holds: the revision of its grant, moved by what was raised or reserved before.
    pub(crate) fn fence(&self) -> Option<u64> {
        let granted_at = || self.changed.unsigned_abs().saturating_add(self.record.offset);
        (self.record.granted && !self.external).then(|| self.record.fence.unwrap_or_else(granted_at))
    }

    /// Its record, to be changed without changing its fence.
    pub(crate) fn edited(&self) -> Record {
        Record { fence: self.fence(), ..self.record.clone() }
    }
}

/// By how much fences are ahead of revisions, and since which revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FenceOffset {
    format: u32,
    pub(crate) offset: u64,
    #[serde(skip)]
    pub(crate) changed: i64,
}

impl FenceOffset {
    pub(crate) fn bytes(offset: u64) -> Vec<u8> {
        serde_json::to_vec(&Self { format: FORMAT, offset, changed: 0 }).unwrap_or_default()
    }
}

/// A notification that a claim ends, in the mailbox of its client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Notification {
    format: u32,
    #[serde(flatten)]
    ending: Ending,
}

impl Notification {
    pub(crate) fn bytes(ending: &Ending) -> Vec<u8> {
        serde_json::to_vec(&Self { format: FORMAT, ending: ending.clone() }).unwrap_or_default()
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Ending> {
        let unreadable =
            |error| Error::new(ErrorKind::Foreign, "a notification cannot be read").on(SCHEME).because(error);
        serde_json::from_slice::<Self>(bytes).map(|notification| notification.ending).map_err(unreadable)
    }
}

/// A memo, behind the format's byte.
pub(crate) fn memo_bytes(memo: &[u8]) -> Vec<u8> {
    [&[1], memo].concat()
}

pub(crate) fn read_memo(bytes: &[u8]) -> Result<Memo> {
    match bytes {
        [1, memo @ ..] => Ok(memo.into()),
        [2..=255, ..] => Err(Error::new(ErrorKind::NewerFormat, "a memo was written by a newer version").on(SCHEME)),
        _ => Err(Error::new(ErrorKind::Foreign, "a memo cannot be read").on(SCHEME)),
    }
}

/// Everything of one name at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    pub(crate) revision: i64,
    pub(crate) majority: Majority,
    /// In order of arrival.
    pub(crate) claims: Vec<StoredClaim>,
    pub(crate) memo: Option<Memo>,
    pub(crate) fence_offset: FenceOffset,
    /// Records of Oarlock whose shared key was deleted: they are not in the queue.
    pub(crate) orphans: Vec<StoredClaim>,
}

impl Listing {
    pub(crate) fn read(keys: &Keys, revision: i64, kvs: Vec<KeyValue>) -> Result<Self> {
        let mut listing = Self { revision, ..Self::default() };
        let shared = keys.shared_key(0).is_some();
        let mut shared_keys = Vec::new();
        for kv in kvs {
            if keys.is_shared_key(&kv.key) {
                shared_keys.push(kv);
            } else if shared && !keys.all().contains(&kv.key) {
                // Of another name that begins like this one.
            } else if kv.key == keys.memo().key {
                listing.memo = Some(read_memo(&kv.value)?);
            } else if kv.key == keys.fence_offset().key {
                let unreadable =
                    |error| Error::new(ErrorKind::Foreign, "fences cannot be read").on(SCHEME).because(error);
                listing.fence_offset = serde_json::from_slice(&kv.value).map_err(unreadable)?;
                listing.fence_offset.changed = kv.mod_revision;
            } else if let Some(stored) = StoredClaim::read(kv)? {
                listing.claims.push(stored);
            }
        }
        if shared {
            let mut records: HashMap<_, _> =
                std::mem::take(&mut listing.claims).into_iter().map(|stored| (stored.created, stored)).collect();
            for key in shared_keys {
                let ours = records.remove(&key.create_revision);
                let stored = match ours {
                    Some(record) => record.with_shared_key(Some(key)),
                    None => Some(StoredClaim::external(key)),
                };
                listing.claims.extend(stored);
            }
            listing.orphans = records.into_values().collect();
        }
        listing.claims.sort_by_key(|stored| stored.created);
        // Other programs write no mark: the first claim holds, and its program knows it or is about to.
        if let Some(first) = listing.claims.first_mut().filter(|first| first.external) {
            first.record.granted = true;
        }
        Ok(listing)
    }

    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.claims.iter().position(|stored| stored.id == id)
    }

    /// The capacity that the first live claim to state one has stated.
    pub(crate) fn stated(&self, until: usize) -> Option<Limit> {
        self.claims.iter().take(until).find_map(|stored| stored.record.capacity)
    }

    fn limit(&self) -> Limit {
        self.stated(self.claims.len()).unwrap_or(UNSTATED)
    }

    /// Checks the weight and the capacity of a claim at position `at`, or of one that would be there.
    pub(crate) fn admit(&self, claim: &Claim, at: usize) -> Result<()> {
        let stated_later = || self.stated(self.claims.len()).filter(|_| claim.capacity == Capacity::Any);
        admit(claim.capacity, claim.weight, self.stated(at).or_else(stated_later)).map(drop)
    }

    /// Whether a claim of this weight and capacity, coming last, would hold.
    pub(crate) fn bears(&self, claim: &Claim) -> bool {
        let limit = match (claim.capacity, self.stated(self.claims.len())) {
            (Capacity::Fixed(asked) | Capacity::Stored(asked), None) => asked,
            _ => self.limit(),
        };
        load(&self.claims).bears(claim.weight, limit)
    }

    /// Whether everything up to and including the claim at `at` fits.
    pub(crate) fn may_hold(&self, at: usize) -> bool {
        load(&self.claims[..at]).bears(self.claims[at].record.weight, self.limit())
    }

    /// The claims before `at` whose turn has come and that have not taken it.
    pub(crate) fn notified(&self, at: usize) -> impl Iterator<Item = &StoredClaim> {
        let open = move |before: &usize| !self.claims[*before].record.granted && self.may_hold(*before);
        (0..at).filter(open).map(|before| &self.claims[before])
    }

    /// What the claim at `at`, which may not hold, has to wait for: a change of this claim, or (`None`) of any.
    pub(crate) fn blocker(&self, at: usize) -> Option<&StoredClaim> {
        let weight = self.claims[at].record.weight;
        let is_rival = |stored: &&StoredClaim| !stored.record.weight.coexists_with(weight);
        obstacle(&self.claims[..at], is_rival, || (0..at).all(|earlier| self.may_hold(earlier))).claim()
    }

    /// Whether a claim other than `id` waits.
    pub(crate) fn others_wait(&self, id: ClaimId) -> bool {
        self.claims.iter().any(|stored| stored.id != id && !stored.record.granted)
    }
}

fn load(claims: &[StoredClaim]) -> Load {
    claims.iter().map(|stored| stored.record.weight).collect()
}

/// A grant's fence, if it is still one that every reader can keep.
pub(crate) fn check_fence(number: u64) -> Result<Fence> {
    if number < Fence::LIMIT {
        return Ok(Fence::new(number));
    }
    Err(Error::new(ErrorKind::FenceExhausted, format!("the fence would be {number}, past 2^53")).on(SCHEME))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use oarlock_core::ResourceName;

    use super::*;

    fn units(n: u32) -> Weight {
        NonZeroU32::new(n).map_or(Weight::All, Weight::Units)
    }

    fn claim(weight: Weight, capacity: Capacity) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("n").unwrap());
        (claim.weight, claim.capacity) = (weight, capacity);
        claim
    }

    fn of(limit: u32) -> Capacity {
        Capacity::Fixed(NonZeroU32::new(limit).map_or(Limit::Unlimited, Limit::Units))
    }

    /// Claims with these weights, in this order; the first `granted` of them hold.
    fn queue(capacity: Capacity, weights: &[Weight], granted: usize) -> Listing {
        let claims = weights.iter().enumerate().map(|(at, weight)| {
            let record = Record::of(&claim(*weight, capacity), "c", None, at < granted);
            let at_revision = 10 + at as i64;
            let id = ClaimId::from_bits(at as u128 + 1);
            let (key, published, external) = (vec![at as u8], Vec::new(), false);
            let (named_after, lease, created) = (0, 0, at_revision);
            StoredClaim { id, key, published, external, named_after, created, changed: at_revision, lease, record }
        });
        Listing { claims: claims.collect(), ..Listing::default() }
    }

    fn holding(queue: &Listing) -> Vec<usize> {
        (0..queue.claims.len()).filter(|at| queue.may_hold(*at)).collect()
    }

    #[test]
    fn a_mutex_holds_alone() {
        assert_eq!(holding(&queue(Capacity::Any, &[Weight::All, Weight::All, Weight::All], 1)), [0]);
    }

    #[test]
    fn readers_share_up_to_the_first_writer() {
        assert_eq!(holding(&queue(of(0), &[Weight::ONE, Weight::ONE, Weight::All, Weight::ONE], 2)), [0, 1]);
        assert_eq!(holding(&queue(of(0), &[Weight::All, Weight::ONE, Weight::ONE], 1)), [0]);
    }

    #[test]
    fn a_heavy_claim_holds_back_the_light_ones_behind_it() {
        assert_eq!(holding(&queue(of(4), &[units(2), units(3), units(1)], 1)), [0]);
        assert_eq!(holding(&queue(of(4), &[units(2), units(2), units(1)], 2)), [0, 1]);
    }

    #[test]
    fn each_waiter_watches_what_blocks_it() {
        let blocker = |queue: &Listing, at| queue.blocker(at).map(|stored| stored.key[0]);
        let mutexes = queue(Capacity::Any, &[Weight::All, Weight::All, Weight::All], 1);
        assert_eq!((blocker(&mutexes, 1), blocker(&mutexes, 2)), (Some(0), Some(1)));
        let behind_readers = queue(of(0), &[Weight::ONE, Weight::ONE, Weight::All, Weight::ONE, Weight::ONE], 2);
        assert_eq!(blocker(&behind_readers, 2), Some(1));
        assert_eq!((blocker(&behind_readers, 3), blocker(&behind_readers, 4)), (Some(2), Some(2)));
        let permits = queue(of(3), &[units(2), units(1), units(2), units(1)], 2);
        assert_eq!((blocker(&permits, 2), blocker(&permits, 3)), (None, Some(2)));
    }

    #[test]
    fn the_first_stated_capacity_counts() {
        let queue = queue(of(3), &[units(1)], 1);
        assert_eq!(queue.admit(&claim(units(1), of(5)), 1).unwrap_err().kind(), ErrorKind::SpecMismatch);
        assert_eq!(queue.admit(&claim(units(4), Capacity::Any), 1).unwrap_err().kind(), ErrorKind::TooHeavy);
        let adopting = claim(units(2), Capacity::Stored(Limit::Unlimited));
        assert!(queue.admit(&adopting, 1).is_ok() && queue.bears(&adopting));
        assert!(!queue.bears(&claim(units(3), of(3))) && !queue.bears(&claim(Weight::All, Capacity::Any)));
        let empty = Listing::default();
        assert!(empty.bears(&claim(units(5), of(5))));
        assert_eq!(empty.admit(&claim(units(2), Capacity::Any), 0).unwrap_err().kind(), ErrorKind::TooHeavy);
    }

    #[test]
    fn a_turn_that_was_not_taken_is_seen() {
        let queue = queue(of(0), &[Weight::ONE, Weight::ONE, Weight::All], 1);
        assert_eq!(queue.notified(2).map(|stored| stored.key[0]).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn an_edit_keeps_the_fence() {
        let mut stored = queue(Capacity::Any, &[Weight::All], 1).claims.remove(0);
        stored.record.offset = 100;
        let fence = stored.fence();
        assert_eq!(fence, Some(110));
        stored.record = stored.edited();
        stored.changed = 77;
        assert_eq!(stored.fence(), fence);
    }

    #[test]
    fn records_come_back_and_newer_ones_are_refused() {
        let record = Record::of(&claim(units(2), of(3)), "c", None, true);
        assert_eq!(Record::read(&record.bytes()).unwrap(), record);
        let newer = String::from_utf8(record.bytes()).unwrap().replace("\"format\":1", "\"format\":2");
        assert_eq!(Record::read(newer.as_bytes()).unwrap_err().kind(), ErrorKind::NewerFormat);
        assert_eq!(Record::read(b"hello").unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(read_memo(&memo_bytes(b"x")).unwrap().as_ref(), b"x");
        assert_eq!(read_memo(&[2]).unwrap_err().kind(), ErrorKind::NewerFormat);
    }
}
