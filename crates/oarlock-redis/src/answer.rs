//! The answers of the scripts, in the words of the library.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Gone, Grant, Lease, Pending, Release, Released, Renewed};
use oarlock_core::state::{Ending, HolderState, Memo, ResourceState, WaiterState, Waiters};
use oarlock_core::{Capacity, Claim, Error, Fence, Kind, Label, Limit, ResourceName, Result, Weight};
use redis::Value;
use serde::Deserialize as _;
use serde::de::value::{Error as Unknown, StrDeserializer};

use crate::config::Layout;
use crate::error::{deaf, exhausted, foreign, newer, older, too_heavy, unexpected, upgrade};

/// The parts of an answer, read one after the other.
struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    /// The first word of an answer, and the rest of it.
    fn of(answer: Value) -> Result<(String, Self)> {
        let mut parts = Self::list(answer)?;
        Ok((parts.text()?, parts))
    }

    fn list(value: Value) -> Result<Self> {
        let Value::Array(parts) = value else { return Err(unexpected()) };
        Ok(Self(parts.into_iter()))
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.0.next() {
            None | Some(Value::Nil) => Ok(None),
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(unexpected()),
        }
    }

    fn maybe_text(&mut self) -> Result<Option<String>> {
        self.bytes()?.map(|bytes| String::from_utf8(bytes).map_err(|error| unexpected().because(error))).transpose()
    }

    fn text(&mut self) -> Result<String> {
        self.maybe_text()?.ok_or_else(unexpected)
    }

    /// A number; `None` if it is negative.
    fn maybe_number(&mut self) -> Result<Option<u64>> {
        let Some(Value::Int(number)) = self.0.next() else { return Err(unexpected()) };
        Ok(u64::try_from(number).ok())
    }

    fn number(&mut self) -> Result<u64> {
        self.maybe_number()?.ok_or_else(unexpected)
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|error| unexpected().because(error))
    }

    fn span(&mut self) -> Result<Duration> {
        self.number().map(Duration::from_micros)
    }

    fn fence(&mut self) -> Result<Option<Fence>> {
        Ok(self.maybe_number()?.map(Fence::new))
    }

    fn limit(&mut self) -> Result<Limit> {
        Ok(NonZeroU32::new(self.small()?).map_or(Limit::Unlimited, Limit::Units))
    }

    fn memo(&mut self) -> Result<Option<Memo>> {
        Ok(self.bytes()?.map(Into::into))
    }

    fn ending(&mut self) -> Result<Option<Ending>> {
        let (by, why) = (self.maybe_text()?, self.maybe_text()?);
        Ok(by.map(|by| Ending { by, why: why.unwrap_or_default() }))
    }

    /// What every script may answer instead of what was asked.
    fn refusal(mut self, word: &str) -> Error {
        let refusal = match word {
            "foreign" => self.text().map(|what| foreign(&what)),
            "older" => self.text().map(|format| older(&format)),
            "newer" => self.text().map(|format| newer(&format)),
            "heavy" => self.limit().map(too_heavy),
            "upgrade" => Ok(upgrade()),
            "deaf" => Ok(deaf()),
            "exhausted" => Ok(exhausted()),
            _ => Ok(unexpected()),
        };
        refusal.unwrap_or_else(|error| error)
    }
}

pub(crate) fn attempt(claim: &Claim, answer: Value) -> Result<Attempt> {
    if let Value::Int(fence) = answer {
        let fence = Fence::new(u64::try_from(fence).map_err(|error| unexpected().because(error))?);
        let ttl = Duration::from_millis(u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX));
        return Ok(Attempt::Granted(Grant::new(fence, Lease::of(ttl))));
    }
    let (word, mut parts) = Parts::of(answer)?;
    match (&*word, claim.capacity) {
        ("granted", _) => {
            let fence = parts.fence()?.ok_or_else(unexpected)?;
            let mut grant = Grant::new(fence, Lease::of(parts.span()?));
            grant.memo = parts.memo()?;
            Ok(Attempt::Granted(grant))
        }
        ("pending", _) => {
            let mut pending = Pending::default();
            pending.ahead = parts.maybe_number()?.and_then(|ahead| u32::try_from(ahead).ok());
            pending.recheck_after = parts.maybe_number()?.map(Duration::from_micros);
            pending.holder = parts.maybe_text()?.map(|id| id.parse()).transpose()?;
            Ok(Attempt::Pending(pending))
        }
        ("mismatch", Capacity::Fixed(asked)) => Err(Error::spec_mismatch(parts.limit()?, asked)),
        _ => Err(parts.refusal(&word)),
    }
}

pub(crate) fn renewed(answer: Value) -> Result<Renewed> {
    let (word, mut parts) = Parts::of(answer)?;
    match &*word {
        "alive" => {
            let (lease, fence) = (Lease::of(parts.span()?), parts.fence()?);
            Ok(Renewed::Alive { lease, fence, ending: parts.ending()? })
        }
        "gone" => Ok(Renewed::Gone(parts.ending()?.map_or(Gone::Unknown, Gone::Broken))),
        _ => Err(parts.refusal(&word)),
    }
}

pub(crate) fn released(answer: Value) -> Result<Release> {
    if let Value::Int(1) = answer {
        return Ok(Release::new(Released::Released, None));
    }
    let (word, mut parts) = Parts::of(answer)?;
    let outcome = match &*word {
        "released" => Released::Released,
        "absent" => Released::NotHeld,
        "asked" => Released::Asked,
        _ => return Err(parts.refusal(&word)),
    };
    Ok(Release::new(outcome, parts.maybe_number()?.map(|waiting| waiting > 0)))
}

pub(crate) fn shown(layout: Layout, name: ResourceName, answer: Value) -> Result<ResourceState> {
    let (word, mut parts) = Parts::of(answer)?;
    if word != "shown" {
        return Err(parts.refusal(&word));
    }
    let mut state = ResourceState::free(name);
    let capacity = parts.maybe_number()?.map(u32::try_from).transpose().map_err(|error| unexpected().because(error))?;
    state.capacity = capacity.map(|units| NonZeroU32::new(units).map_or(Limit::Unlimited, Limit::Units));
    state.last_fence = parts.fence()?.filter(|fence| fence.get() > 0);
    state.memo = parts.memo()?;
    let mut waiters = Vec::new();
    for entry in parts.0 {
        match entry_of(layout, Parts::list(entry)?)? {
            Entry::Holder(holder) => state.holders.push(holder),
            Entry::Waiter(waiter) => waiters.push(waiter),
        }
    }
    state.holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
    state.waiters = match layout {
        Layout::Native => Waiters::Listed(waiters),
        Layout::Plain | Layout::Redisson => Waiters::Hidden,
    };
    Ok(state)
}

enum Entry {
    Holder(HolderState),
    Waiter(WaiterState),
}

fn entry_of(layout: Layout, mut parts: Parts) -> Result<Entry> {
    let id = parts.text()?.parse()?;
    let kind = parts.text()?;
    let kind = Kind::deserialize(StrDeserializer::<Unknown>::new(&kind)).map_err(|e| unexpected().because(e))?;
    let weight = NonZeroU32::new(parts.small()?).map_or(Weight::All, Weight::Units);
    let (fence, age, left, behind) = (parts.fence()?, parts.span()?, parts.span()?, parts.small()?);
    // A label is for the eyes: one that cannot be read must not hide the claim.
    let label: Option<Label> = parts.bytes()?.and_then(|label| serde_json::from_slice(&label).ok());
    let label = Arc::new(label.unwrap_or_default());
    if fence.is_none() && layout == Layout::Native {
        let mut waiter = WaiterState::new(id, kind, weight);
        (waiter.label, waiter.waited, waiter.behind) = (label, age, behind);
        return Ok(Entry::Waiter(waiter));
    }
    let mut holder = HolderState::new(id, kind, weight);
    (holder.fence, holder.label, holder.held_for, holder.lease_left) = (fence, label, age, left);
    holder.value = parts.maybe_text()?.map(Into::into);
    holder.ending = parts.ending()?;
    Ok(Entry::Holder(holder))
}
