#![doc = include_str!("docs.md")]

mod attempt;
mod checked;
mod config;
mod connection;
mod driver;
mod error;
pub mod floor;
mod foreign;
mod link;
mod memo;
mod names;
mod queue;
mod record;
mod renew;
mod resume;
mod servers;
mod show;
mod strangers;
mod watch;

pub use checked::{Checked, Written};
pub use config::{Config, Layout};
pub use driver::ZooKeeper;
