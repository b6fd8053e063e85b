#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
mod link;
mod place;
mod watch;

pub use config::{Address, Config};
pub use driver::Redis;
