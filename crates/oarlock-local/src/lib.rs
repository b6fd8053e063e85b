#![doc = include_str!("docs.md")]

mod blockers;
mod boot;
mod config;
mod directory;
mod driver;
mod error;
pub mod floor;
mod identity;
mod link;
mod listen;
mod mount;
mod place;
mod post;
mod session;
mod shard;
mod slot;
mod state;
mod sweep;
mod watch;

pub use config::{Config, default_dir, other_default_dir};
pub use driver::Local;
