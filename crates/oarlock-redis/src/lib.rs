#![doc = include_str!("docs.md")]

mod answer;
mod checked;
mod cluster;
mod config;
mod dial;
mod driver;
mod error;
mod facts;
pub mod floor;
mod link;
mod node;
mod place;
mod plain;
pub mod quorum_floor;
mod redisson;
mod scripts;
mod sentinel;
mod turn;
mod watch;

pub use checked::{Checked, Written};
pub use config::{Address, Config, Host, Layout, Tls};
pub use driver::Redis;
pub use facts::{Facts, Persistence};
