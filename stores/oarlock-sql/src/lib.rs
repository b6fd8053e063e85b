//! Oarlock on SQL servers: `PostgreSQL` (feature and module `postgres`), `MySQL` and `MariaDB` (`mysql`).
//!
//! Each module has two drivers. The first keeps one row per lock, with leases and fences. The second takes the server's
//! own advisory locks (`mode=session`), which a connection holds.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | session | one client, as the server sees it: a number, and the connections that belong to it |
//! | liveness lock | an advisory or named lock that a connection of a session holds; the server releases it when the process dies |
//! | wake-up lock | on `MySQL`, the named lock of a claim; a waiter behind the claim waits for it instead of polling |
//! | holder watch | on `PostgreSQL`, a connection that waits until the session of the claim ahead is over |
//! | server watch | on `MySQL` in session mode, a connection that notices when the server goes down |
//!
//! # Files
//!
//! - `attempt`, `renew`, `release`, `inspect`: arguments and replies of each verb, for both servers. `row` reads columns.
//! - `error`: errors that both servers share. `url`: what their URLs share.
//! - `session`: the driver of session mode, for both servers.
//! - `postgres`, `mysql`: `config`, `connection`, `driver`, `error`, `schema`, `session`, `watch`, and the SQL.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod attempt;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod inspect;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod release;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod renew;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod row;
pub mod session;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod url;
