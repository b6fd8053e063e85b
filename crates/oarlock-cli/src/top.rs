//! The terminal view of `oarlock top`: a model that keys change, a drawing of it, and the terminal.

pub(crate) mod draw;
pub(crate) mod keys;
pub(crate) mod model;
pub(crate) mod snapshot;
pub(crate) mod terminal;
#[cfg(test)]
mod tests;
