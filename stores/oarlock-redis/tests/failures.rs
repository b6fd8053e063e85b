//! What happens when servers forget, fill up, fail over, move their slots, or belong to others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "failures/alone.rs"]
mod alone;
#[path = "failures/checked.rs"]
mod checked;
#[path = "failures/clock.rs"]
mod clock;
#[path = "failures/cluster.rs"]
mod cluster;
#[path = "failures/confirmed.rs"]
mod confirmed;
#[path = "failures/context.rs"]
mod context;
#[path = "failures/hung.rs"]
mod hung;
#[path = "shared/patient.rs"]
mod patient;
#[path = "failures/plain.rs"]
mod plain;
#[path = "failures/plain_queue.rs"]
mod plain_queue;
#[path = "redisson/all.rs"]
mod redisson;
#[path = "failures/sentinel.rs"]
mod sentinel;
#[path = "failures/tls.rs"]
mod tls;
#[path = "failures/unpolled.rs"]
mod unpolled;
#[path = "failures/version.rs"]
mod version;
