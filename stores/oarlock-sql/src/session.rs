#![doc = include_str!("session/docs.md")]

mod connection;
mod driver;
pub(crate) mod guarantees;
mod pool;
mod wait;

pub use connection::{Connection, Mailbox, Seen, Server};
pub use driver::SessionLocks;

#[cfg(test)]
mod tests;
