//! Bad input has a clear answer, loses nothing and ends no server.

use std::time::{Duration, Instant};

use oarlock_serve::Config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{PATIENCE, Running, Store, TOKEN, raw};

#[tokio::test]
async fn malformed_requests_have_clear_answers() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let long = format!("/v1/locks/{}", "a".repeat(1025));
    for (method, path, body, status, code) in [
        ("GET", "/v1/locks/%FF", "", 400, "invalid-name"),
        ("GET", long.as_str(), "", 400, "invalid-name"),
        ("GET", "/v1/locks/a/b", "", 404, "not-found"),
        ("PUT", "/v1/locks/a", "", 405, "method-not-allowed"),
        ("GET", "/v1/locks?limit=0", "", 400, "bad-request"),
        ("GET", "/v1/locks?limit=x", "", 400, "bad-request"),
        ("GET", "/v1/locks?patern=x", "", 400, "bad-request"),
        ("POST", "/v1/locks/a", "{", 400, "bad-request"),
        ("POST", "/v1/locks/a", r#"{"ttl_ms":1}"#, 400, "bad-request"),
        ("POST", "/v1/locks/a", r#"{"wait_ms":60001}"#, 400, "bad-request"),
        ("POST", "/v1/locks/a?wait_ms=5", "", 400, "bad-request"),
        ("POST", "/v1/locks/a/renew", "", 400, "bad-request"),
        ("POST", "/v1/locks/a/renew", r#"{"lease":"e30"}"#, 400, "bad-request"),
        ("POST", "/v1/locks/a/release", r#"{"lease":7}"#, 400, "bad-request"),
        ("DELETE", "/v1/locks/a?fence=1", "", 403, "forbidden"),
        // No name, and one that is not UTF-8.
        ("POST", "/v1/locks/", "", 404, "not-found"),
        ("POST", "/v1/locks//renew", "", 404, "not-found"),
        ("POST", "/v1/locks/%C3%28", "", 400, "invalid-name"),
    ] {
        let words = server.send(method, path, body).await.problem(status, code);
        assert!(words.len() > 15, "{method} {path:.40}: {words}");
    }
    assert!(store.connect().await.list().await.unwrap().is_empty(), "nothing was taken");
    server.stop().await;
}

/// Characters that stores, terminals and formats do not take as they are: the name means what it says everywhere.
#[tokio::test]
async fn a_name_with_a_nul_or_a_line_break_is_a_name() {
    for store in Store::all() {
        let mut config = Config::default();
        (config.metrics_names, config.sample) = (vec!["*".to_owned()], Duration::from_millis(100));
        let server = Running::with(&store, config).await;
        for (path, name) in [("%00", "\0"), ("a%00b", "a\0b"), ("a%0Ab", "a\nb"), ("%1B%5B2J", "\u{1b}[2J")] {
            let path = format!("/v1/locks/{path}");
            let granted = server.send("POST", &path, "").await;
            assert_eq!((granted.status, granted.json()["name"].as_str()), (201, Some(name)), "{granted:?}");
            let busy = server.send("POST", &path, "").await.problem(409, "busy");
            assert!(!busy.contains(|c: char| c.is_control()), "{busy:?}");
            assert_eq!(server.send("GET", &path, "").await.json()["state"], "held");
            let listed = server.send("GET", "/v1/locks", "").await.json();
            assert_eq!(listed["locks"][0]["name"], name, "{listed}");
            let lease = serde_json::json!({ "lease": granted.json()["lease"] }).to_string();
            assert_eq!(server.send("POST", &format!("{path}/release"), &lease).await.status, 200);
        }
        server.stop().await;
    }
}

/// A client that sends a key relies on it: one that cannot be kept is refused.
#[tokio::test]
async fn keys_and_leases_that_are_none_are_refused_and_take_nothing() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let long = "k".repeat(256);
    for (key, words) in [("", "1 to 255 bytes"), (long.as_str(), "1 to 255 bytes"), ("k\u{e9}y", "is text")] {
        let refused = server.send_with("POST", "/v1/locks/x", "", &[("idempotency-key", key)]).await;
        let detail = refused.problem(400, "bad-request");
        assert!(detail.contains(words), "{key:.10}: {detail}");
    }
    assert!(store.connect().await.list().await.unwrap().is_empty(), "nothing was taken");
    let longest = "k".repeat(255);
    let granted = server.send_with("POST", "/v1/locks/x", "", &[("idempotency-key", &longest)]).await;
    assert_eq!(granted.status, 201, "{granted:?}");
    let lease = granted.json()["lease"].as_str().unwrap().to_owned();
    let forged = format!("{lease}AAAA");
    let large = "A".repeat(20_000);
    for text in ["", "e30", "not a lease", "\u{e9}", &lease[1..], &forged, &large] {
        let refused = server.send_with("GET", "/v1/locks/x/watch", "", &[("oarlock-lease", text)]).await;
        refused.problem(400, "bad-request");
    }
    server.send_with("GET", "/v1/locks/y/watch", "", &[("oarlock-lease", &lease)]).await.problem(400, "bad-request");
    let lease = serde_json::json!({ "lease": lease }).to_string();
    assert_eq!(server.send("POST", "/v1/locks/x/release", &lease).await.status, 200, "and loses nothing");
    server.stop().await;
}

/// A client that speaks HTTP/2 without asking first is told so, or cut off at once.
#[tokio::test]
async fn a_client_that_begins_with_http_2_ends() {
    let store = Store::local();
    let mut config = Config::default();
    config.patience = 10 * PATIENCE;
    let server = Running::with(&store, config).await;
    // The preface, and a frame with settings.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let begun = Instant::now();
    let answer = server.raw(preface).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // Nor is an upgrade taken: it is a request like others.
    let upgrade = format!(
        "GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close, upgrade, http2-settings\r\nupgrade: h2c\r\n\
         http2-settings: AAMAAABkAAQAAP__\r\n\r\n",
        server.address
    );
    assert!(server.raw(upgrade.as_bytes()).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

/// Requests that need no token, or that are not let in, are bounded, too, and cost those that have one nothing.
#[tokio::test]
async fn requests_without_a_token_are_bounded() {
    for (path, host) in [("/", None), ("/v1/locks", None), ("/nowhere", None), ("/", Some("evil.example"))] {
        let store = Store::local();
        let mut config = Config::default();
        // This machine is many clients: it may send fifty times as much.
        (config.rate, config.access) = (1, oarlock_serve::Access::token(TOKEN).unwrap());
        let server = Running::with(&store, config).await;
        let host = host.map_or_else(|| server.address.to_string(), str::to_owned);
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        // On one connection, so that many come in a second.
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let last = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let all = request.repeat(400) + &last;
        let (mut answers, (mut from, mut to)) = (String::new(), stream.split());
        let read = async {
            let asked = async { to.write_all(all.as_bytes()).await.unwrap() };
            let (read, ()) = tokio::join!(from.read_to_string(&mut answers), asked);
            read.unwrap();
        };
        tokio::time::timeout(PATIENCE, read).await.expect("answers in time");
        let (all, refused) = (answers.matches("HTTP/1.1 ").count(), answers.matches("HTTP/1.1 429").count());
        assert!((100..all).contains(&refused), "{path} {host}: {refused} of {all}");
        assert_eq!(server.send("GET", "/v1/locks", "").await.status, 200, "a client with a token");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_name_of_another_site_does_not_reach_the_server() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let words =
        server.send_with("GET", "/v1/locks", "", &[("host", "evil.example:7070")]).await.problem(421, "unknown-host");
    assert!(words.contains("--host"), "{words}");
    server.send_with("GET", "/", "", &[("host", "evil.example")]).await.problem(421, "unknown-host");
    for headers in
        [&[("origin", "http://evil.example")][..], &[("origin", "null")], &[("sec-fetch-site", "cross-site")]]
    {
        server.send_with("POST", "/v1/locks/x", "", headers).await.problem(403, "forbidden");
    }
    // An image on another page sends no Origin; a link to the page is no attack.
    let site = [("sec-fetch-site", "cross-site")];
    for path in ["/v1/locks", "/v1/locks/x", "/v1/graph", "/v1/watch", "/v1/openapi.json", "/metrics", "/healthz"] {
        server.send_with("GET", path, "", &site).await.problem(403, "forbidden");
    }
    for path in ["/", "/app.js", "/style.css", "/icon.svg"] {
        assert_eq!(server.send_with("GET", path, "", &site).await.status, 200, "{path}");
    }
    assert!(store.connect().await.list().await.unwrap().is_empty());
    let page = server.send("GET", "/", "").await;
    for header in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "x-content-type-options: nosniff"]
    {
        assert!(page.head.contains(header), "{header}: {}", page.head);
    }
    assert!(
        !page.text.contains("://") && !page.text.contains("<script>") && !page.text.contains(" onclick"),
        "{}",
        page.text
    );
    server.stop().await;
}

#[tokio::test]
async fn huge_bodies_and_heads_are_refused() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let host = server.address;
    server.send("POST", "/v1/locks/x", &"a".repeat(100_000)).await.problem(413, "too-large");
    // In chunks, so that its length is not known before.
    let chunks = format!("1000\r\n{}\r\n", "a".repeat(0x1000)).repeat(30);
    let body =
        format!("POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
    let answer = server.raw(body.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too-large"), "{answer}");
    assert!(store.connect().await.list().await.unwrap().is_empty(), "nothing was taken");
    let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\nx: {}\r\n\r\n", "a".repeat(200_000));
    assert!(server.raw(head.as_bytes()).await.starts_with("HTTP/1.1 431"));
    let many: String = (0..500).map(|n| format!("x{n}: a\r\n")).collect();
    let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\n{many}\r\n");
    assert!(server.raw(head.as_bytes()).await.starts_with("HTTP/1.1 431"));
    assert_eq!(server.send("GET", "/healthz", "").await.status, 200);
    server.stop().await;
}

/// A proxy in front could understand such a request in another way than this server, and hide a second one in it.
#[tokio::test]
async fn requests_with_two_meanings_are_refused_or_have_one() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let host = server.address;
    let hidden = format!("POST /v1/locks/smuggled HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    let shapes = [
        format!(
            "GET /healthz HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\ncontent-length: {}\r\n\r\n{hidden}",
            hidden.len()
        ),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nhost: evil.example\r\nconnection: close\r\n\r\n"),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ncontent-length: +5\r\n\r\nhello"),
        format!("GET /healthz HTTP/1.1\r\nhost : {host}\r\n\r\n"),
        // Two lengths that differ, in one header; a header that goes on in the next line; one before the first.
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0, {}\r\n\r\n{hidden}", hidden.len()),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nx: a\r\n content-length: 5\r\n\r\nhello"),
        format!("GET /healthz HTTP/1.1\r\n content-length: 5\r\nhost: {host}\r\n\r\nhello"),
        // A lone CR ends no line, and chunks that are no number have no end.
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\rtransfer-encoding: chunked\r\n\r\n"),
        format!("POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}"),
        format!("GET /healthz HTTP/1.0\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        // Other spellings of chunked, and lengths that overflow or are in hexadecimal.
        format!(
            "GET /healthz HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"
        ),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ncontent-length: 18446744073709551616\r\n\r\n{hidden}"),
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0x0\r\n\r\n{hidden}"),
        format!(
            "POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\ntransfer-encoding: chunked\r\n\r\n{}\r\n",
            "f".repeat(40)
        ),
        // A header with a NUL, a line with two paths, and an old version with no header at all.
        format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nx: a\0b\r\n\r\n"),
        format!("GET /healthz /v1/locks HTTP/1.1\r\nhost: {host}\r\n\r\n"),
        format!("GET /healthz\r\n\r\n{hidden}"),
        "\x16\x03\x01\x02\x00\x01\x00".to_owned(),
    ];
    for shape in shapes {
        let answer = server.raw(shape.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{shape:.120}\n{answer}");
    }
    assert!(store.connect().await.list().await.unwrap().is_empty(), "nothing was smuggled in");
    server.stop().await;
}

/// Requests that this server understands, and that a proxy could cut elsewhere: what follows them is not read.
#[tokio::test]
async fn nothing_is_read_after_a_request_that_could_end_elsewhere() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let host = server.address;
    let hidden = format!("POST /v1/locks/smuggled HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    let chunked = "transfer-encoding: chunked";
    for lengths in [
        format!("content-length: 4\r\n{chunked}"),
        format!("{chunked}\r\ncontent-length: 4"),
        format!("content-length: {}\r\n{chunked}", 5 + hidden.len()),
        format!("{chunked}\r\ncontent-length: 4\r\ncontent-length: 5"),
        chunked.to_owned(),
    ] {
        let shape = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\n{lengths}\r\n\r\n0\r\n\r\n{hidden}");
        let answer = server.raw(shape.as_bytes()).await;
        assert!(answer.matches("HTTP/1.1").count() <= 1, "{shape}\n{answer}");
    }
    assert!(store.connect().await.list().await.unwrap().is_empty(), "nothing was smuggled in");
    // A body in chunks is a body, too.
    let body = format!(
        "POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\n{chunked}\r\n\r\n10\r\n{{\"kind\": \"mutex\"\r\n1\r\n}}\r\n0\r\n\r\n"
    );
    let answer = server.raw(body.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("connection: close"), "{answer}");
    server.stop().await;
}

/// A line that ends with LF alone, and a path with a host in it, mean the same for everyone. The host that counts is that
/// of the header, which is checked.
#[tokio::test]
async fn old_forms_of_requests_mean_what_they_say() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let host = server.address;
    let bare = format!("GET /healthz HTTP/1.1\nhost: {host}\nconnection: close\n\n");
    assert!(server.raw(bare.as_bytes()).await.starts_with("HTTP/1.1 200"));
    let absolute =
        |of: &str, host: &str| format!("GET http://{of}/healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    let own = host.to_string();
    for (of, header, status) in
        [(own.as_str(), own.as_str(), 200), (&own, "evil.example", 421), ("evil.example", &own, 421)]
    {
        let answer = server.raw(absolute(of, header).as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{of} {header}: {answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn slow_clients_end_and_harm_no_other() {
    let store = Store::local();
    let mut config = Config::default();
    config.patience = Duration::from_millis(700);
    let server = Running::with(&store, config).await;
    let host = server.address;
    let begun = Instant::now();
    // Neither head ends.
    assert!(!server.raw(b"GET /v1/locks HTTP/1.1\r\n").await.contains("200"));
    let body = format!("POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\ncontent-length: 10\r\n\r\n{{");
    assert!(server.raw(body.as_bytes()).await.contains("too-slow"));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(server.send("GET", "/v1/locks", "").await.status, 200);
    server.stop().await;
}

/// Each byte comes in time, and the request never ends (slowloris).
#[tokio::test]
async fn a_client_that_sends_a_byte_now_and_then_is_cut_off() {
    let store = Store::local();
    let mut config = Config::default();
    config.patience = Duration::from_millis(700);
    let server = Running::with(&store, config).await;
    let host = server.address;
    let locked = server.send("POST", "/v1/locks/held", "").await.json();
    for begin in [
        "GET /v1/locks HTTP/1.1\r\nx: ".to_owned(),
        format!("POST /v1/locks/x HTTP/1.1\r\nhost: {host}\r\ncontent-length: 60000\r\n\r\n{{"),
    ] {
        let mut stream = TcpStream::connect(host).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let cut_off = async {
            while stream.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, cut_off).await.unwrap_or_else(|_| panic!("it goes on: {begin}"));
    }
    let lease = serde_json::json!({ "lease": locked["lease"] }).to_string();
    assert_eq!(server.send("POST", "/v1/locks/held/renew", &lease).await.status, 200, "another client is served");
    server.stop().await;
}

/// Requests with a few bytes changed, cut off or doubled: each has an answer or none, and a lock that is held stays held.
#[tokio::test]
async fn a_storm_of_broken_requests_loses_nothing() {
    let store = Store::local();
    let mut config = Config::default();
    (config.patience, config.rate) = (Duration::from_millis(300), 1_000_000);
    let server = Running::with(&store, config).await;
    let host = server.address;
    let granted = server.send("POST", "/v1/locks/x", r#"{"ttl_ms": 600000}"#).await.json();
    let lease = serde_json::json!({ "lease": granted["lease"] }).to_string();
    let length = lease.len();
    let whole = [
        format!("GET /v1/locks?limit=5&pattern=x HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"),
        format!("POST /v1/locks/x/renew HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{lease}"),
        format!("DELETE /v1/locks/x?fence=1 HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n"),
    ];
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for round in 0..10 {
        let broken: Vec<Vec<u8>> = (0..30)
            .map(|number| {
                let mut bytes = whole[number % whole.len()].clone().into_bytes();
                for _ in 0..=random(3) {
                    let at = random(bytes.len());
                    match random(4) {
                        0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                        1 => bytes.truncate(at.max(1)),
                        2 => {
                            bytes.remove(at);
                        }
                        _ => bytes.extend_from_within(at..),
                    }
                    bytes.resize(bytes.len().max(1), b' ');
                }
                bytes
            })
            .collect();
        let mut answers = tokio::task::JoinSet::new();
        for bytes in broken {
            answers.spawn(async move { (raw(host, &bytes).await, bytes) });
        }
        for (answer, bytes) in answers.join_all().await {
            let is_clear = answer.is_empty() || answer.starts_with("HTTP/1.");
            let shown = String::from_utf8_lossy(&bytes);
            assert!(is_clear && !answer.contains("HTTP/1.1 5"), "round {round}: {shown}\n{answer}");
        }
    }
    let held = store.connect().await.list().await.unwrap();
    // A changed request may be a right one, and take another lock.
    assert!(held.iter().any(|lock| lock.name.as_str() == "x"), "{held:?}");
    assert_eq!(server.send("POST", "/v1/locks/x/renew", &lease).await.status, 200);
    server.stop().await;
}

/// A client that asks for a stream and does not read it is cut off; its server does not keep everything for it.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let store = Store::local();
    let mut config = Config::default();
    (config.patience, config.rate) = (Duration::from_millis(700), 1_000_000);
    let server = Running::with(&store, config).await;
    let locks = store.connect().await;
    let reason = "r".repeat(1000);
    let mut guards = Vec::new();
    for name in 0..300 {
        guards.push(locks.mutex(format!("{name}")).reason(&reason).lock().await.unwrap());
    }
    // Each asks again and again on one connection, and never reads. The server ends it: then it cannot be written to.
    let request = format!("GET /v1/locks HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let cut_off = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, cut_off).await.expect("the server cuts it off");
    }
    assert_eq!(server.send("GET", "/healthz", "").await.status, 200);
    drop(guards);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_is_too_fast_waits() {
    let store = Store::local();
    let mut config = Config::default();
    config.rate = 5;
    let server = Running::with(&store, config).await;
    let mut refused = None;
    for _ in 0..30 {
        let reply = server.send("GET", "/v1/locks", "").await;
        if reply.status != 200 {
            refused = Some(reply);
        }
    }
    let refused = refused.expect("30 requests at once are too many for 5 a second");
    refused.problem(429, "too-fast");
    assert!(refused.head.contains("retry-after: 1"), "{refused:?}");
    server.stop().await;
}

/// Many share an address, and a token: what they send must cost no other client its lock.
#[tokio::test]
async fn a_neighbour_that_sends_too_much_does_not_stop_renewals() {
    let store = Store::local();
    let mut config = Config::default();
    config.rate = 1;
    let server = Running::with(&store, config).await;
    let granted = server.send("POST", "/v1/locks/x", "").await.json();
    let lease = serde_json::json!({ "lease": granted["lease"] }).to_string();
    let mut last = 0;
    for _ in 0..10 {
        last = server.send("GET", "/v1/locks/x", "").await.status;
    }
    assert_eq!(last, 429, "the neighbour is slowed down");
    for _ in 0..10 {
        let renewed = server.send("POST", "/v1/locks/x/renew", &lease).await;
        assert_eq!(renewed.status, 200, "{renewed:?}");
    }
    // Nor is this a way round the limit: what is no lease counts, and so does one that was made up or has ended.
    assert_eq!(server.send("POST", "/v1/locks/x/release", &lease).await.status, 200);
    for body in ["{}", &lease] {
        let mut answers = Vec::new();
        for _ in 0..10 {
            answers.push(server.send("POST", "/v1/locks/x/renew", body).await.status);
        }
        assert!(answers.contains(&429), "{body:.10}: {answers:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_ends_before_one_that_is_slow() {
    let store = Store::local();
    let mut config = Config::default();
    config.patience = 10 * PATIENCE;
    let server = Running::with(&store, config).await;
    for bytes in ["", "GET /v1/locks HTTP/1.1\r\nhost:"] {
        assert_eq!(server.raw(bytes.as_bytes()).await, "");
    }
    // One that has asked may rest.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    for pause in [7, 0] {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.expect("in time").unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
        tokio::time::sleep(Duration::from_secs(pause)).await;
    }
    server.stop().await;
}
