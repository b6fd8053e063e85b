#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod watch;

pub use config::Config;
pub use driver::Postgres;
