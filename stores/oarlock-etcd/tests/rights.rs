//! Authentication and permissions: users, tokens that expire, roles no larger than needed, and certificates.

use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Interest};
use oarlock_core::{Claim, ClaimId, ErrorKind, Locks, ResourceName};
use oarlock_etcd::{Checked, Config, Etcd, Layout, Tls, Written};
use oarlock_testbed::{Etcd as Server, EtcdTls};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[path = "shared/user.rs"]
mod shared;

/// A configuration whose user may do what locks need, and nothing else.
fn with_user(server: &Server) -> anyhow::Result<Config> {
    let mut config = Config::new([server.addr().to_string()]);
    shared::with_user(server, &mut config)?;
    Ok(config)
}

/// Everything that a client does, with no more rights than the docs ask for; and on leases too.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_is_enough_and_tokens_are_renewed() -> Outcome {
    // A token ends after a second without use, and sooner than any lease here.
    let Some(_) = Server::start_or_skip()? else { return Ok(()) };
    let server = Server::start_with(&[("auth-token-ttl", "1")])?;
    let config = with_user(&server)?;
    let (one, two) = (Locks::over(Etcd::open(config.clone()).await?)?, Locks::over(Etcd::open(config.clone()).await?)?);
    let ttl = Duration::from_secs(6);
    let guard = one.mutex("job").ttl(ttl).lock().await?;
    let (fence, mut events) = (guard.fence(), Vec::new());
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.mutex("job").ttl(ttl).lock().await }
    });
    // Longer than the lease: every renewal comes with a token that has expired meanwhile.
    tokio::time::sleep(ttl + Duration::from_secs(2)).await;
    events.push(guard.is_held());
    guard.release().await?;
    let guard = tokio::time::timeout(Duration::from_secs(5), waiting).await???;
    assert!(events[0] && guard.fence() > fence, "{events:?}");
    assert_eq!(one.list().await?.len(), 1);
    guard.release().await?;

    let store = Etcd::open(config).await?;
    let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("job")?);
    claim.wait = true;
    let Attempt::Granted(_) = store.attempt(&claim).await? else { return Err("not granted".into()) };
    tokio::time::sleep(Duration::from_secs(3)).await;
    // A watch alone, with a token that has ended.
    let mut watch = store.watch(&Interest::Resource(claim.resource.clone())).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await?;
    assert!(watch.changed().await.is_some());
    // Leases are given back with what it may do.
    store.close().await?;
    one.shutdown(Duration::from_secs(5)).await?;
    two.shutdown(Duration::from_secs(5)).await?;
    let mut ctl = server.ctl_command()?;
    let left = ctl.args(["--user", "root:secret", "lease", "list"]).output()?;
    assert_eq!(String::from_utf8_lossy(&left.stdout).trim(), "found 0 leases");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_permission_gets_an_error() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    // A password is fine where the cluster requires none.
    let mut early = Config::new([server.addr().to_string()]);
    (early.user, early.password) = (Some("app".into()), Some("swordfish".into()));
    let early = Locks::over(Etcd::open(early).await?)?;
    early.mutex("job").lock().await?.release().await?;
    let config = with_user(&server)?;
    // And it is used once the cluster requires it.
    early.mutex("job").lock().await?.release().await?;

    let refused = |config: Config| async move { Etcd::open(config).await.expect_err("it was let in").kind() };
    let mut wrong = config.clone();
    wrong.password = Some("sword".into());
    assert_eq!(refused(wrong).await, ErrorKind::Denied);
    let anonymous = Config::new([server.addr().to_string()]);
    assert_eq!(refused(anonymous).await, ErrorKind::Denied);
    let mut elsewhere = config.clone();
    elsewhere.prefix = "other:".into();
    assert_eq!(refused(elsewhere).await, ErrorKind::Denied);
    let mut half = config.clone();
    half.user = None;
    assert_eq!(refused(half).await, ErrorKind::Config);

    // Each half of its one right.
    let root = |words: &[&str]| {
        let mut ctl = server.ctl_command()?;
        let output = ctl.args(["--user", "root:secret"]).args(words).output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    for half in ["read", "write"] {
        root(&["role", "grant-permission", "app", half, "oarlock:", "--prefix=true"])?;
        let error = match Etcd::open(config.clone()).await {
            Ok(store) => Locks::over(store)?.mutex("job").try_lock().await.expect_err("half a right is none"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{half}: {error}");
        for word in ["read and write", "oarlock init --print"] {
            assert!(error.to_string().contains(word), "{half}: {error}");
        }
    }
    Ok(())
}

/// In the layout of Go: the keys of the name, and the records beside them.
#[tokio::test(flavor = "multi_thread")]
async fn the_least_role_of_a_shared_layout() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let mut config = Config::new([server.addr().to_string()]);
    (config.layout, config.prefix) = (Layout::Go, "team/".into());
    shared::with_user(&server, &mut config)?;
    let client = Locks::over(Etcd::open(config.clone()).await?)?;
    let guard = client.mutex("job").lock().await?;
    assert_eq!(client.list().await?.len(), 1);
    guard.release().await?;
    config.prefix = "else/".into();
    let outside = Locks::over(Etcd::open(config).await?)?;
    assert_eq!(outside.mutex("job").try_lock().await.expect_err("no right").kind(), ErrorKind::Denied);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_shown_and_checked() -> Outcome {
    let Some(server) = EtcdTls::start_or_skip()? else { return Ok(()) };
    let mut tls = Tls::default();
    (tls.ca, tls.identity) = (Some(server.ca()), Some(server.identity()));
    let with = |tls: Tls| {
        let mut config = Config::new([server.addr().to_string()]);
        config.tls = Some(tls);
        config
    };
    let client = Locks::over(Etcd::open(with(tls.clone())).await?)?;
    client.mutex("job").lock().await?.release().await?;
    let values = Checked::open(with(tls.clone())).await?;
    assert_eq!(values.set("balance", oarlock_core::Fence::new(1), b"1").await?, Written::Stored);

    let mut anonymous = tls.clone();
    anonymous.identity = None;
    let refused = Etcd::open(with(anonymous)).await.expect_err("a client without a certificate was accepted");
    // Whether the client receives the reason before the connection ends is a race.
    assert!(matches!(refused.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{refused}");
    let mut stranger = tls.clone();
    stranger.identity = Some(server.other_identity());
    let refused = Etcd::open(with(stranger)).await.expect_err("a certificate of another authority was accepted");
    assert!(matches!(refused.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{refused}");
    let mut distrustful = tls.clone();
    distrustful.ca = Some(server.other_ca());
    let refused = Etcd::open(with(distrustful)).await.expect_err("an unsigned certificate was accepted");
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    let mut missing = tls;
    missing.ca = Some("/no/such/file".into());
    assert_eq!(Etcd::open(with(missing)).await.expect_err("no file").kind(), ErrorKind::Config);
    let plain = Config::new([server.addr().to_string()]);
    assert_eq!(Etcd::open(plain).await.expect_err("not encrypted").kind(), ErrorKind::Unreachable);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_over_or_of_another_host_is_refused() -> Outcome {
    for certificate in ["expired.pem", "elsewhere.pem"] {
        let Some(server) = EtcdTls::start_with_or_skip(&[("cert-file", certificate)])? else { return Ok(()) };
        let (mut config, mut tls) = (Config::new([server.addr().to_string()]), Tls::default());
        (tls.ca, tls.identity) = (Some(server.ca()), Some(server.identity()));
        config.tls = Some(tls);
        let refused = Etcd::open(config).await.expect_err("the certificate was accepted");
        assert_eq!(refused.kind(), ErrorKind::Config, "{certificate}: {refused}");
    }
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let mut config = Config::new([server.addr().to_string()]);
    config.tls = Some(Tls::default());
    assert_eq!(Etcd::open(config).await.expect_err("a plain server").kind(), ErrorKind::Unreachable);
    Ok(())
}
