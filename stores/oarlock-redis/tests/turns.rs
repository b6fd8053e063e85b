//! A release hands the lock to the next in line, who need not ask again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "turns/carried.rs"]
mod carried;
#[path = "turns/context.rs"]
mod context;
#[path = "turns/granted.rs"]
mod granted;
#[path = "turns/order.rs"]
mod order;
#[path = "shared/patient.rs"]
mod patient;
#[path = "shared/context.rs"]
mod shared;
