//! Arguments and replies of a release.

use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::driver::{End, Released};

use crate::error::Store;
use crate::row::{Row, text, write};

/// The memo to store, the record of who ends the claim, and the grace that it is given.
pub(crate) fn arguments(store: Store, end: &End) -> Result<(Option<Vec<u8>>, Option<String>, Duration)> {
    match end {
        End::Done { memo } => Ok((memo.as_deref().map(<[u8]>::to_vec), None, Duration::ZERO)),
        End::Withdrawn => Ok((None, None, Duration::ZERO)),
        End::Broken { ending, grace } => Ok((None, Some(write(store, ending)?), *grace)),
    }
}

pub(crate) fn released<R: Row>(row: &R) -> Result<Released> {
    match text(row, "outcome")?.as_str() {
        "released" => Ok(Released::Released),
        "asked" => Ok(Released::Asked),
        "not_held" => Ok(Released::NotHeld),
        other => Err(R::STORE.unexpected(format!("unexpected reply to a release: {other}"))),
    }
}
