//! Connections like those of the driver, for the requests of `oarlock-bench`. Not part of the API.

use oarlock_core::Result;
use tokio_postgres::Client;

use crate::postgres::config::Config;
pub use crate::postgres::error::failed;
use crate::postgres::error::no_connection;
pub use crate::postgres::request_pool::CONNECTIONS;
use crate::postgres::tls::Tls;

/// Opens a connection.
///
/// # Errors
/// When the server cannot be reached, or refuses the user.
pub async fn connect(config: &Config) -> Result<Client> {
    let (client, connection) = config.to_client().connect(Tls::of(config)?).await.map_err(no_connection)?;
    tokio::spawn(connection);
    Ok(client)
}
