//! Reads the columns of a reply, and writes arguments.

use std::num::NonZeroU32;
use std::time::Duration;

use oarlock_core::{ClaimId, Error, ErrorKind, Fence, Limit, Result, Weight};
use serde::{Deserialize, Serialize};

use crate::error::Store;

/// One row of a reply. Every column may be NULL.
pub(crate) trait Row {
    const STORE: Store;
    /// The column with the capacity in the reply to an attempt.
    const CAPACITY: &'static str;

    fn integer(&self, column: &str) -> Result<Option<i64>>;
    fn boolean(&self, column: &str) -> Result<Option<bool>>;
    fn text(&self, column: &str) -> Result<Option<String>>;
    fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>>;
}

/// The columns of a client crate's row, which `get` reads.
macro_rules! columns {
    ($row:ty, $store:expr, $capacity:literal, $get:ident) => {
        impl $crate::row::Row for $row {
            const STORE: $crate::error::Store = $store;
            const CAPACITY: &'static str = $capacity;

            fn integer(&self, column: &str) -> Result<Option<i64>> {
                $get(self, column)
            }

            fn boolean(&self, column: &str) -> Result<Option<bool>> {
                $get(self, column)
            }

            fn text(&self, column: &str) -> Result<Option<String>> {
                $get(self, column)
            }

            fn bytes(&self, column: &str) -> Result<Option<Vec<u8>>> {
                $get(self, column)
            }
        }
    };
}

pub(crate) use columns;

pub(crate) fn first<R: Row>(rows: &[R]) -> Result<&R> {
    rows.first().ok_or_else(|| R::STORE.unexpected("a reply without a row"))
}

pub(crate) fn integer<R: Row>(row: &R, column: &str) -> Result<i64> {
    row.integer(column)?.ok_or_else(|| null::<R>(column))
}

pub(crate) fn text<R: Row>(row: &R, column: &str) -> Result<String> {
    row.text(column)?.ok_or_else(|| null::<R>(column))
}

pub(crate) fn span<R: Row>(row: &R, column: &str) -> Result<Duration> {
    integer(row, column).map(to_span)
}

fn null<R: Row>(column: &str) -> Error {
    R::STORE.unexpected(format!("column {column} of a reply is NULL"))
}

pub(crate) fn to_fence(number: i64) -> Option<Fence> {
    u64::try_from(number).ok().map(Fence::new)
}

pub(crate) fn to_span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Small enough to be added to the time of day: a lease of 70,000 years is long enough.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

pub(crate) fn id_bytes(id: ClaimId) -> [u8; 16] {
    id.bits().to_be_bytes()
}

pub(crate) fn to_id(bytes: Vec<u8>) -> Option<ClaimId> {
    bytes.try_into().ok().map(|bytes| ClaimId::from_bits(u128::from_be_bytes(bytes)))
}

pub(crate) fn from_weight(weight: Weight) -> i64 {
    match weight {
        Weight::All => 0,
        Weight::Units(units) => units.get().into(),
    }
}

pub(crate) fn to_weight(stored: i64) -> Weight {
    u32::try_from(stored).ok().and_then(NonZeroU32::new).map_or(Weight::All, Weight::Units)
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

pub(crate) fn write(store: Store, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        store.error(ErrorKind::InvalidClaim, "the label or value cannot be encoded as JSON").because(error)
    })
}

pub(crate) fn read<'a, T: Deserialize<'a>>(store: Store, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| store.unexpected("unexpected JSON in a row").because(error))
}
