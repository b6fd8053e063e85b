#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod driver;
mod error;
pub mod floor;
mod key;
mod link;
mod lookout;
mod schema;
mod session;
mod tls;
mod transaction;
mod turn;
mod watch;

pub use config::{Config, Encryption, Keys};
pub use driver::Postgres;
pub use schema::{init, script};
pub use session::{Advisory, PostgresSession};
pub use transaction::TransactionLock;
