//! Oarlock on SQL servers: `PostgreSQL` (feature and module `postgres`), `MySQL` and `MariaDB` (`mysql`).
//!
//! Each module has two drivers. The first keeps one row per lock, with leases and fences. The second takes the server's
//! own advisory locks (`mode=session`), which a connection holds.
//!
//! # Glossary
//!
//! | word | on an SQL server |
//! |---|---|
//! | row | the resource: one row for each name, locked while a verb runs; its claims are rows of a second table |
//! | procedure | one stored function or procedure for each verb; the driver sends its arguments and reads its reply |
//! | session | one client, as the server sees it: a number, and the connections that belong to it |
//! | liveness lock | an advisory or named lock that a connection of a session holds; the server releases it when the process dies |
//! | hub | the waiters and watches of one session or client, which notifications wake |
//! | request pool | the connections for requests; on `PostgreSQL` the first, and spares while all are busy; on `MySQL` one pool for requests, one for renewals |
//! | notification | on `PostgreSQL`, a `NOTIFY` on the channel of a session; it may carry a grant |
//! | wake-up lock | on `MySQL`, the named lock of a claim; a waiter behind the claim waits for it instead of polling |
//! | listener | on `MySQL`, a connection that waits for wake-up locks |
//! | holder watch | on `PostgreSQL`, a connection that waits until the session of the claim ahead is over |
//! | server watch | on `MySQL` in session mode, a connection that notices when the server goes down |
//! | flavour | which of the two servers, `MySQL` or `MariaDB`, and what differs |
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `lib`, `postgres`, `mysql` | these pages |
//! | `config`, `error` | what the configurations, URLs and errors of both servers share |
//! | `attempt`, `renew`, `release`, `inspect` | arguments and replies of each verb, for both servers |
//! | `route`, `doctor` | which of several servers is asked; how the others are examined |
//! | `row` | reads columns, writes arguments |
//! | `session`, `session/driver` | session mode, for both servers: its page; its verbs |
//! | `session/pool`, `session/connection`, `session/wait` | its connections; what a server must be able to do; the wait of one claim |
//!
//! In `postgres` and `mysql`, beside `config`, `connection` (all connections of a client), `error`, `row` and `watch`
//! (what a notification says, and whom it wakes):
//!
//! | file | content |
//! |---|---|
//! | `driver` | the verbs. One file: each is a call of a procedure, whose arguments and reply are shared |
//! | `schema`, `sql/` | creates the tables and procedures; the procedures |
//! | `session` | what session mode needs of this server |
//! | `raw` | a connection for the benchmark |
//! | `postgres/holder_watch`, `postgres/notification` | see above; the text of a notification |
//! | `postgres/request_pool`, `postgres/listening` | see above; when a session listens |
//! | `postgres/left_open` | connections that are not used any more, and not closed yet |
//! | `postgres/pooler` | whether a pooler is in between |
//! | `postgres/key`, `postgres/transaction` | numbers of advisory locks; locks that end with a transaction |
//! | `postgres/tls` | encryption |
//! | `mysql/flavour`, `mysql/request_pool` | see above |
//! | `mysql/liveness`, `mysql/server_watch` | liveness locks and the end of a session; see above |
//! | `mysql/wake`, `mysql/listener` | see above |
//! | `mysql/queue` | the waiters of this process in each queue: one asks, the others are told |

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod attempt;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod config;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod doctor;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod error;
#[cfg(all(test, any(feature = "mysql", feature = "postgres")))]
mod fuzz;
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
mod route;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod row;
pub mod session;
