//! What operators use: the list, the break, rights, metrics, history, the graph.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use oarlock_serve::{Access, Config};
use serde_json::Value;

use super::support::{Running, Store, TOKEN, eventually, text};

#[tokio::test]
async fn a_break_ends_the_hold_that_was_seen_and_no_later_one() {
    for store in Store::all() {
        let (server, locks) = (Running::guarded(&store).await, store.connect().await);
        let guard = locks.mutex("x").lock().await.unwrap();
        let seen = guard.fence();
        server.send("DELETE", "/v1/locks/x", "").await.problem(400, "bad-request");
        let words = server
            .send("DELETE", &format!("/v1/locks/x?fence={}", seen.get() + 1), "")
            .await
            .problem(409, "not-broken");
        assert!(words.contains(&format!("it is held with fence {seen} now")), "{words}");
        assert!(guard.is_held());
        let path = format!("/v1/locks/x?fence={seen}&grace_ms=0&reason=stuck%20since%20noon");
        let broken = server.send("DELETE", &path, "").await;
        assert_eq!((broken.status, text(&broken.json(), "outcome")), (200, "released"), "{broken:?}");
        let reason = tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.expect("the holder is told");
        assert!(reason.to_string().contains("stuck since noon") || !store.url.starts_with("local"), "{reason}");
        let next = locks.mutex("x").lock().await.unwrap();
        let words = server.send("DELETE", &path, "").await.problem(409, "not-broken");
        assert!(next.is_held() && words.contains(&next.fence().to_string()), "a replay ends no later hold: {words}");
        let told = || async {
            !server.send("GET", "/v1/locks/x/history", "").await.json()["breaks"].as_array().unwrap().is_empty()
        };
        eventually("the break is in the history", told).await;
        next.release().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn rights_are_for_names() {
    let store = Store::local();
    let dir = tempfile::TempDir::new().unwrap();
    let (file, log) = (dir.path().join("tokens.toml"), dir.path().join("audit"));
    let (ci, ops) = ("ci-secret-ci-secret-ci", "ops-secret-ops-secret-ops");
    let tokens = format!(
        "[[token]]\nname = \"ci\"\nsecret = \"{ci}\"\nread = [\"ci/*\"]\nlock = [\"ci/*\"]\n\
         [[token]]\nname = \"ops\"\nsecret = \"{ops}\"\nread = [\"*\"]\nbreak = [\"ci/*\"]\n"
    );
    std::fs::write(&file, tokens).unwrap();
    let mut config = Config::default();
    config.access = Access::file(&file).unwrap().allow_break(true);
    config.audit = Some(log.clone());
    config.metrics_names = vec!["*".to_owned()];
    let server = Running::with(&store, config).await;
    let locks = store.connect().await;
    let _secret = locks.mutex("prod").lock().await.unwrap();
    let send = |method: &'static str, path: &'static str, token: &str| {
        let (server, token) = (&server, format!("Bearer {token}"));
        async move { server.send_with(method, path, "", &[("authorization", &token)]).await }
    };
    assert_eq!(send("POST", "/v1/locks/ci%2F7", ci).await.status, 201);
    send("POST", "/v1/locks/prod", ci).await.problem(403, "forbidden");
    send("GET", "/v1/locks/prod", ci).await.problem(403, "forbidden");
    send("DELETE", "/v1/locks/ci%2F7?fence=1", ci).await.problem(403, "forbidden");
    send("POST", "/v1/locks/ci%2F7", ops).await.problem(403, "forbidden");
    send("DELETE", "/v1/locks/prod?fence=1", ops).await.problem(403, "forbidden");
    send("DELETE", "/v1/locks/ci%2F7?fence=1", ops).await.problem(409, "not-broken");
    let names = |reply: &super::support::Reply| -> Vec<String> {
        reply.json()["locks"].as_array().unwrap().iter().map(|lock| text(lock, "name").to_owned()).collect()
    };
    assert_eq!(names(&send("GET", "/v1/locks", ci).await), ["ci/7"], "it does not see other names");
    assert_eq!(names(&send("GET", "/v1/locks", ops).await), ["ci/7", "prod"]);
    let metrics = || async { send("GET", "/metrics", ops).await.text };
    eventually("sampled", || async { metrics().await.contains("oarlock_lock_waiters{name=\"prod\"} 0") }).await;
    assert!(!send("GET", "/metrics", ci).await.text.contains("prod"), "nor in the metrics");
    let mut events = server.events("/v1/watch", &[("authorization", &format!("Bearer {ci}"))]).await;
    assert!(!events.next("locks").await.to_string().contains("prod"), "nor in the stream");
    for wrong in ["", "wrong", &ci[1..], &format!("{ci}x")] {
        let refused = send("GET", "/v1/locks", wrong).await;
        refused.problem(401, "unauthorized");
        assert!(refused.head.contains("www-authenticate: bearer"), "{refused:?}");
    }
    let audit = || std::fs::read_to_string(&log).unwrap();
    for entry in [r#""audit":"locked""#, r#""why":"wrong token""#] {
        eventually(entry, || async { audit().contains(entry) }).await;
    }
    let audit = audit();
    assert!(!audit.contains("secret"), "{audit}");
    server.stop().await;
}

#[tokio::test]
async fn wrong_tokens_are_slowed_down() {
    let store = Store::local();
    let server = Running::guarded(&store).await;
    let mut last = 401;
    for _ in 0..15 {
        last = server.send_with("GET", "/v1/locks", "", &[("authorization", "Bearer guess")]).await.status;
    }
    assert_eq!(last, 429);
    assert_eq!(server.send("GET", "/v1/locks", "").await.status, 200, "a right token from the same address is let in");
    server.stop().await;
}

#[tokio::test]
async fn a_page_sees_changes_within_a_second() {
    for store in Store::all() {
        let (server, locks) = (Running::start(&store).await, store.connect().await);
        let mut events = server.events("/v1/watch", &[]).await;
        assert_eq!(events.next("locks").await["locks"], Value::Array(vec![]));
        let begun = std::time::Instant::now();
        let guard = locks.mutex("x").reason("nightly").lock().await.unwrap();
        let changed = loop {
            let event = events.next("changes").await;
            if event["locks"][0]["name"] == "x" {
                break event;
            }
        };
        let took = begun.elapsed();
        println!("a change is seen after {took:?}; half a second on a quiet machine");
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(text(&changed["locks"][0]["holders"][0]["label"], "reason"), "nightly");
        let shown = changed.to_string();
        assert!(!shown.contains(&guard.id().to_string()), "a claim id is a secret: {shown}");
        guard.release().await.unwrap();
        while events.next("changes").await["gone"] != Value::from(vec!["x"]) {}
        server.stop().await;
    }
}

#[tokio::test]
async fn many_pages_see_a_change_and_leave_nothing_behind() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let mut pages = Vec::new();
    for _ in 0..300 {
        let mut page = server.events("/v1/watch", &[]).await;
        page.next("locks").await;
        pages.push(page);
    }
    let metrics = || async { server.send("GET", "/metrics", "").await.text };
    assert!(metrics().await.contains("oarlock_viewers 300\n"));
    let guard = locks.mutex("x").lock().await.unwrap();
    for page in &mut pages {
        while page.next("changes").await["locks"][0]["name"] != "x" {}
    }
    drop(pages);
    eventually("all are gone", || async { metrics().await.contains("oarlock_viewers 0\n") }).await;
    guard.release().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn history_and_metrics_tell_what_happened() {
    let store = Store::local();
    let dir = tempfile::TempDir::new().unwrap();
    let config = || {
        let mut config = Config::default();
        config.sample = Duration::from_millis(100);
        config.history = Some(dir.path().join("history"));
        config
    };
    let (server, locks) = (Running::with(&store, config()).await, store.connect().await);
    let guard = locks.mutex("x").reason("nightly").lock().await.unwrap();
    let granted = server.send("POST", "/v1/locks/y", "").await.json();
    let history = || async { server.send("GET", "/v1/locks/x/history", "").await.json() };
    eventually("the hold is seen", || async {
        history().await["holds"].as_array().is_some_and(|holds| holds.len() == 1)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    eventually("its end is seen", || async { history().await["held_ms"]["count"] == 1 }).await;
    let body = history().await;
    assert!((300..20_000).contains(&body["held_ms"]["p50"].as_u64().unwrap()), "{body}");
    assert_eq!(text(&body["holds"][0], "reason"), "nightly");
    server.send("POST", "/v1/locks/y/release", &serde_json::json!({ "lease": granted["lease"] }).to_string()).await;
    let metrics = server.send("GET", "/metrics", "").await.text;
    for line in [
        "oarlock_wait_duration_seconds_count{backend=\"local\",kind=\"mutex\",mode=\"exclusive\",outcome=\"acquired\"} 1\n",
        "oarlock_hold_duration_seconds_count{backend=\"local\",kind=\"mutex\",mode=\"exclusive\",end=\"released\"} 1\n",
        "oarlock_store_up{backend=\"local\"} 1\n",
        "oarlock_lost_total{backend=\"local\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert!(!metrics.contains("name="), "no names unless asked: {metrics}");
    // Ended while no server ran: its end is not known.
    let guard = locks.mutex("x").lock().await.unwrap();
    eventually("the hold is seen", || async {
        history().await["holds"].as_array().is_some_and(|holds| holds.len() == 2)
    })
    .await;
    server.stop().await;
    guard.release().await.unwrap();
    let server = Running::with(&store, config()).await;
    let kept = server.send("GET", "/v1/locks/x/history", "").await.json();
    assert_eq!(kept["held_ms"]["count"], 1, "kept in its file: {kept}");
    assert_eq!(kept["holds"].as_array().unwrap().len(), 1, "and nothing that is over is shown as held: {kept}");
    let mode = std::fs::metadata(dir.path().join("history")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "for its owner alone");
    server.stop().await;
}

#[tokio::test]
async fn a_deadlock_is_marked_in_the_graph() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    // Two clients, each with a process of its own.
    let take = |name: &'static str, pid: u32, wait: u64| {
        let body =
            serde_json::json!({ "wait_ms": wait, "label": { "host": "h", "pid": pid, "user": "u" } }).to_string();
        let server = &server;
        async move { server.send("POST", &format!("/v1/locks/{name}"), &body).await }
    };
    assert_eq!((take("a", 1, 0).await.status, take("b", 2, 0).await.status), (201, 201));
    // A page that is open: the store is sampled often.
    let mut events = server.events("/v1/watch", &[]).await;
    events.next("locks").await;
    let marked = async {
        eventually("both wait", || async {
            let waits = |name| locks.inspect(name);
            waits("a").await.unwrap().waiters.count() == Some(1) && waits("b").await.unwrap().waiters.count() == Some(1)
        })
        .await;
        eventually("it is marked", || async {
            let graph = server.send("GET", "/v1/graph", "").await.json();
            graph["cycles"]
                .as_array()
                .is_some_and(|cycles| cycles.len() == 1 && cycles[0].as_array().unwrap().len() == 2)
        })
        .await;
    };
    tokio::select! {
        () = marked => {}
        _ = async { tokio::join!(take("a", 2, 60_000), take("b", 1, 60_000)) } => panic!("they wait for each other"),
    }
    server.stop().await;
}

#[tokio::test]
async fn the_store_says_what_it_promises_and_what_was_found() {
    let store = Store::local();
    let server = Running::guarded(&store).await;
    let body = || async { server.send("GET", "/v1/store", "").await.json() };
    eventually("it is examined", || async { !body().await["findings"].is_null() }).await;
    let body = body().await;
    assert_eq!(
        (body["leases"].clone(), body["rights"]["break"].clone()),
        (Value::Bool(true), Value::Bool(true)),
        "{body}"
    );
    assert!(!body.to_string().contains(TOKEN));
    server.stop().await;
}
