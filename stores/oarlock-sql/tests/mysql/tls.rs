//! Encrypted connections, to a server with an authority of its own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Driver as _, End, Released};
use oarlock_core::{Error, ErrorKind};
use oarlock_sql::mysql::{Config, Encryption, MySql, MySqlSession, Named};
use oarlock_testbed::{Flavour, SqlServer};

use crate::store::{Server, claim, config, grant, raw, start_with};

/// Makes a key and a certificate for 127.0.0.1, and the authority that has signed it.
const MAKE: &str = "for name in server stranger; do
    key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
    openssl req -x509 $key -keyout $name-ca.key -out $name-ca.crt -days 2 -subj /CN=$name &&
    openssl req $key -keyout $name.key -out $name.csr -subj /CN=127.0.0.1 &&
    echo subjectAltName=IP:127.0.0.1 > $name.ext &&
    openssl x509 -req -in $name.csr -CA $name-ca.crt -CAkey $name-ca.key -CAcreateserial -days 2 \
        -extfile $name.ext -out $name.crt || exit 1
done; chmod 644 *";

/// A server that speaks TLS, and a folder with two authorities: its own, and one that has signed nothing of it.
async fn encrypting(on: Flavour) -> Option<(Server, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let made = Command::new("sh").args(["-c", MAKE]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (cert, key) = (file("server.crt"), file("server.key"));
    let server = tokio::task::spawn_blocking(move || {
        SqlServer::start_with_or_skip(on, &[("ssl-cert", cert.as_str()), ("ssl-key", key.as_str())])
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
    let Some((server, folder)) = encrypting(on).await else { return };
    let ours = Some(folder.path().join("server-ca.crt"));
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
    let Some((server, folder)) = encrypting(on).await else { return };
    let stranger = Some(folder.path().join("stranger-ca.crt"));
    for encryption in [Encryption::Require, Encryption::VerifyFull] {
        let error = refused(encrypted(&server, encryption, stranger.clone())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{encryption:?}: {error:?}");
    }
    // The public authorities have signed nothing here.
    assert_eq!(refused(encrypted(&server, Encryption::VerifyFull, None)).await.kind(), ErrorKind::Config);
    let mut misnamed = encrypted(&server, Encryption::VerifyFull, Some(folder.path().join("server-ca.crt")));
    misnamed.host = "localhost".into();
    assert_eq!(refused(misnamed).await.kind(), ErrorKind::Config);
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
    a_server_that_cannot_encrypt_is_refused_where_it_must,
);
