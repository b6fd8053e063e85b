//! Encrypted connections, to a server with an authority of its own.

use std::path::PathBuf;

use oarlock_core::capabilities::Notify;
use oarlock_core::driver::{Driver as _, End, Released};
use oarlock_core::{Error, ErrorKind};
use oarlock_sql::postgres::{Config, Encryption, Postgres};

use crate::store::{Server, claim, config, grant, start, until};

/// Lets the server make a key and a certificate for 127.0.0.1; that of the authority which has signed it, as text.
async fn certificate(root: &tokio_postgres::Client, name: &str) -> String {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let steps = [
        format!("openssl req -x509 {key} -keyout {name}-ca.key -out {name}-ca.crt -days 2 -subj /CN={name}"),
        format!("openssl req {key} -keyout {name}.key -out {name}.csr -subj /CN=127.0.0.1"),
        format!("echo subjectAltName=IP:127.0.0.1 > {name}.ext"),
        format!(
            "openssl x509 -req -in {name}.csr -CA {name}-ca.crt -CAkey {name}-ca.key -CAcreateserial -days 2 \
             -extfile {name}.ext -out {name}.crt"
        ),
    ];
    // It runs in the server's folder as the server's user, who alone may own the key.
    let made = format!("COPY (SELECT 1) TO PROGRAM '({}) 2>/dev/null'", steps.join(" && "));
    root.batch_execute(&made).await.unwrap();
    root.query_one(&format!("SELECT pg_read_file('{name}-ca.crt')"), &[]).await.unwrap().get(0)
}

/// A server that speaks TLS, and a folder with two authorities: its own, and one that has signed nothing of it.
async fn encrypting() -> Option<(Server, tokio_postgres::Client, tempfile::TempDir)> {
    let (server, root) = start().await?;
    let folder = tempfile::tempdir().unwrap();
    for name in ["server", "stranger"] {
        std::fs::write(folder.path().join(name), certificate(&root, name).await).unwrap();
    }
    for setting in ["ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'", "ssl = on"] {
        root.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    root.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    until(&root, "SELECT count(*) FROM pg_settings WHERE name = 'ssl' AND setting = 'on'", 1).await;
    Some((server, root, folder))
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
        (Encryption::Require, Some("server"), 2),
        (Encryption::VerifyFull, Some("server"), 2),
    ] {
        let trusted = trusted.map(|name| folder.path().join(name));
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
    let stranger = Some(folder.path().join("stranger"));
    for encryption in [Encryption::Prefer, Encryption::Require, Encryption::VerifyFull] {
        let error = refused(encrypted(&server, encryption, stranger.clone())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{encryption:?}: {error:?}");
        assert!(error.to_string().contains("not trusted"), "{error}");
    }
    // The certificates of the system have signed nothing here.
    assert_eq!(refused(encrypted(&server, Encryption::VerifyFull, None)).await.kind(), ErrorKind::Config);
    let mut misnamed = encrypted(&server, Encryption::VerifyFull, Some(folder.path().join("server")));
    misnamed.host = "localhost".into();
    assert_eq!(refused(misnamed).await.kind(), ErrorKind::Config);
    let missing = Some(folder.path().join("nothing"));
    assert_eq!(refused(encrypted(&server, Encryption::Require, missing)).await.kind(), ErrorKind::Config);
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
