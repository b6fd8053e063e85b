//! A resource as bytes, for stores that read and write all of it in each step. Text would take most of such a step.
//!
//! Numbers are little endian. A string is its length (4 bytes) and its bytes; an option begins with 0 or 1. The store
//! keeps the version of the format beside the bytes: a change of what is written here is a new version.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{Broken, Entry, EntryState, Resource};
use crate::claim::{ClaimId, Fence, Kind, Label, Lifetime, Limit, Weight};
use crate::clock::Moment;
use crate::state::Ending;

/// The fewest bytes of an entry: a count that cannot be true reserves no memory.
const SMALLEST_ENTRY: usize = 64;

impl Resource {
    /// Appends this resource to `out`.
    pub fn to_bytes(&self, out: &mut Vec<u8>) {
        put_option(out, self.capacity, |out, limit| match limit {
            Limit::Units(units) => put_number(out, units.get()),
            Limit::Unlimited => put_number(out, 0),
        });
        out.extend_from_slice(&self.last_fence.to_le_bytes());
        out.extend_from_slice(&self.last_used_micros.to_le_bytes());
        put_option(out, self.memo.as_deref(), put_bytes);
        put_count(out, self.entries.len());
        for entry in &self.entries {
            entry.to_bytes(out);
        }
        put_count(out, self.broken.len());
        for Broken { id, ending } in &self.broken {
            out.extend_from_slice(&id.bits().to_le_bytes());
            put_ending(out, ending);
        }
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` if these bytes are anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let capacity =
            input.option(|input| Some(NonZeroU32::new(input.number()?).map_or(Limit::Unlimited, Limit::Units)))?;
        let (last_fence, last_used_micros) = (input.long()?, input.long()?);
        let memo = input.option(|input| input.bytes().map(Into::into))?;
        let count = input.count()?;
        let mut entries = Vec::with_capacity(count.min(input.0.len() / SMALLEST_ENTRY));
        for _ in 0..count {
            entries.push(input.entry()?);
        }
        let mut broken = Vec::new();
        for _ in 0..input.count()? {
            broken.push(Broken { id: ClaimId::from_bits(input.wide()?), ending: input.ending()? });
        }
        let resource = Self { capacity, entries, last_fence, memo, last_used_micros, broken, ..Self::default() };
        input.0.is_empty().then_some(resource)
    }
}

impl Entry {
    fn to_bytes(&self, out: &mut Vec<u8>) {
        let Self {
            id,
            kind,
            weight,
            lifetime,
            ttl,
            session,
            behind,
            label,
            value,
            since,
            expires,
            state,
            ending,
            awaits_grant,
            untaken,
        } = self;
        out.extend_from_slice(&id.bits().to_le_bytes());
        out.extend_from_slice(&session.to_le_bytes());
        out.push(match kind {
            Kind::Mutex => 0,
            Kind::Spin => 1,
            Kind::Read => 2,
            Kind::Write => 3,
            Kind::Semaphore => 4,
            Kind::Election => 5,
        });
        out.push(match lifetime {
            Lifetime::Process => 0,
            Lifetime::Lease => 1,
        });
        out.extend([u8::from(*awaits_grant), u8::from(*untaken)]);
        put_number(
            out,
            match weight {
                Weight::All => 0,
                Weight::Units(units) => units.get(),
            },
        );
        put_number(out, *behind);
        out.extend_from_slice(&ttl.as_secs().to_le_bytes());
        put_number(out, ttl.subsec_nanos());
        out.extend_from_slice(&since.as_nanos().to_le_bytes());
        out.extend_from_slice(&expires.as_nanos().to_le_bytes());
        let (tag, number) = match state {
            EntryState::Held(fence) => (0, fence.get()),
            EntryState::Waits(None) => (1, 0),
            EntryState::Waits(Some(turn)) => (2, turn.as_nanos()),
        };
        out.push(tag);
        out.extend_from_slice(&number.to_le_bytes());
        put_label(out, label);
        put_option(out, value.as_deref(), |out, value| put_bytes(out, value.as_bytes()));
        put_option(out, ending.as_ref(), put_ending);
    }
}

fn put_label(out: &mut Vec<u8>, label: &Label) {
    let Label { host, pid, user, reason, tags } = label;
    put_bytes(out, host.as_bytes());
    put_number(out, *pid);
    put_bytes(out, user.as_bytes());
    put_option(out, reason.as_deref(), |out, reason| put_bytes(out, reason.as_bytes()));
    put_count(out, tags.len());
    for text in tags.iter().flat_map(|(key, value)| [key, value]) {
        put_bytes(out, text.as_bytes());
    }
}

fn put_ending(out: &mut Vec<u8>, ending: &Ending) {
    put_bytes(out, ending.by.as_bytes());
    put_bytes(out, ending.why.as_bytes());
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// A count too large for this is more than any store takes: such bytes are not read back.
fn put_count(out: &mut Vec<u8>, count: usize) {
    put_number(out, u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_number(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn wide(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    fn moment(&mut self) -> Option<Moment> {
        self.long().map(Moment::from_nanos)
    }

    fn count(&mut self) -> Option<usize> {
        self.number().and_then(|count| usize::try_from(count).ok())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The outer option is none if the bytes are wrong.
    #[expect(clippy::option_option, reason = "one is what was written, one is whether it could be read")]
    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    fn ending(&mut self) -> Option<Ending> {
        Some(Ending { by: self.text()?.to_owned(), why: self.text()?.to_owned() })
    }

    fn label(&mut self) -> Option<Label> {
        let (host, pid, user) = (self.text()?.to_owned(), self.number()?, self.text()?.to_owned());
        let reason = self.option(|input| input.text().map(str::to_owned))?;
        let mut label = Label { host, pid, user, reason, ..Label::default() };
        for _ in 0..self.count()? {
            label.tags.insert(self.text()?.to_owned(), self.text()?.to_owned());
        }
        Some(label)
    }

    fn entry(&mut self) -> Option<Entry> {
        let (id, session) = (ClaimId::from_bits(self.wide()?), self.wide()?);
        let kind = match self.byte()? {
            0 => Kind::Mutex,
            1 => Kind::Spin,
            2 => Kind::Read,
            3 => Kind::Write,
            4 => Kind::Semaphore,
            5 => Kind::Election,
            _ => return None,
        };
        let lifetime = match self.byte()? {
            0 => Lifetime::Process,
            1 => Lifetime::Lease,
            _ => return None,
        };
        let (awaits_grant, untaken) = (self.flag()?, self.flag()?);
        let weight = NonZeroU32::new(self.number()?).map_or(Weight::All, Weight::Units);
        let behind = self.number()?;
        let ttl = (self.long()?, self.number()?);
        // More nanoseconds than a second has would be carried over, and can overflow.
        let ttl = (ttl.1 < 1_000_000_000).then(|| Duration::new(ttl.0, ttl.1))?;
        let (since, expires) = (self.moment()?, self.moment()?);
        let state = match (self.byte()?, self.long()?) {
            (0, fence) => EntryState::Held(Fence::new(fence)),
            (1, 0) => EntryState::Waits(None),
            (2, turn) => EntryState::Waits(Some(Moment::from_nanos(turn))),
            _ => return None,
        };
        let label = Arc::new(self.label()?);
        let value = self.option(|input| input.text().map(Into::into))?;
        let ending = self.option(Self::ending)?;
        Some(Entry {
            id,
            kind,
            weight,
            lifetime,
            ttl,
            session,
            behind,
            label,
            value,
            since,
            expires,
            state,
            ending,
            awaits_grant,
            untaken,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resource with everything that can be stored, drawn from a seed.
    fn drawn(seed: u64) -> Resource {
        let mut rng = fastrand::Rng::with_seed(seed);
        let text = |rng: &mut fastrand::Rng| (0..rng.usize(..9)).map(|_| rng.char(..)).collect::<String>();
        let units = |rng: &mut fastrand::Rng| NonZeroU32::new(rng.u32(..)).unwrap_or(NonZeroU32::MIN);
        let kinds = [Kind::Mutex, Kind::Spin, Kind::Read, Kind::Write, Kind::Semaphore, Kind::Election];
        let ending = |rng: &mut fastrand::Rng| Ending { by: text(rng), why: text(rng) };
        let entry = |rng: &mut fastrand::Rng| {
            let mut label = Label { host: text(rng), pid: rng.u32(..), user: text(rng), ..Label::default() };
            label.reason = rng.bool().then(|| text(rng));
            label.tags = (0..rng.usize(..3)).map(|_| (text(rng), text(rng))).collect();
            Entry {
                id: ClaimId::from_bits(rng.u128(..)),
                kind: kinds[rng.usize(..kinds.len())],
                weight: if rng.bool() { Weight::All } else { Weight::Units(units(rng)) },
                lifetime: if rng.bool() { Lifetime::Process } else { Lifetime::Lease },
                ttl: Duration::new(rng.u64(..), rng.u32(..1_000_000_000)),
                session: rng.u128(..),
                behind: rng.u32(..),
                label: Arc::new(label),
                value: rng.bool().then(|| text(rng).into()),
                since: Moment::from_nanos(rng.u64(..)),
                expires: Moment::from_nanos(rng.u64(..)),
                state: match rng.u8(..3) {
                    0 => EntryState::Held(Fence::new(rng.u64(..))),
                    1 => EntryState::Waits(None),
                    _ => EntryState::Waits(Some(Moment::from_nanos(rng.u64(..)))),
                },
                ending: rng.bool().then(|| ending(rng)),
                awaits_grant: rng.bool(),
                untaken: rng.bool(),
            }
        };
        let limit = if rng.bool() { Limit::Unlimited } else { Limit::Units(units(&mut rng)) };
        Resource {
            capacity: rng.bool().then_some(limit),
            entries: (0..rng.usize(..4)).map(|_| entry(&mut rng)).collect(),
            last_fence: rng.u64(..),
            memo: rng.bool().then(|| (0..rng.usize(..9)).map(|_| rng.u8(..)).collect()),
            last_used_micros: rng.u64(..),
            broken: (0..rng.usize(..3))
                .map(|_| Broken { id: ClaimId::from_bits(rng.u128(..)), ending: ending(&mut rng) })
                .collect(),
            ..Resource::default()
        }
    }

    fn bytes(resource: &Resource) -> Vec<u8> {
        let mut out = Vec::new();
        resource.to_bytes(&mut out);
        out
    }

    #[test]
    fn a_resource_is_read_as_it_was_written() {
        for seed in 0..500 {
            let resource = drawn(seed);
            assert_eq!(Resource::from_bytes(&bytes(&resource)), Some(resource), "seed {seed}");
        }
    }

    #[test]
    fn bytes_that_are_cut_longer_or_changed_are_refused_or_another_state() {
        for seed in 0..50 {
            let whole = bytes(&drawn(seed));
            for cut in 0..whole.len() {
                assert_eq!(Resource::from_bytes(&whole[..cut]), None, "seed {seed}, cut to {cut}");
            }
            assert_eq!(Resource::from_bytes(&[&whole[..], &[0]].concat()), None, "seed {seed}, one byte more");
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] = !changed[at];
                // It must not panic, take memory for a count that cannot be true, or read the same state.
                assert_ne!(Resource::from_bytes(&changed), Some(drawn(seed)), "seed {seed}, byte {at}");
            }
        }
    }
}
