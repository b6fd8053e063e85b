//! What goes over the network to a PostgreSQL server, and what is in its tables.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "in tests, also outside test functions")]

#[path = "postgres/store.rs"]
#[allow(dead_code, reason = "shared by two programs")]
mod store;

#[path = "postgres/advisory.rs"]
mod advisory;
#[path = "postgres/clock.rs"]
mod clock;
#[path = "postgres/protocol.rs"]
mod protocol;
#[path = "shared/shell.rs"]
mod shell;
#[path = "postgres/short.rs"]
mod short;
#[path = "postgres/tls.rs"]
mod tls;
#[path = "postgres/turns.rs"]
mod turns;
#[path = "postgres/unpolled.rs"]
mod unpolled;
#[path = "postgres/upgrade.rs"]
mod upgrade;
