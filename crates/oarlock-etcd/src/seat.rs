//! What a claim is in the store: a record and, in a line shared with other programs, the seat that these programs know. Both
//! are made by one transaction, so they have the same `create_revision`, and by that they belong together.

use crate::api::{Compare, Is, Op, PutRequest, Range};
use crate::driver::{delete, put};
use crate::keys::Keys;
use crate::queue::{Place, Record};

impl Keys {
    /// Makes a claim on this lease.
    pub(crate) fn sit(&self, record: &Record, lease: i64) -> Vec<Op> {
        let seat = self.seat(lease).map(|seat| put(&seat, record.published(), lease));
        std::iter::once(put(&self.claim(lease), record.bytes(), lease)).chain(seat).collect()
    }

    /// Nothing is there of a claim that has these leases.
    pub(crate) fn absent(&self, leases: [i64; 2]) -> Vec<Compare> {
        let parts = leases.into_iter().flat_map(|lease| std::iter::once(self.claim(lease)).chain(self.seat(lease)));
        parts.map(|range| Compare::created(&range, Is::Equal, 0)).collect()
    }

    /// The claim is still the one that was seen.
    pub(crate) fn stands(&self, place: &Place) -> Vec<Compare> {
        self.parts(place).iter().map(|range| Compare::created(range, Is::Equal, place.created)).collect()
    }

    /// Neither the claim nor its record has changed since it was seen.
    pub(crate) fn unchanged(&self, place: &Place) -> Vec<Compare> {
        let mut when = self.stands(place);
        when.push(Compare::changed(&self.body(place), Is::Equal, place.changed));
        when
    }

    /// Removes a claim.
    pub(crate) fn clear(&self, place: &Place) -> Vec<Op> {
        self.parts(place).iter().map(|range| delete(&range.key)).collect()
    }

    /// Writes another record; the claim keeps its lease. Others are shown a value only when there is another one.
    pub(crate) fn write(&self, place: &Place, record: &Record) -> Vec<Op> {
        let stay = |range: Range, value| Op::Put(PutRequest { key: range.key, value, lease: 0, ignore_lease: true });
        let mut ops = vec![stay(self.claim(place.seat), record.bytes())];
        if place.key != self.claim(place.seat).key && record.published() != place.published {
            ops.push(stay(Range::key(place.key.clone()), record.published()));
        }
        ops
    }

    /// Moves a claim to another lease. Its seat keeps the name it has.
    pub(crate) fn move_to(&self, place: &Place, record: &Record, lease: i64) -> Vec<Op> {
        let of = |range: &Range| {
            let value = if *range == self.claim(place.seat) { record.bytes() } else { place.published.clone() };
            put(range, value, lease)
        };
        self.parts(place).iter().map(of).collect()
    }

    /// The key that changes when anything about the claim does.
    fn body(&self, place: &Place) -> Range {
        if place.theirs { Range::key(place.key.clone()) } else { self.claim(place.seat) }
    }

    fn parts(&self, place: &Place) -> Vec<Range> {
        let (body, seat) = (self.body(place), Range::key(place.key.clone()));
        if body == seat { vec![seat] } else { vec![body, seat] }
    }
}
