//! The source of ids and jitter.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::claim::ClaimId;
use crate::error::{Error, ErrorKind, Result};

/// The random numbers of the operating system, or of a seed that replays a test.
#[derive(Debug, Default)]
pub(crate) struct Entropy {
    seeded: Option<Mutex<fastrand::Rng>>,
}

impl Entropy {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { seeded: Some(Mutex::new(fastrand::Rng::with_seed(seed))) }
    }

    pub(crate) fn claim_id(&self) -> Result<ClaimId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::new(ErrorKind::Os, "the operating system returned no random numbers").because(error)
        })?;
        let random = u128::from_ne_bytes(bytes);
        let bits = match &self.seeded {
            // The order of ids is replayed. Two clients of one seed still need different ids, or they would share a
            // lock.
            Some(rng) => {
                let drawn = rng.lock().unwrap_or_else(PoisonError::into_inner).u64(..);
                (u128::from(drawn) << 64) | (random >> 64)
            }
            None => random,
        };
        Ok(ClaimId::from_bits(bits))
    }

    /// Between three quarters of `span` and all of it.
    pub(crate) fn jitter(&self, span: Duration) -> Duration {
        let draw = match &self.seeded {
            Some(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).f64(),
            None => fastrand::f64(),
        };
        span.mul_f64(0.75 + draw / 4.0)
    }
}
