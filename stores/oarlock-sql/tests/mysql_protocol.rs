//! What goes over the network to MariaDB and MySQL servers, and what is in their tables.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "in tests, also outside test functions")]

#[path = "mysql/store.rs"]
#[allow(dead_code, reason = "shared by two programs")]
#[macro_use]
mod store;

#[path = "mysql/clock.rs"]
mod clock;
#[path = "mysql/named.rs"]
mod named;
#[path = "mysql/protocol.rs"]
mod protocol;
#[path = "shared/shell.rs"]
mod shell;
#[path = "mysql/short.rs"]
mod short;
#[path = "mysql/tls.rs"]
mod tls;
#[path = "mysql/unpolled.rs"]
mod unpolled;
#[path = "mysql/upgrade.rs"]
mod upgrade;
#[path = "mysql/wake.rs"]
mod wake;
