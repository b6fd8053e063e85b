//! What a peer in Rust needs. A peer is a small program that runs one lock library, with commands from standard input.
//!
//! `interop/README.md` describes the protocol, which is the same in every language.

pub mod baseline;
pub mod ours;
pub mod peer;

pub use peer::{Client, Lock, Loss, Refusal, now, run};
