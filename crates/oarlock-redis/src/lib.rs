#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod place;
mod watch;

pub use config::{Address, Config};
pub use driver::Redis;
