#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod lookout;
mod schema;
mod tls;
mod watch;

pub use config::{Config, Encryption};
pub use driver::Postgres;
pub use schema::{init, script};
