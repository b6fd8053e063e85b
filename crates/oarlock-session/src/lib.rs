#![doc = include_str!("docs.md")]

mod desk;
mod driver;
mod line;
mod wait;

pub use driver::SessionLocks;
pub use line::{Line, Mailbox, Seen, Server};
