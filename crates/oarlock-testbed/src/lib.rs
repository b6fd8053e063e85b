//! Servers, proxies and victims for Oarlock tests.

pub mod ports;
pub mod processes;
pub mod server;
pub mod taker;

pub use server::{Etcd, Postgres, Redis, ZooKeeper};
pub use taker::{Said, Taker};
