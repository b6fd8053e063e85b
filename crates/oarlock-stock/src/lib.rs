#![doc = include_str!("docs.md")]

mod error;
mod shelf;
mod sql;
mod stock;

pub use crate::error::Error;
pub use crate::shelf::{Count, Order, Reservation, Shelf, State, Step};
pub use crate::sql::Sql;
pub use crate::stock::{Stock, Take};
