#![doc = include_str!("docs.md")]

mod error;
mod even;
mod pool;
#[cfg(feature = "redis")]
mod redis;
mod shelf;
mod sql;
mod stock;

pub use crate::error::Error;
#[cfg(feature = "redis")]
pub use crate::redis::Redis;
pub use crate::shelf::{Count, Order, Reservation, Shelf, State, Step};
pub use crate::sql::{Inside, Sql, inside};
pub use crate::stock::{Stock, Take};
