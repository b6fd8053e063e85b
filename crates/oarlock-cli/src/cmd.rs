//! One file for each subcommand.

pub(crate) mod bench;
pub(crate) mod break_;
pub(crate) mod completions;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod hold;
pub(crate) mod init;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod url;
pub(crate) mod wait;
