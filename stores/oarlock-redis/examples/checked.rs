//! A holder that was paused for too long, and a value that does not let it write any more.
//!
//! `cargo run -p oarlock-redis --example checked` starts a server for it.

use std::time::Duration;

use oarlock_core::Locks;
use oarlock_redis::{Address, Checked, Config, Redis, Written};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = oarlock_testbed::Redis::start()?;
    let addr = server.addr();
    let config = Config::new(Address::Tcp(addr.ip().to_string(), addr.port()));
    let client = Locks::over(Redis::open(config.clone()).await?)?;
    let values = Checked::open(config).await?;

    let slow = client.mutex("balance").ttl(Duration::from_millis(200)).no_renewal().lock().await?;
    println!("the slow one holds it with fence {}", slow.fence());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let quick = client.mutex("balance").lock().await?;
    println!("it was away for too long; the quick one holds it with fence {}", quick.fence());

    assert_eq!(values.set("balance", quick.fence(), b"42").await?, Written::Stored);
    let late = values.set("balance", slow.fence(), b"17").await?;
    println!("the slow one writes: {late:?}");
    assert!(matches!(late, Written::Refused { stored } if stored == quick.fence()));
    assert_eq!(values.get("balance").await?, Some((quick.fence(), b"42".to_vec())));
    println!("the balance is still 42");
    quick.release().await?;
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}
