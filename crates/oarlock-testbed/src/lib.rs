//! Servers, proxies and victims for Oarlock tests.

pub mod processes;
pub mod taker;

pub use taker::{Said, Taker};
