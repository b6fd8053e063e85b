#![doc = include_str!("docs.md")]

mod api;
mod attempt;
#[doc(hidden)]
pub mod bench;
mod config;
mod driver;
mod error;
pub mod floor;
mod keys;
mod lease;
mod link;
mod queue;
mod renew;
mod show;
mod watch;

pub use config::Config;
pub use driver::Etcd;
