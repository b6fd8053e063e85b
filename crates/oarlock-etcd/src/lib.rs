#![doc = include_str!("docs.md")]

mod api;
mod attempt;
#[doc(hidden)]
pub mod bench;
mod checked;
mod config;
mod driver;
mod error;
pub mod floor;
mod glance;
mod keys;
mod lease;
mod link;
mod login;
mod members;
mod queue;
mod renew;
mod seat;
mod show;
mod watch;

pub use checked::{Checked, Written};
pub use config::{Config, Layout, Tls};
pub use driver::Etcd;
