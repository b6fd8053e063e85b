#![doc = include_str!("mysql/docs.md")]

mod config;
mod connection;
mod doctor;
mod driver;
mod error;
mod flavour;
mod guarantees;
mod listener;
mod liveness;
mod queue;
#[doc(hidden)]
pub mod raw;
mod request_pool;
mod row;
mod schema;
mod server_watch;
mod session;
mod short;
mod wake;
mod watch;

pub use config::{Config, Encryption, Keys, STORE};
pub use driver::MySql;
pub use schema::{init, script};
pub use session::{MySqlSession, Named};
