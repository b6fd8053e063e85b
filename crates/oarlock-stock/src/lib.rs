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

/// Runs the program of the page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/stock.md")]
struct Page;

/// Runs the program of the page in Chinese.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/flash-sale.zh.md")]
struct FlashSale;
