//! Certificates.

use oarlock_core::{ErrorKind, Locks, Retry};
use oarlock_redis::{Redis, Tls};
use oarlock_testbed::RedisTls;

use crate::context::{config, started};

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
async fn a_certificate_that_is_over_or_of_another_host_is_refused() {
    for certificate in ["expired.pem", "elsewhere.pem"] {
        let server = started!(RedisTls::start_with_or_skip(&[("tls-cert-file", certificate)]));
        let (mut config, mut tls) = (config(server.addr()), Tls::default());
        tls.ca = Some(server.ca());
        config.tls = Some(tls);
        let error = Redis::open(config).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{certificate}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_encrypt_is_refused() {
    let server = started!(oarlock_testbed::Redis::start_or_skip());
    let mut config = config(server.addr());
    config.tls = Some(Tls::default());
    assert_eq!(Redis::open(config).await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let server = started!(RedisTls::start_with_or_skip(&[("tls-auth-clients", "yes")]));
    let mut config = config(server.addr());
    let mut tls = Tls::default();
    tls.ca = Some(server.ca());
    for identity in [None, Some(server.other_identity())] {
        tls.identity = identity;
        config.tls = Some(tls.clone());
        let error = Redis::open(config.clone()).await.unwrap_err();
        // Whether the client receives the reason before the connection ends is a race.
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{error}");
    }
    tls.identity = Some(server.identity());
    config.tls = Some(tls);
    let client = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    client.mutex("deploy").lock().await.unwrap().release().await.unwrap();
}
