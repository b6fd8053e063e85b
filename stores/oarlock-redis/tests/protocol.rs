//! What only shows on the network and in the keys of a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "protocol/connections.rs"]
mod connections;
#[path = "protocol/context.rs"]
mod context;
#[path = "protocol/keys.rs"]
mod keys;
#[path = "shared/patient.rs"]
mod patient;
#[path = "protocol/rights.rs"]
mod rights;
#[path = "protocol/scripts.rs"]
mod scripts;
#[path = "shared/context.rs"]
mod shared;
