//! Encrypted connections, to a server with an authority of its own.

use std::path::PathBuf;

use oarlock_core::capabilities::Notify;
use oarlock_core::driver::{Driver as _, End, Released};
use oarlock_core::{Error, ErrorKind};
use oarlock_sql::postgres::{Config, Encryption, Postgres};
use oarlock_testbed::CertificateFolder;

use crate::store::{Server, claim, config, grant, start, until};

/// A server that speaks TLS, and the folder of its certificates.
async fn encrypting() -> Option<(Server, tokio_postgres::Client, CertificateFolder)> {
    let (server, root) = start().await?;
    let folder = CertificateFolder::make("postgres").unwrap();
    // It runs in the server's folder as the server's user, who alone may own the key.
    let install = |name: &str| format!("install -m 600 {} .", folder.file(name).display());
    let files = ["server.key", "server.pem", "expired.pem", "elsewhere.pem", "ca.pem"].map(install).join(" && ");
    root.batch_execute(&format!("COPY (SELECT 1) TO PROGRAM '{files}'")).await.unwrap();
    set(&root, &[("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key"), ("ssl", "on")]).await;
    Some((server, root, folder))
}

/// Changes settings of the server.
async fn set(root: &tokio_postgres::Client, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        root.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'")).await.unwrap();
    }
    root.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    for (name, value) in settings {
        let is_set = format!("SELECT count(*) FROM pg_settings WHERE name = '{name}' AND setting = '{value}'");
        until(root, &is_set, 1).await;
    }
}

fn encrypted(server: &Server, encryption: Encryption, root_certificate: Option<PathBuf>) -> Config {
    let mut config = config(server.addr());
    (config.encryption, config.root_certificate) = (encryption, root_certificate);
    config
}

async fn refused(config: Config) -> Error {
    Postgres::connect(config).await.map(drop).unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_taken_over_encrypted_connections() {
    let Some((server, root, folder)) = encrypting().await else { return };
    let ours = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                WHERE a.application_name = 'oarlock' AND s.ssl";
    for (encryption, trusted, connections) in [
        (Encryption::Disable, None, 0),
        (Encryption::Prefer, None, 2),
        (Encryption::Require, None, 2),
        (Encryption::Require, Some("ca.pem"), 2),
        (Encryption::VerifyCa, Some("ca.pem"), 2),
        (Encryption::VerifyFull, Some("ca.pem"), 2),
    ] {
        let trusted = trusted.map(|name| folder.file(name));
        let store = Postgres::connect(encrypted(&server, encryption, trusted)).await.unwrap();
        let claim = claim(1, "job");
        grant(&store, &claim).await.unwrap();
        until(&root, ours, connections).await;
        // Had it taken the server's process for another's, it would think of a pooler and hear no news.
        assert_eq!(store.info().capabilities.notify, Notify::Push, "{encryption:?}");
        let released = store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(released.outcome, Released::Released);
        store.close().await.unwrap();
        until(&root, ours, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_prove_itself_is_refused() {
    let Some((server, _root, folder)) = encrypting().await else { return };
    let stranger = Some(folder.file("other-ca.pem"));
    for encryption in [Encryption::Prefer, Encryption::Require, Encryption::VerifyCa, Encryption::VerifyFull] {
        let error = refused(encrypted(&server, encryption, stranger.clone())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{encryption:?}: {error:?}");
        assert!(error.to_string().contains("not trusted"), "{error}");
    }
    // The certificates of the system have signed nothing here.
    assert_eq!(refused(encrypted(&server, Encryption::VerifyFull, None)).await.kind(), ErrorKind::Config);
    let missing = Some(folder.file("nothing"));
    assert_eq!(refused(encrypted(&server, Encryption::Require, missing)).await.kind(), ErrorKind::Config);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_over_or_of_another_host_is_refused() {
    let Some((server, root, folder)) = encrypting().await else { return };
    let ca = Some(folder.file("ca.pem"));
    for (certificate, accepted) in [("expired.pem", None), ("elsewhere.pem", Some(Encryption::VerifyCa))] {
        set(&root, &[("ssl_cert_file", certificate)]).await;
        for encryption in [Encryption::Prefer, Encryption::Require, Encryption::VerifyCa, Encryption::VerifyFull] {
            let config = encrypted(&server, encryption, ca.clone());
            if accepted == Some(encryption) {
                grant(&Postgres::connect(config).await.unwrap(), &claim(1, "job")).await.unwrap();
            } else {
                let error = refused(config).await;
                assert_eq!(error.kind(), ErrorKind::Config, "{certificate} {encryption:?}: {error:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_require_a_certificate() {
    let Some((server, root, folder)) = encrypting().await else { return };
    root.batch_execute("CREATE ROLE client SUPERUSER LOGIN").await.unwrap();
    let rules = "echo hostssl all client all cert > rules && cat pg_hba.conf >> rules && mv rules pg_hba.conf";
    root.batch_execute(&format!("COPY (SELECT 1) TO PROGRAM '{rules}'")).await.unwrap();
    set(&root, &[("ssl_ca_file", "ca.pem")]).await;
    let mut config = encrypted(&server, Encryption::VerifyFull, Some(folder.file("ca.pem")));
    config.user = Some("client".into());
    for identity in [None, Some(folder.other_identity())] {
        config.identity = identity;
        let error = refused(config.clone()).await;
        // Whether the client receives the reason before the connection ends is a race.
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{error:?}");
    }
    config.identity = Some(folder.identity());
    grant(&Postgres::connect(config.clone()).await.unwrap(), &claim(1, "job")).await.unwrap();
    for (certificate, key) in [("client.pem", "server.key"), ("client.pem", "ca.pem"), ("nothing", "client.key")] {
        config.identity = Some((folder.file(certificate), folder.file(key)));
        assert_eq!(refused(config.clone()).await.kind(), ErrorKind::Config, "{certificate} {key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_encrypt_is_refused_where_it_must() {
    let Some((server, _root)) = start().await else { return };
    for encryption in [Encryption::Require, Encryption::VerifyFull] {
        let error = refused(encrypted(&server, encryption, None)).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    }
    let store = Postgres::connect(encrypted(&server, Encryption::Prefer, None)).await.unwrap();
    grant(&store, &claim(1, "job")).await.unwrap();
}
