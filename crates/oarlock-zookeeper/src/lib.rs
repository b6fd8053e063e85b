#![doc = include_str!("docs.md")]

mod attempt;
mod config;
mod driver;
mod error;
pub mod floor;
mod link;
mod memo;
mod names;
mod queue;
mod record;
mod renew;
mod show;
mod watch;

pub use config::Config;
pub use driver::ZooKeeper;
