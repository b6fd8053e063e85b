//! Connections like those of the driver, for the requests of `oarlock-bench`. Not part of the API.

use oarlock_core::Result;
use tokio_postgres::Client;

use crate::postgres::config::Config;
use crate::postgres::connection::dial;
pub use crate::postgres::error::failed;
pub use crate::postgres::request_pool::CONNECTIONS;

/// Opens a connection.
///
/// # Errors
/// When the server cannot be reached, or refuses the user.
pub async fn connect(config: &Config) -> Result<Client> {
    let (client, connection) = dial(config).await?;
    tokio::spawn(connection);
    Ok(client)
}
