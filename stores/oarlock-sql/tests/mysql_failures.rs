//! Connections, clients, MariaDB and MySQL servers that fail.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "in tests, also outside test functions")]

#[path = "mysql/store.rs"]
#[allow(dead_code, reason = "shared by two programs")]
#[macro_use]
mod store;

#[path = "mysql/crash.rs"]
mod crash;
#[path = "mysql/failover.rs"]
mod failover;
#[path = "mysql/failures.rs"]
mod failures;
#[path = "mysql/hosts.rs"]
mod hosts;
