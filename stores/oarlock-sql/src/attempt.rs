//! Arguments and replies of an attempt.

use oarlock_core::driver::{Grant, Lease, Pending};
use oarlock_core::{Capacity, Claim, Error, ErrorKind, Limit, Result};

use crate::row::{Row, from_limit, from_weight, integer, span, to_fence, to_limit, to_span};

/// The capacity that a claim states, and whether it accepts another one that is stored.
pub(crate) fn capacity(claim: &Claim) -> (Option<i64>, bool) {
    match claim.capacity {
        Capacity::Any => (None, true),
        Capacity::Fixed(limit) => (Some(from_limit(limit)), false),
        Capacity::Stored(limit) => (Some(from_limit(limit)), true),
    }
}

pub(crate) fn granted<R: Row>(row: &R) -> Result<Grant> {
    let fence = to_fence(integer(row, "fence")?).ok_or_else(|| R::STORE.unexpected("a negative fence"))?;
    let mut grant = Grant::new(fence, Lease::of(span(row, "lease")?));
    grant.memo = row.bytes("memo")?.map(Into::into);
    Ok(grant)
}

pub(crate) fn pending<R: Row>(row: &R) -> Result<Pending> {
    let mut pending = Pending::default();
    pending.ahead = u32::try_from(integer(row, "ahead")?).ok();
    pending.recheck_after = row.integer("recheck")?.map(to_span);
    Ok(pending)
}

/// The error for any other outcome than a grant or a place in the queue.
pub(crate) fn refused<R: Row>(row: &R, outcome: &str, claim: &Claim) -> Error {
    let stored = || row.integer(R::CAPACITY).map(|stored| to_limit(stored.unwrap_or(1)));
    match outcome {
        "spec" => {
            let wanted = capacity(claim).0.map_or(Limit::Unlimited, to_limit);
            stored().map_or_else(|error| error, |stored| Error::spec_mismatch(stored, wanted).on(R::STORE.0))
        }
        "heavy" => stored().map_or_else(
            |error| error,
            |stored| {
                let message = format!("{} of {stored} can never be granted", from_weight(claim.weight));
                R::STORE.error(ErrorKind::TooHeavy, message)
            },
        ),
        "upgrade" => R::STORE.error(ErrorKind::Upgrade, "a held claim cannot become heavier"),
        "exhausted" => exhausted::<R>(),
        other => R::STORE.unexpected(format!("unexpected reply to an attempt: {other}")),
    }
}

pub(crate) fn exhausted<R: Row>() -> Error {
    R::STORE.error(ErrorKind::FenceExhausted, "the next fence would be past 2^53")
}
