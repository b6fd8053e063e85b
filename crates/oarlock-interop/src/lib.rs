//! What a peer in Rust needs: a small program that drives one lock library, as told by lines on standard input.
//!
//! The lines are written down in `interop/README.md`, and the same in every language.

pub mod floor;
pub mod ours;
pub mod peer;

pub use peer::{Client, Lock, Loss, Refusal, now, run};
