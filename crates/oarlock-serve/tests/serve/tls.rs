//! TLS: the certificate is shown, nothing is said in clear, and clients can be asked for a certificate.

use std::path::PathBuf;
use std::sync::Arc;

use oarlock_serve::{Access, Config};
use oarlock_testbed::CertificateFolder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::support::{PATIENCE, Running, Store, TOKEN};

/// A client that trusts the authority of the server, with a certificate of its own or without.
pub(super) fn connector(files: &CertificateFolder, identity: Option<(PathBuf, PathBuf)>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files.file("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots);
    TlsConnector::from(Arc::new(match identity {
        None => client.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = CertificateDer::pem_file_iter(chain).unwrap().map(Result::unwrap).collect();
            client.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    }))
}

#[tokio::test]
async fn an_encrypted_server_answers_its_clients_and_no_other() {
    let store = Store::local();
    let Ok(files) = CertificateFolder::make("serve") else {
        eprintln!("skipped: there is no openssl on this machine");
        return;
    };
    let mut config = Config::default();
    config.access = Access::token(TOKEN).unwrap();
    config.tls = Some((files.file("server.pem"), files.file("server.key")));
    let server = Running::with(&store, config).await;
    let connector = connector(&files, None);
    let answer_to = async |token: &str| {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        let head = format!(
            "GET /v1/locks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
        answer
    };
    assert!(answer_to(TOKEN).await.starts_with("HTTP/1.1 200"));
    assert!(answer_to("wrong").await.starts_with("HTTP/1.1 401"));
    let clear = server.raw(b"GET /v1/locks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(!clear.contains("HTTP/1.1"), "{clear}");
    server.stop().await;
}

#[tokio::test]
async fn a_client_certificate_is_as_good_as_a_token() {
    let store = Store::local();
    let Ok(files) = CertificateFolder::make("serve") else {
        eprintln!("skipped: there is no openssl on this machine");
        return;
    };
    for tokens in [false, true] {
        let mut config = Config::default();
        if tokens {
            config.access = Access::token(TOKEN).unwrap();
        }
        config.tls = Some((files.file("server.pem"), files.file("server.key")));
        config.client_ca = Some(files.file("ca.pem"));
        let server = Running::with(&store, config).await;
        // The answer, or none: TLS 1.3 refuses a client after its handshake.
        let answer = async |identity| -> Option<String> {
            let stream = TcpStream::connect(server.address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = connector(&files, identity).connect(name, stream).await.ok()?;
            let head = "GET /v1/store HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            let mut answer = String::new();
            tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an end").ok()?;
            Some(answer)
        };
        for refused in [None, Some(files.other_identity())] {
            let answer = answer(refused).await;
            assert!(answer.as_deref().is_none_or(str::is_empty), "{answer:?}");
        }
        let trusted = answer(Some(files.identity())).await.expect("an answer");
        if tokens {
            assert!(trusted.starts_with("HTTP/1.1 401"), "a token is needed as well: {trusted}");
        } else {
            assert!(trusted.starts_with("HTTP/1.1 200") && trusted.contains("\"client\":\"certificate "), "{trusted}");
        }
        server.stop().await;
    }
}

/// What is no handshake, and one that does not go on, end soon: also where a client may take long to send a request.
#[tokio::test]
async fn a_handshake_that_is_none_or_that_stops_ends_and_harms_no_other() {
    let store = Store::local();
    let Ok(files) = CertificateFolder::make("serve") else {
        eprintln!("skipped: there is no openssl on this machine");
        return;
    };
    let mut config = Config::default();
    config.access = Access::token(TOKEN).unwrap();
    config.tls = Some((files.file("server.pem"), files.file("server.key")));
    config.patience = 10 * PATIENCE;
    let server = Running::with(&store, config).await;
    let begun = std::time::Instant::now();
    // Garbage; the head of a record whose rest does not come, or is not a greeting.
    let half = [0x16, 3, 1, 2, 0, 1];
    let wrong = [&[0x16, 3, 1, 0, 64][..], &[0xff; 64]].concat();
    for bytes in [&[0; 600][..], &[0xff; 20_000], &half, &wrong, b""] {
        let answer = server.raw(bytes).await;
        assert!(!answer.contains("HTTP/"), "{answer}");
    }
    // A greeting that comes a byte at a time, and never ends.
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 2, 0]).await.unwrap();
    let cut_off = async {
        while slow.write_all(&[1]).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, cut_off).await.expect("the server cuts it off");
    assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector(&files, None).connect(name, stream).await.expect("another client is served");
    server.stop().await;
}
