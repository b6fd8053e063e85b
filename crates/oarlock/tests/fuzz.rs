//! Hostile URLs: a clear error or a URL that can be shown, without its password.

use std::path::Path;

use oarlock_fuzz::{Seen, fuzz};

#[test]
fn fuzz_url() {
    let words = [
        "redis://",
        "rediss://",
        "redis+sentinel://",
        "redis+cluster://",
        "redlock:",
        "etcd://",
        "zookeeper://",
        "postgres://",
        "mysql://",
        "mariadb://",
        "local:",
        "mem:",
        "?prefix=",
        "&layout=",
        "tls",
        "localhost",
        "[::1]",
        ":6379",
        "@",
        "%2F",
        "password",
        "mode=session",
        "ttl=",
        "min_replicas=",
        "timeout=",
    ];
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/url");
    fuzz("url", &corpus, &[], &words, |input| {
        let text = String::from_utf8_lossy(input);
        // Elsewhere than between the user and the host it is not known to be a password.
        let is_server = |scheme: &str| scheme.chars().all(|c| c.is_ascii_alphanumeric()) && scheme != "local";
        let has_password = text.matches("s3cr3t").count() == 1
            && text.split_once("://").is_some_and(|(scheme, rest)| {
                is_server(scheme) && (rest.starts_with("user:s3cr3t@") || rest.starts_with("u:s3cr3t@"))
            });
        match oarlock::url::parse(&text) {
            Ok(url) => {
                let shown = url.to_string();
                assert!(!has_password || !shown.contains("s3cr3t"), "{shown}");
                Seen::text(&shown)
            }
            Err(error) => {
                let shown = format!("{error} {:?}", error.hint());
                assert!(!has_password || !shown.contains("s3cr3t"), "{shown}");
                assert!(shown.len() < 4 * text.len() + 2000, "{} bytes of error for {}", shown.len(), text.len());
                Seen::text(&shown)
            }
        }
    });
}
