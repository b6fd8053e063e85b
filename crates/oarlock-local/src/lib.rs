#![doc = include_str!("docs.md")]

mod blockers;
mod boot;
mod config;
mod directory;
mod driver;
mod error;
mod expect;
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
mod turn;
mod watch;

pub use config::{Config, default_dir, other_default_dir};
pub use driver::Local;
