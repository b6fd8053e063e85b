//! Encrypted connections, to a server with an authority of its own.

use std::path::PathBuf;

use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Driver as _, End, Released};
use oarlock_core::{Error, ErrorKind};
use oarlock_sql::mysql::{Config, Encryption, MySql, MySqlSession, Named};
use oarlock_testbed::{CertificateFolder, Flavour, SqlServer};

use crate::store::{Server, claim, config, grant, raw, start_with};

/// A server that speaks TLS with this certificate, and the folder of its certificates.
async fn encrypting(on: Flavour, certificate: &str) -> Option<(Server, CertificateFolder)> {
    let folder = CertificateFolder::make("mysql").unwrap();
    let [cert, key, ca] = [certificate, "server.key", "ca.pem"].map(|name| folder.file(name).display().to_string());
    let server = tokio::task::spawn_blocking(move || {
        SqlServer::start_with_or_skip(on, &[("ssl-cert", &cert), ("ssl-key", &key), ("ssl-ca", &ca)])
    });
    Some((Server::from(server.await.unwrap().unwrap()?), folder))
}

fn encrypted(server: &Server, encryption: Encryption, root_certificate: Option<PathBuf>) -> Config {
    let mut config = config(server.addr());
    (config.encryption, config.root_certificate) = (encryption, root_certificate);
    config
}

async fn refused(config: Config) -> Error {
    MySql::connect(config).await.map(drop).unwrap_err()
}

async fn locks_are_taken_over_encrypted_connections(on: Flavour) {
    let Some((server, folder)) = encrypting(on, "server.pem").await else { return };
    let ours = Some(folder.file("ca.pem"));
    let mut root = raw(server.addr()).await;
    root.query_drop("CREATE USER secret REQUIRE SSL; GRANT ALL ON locks.* TO secret").await.unwrap();
    for (encryption, trusted) in
        [(Encryption::Require, None), (Encryption::Require, ours.clone()), (Encryption::VerifyFull, ours.clone())]
    {
        // The server lets this user in over TLS alone.
        let mut config = encrypted(&server, encryption, trusted);
        config.user = Some("secret".into());
        let store = MySql::connect(config.clone()).await.unwrap();
        let claim = claim(1, "job");
        grant(&store, &claim).await.unwrap();
        let released = store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(released.outcome, Released::Released);
        let session = MySqlSession::connect(Named::new(config)).await.unwrap();
        session.attempt(&claim).await.unwrap();
    }
    let mut plain = config(server.addr());
    plain.user = Some("secret".into());
    assert_eq!(refused(plain).await.kind(), ErrorKind::Denied);
}

async fn a_server_that_cannot_prove_itself_is_refused(on: Flavour) {
    let Some((server, folder)) = encrypting(on, "server.pem").await else { return };
    let stranger = Some(folder.file("other-ca.pem"));
    for encryption in [Encryption::Require, Encryption::VerifyFull] {
        let error = refused(encrypted(&server, encryption, stranger.clone())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{encryption:?}: {error:?}");
    }
    // The public authorities have signed nothing here.
    assert_eq!(refused(encrypted(&server, Encryption::VerifyFull, None)).await.kind(), ErrorKind::Config);
    let mut unread = encrypted(&server, Encryption::VerifyFull, Some(folder.file("nothing")));
    assert_eq!(refused(unread.clone()).await.kind(), ErrorKind::Config);
    for encryption in [Encryption::Prefer, Encryption::VerifyCa] {
        unread.encryption = encryption;
        assert_eq!(refused(unread.clone()).await.kind(), ErrorKind::Unsupported);
    }
}

async fn a_certificate_that_is_over_or_of_another_host_is_refused(on: Flavour) {
    for certificate in ["expired.pem", "elsewhere.pem"] {
        let Some((server, folder)) = encrypting(on, certificate).await else { return };
        for encryption in [Encryption::Require, Encryption::VerifyFull] {
            let error = refused(encrypted(&server, encryption, Some(folder.file("ca.pem")))).await;
            assert_eq!(error.kind(), ErrorKind::Config, "{certificate} {encryption:?}: {error:?}");
        }
    }
}

async fn a_user_may_require_a_certificate(on: Flavour) {
    let Some((server, folder)) = encrypting(on, "server.pem").await else { return };
    let mut root = raw(server.addr()).await;
    root.query_drop("CREATE USER client REQUIRE X509; GRANT ALL ON locks.* TO client").await.unwrap();
    let mut config = encrypted(&server, Encryption::VerifyFull, Some(folder.file("ca.pem")));
    config.user = Some("client".into());
    for identity in [None, Some(folder.other_identity())] {
        config.identity = identity;
        let error = refused(config.clone()).await;
        // Whether the client receives the reason before the connection ends is a race.
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{error:?}");
    }
    config.identity = Some(folder.identity());
    grant(&MySql::connect(config.clone()).await.unwrap(), &claim(1, "job")).await.unwrap();
    for (certificate, key) in [("client.pem", "server.key"), ("client.pem", "ca.pem"), ("nothing", "client.key")] {
        config.identity = Some((folder.file(certificate), folder.file(key)));
        let error = refused(config.clone()).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{certificate} {key}: {error:?}");
    }
}

async fn a_server_that_cannot_encrypt_is_refused_where_it_must(on: Flavour) {
    let settings: &[_] = match on {
        Flavour::MariaDb => &[("ssl", "0")],
        Flavour::MySql => &[("tls-version", "")],
    };
    let Some((server, _root)) = start_with(on, settings).await else { return };
    let error = refused(encrypted(&server, Encryption::Require, None)).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error:?}");
}

/// `caching_sha2_password`, what MySQL checks passwords with: the first time it has to see the password itself, over
/// TLS or under its own RSA key; after that it knows the user by a digest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_checked_with_and_without_encryption() {
    const NO_KEY: [(&str, &str); 2] = [
        ("caching-sha2-password-private-key-path", "nowhere.pem"),
        ("caching-sha2-password-public-key-path", "nowhere.pem"),
    ];
    for (settings, has_key) in [(&[] as &[_], true), (&NO_KEY, false)] {
        let Some((server, mut root)) = start_with(Flavour::MySql, settings).await else { return };
        root.query_drop(
            "CREATE USER app IDENTIFIED WITH caching_sha2_password BY 'secret'; GRANT ALL ON locks.* TO app",
        )
        .await
        .unwrap();
        let mut plain = config(server.addr()).password("secret");
        plain.user = Some("app".into());
        let mut encrypted = plain.clone();
        encrypted.encryption = Encryption::Require;
        for known in [false, true] {
            root.query_drop("FLUSH PRIVILEGES").await.unwrap();
            if known {
                MySql::connect(encrypted.clone()).await.unwrap();
            }
            if known || has_key {
                let store = MySql::connect(plain.clone()).await.unwrap();
                grant(&store, &claim(1, "job")).await.unwrap();
                MySqlSession::connect(Named::new(plain.clone())).await.unwrap();
            } else {
                let error = refused(plain.clone()).await;
                assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
                assert!(error.to_string().contains("sslmode"), "{error}");
            }
        }
        for config in [plain, encrypted] {
            assert_eq!(refused(config.password("wrong")).await.kind(), ErrorKind::Denied);
        }
    }
}

on_both!(
    locks_are_taken_over_encrypted_connections,
    a_server_that_cannot_prove_itself_is_refused,
    a_certificate_that_is_over_or_of_another_host_is_refused,
    a_user_may_require_a_certificate,
    a_server_that_cannot_encrypt_is_refused_where_it_must,
);
