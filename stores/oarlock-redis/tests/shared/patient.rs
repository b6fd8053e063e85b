//! Plain connections for looking from outside, which wait as long as a busy machine takes: the client's own limit is
//! half a second.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let config =
        AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE)).set_connection_timeout(Some(PATIENCE));
    redis::Client::open(url).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}
