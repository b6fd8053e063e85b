//! Locks over HTTP: they live by their client's renewals, and a loss is told.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::support::{PATIENCE, Running, Store, eventually, text};

async fn lock(server: &Running, path: &str, body: &Value) -> Value {
    let reply = server.send("POST", path, &body.to_string()).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()
}

fn lease(granted: &Value) -> String {
    json!({ "lease": granted["lease"] }).to_string()
}

#[tokio::test]
async fn a_lock_goes_round() {
    for store in Store::everywhere() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let wanted =
            json!({ "ttl_ms": 5000, "label": { "host": "ci-7", "pid": 41, "user": "ann", "reason": "release 2.3" } });
        let granted = lock(&server, "/v1/locks/deploy%2Fprod", &wanted).await;
        let held = locks.inspect("deploy/prod").await.unwrap();
        assert_eq!(held.holders[0].fence.unwrap().to_string(), text(&granted, "fence"));
        let believe = granted["believe_ms"].as_u64().unwrap();
        assert!((3000..=5000).contains(&believe), "{granted}");

        let busy = server.send("POST", "/v1/locks/deploy%2Fprod", "").await;
        let words = busy.problem(409, "busy");
        assert!(words.contains("\"deploy/prod\" is held by ci-7 (pid 41, \"release 2.3\")"), "{words}");
        assert!(locks.mutex("deploy/prod").try_lock().await.unwrap().is_none(), "other programs are kept out too");

        for _ in 0..3 {
            let renewed = server.send("POST", "/v1/locks/deploy%2Fprod/renew", &lease(&granted)).await;
            assert_eq!((renewed.status, text(&renewed.json(), "fence")), (200, text(&granted, "fence")));
        }
        let shown = server.send("GET", "/v1/locks/deploy%2Fprod", "").await.json();
        let holder = &shown["holders"][0];
        assert_eq!(
            (text(&holder["label"], "host"), text(&holder["label"], "reason")),
            ("ci-7", "release 2.3"),
            "{shown}"
        );
        assert!(holder["lease_left_ms"].as_u64().unwrap() > 3000, "{shown}");
        assert_eq!(server.send("GET", "/v1/locks", "").await.json()["locks"][0]["name"], "deploy/prod");

        for _ in 0..2 {
            let released = server.send("POST", "/v1/locks/deploy%2Fprod/release", &lease(&granted)).await;
            assert_eq!((released.status, text(&released.json(), "state")), (200, "released"), "a repetition too");
        }
        server.send("POST", "/v1/locks/deploy%2Fprod/renew", &lease(&granted)).await.problem(410, "lost");
        assert!(locks.inspect("deploy/prod").await.unwrap().is_free());
        server.stop().await;
    }
}

#[tokio::test]
async fn every_kind_can_be_taken() {
    let (store, all) = (Store::local(), json!({ "kind": "semaphore", "permits": 2 }));
    let server = Running::start(&store).await;
    for _ in 0..2 {
        lock(&server, "/v1/locks/pool", &all).await;
    }
    server.send("POST", "/v1/locks/pool", &all.to_string()).await.problem(409, "busy");
    for _ in 0..2 {
        lock(&server, "/v1/locks/book", &json!({ "kind": "read" })).await;
    }
    server.send("POST", "/v1/locks/book", &json!({ "kind": "write" }).to_string()).await.problem(409, "busy");
    let other = json!({ "kind": "semaphore", "permits": 3 }).to_string();
    let words = server.send("POST", "/v1/locks/pool", &other).await.problem(409, "other-capacity");
    assert!(words.contains("2, not 3"), "{words}");
    server.stop().await;
}

/// Belief counts from before the store was asked: the store is asked after the request arrives, so that the lease of the
/// store ends later than what the client may believe, counted from when it sent the request.
#[tokio::test]
async fn belief_ends_before_the_lease() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let sent = Instant::now();
        let granted = lock(&server, "/v1/locks/x", &json!({ "ttl_ms": 1500 })).await;
        let mut believed = sent + Duration::from_millis(granted["believe_ms"].as_u64().unwrap());
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            let sent = Instant::now();
            let renewed = server.send("POST", "/v1/locks/x/renew", &lease(&granted)).await.json();
            believed = sent + Duration::from_millis(renewed["believe_ms"].as_u64().unwrap());
        }
        let next = locks.mutex("x").wait(Duration::from_secs(20)).lock().await.unwrap();
        assert!(Instant::now() >= believed, "another holds it while the client may believe");
        assert!(next.fence().to_string().parse::<u64>().unwrap() > text(&granted, "fence").parse().unwrap());
        next.release().await.unwrap();
        server.stop().await;
    }
}

/// What the client may believe after a wait counts from its request too, and is not cut by the wait.
#[tokio::test]
async fn a_wait_does_not_eat_the_lease() {
    let (store, wanted) = (Store::local(), json!({ "ttl_ms": 3000, "wait_ms": 20_000 }));
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let guard = locks.mutex("x").lock().await.unwrap();
    let sent = Instant::now();
    let (granted, ()) = tokio::join!(lock(&server, "/v1/locks/x", &wanted), async {
        eventually("it waits", || async { locks.inspect("x").await.unwrap().waiters.count() == Some(1) }).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        guard.release().await.unwrap();
    });
    let believe = Duration::from_millis(granted["believe_ms"].as_u64().unwrap());
    assert!(
        believe > Duration::from_millis(3500),
        "{granted}: it was granted after 1.5 s, and lives for 3 s from then"
    );
    let next = locks.mutex("x").wait(Duration::from_secs(20)).lock().await.unwrap();
    assert!(Instant::now() >= sent + believe);
    drop(next);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_disappears_loses_its_lease_and_its_place() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        // Holds, and is not heard of again.
        lock(&server, "/v1/locks/x", &json!({ "ttl_ms": 700 })).await;
        let guard = locks.mutex("x").wait(Duration::from_secs(20)).lock().await.unwrap();
        // Waits, and closes its connection.
        let wait = json!({ "wait_ms": 60_000 }).to_string();
        let gone = tokio::time::timeout(Duration::from_millis(700), server.send("POST", "/v1/locks/x", &wait));
        let count = || async { locks.inspect("x").await.unwrap().waiters.count() };
        let (gone, ()) = tokio::join!(gone, eventually("it waits", || async { count().await == Some(1) }));
        assert!(gone.is_err());
        eventually("it left the queue", || async { count().await == Some(0) }).await;
        guard.release().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn a_loss_is_told_by_the_stream_of_the_lease() {
    for store in Store::all() {
        let server = Running::guarded(&store).await;
        let token = ("authorization", format!("Bearer {}", super::support::TOKEN));
        let watch = |granted: &Value| {
            let lease = granted["lease"].as_str().unwrap().to_owned();
            let (server, token) = (&server, (token.0, token.1.clone()));
            async move { server.events("/v1/locks/x/watch", &[(token.0, &token.1), ("oarlock-lease", &lease)]).await }
        };
        // Broken by an operator.
        let granted = lock(&server, "/v1/locks/x", &json!({ "ttl_ms": 5000 })).await;
        let mut events = watch(&granted).await;
        assert_eq!(events.next("lock").await["state"], "held");
        let broken = format!("/v1/locks/x?fence={}&grace_ms=300&reason=stuck", text(&granted, "fence"));
        assert_eq!(server.send("DELETE", &broken, "").await.json()["outcome"], "asked");
        let ending = events.next("ending").await;
        assert!(text(&ending, "by").starts_with("token from 127.0.0.1") && text(&ending, "why") == "stuck", "{ending}");
        let lost = events.next("lost").await;
        assert!(matches!(text(&lost, "reason"), "broken" | "gone"), "{lost}");
        events.end().await;
        // The store keeps it for a little longer than its client may believe.
        let held = lease(&granted);
        let renew = || server.send("POST", "/v1/locks/x/renew", &held);
        eventually("a renewal says so too", || async { renew().await.status == 410 }).await;
        // Not renewed in time.
        let granted = lock(&server, "/v1/locks/x", &json!({ "ttl_ms": 800, "wait_ms": 20_000 })).await;
        let (sent, mut events) = (Instant::now(), watch(&granted).await);
        let lost = events.next("lost").await;
        assert!(matches!(text(&lost, "reason"), "expired" | "gone"), "{lost}");
        assert!(sent.elapsed() < Duration::from_secs(15), "told in time");
        // Released.
        let granted = lock(&server, "/v1/locks/x", &json!({ "wait_ms": 20_000 })).await;
        let mut events = watch(&granted).await;
        events.next("lock").await;
        server.send("POST", "/v1/locks/x/release", &lease(&granted)).await;
        events.next("released").await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_lease_outlives_its_server() {
    for store in Store::all() {
        let server = Running::start(&store).await;
        let kept = lock(&server, "/v1/locks/kept", &json!({ "ttl_ms": 20_000 })).await;
        let left = lock(&server, "/v1/locks/left", &json!({ "ttl_ms": 600 })).await;
        server.kill().await;
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        // Two at once, of a lease that the new server does not know.
        let body = lease(&kept);
        let renew = || server.send("POST", "/v1/locks/kept/renew", &body);
        for renewed in <[_; 2]>::from(tokio::join!(renew(), renew())) {
            assert_eq!((renewed.status, text(&renewed.json(), "fence")), (200, text(&kept, "fence")), "{renewed:?}");
        }
        server.send("POST", "/v1/locks/kept", "").await.problem(409, "busy");
        // The other client did not renew: another gets the lock, and it is told.
        let next = locks.mutex("left").wait(Duration::from_secs(20)).lock().await.unwrap();
        server.send("POST", "/v1/locks/left/renew", &lease(&left)).await.problem(410, "lost");
        server.send("POST", "/v1/locks/left/release", &lease(&left)).await.problem(410, "lost");
        assert!(
            next.is_held() && locks.inspect("left").await.unwrap().holders[0].id == next.id(),
            "and ends no hold of others"
        );
        assert_eq!(server.send("POST", "/v1/locks/kept/release", &lease(&kept)).await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_repeated_request_takes_one_lock_and_keeps_its_place() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let guard = locks.mutex("x").lock().await.unwrap();
        let (body, key) = (json!({ "wait_ms": 60_000, "poll_ms": 200 }).to_string(), [("idempotency-key", "job 7")]);
        let poll = || server.send_with("POST", "/v1/locks/x", &body, &key);
        assert_eq!(poll().await.status, 202);
        let later = locks.mutex("x").fair().wait(Duration::from_secs(20));
        let later = tokio::spawn(async move { later.lock().await });
        eventually("two wait", || async { locks.inspect("x").await.unwrap().waiters.count() == Some(2) }).await;
        assert_eq!(poll().await.status, 202);
        guard.release().await.unwrap();
        let granted = async {
            loop {
                let reply = poll().await;
                if reply.status != 202 {
                    return reply;
                }
            }
        };
        let first = tokio::time::timeout(PATIENCE, granted).await.expect("it has its turn");
        let again = poll().await;
        assert_eq!((first.status, again.status), (201, 201), "{first:?} {again:?}");
        assert_eq!(first.json()["lease"], again.json()["lease"], "one lock");
        let other = server.send_with("POST", "/v1/locks/x", r#"{"ttl_ms": 5000}"#, &key).await;
        other.problem(422, "key-reused");
        assert!(!later.is_finished(), "it kept its place before the other");
        assert_eq!(server.send("POST", "/v1/locks/x/release", &lease(&first.json())).await.status, 200);
        later.await.unwrap().unwrap().release().await.unwrap();
        poll().await.problem(410, "lost");
        server.stop().await;
    }
}

/// What a client learns from a repetition is what it would learn from a renewal, and the audit log has one lock.
#[tokio::test]
async fn a_request_that_is_repeated_after_a_break_says_that_the_lock_ends() {
    let (store, dir) = (Store::local(), tempfile::TempDir::new().unwrap());
    let log = dir.path().join("audit");
    let mut config = oarlock_serve::Config::default();
    config.access = oarlock_serve::Access::token(super::support::TOKEN).unwrap().allow_break(true);
    config.audit = Some(log.clone());
    let server = Running::with(&store, config).await;
    let token = format!("Bearer {}", super::support::TOKEN);
    let headers = [("idempotency-key", "job 7"), ("authorization", &token)];
    let take = || server.send_with("POST", "/v1/locks/x", r#"{"ttl_ms": 60000}"#, &headers);
    let granted = take().await.json();
    assert!(granted["ending"].is_null() && granted["renew_in_ms"].as_u64().unwrap() < 21_000, "{granted}");
    let path = format!("/v1/locks/x?fence={}&reason=stuck", text(&granted, "fence"));
    assert_eq!(server.send("DELETE", &path, "").await.json()["outcome"], "asked");
    let again = take().await.json();
    assert_eq!((text(&again["ending"], "why"), &again["lease"]), ("stuck", &granted["lease"]), "{again}");
    assert!(again["renew_in_ms"].as_u64().unwrap() > 30_000, "a renewal gains nothing: {again}");
    assert_eq!(server.send("POST", "/v1/locks/x/release", &lease(&granted)).await.status, 200);
    server.stop().await;
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches(r#""audit":"locked""#).count(), 1, "{log}");
}

/// It keeps its place between two requests, and not for ever; a grant that it does not fetch is taken back.
#[tokio::test]
async fn a_client_that_does_not_ask_again_is_withdrawn() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let (kept, soon) = (locks.mutex("kept").lock().await.unwrap(), locks.mutex("soon").lock().await.unwrap());
    let body = json!({ "wait_ms": 600_000, "poll_ms": 100, "ttl_ms": 600_000 }).to_string();
    for name in ["kept", "soon"] {
        let key = [("idempotency-key", name)];
        assert_eq!(server.send_with("POST", &format!("/v1/locks/{name}"), &body, &key).await.status, 202);
    }
    soon.release().await.unwrap();
    let waits = |name| {
        let locks = &locks;
        async move { locks.inspect(name).await.unwrap().waiters.count() }
    };
    eventually("it was granted", || async { locks.inspect("soon").await.unwrap().holders.len() == 1 }).await;
    assert_eq!(waits("kept").await, Some(1), "it keeps its place for a while");
    eventually("it left the queue", || async { waits("kept").await == Some(0) }).await;
    let next =
        locks.mutex("soon").wait(PATIENCE).lock().await.expect("the grant was taken back long before its lease ends");
    let late = server.send_with("POST", "/v1/locks/soon", &body, &[("idempotency-key", "soon")]).await;
    late.problem(410, "lost");
    assert!(next.is_held() && kept.is_held());
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_waits_is_told_that_the_server_ends() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let _guard = locks.mutex("x").lock().await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let body = json!({ "wait_ms": 60_000 }).to_string();
    let head = format!("POST /v1/locks/x HTTP/1.1\r\nhost: {}\r\ncontent-length: {}", server.address, body.len());
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
    eventually("it waits", || async { locks.inspect("x").await.unwrap().waiters.count() == Some(1) }).await;
    server.stop().await;
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"closing\""), "{answer}");
}
