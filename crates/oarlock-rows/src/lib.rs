#![doc = include_str!("docs.md")]

mod client;
mod contention;
#[cfg(feature = "diesel")]
pub mod diesel;
mod error;
#[cfg(feature = "mysql")]
pub mod mysql;
mod optimistic;
mod pessimistic;
#[cfg(feature = "postgres")]
pub mod postgres;
mod retry;
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-mysql"))]
pub mod sqlx;
#[cfg(any(feature = "diesel", feature = "sqlx-postgres", feature = "sqlx-mysql"))]
mod value;

pub use crate::client::{Client, Dialect};
pub use crate::contention::{Classify, Contention};
pub use crate::error::Error;
pub use crate::optimistic::{Change, Outcome, Seen, Version, Versioned};
pub use crate::pessimistic::{Locked, Mode, Wait};
pub use crate::retry::{Attempts, Done, Failed, Retry};
