#![doc = include_str!("docs.md")]

mod answer;
mod beacon;
mod config;
mod driver;
mod ear;
mod error;
mod flavour;
pub mod floor;
mod link;
mod listener;
mod queue;
mod schema;
mod session;
mod wake;
mod watch;

pub use config::{Config, Encryption, Keys};
pub use driver::MySql;
pub use schema::{init, script};
pub use session::{MySqlSession, Named};
