//! Encrypted connections, to servers with an authority of their own.

use std::time::Duration;

use anyhow::Context as _;
use oarlock_core::{Error, ErrorKind, Locks};
use oarlock_testbed::{ZooKeeper as Plain, ZooKeeperTls};
use oarlock_zookeeper::{Config, Tls, ZooKeeper};

type Outcome = anyhow::Result<()>;

const SESSION: Duration = Duration::from_secs(3);

fn config(host: &str, server: &ZooKeeperTls) -> Config {
    let mut config = Config::new([format!("{host}:{}", server.addr().port())]).session_timeout(SESSION);
    config.tls = Some(Tls::new(server.ca()));
    config
}

async fn refused(config: Config) -> anyhow::Result<Error> {
    ZooKeeper::open(config).await.err().context("the connection was accepted")
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_trusted_server_is_accepted() -> Outcome {
    let Some(server) = ZooKeeperTls::start_or_skip()? else { return Ok(()) };
    let mut fence = None;
    for host in ["127.0.0.1", "localhost"] {
        let client = Locks::over(ZooKeeper::open(config(host, &server)).await?)?;
        let guard = client.mutex("job").lock().await?;
        assert!(fence.replace(guard.fence()) < Some(guard.fence()));
        guard.release().await?;
    }
    let mut distrustful = config("127.0.0.1", &server);
    distrustful.tls = Some(Tls::new(server.other_ca()));
    let error = refused(distrustful.clone()).await?;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("not trusted"), "{error}");
    for file in ["/no/such/file", "/dev/null"] {
        distrustful.tls = Some(Tls::new(file));
        assert_eq!(refused(distrustful.clone()).await?.kind(), ErrorKind::Config, "{file}");
    }
    distrustful.tls = None;
    assert_eq!(refused(distrustful).await?.kind(), ErrorKind::Unreachable, "not encrypted");
    // No certificate can have this name, and the client crate would panic.
    let unnamed = refused(config("no host", &server)).await?;
    assert_eq!(unnamed.kind(), ErrorKind::Config, "{unnamed}");
    Ok(())
}

/// A session outlives its connection here too, and its locks with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_replaced() -> Outcome {
    let Some(server) = ZooKeeperTls::start_or_skip()? else { return Ok(()) };
    let client = Locks::over(ZooKeeper::open(config("127.0.0.1", &server)).await?)?;
    let guard = client.mutex("job").lock().await?;
    tokio::task::block_in_place(|| server.restart())?;
    guard.release().await?;
    client.mutex("job").lock().await?.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_over_or_of_another_host_is_refused() -> Outcome {
    for certificate in ["expired-and-key.pem", "elsewhere-and-key.pem"] {
        let settings = [("ssl.keyStore.location", certificate)];
        let Some(server) = ZooKeeperTls::start_with_or_skip(&settings)? else { return Ok(()) };
        let error = refused(config("127.0.0.1", &server)).await?;
        assert_eq!(error.kind(), ErrorKind::Config, "{certificate}: {error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_encrypt_is_refused() -> Outcome {
    let Some(server) = Plain::start_or_skip()? else { return Ok(()) };
    let Some(other) = ZooKeeperTls::start_or_skip()? else { return Ok(()) };
    let mut config = Config::new([server.addr().to_string()]).session_timeout(SESSION);
    config.tls = Some(Tls::new(other.ca()));
    assert_eq!(refused(config).await?.kind(), ErrorKind::Unreachable);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_require_a_certificate() -> Outcome {
    let Some(server) = ZooKeeperTls::start_with_or_skip(&[("ssl.clientAuth", "need")])? else { return Ok(()) };
    let mut config = config("127.0.0.1", &server);
    let mut tls = Tls::new(server.ca());
    for identity in [None, Some(server.other_identity())] {
        tls.identity = identity;
        config.tls = Some(tls.clone());
        let error = refused(config.clone()).await?;
        // Whether the client receives the reason before the connection ends is a race.
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{error}");
    }
    tls.identity = Some(server.identity());
    config.tls = Some(tls.clone());
    let client = Locks::over(ZooKeeper::open(config.clone()).await?)?;
    client.mutex("job").lock().await?.release().await?;
    tls.identity = Some((server.identity().0, server.ca()));
    config.tls = Some(tls);
    assert_eq!(refused(config).await?.kind(), ErrorKind::Config, "a key that is none");
    Ok(())
}
