#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod tls;
mod watch;

pub use config::{Config, Encryption};
pub use driver::Postgres;
