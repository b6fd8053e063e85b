//! Certificates.

use oarlock_core::{ErrorKind, Locks, Retry};
use oarlock_redis::{Redis, Tls};
use oarlock_testbed::RedisTls;

use crate::bed::{config, started};

#[tokio::test]
async fn only_a_trusted_server_is_accepted() {
    let server = started!(RedisTls::start_or_skip());
    let mut config = config(server.addr());
    // Without encryption it hangs up.
    assert_eq!(Redis::open(config.clone()).await.unwrap_err().kind(), ErrorKind::Unreachable);

    let mut tls = Tls::default();
    tls.ca = Some(server.other_ca());
    config.tls = Some(tls.clone());
    let error = Redis::open(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{error}");
    assert!(error.to_string().contains("not trusted"), "{error}");

    config.tls = Some(Tls::default());
    assert_eq!(Redis::open(config.clone()).await.unwrap_err().kind(), ErrorKind::Config, "no authority of the system");

    tls.ca = Some(server.ca());
    config.tls = Some(tls);
    let client = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    client.mutex("deploy").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let server = started!(RedisTls::start_with(&[("tls-auth-clients", "yes")]).map(Some));
    let mut config = config(server.addr());
    let mut tls = Tls::default();
    tls.ca = Some(server.ca());
    config.tls = Some(tls.clone());
    assert_eq!(Redis::open(config.clone()).await.unwrap_err().kind(), ErrorKind::Unreachable);
    tls.identity = Some(server.identity());
    config.tls = Some(tls);
    Redis::open(config).await.unwrap();
}
