//! What a peer in Rust needs: a small program that drives one lock library, as told by lines on standard input.
//!
//! The lines are written down in `interop/README.md`, and the same in every language.

pub mod floor;
pub mod ours;
pub mod peer;

pub use peer::{Client, Lock, Loss, Refusal, run};

/// Nanoseconds of the clock that all processes of this machine share, in whatever language.
#[must_use]
pub fn now() -> u64 {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(at.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(at.tv_nsec).unwrap_or(0)
}
