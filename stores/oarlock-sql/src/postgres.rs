#![doc = include_str!("postgres/docs.md")]

mod config;
mod connection;
mod doctor;
mod driver;
mod error;
mod guarantees;
mod holder_watch;
mod key;
mod left_open;
mod listening;
pub(crate) mod notification;
mod pooler;
#[doc(hidden)]
pub mod raw;
mod request_pool;
mod row;
mod schema;
mod session;
mod tls;
mod transaction;
mod watch;

pub use config::{Config, Encryption, Keys, STORE};
pub use driver::Postgres;
pub use schema::{init, script};
pub use session::{Advisory, PostgresSession};
pub use transaction::TransactionLock;
