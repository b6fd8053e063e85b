//! Connections, clients and PostgreSQL servers that fail.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "in tests, also outside test functions")]

#[path = "postgres/store.rs"]
#[allow(dead_code, reason = "shared by two programs")]
mod store;

#[path = "postgres/crash.rs"]
mod crash;
#[path = "postgres/durable.rs"]
mod durable;
#[path = "postgres/faults.rs"]
mod faults;
#[path = "postgres/hosts.rs"]
mod hosts;
#[path = "postgres/request_pool.rs"]
mod request_pool;
#[path = "postgres/sessions.rs"]
mod sessions;
