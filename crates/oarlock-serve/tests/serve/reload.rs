//! Tokens, certificates and the audit log are exchanged while the server runs: leases and waiters go on.

use std::path::Path;
use std::time::Duration;

use oarlock_serve::{Access, Config};
use oarlock_testbed::CertificateFolder;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::support::{PATIENCE, Running, Store, eventually, text};
use super::tls::connector;

const OLD: &str = "an-old-token-of-this-client";
const NEW: &str = "a-new-token-of-this-client";

/// The tokens of a file that gives this client every right, and another one the right to read.
fn access(dir: &Path, secret: &str) -> Access {
    let file = dir.join("tokens.toml");
    let tokens = format!(
        "[[token]]\nname = \"ci\"\nsecret = \"{secret}\"\nread = [\"*\"]\nlock = [\"*\"]\n\
         [[token]]\nname = \"page\"\nsecret = \"the-token-of-a-page-in-a-browser\"\nread = [\"*\"]\n"
    );
    std::fs::write(&file, tokens).unwrap();
    Access::file(&file).unwrap()
}

#[tokio::test]
async fn tokens_are_exchanged_without_a_loss_for_those_who_hold_and_wait() {
    let (store, dir) = (Store::local(), tempfile::TempDir::new().unwrap());
    let mut config = Config::default();
    (config.access, config.audit) = (access(dir.path(), OLD), Some(dir.path().join("audit")));
    let (server, locks) = (Running::with(&store, config).await, store.connect().await);
    let send = async |token: &str, method: &str, path: &str, body: &str| {
        server.send_with(method, path, body, &[("authorization", &format!("Bearer {token}"))]).await
    };
    let held = send(OLD, "POST", "/v1/locks/held", "").await.json();
    let lease = json!({ "lease": held["lease"] }).to_string();
    let guard = locks.mutex("x").lock().await.unwrap();
    let wait = json!({ "wait_ms": 60_000 }).to_string();
    let waiter = send(OLD, "POST", "/v1/locks/x", &wait);
    let exchanged = async {
        eventually("it waits", || async { locks.inspect("x").await.unwrap().waiters.count() == Some(1) }).await;
        let mut stream = server.events("/v1/watch", &[("authorization", &format!("Bearer {OLD}"))]).await;
        stream.next("locks").await;
        // The same tokens again: the stream goes on.
        server.reload.with(access(dir.path(), OLD)).unwrap();
        let _more = locks.mutex("y").lock().await.unwrap();
        stream.next("changes").await;
        server.reload.with(access(dir.path(), NEW)).unwrap();
        stream.end().await;
        send(OLD, "GET", "/v1/locks", "").await.problem(401, "unauthorized");
        send(OLD, "POST", "/v1/locks/held/renew", &lease).await.problem(401, "unauthorized");
        let renewed = send(NEW, "POST", "/v1/locks/held/renew", &lease).await;
        assert_eq!((renewed.status, text(&renewed.json(), "fence")), (200, text(&held, "fence")), "{renewed:?}");
        guard.release().await.unwrap();
    };
    let (granted, ()) = tokio::join!(waiter, exchanged);
    assert_eq!(granted.status, 201, "it waited on: {granted:?}");
    // Settings that would be unsafe, and files that cannot be read, change nothing.
    let refused = server.reload.with(Access::open().allow_break(true)).unwrap_err();
    assert!(refused.to_string().contains("--allow-break"), "none may break without a token: {refused}");
    std::fs::remove_file(dir.path().join("audit")).unwrap();
    std::fs::create_dir(dir.path().join("audit")).unwrap();
    let refused = server.reload.with(access(dir.path(), OLD)).unwrap_err();
    assert!(refused.to_string().contains("audit"), "{refused}");
    assert_eq!(send(NEW, "GET", "/v1/locks", "").await.status, 200);
    assert_eq!(send(OLD, "GET", "/v1/locks", "").await.status, 401);
    server.stop().await;
}

/// A token that may do less, or more, is another one.
#[tokio::test]
async fn a_right_that_is_taken_ends_the_streams_that_use_it() {
    let (store, dir) = (Store::local(), tempfile::TempDir::new().unwrap());
    let mut config = Config::default();
    config.access = access(dir.path(), OLD);
    let server = Running::with(&store, config).await;
    let bearer = [("authorization", "Bearer the-token-of-a-page-in-a-browser")];
    let mut stream = server.events("/v1/watch", &bearer).await;
    stream.next("locks").await;
    let file = dir.path().join("tokens.toml");
    let less = std::fs::read_to_string(&file).unwrap().replacen("read = [\"*\"]", "read = [\"ci/*\"]", 2);
    std::fs::write(&file, less).unwrap();
    server.reload.with(Access::file(&file).unwrap()).unwrap();
    stream.end().await;
    server.stop().await;
}

#[tokio::test]
async fn certificates_are_exchanged_for_the_next_connection() {
    let (store, dir) = (Store::local(), tempfile::TempDir::new().unwrap());
    let Ok(files) = CertificateFolder::make("serve") else {
        eprintln!("skipped: there is no openssl on this machine");
        return;
    };
    let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
    let install = |from: (std::path::PathBuf, std::path::PathBuf)| {
        std::fs::copy(from.0, &chain).unwrap();
        std::fs::copy(from.1, &key).unwrap();
    };
    let ours = (files.file("server.pem"), files.file("server.key"));
    install(ours.clone());
    let mut config = Config::default();
    config.access = access(dir.path(), OLD);
    config.tls = Some((chain.clone(), key.clone()));
    let server = Running::with(&store, config).await;
    let is_trusted = async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let shown = connector(&files, None).connect(name, stream);
        tokio::time::timeout(PATIENCE, shown).await.expect("an answer in time").is_ok()
    };
    assert!(is_trusted().await);
    install(files.other_identity());
    assert!(is_trusted().await, "nothing is read before it is asked for");
    server.reload.with(access(dir.path(), OLD)).unwrap();
    assert!(!is_trusted().await, "the certificate of another authority");
    install(ours);
    std::fs::write(&key, "no key").unwrap();
    let refused = server.reload.with(access(dir.path(), NEW)).unwrap_err();
    assert!(refused.to_string().contains("key.pem"), "{refused}");
    assert!(!is_trusted().await, "nothing has changed");
    std::fs::copy(files.file("server.key"), &key).unwrap();
    server.reload.with(access(dir.path(), NEW)).unwrap();
    assert!(is_trusted().await);
    tokio::time::timeout(Duration::from_secs(20), server.stop()).await.expect("it ends");
}
