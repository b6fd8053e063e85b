//! Connections like those of the driver, for the requests of `oarlock-bench`. Not part of the API.

pub use crate::mysql::connection::{REQUESTS as CONNECTIONS, dial as connect};
pub use crate::mysql::error::failed;
