//! The dashboard, the HTTP API and the metrics of Oarlock: `oarlock serve`.
//!
//! A [`Server`] serves the locks of one store, over [`Locks`](oarlock::Locks). Its manual is `docs/serve.md`.
//!
//! | file | what it does |
//! |---|---|
//! | `server`, `connection` | bind, accept, TLS, an end for slow clients |
//! | `reload` | tokens, certificates and the audit log, exchanged while it runs |
//! | `service` | each request: `origin`, `route`, `access`, `limiter`, body |
//! | `api` | the endpoints |
//! | `request`, `leases`, `pending` | locks for HTTP clients: a ticket of the engine that the client keeps |
//! | `board`, `view`, `graph` | all locks, sampled, for pages |
//! | `sse`, `followers` | streams of events; one follower of the store for all streams of a lock |
//! | `history` | who held and waited, in SQLite |
//! | `metrics`, `span`, `audit`, `doctor` | what else operators want to know |
//! | `page/` | the dashboard: plain HTML, CSS and JavaScript, without a build step; `api` puts its scripts together |

mod access;
mod answer;
mod api;
mod audit;
mod board;
mod config;
mod connection;
mod doctor;
mod followers;
#[cfg(test)]
mod fuzz;
mod graph;
mod history;
mod leases;
mod limiter;
mod listings;
mod metrics;
mod origin;
mod pending;
mod problem;
mod quota;
mod reload;
mod request;
mod route;
mod server;
mod service;
mod span;
mod sse;
mod state;
mod view;

pub use access::Access;
pub use config::Config;
pub use reload::Reload;
pub use server::Server;
