//! What rows mean, and how arguments are written.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::FromValue;
use oarlock_core::driver::{Gone, Lease, Renewed};
use oarlock_core::state::{Ending, HolderState, ResourceState, WaiterState, Waiters};
use oarlock_core::{ClaimId, Error, ErrorKind, Fence, Kind, Label, Limit, Result, Weight};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as Unread, StrDeserializer};

use crate::error::{SCHEME, newer, strange};

/// The answer to one renewal of a batch.
#[derive(Debug, Deserialize)]
pub(crate) struct Told {
    pub(crate) at: usize,
    outcome: String,
    lease: i64,
    fence: Option<u64>,
    ending: Option<Ending>,
}

/// What became of a renewal; `None` if another has the name locked.
pub(crate) fn renewed(told: Told) -> Option<Result<Renewed>> {
    Some(match told.outcome.as_str() {
        "alive" => {
            let fence = told.fence.map(Fence::new);
            Ok(Renewed::Alive { lease: Lease::of(span(told.lease)), fence, ending: told.ending })
        }
        "gone" => Ok(Renewed::Gone(Gone::Unknown)),
        "broken" => Ok(Renewed::Gone(told.ending.map_or(Gone::Unknown, Gone::Broken))),
        "session" => Ok(Renewed::Gone(Gone::Session)),
        "exhausted" => Err(exhausted()),
        "newer" => Err(newer()),
        "busy" => return None,
        other => Err(strange(format!("a renewal was answered with {other}"))),
    })
}

/// Adds the claim of a row to its resource, if there is one.
pub(crate) fn add_claim(state: &mut ResourceState, row: &Row) -> Result<()> {
    let Some(id) = get::<Option<Vec<u8>>>(row, "id")? else { return Ok(()) };
    let id = id.try_into().map_err(|_| strange("a claim id is not 16 bytes long"))?;
    let id = ClaimId::from_bits(u128::from_be_bytes(id));
    let kind = get::<String>(row, "kind")?;
    let kind: StrDeserializer<'_, Unread> = kind.as_str().into_deserializer();
    let kind = Kind::deserialize(kind).map_err(|error| strange("an unknown kind of lock").because(error))?;
    let weight = u32::try_from(get::<i64>(row, "weight")?).ok().and_then(NonZeroU32::new);
    let weight = weight.map_or(Weight::All, Weight::Units);
    let label: Arc<Label> = Arc::new(read(&get::<String>(row, "label")?)?);
    if let Some(fence) = get::<Option<i64>>(row, "fence")? {
        let mut holder = HolderState::new(id, kind, weight);
        holder.fence = to_fence(fence);
        holder.label = label;
        holder.held_for = get_span(row, "age")?;
        holder.lease_left = get_span(row, "left_over")?;
        holder.value = get::<Option<Vec<u8>>>(row, "value")?.map(|value| String::from_utf8_lossy(&value).into());
        holder.ending = get::<Option<String>>(row, "ending")?.as_deref().map(read).transpose()?;
        state.holders.push(holder);
        state.holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
    } else if let Waiters::Listed(waiters) = &mut state.waiters {
        let mut waiter = WaiterState::new(id, kind, weight);
        waiter.label = label;
        waiter.waited = get_span(row, "age")?;
        waiter.behind = u32::try_from(get::<i64>(row, "behind")?).unwrap_or(u32::MAX);
        waiters.push(waiter);
    }
    Ok(())
}

pub(crate) fn first(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| strange("no answer"))
}

pub(crate) fn get<T: FromValue>(row: &Row, column: &str) -> Result<T> {
    row.get_opt(column)
        .ok_or_else(|| strange(format!("an answer without {column}")))?
        .map_err(|error| strange(format!("{column} makes no sense")).because(error))
}

pub(crate) fn get_span(row: &Row, column: &str) -> Result<Duration> {
    get(row, column).map(span)
}

pub(crate) fn get_fence(row: &Row) -> Result<Fence> {
    to_fence(get(row, "fence")?).ok_or_else(|| strange("a negative fence"))
}

pub(crate) fn to_fence(number: i64) -> Option<Fence> {
    u64::try_from(number).ok().map(Fence::new)
}

pub(crate) fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

pub(crate) fn micros(span: Duration) -> i64 {
    // Added to the time of day this must stay a number: a lease of a hundred thousand years is long enough.
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

pub(crate) fn bytes(id: ClaimId) -> [u8; 16] {
    id.bits().to_be_bytes()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_weight(weight: Weight) -> i64 {
    match weight {
        Weight::All => 0,
        Weight::Units(units) => units.get().into(),
    }
}

pub(crate) fn from_limit(limit: Limit) -> i64 {
    match limit {
        Limit::Unlimited => 0,
        Limit::Units(units) => units.get().into(),
    }
}

pub(crate) fn to_limit(stored: i64) -> Limit {
    u32::try_from(stored).ok().and_then(NonZeroU32::new).map_or(Limit::Unlimited, Limit::Units)
}

pub(crate) fn write(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::InvalidClaim, "it cannot be written").on(SCHEME).because(error))
}

pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| strange("what is stored makes no sense").because(error))
}

pub(crate) fn exhausted() -> Error {
    Error::new(ErrorKind::FenceExhausted, "the next fence would be past 2^53").on(SCHEME)
}
