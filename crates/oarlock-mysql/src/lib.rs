#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod schema;
mod watch;

pub use config::{Config, Encryption};
pub use driver::MySql;
pub use schema::{init, script};
