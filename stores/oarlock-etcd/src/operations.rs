//! Transactions on the keys of one claim: its record and, in a queue that other programs share, the key that these
//! programs know. One transaction creates both, so they have the same `create_revision`: by that they belong together.

use crate::api::{Compare, DeleteRequest, Is, Op, PutRequest, Range};
use crate::keys::Keys;
use crate::queue::{Record, StoredClaim};

impl Keys {
    /// Makes a claim on this lease.
    pub(crate) fn create(&self, record: &Record, lease: i64) -> Vec<Op> {
        let shared = self.shared_key(lease).map(|shared| put(&shared, record.published(), lease));
        std::iter::once(put(&self.claim(lease), record.bytes(), lease)).chain(shared).collect()
    }

    /// Nothing is there of a claim that has these leases.
    pub(crate) fn absent(&self, leases: [i64; 2]) -> Vec<Compare> {
        let parts =
            leases.into_iter().flat_map(|lease| std::iter::once(self.claim(lease)).chain(self.shared_key(lease)));
        parts.map(|range| Compare::created(&range, Is::Equal, 0)).collect()
    }

    /// The claim is still the one that was seen.
    pub(crate) fn same(&self, stored: &StoredClaim) -> Vec<Compare> {
        self.parts(stored).iter().map(|range| Compare::created(range, Is::Equal, stored.created)).collect()
    }

    /// Neither the claim nor its record has changed since it was seen.
    pub(crate) fn unchanged(&self, stored: &StoredClaim) -> Vec<Compare> {
        let mut when = self.same(stored);
        when.push(Compare::changed(&self.body(stored), Is::Equal, stored.changed));
        when
    }

    /// Removes a claim.
    pub(crate) fn remove(&self, stored: &StoredClaim) -> Vec<Op> {
        self.parts(stored).iter().map(|range| delete(&range.key)).collect()
    }

    /// Writes another record; the claim keeps its lease. Others are shown a value only when there is another one.
    pub(crate) fn write(&self, stored: &StoredClaim, record: &Record) -> Vec<Op> {
        let stay = |range: Range, value| Op::Put(PutRequest { key: range.key, value, lease: 0, ignore_lease: true });
        let mut ops = vec![stay(self.claim(stored.named_after), record.bytes())];
        if stored.key != self.claim(stored.named_after).key && record.published() != stored.published {
            ops.push(stay(Range::key(stored.key.clone()), record.published()));
        }
        ops
    }

    /// Moves a claim to another lease. Its shared key keeps its name.
    pub(crate) fn move_to(&self, stored: &StoredClaim, record: &Record, lease: i64) -> Vec<Op> {
        let of = |range: &Range| {
            let value =
                if *range == self.claim(stored.named_after) { record.bytes() } else { stored.published.clone() };
            put(range, value, lease)
        };
        self.parts(stored).iter().map(of).collect()
    }

    /// The key that changes when anything about the claim does.
    fn body(&self, stored: &StoredClaim) -> Range {
        if stored.external { Range::key(stored.key.clone()) } else { self.claim(stored.named_after) }
    }

    fn parts(&self, stored: &StoredClaim) -> Vec<Range> {
        let (body, shared) = (self.body(stored), Range::key(stored.key.clone()));
        if body == shared { vec![shared] } else { vec![body, shared] }
    }
}

pub(crate) fn put(at: &Range, value: Vec<u8>, lease: i64) -> Op {
    Op::Put(PutRequest { key: at.key.clone(), value, lease, ignore_lease: false })
}

pub(crate) fn delete(key: &[u8]) -> Op {
    Op::Delete(DeleteRequest { key: key.to_vec() })
}
