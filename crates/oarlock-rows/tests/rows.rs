//! Both kinds of locks on PostgreSQL, MariaDB and SQLite, with others in the way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "rows/cached.rs"]
mod cached;
#[path = "rows/contexts.rs"]
mod contexts;
#[path = "rows/optimistic.rs"]
mod optimistic;
#[path = "rows/pessimistic.rs"]
mod pessimistic;
#[path = "rows/send.rs"]
mod send;
#[path = "rows/transactions.rs"]
mod transactions;
