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

/// A lease is the business of the client that has it, also of one that may not read the names of the store.
#[tokio::test]
async fn a_client_that_may_only_lock_watches_its_lease_and_nothing_else() {
    let store = Store::local();
    let dir = tempfile::TempDir::new().unwrap();
    let (file, secret) = (dir.path().join("tokens.toml"), "ci-secret-ci-secret-ci");
    std::fs::write(&file, format!("[[token]]\nname = \"ci\"\nsecret = \"{secret}\"\nlock = [\"ci/*\"]\n")).unwrap();
    let mut config = Config::default();
    config.access = Access::file(&file).unwrap();
    let server = Running::with(&store, config).await;
    let bearer = format!("Bearer {secret}");
    let token = ("authorization", bearer.as_str());
    let granted = server.send_with("POST", "/v1/locks/ci%2F7", "", &[token]).await.json();
    let lease = text(&granted, "lease");
    let watch = "/v1/locks/ci%2F7/watch";
    server.send_with("GET", watch, "", &[token]).await.problem(403, "forbidden");
    server
        .send_with("GET", "/v1/locks/other/watch", "", &[token, ("oarlock-lease", lease)])
        .await
        .problem(403, "forbidden");
    let mut events = server.events(watch, &[token, ("oarlock-lease", lease)]).await;
    assert!(events.is_open().await);
    let body = serde_json::json!({ "lease": lease }).to_string();
    // Long enough for the lock to be read.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.send_with("POST", "/v1/locks/ci%2F7/release", &body, &[token]).await.status, 200);
    let all = events.rest().await;
    assert!(all.contains("event: released") && !all.contains("event: lock\n"), "{all}");
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
        "oarlock_lost_total{backend=\"local\",kind=\"mutex\",mode=\"exclusive\",cause=\"expired\"} 0\n",
        "oarlock_waiting{backend=\"local\",kind=\"rwlock\",mode=\"shared\"} 0\n",
        "oarlock_held{backend=\"local\",kind=\"mutex\",mode=\"exclusive\"} 0\n",
        "oarlock_held{backend=\"local\",kind=\"semaphore\",mode=\"permits\"} 0\n",
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

/// Each way in which a wait and a hold can end has a word of its own.
#[tokio::test]
async fn metrics_tell_how_waits_and_holds_ended() {
    let store = Store::local();
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let lock = |name: &'static str, body: &'static str| {
        let server = &server;
        async move { server.send("POST", &format!("/v1/locks/{name}"), body).await }
    };
    let lost = lock("lost", r#"{"ttl_ms":300}"#).await;
    assert_eq!(lost.status, 201);
    let _guard = locks.mutex("held").lock().await.unwrap();
    assert_eq!((lock("held", "").await.status, lock("held", r#"{"wait_ms":50}"#).await.status), (409, 409));
    let waiting = r#"oarlock_waiting{backend="local",kind="mutex",mode="exclusive"}"#;
    let metrics = || async { server.send("GET", "/metrics", "").await.text };
    {
        let gone = lock("held", r#"{"wait_ms":60000}"#);
        let waits = eventually("it waits", || async { metrics().await.contains(&format!("{waiting} 1\n")) });
        tokio::select! {
            () = waits => {}
            _ = gone => panic!("it waits"),
        }
    }
    let broken = lock("broken", r#"{"ttl_ms":2000}"#).await.json();
    let path = format!("/v1/locks/broken?fence={}&reason=stuck", text(&broken, "fence"));
    assert_eq!(server.send("DELETE", &path, "").await.json()["outcome"], "asked");
    let labels = r#"backend="local",kind="mutex",mode="exclusive""#;
    for line in [
        format!("oarlock_wait_duration_seconds_count{{{labels},outcome=\"acquired\"}} 2\n"),
        format!("oarlock_wait_duration_seconds_count{{{labels},outcome=\"busy\"}} 1\n"),
        format!("oarlock_wait_duration_seconds_count{{{labels},outcome=\"timeout\"}} 1\n"),
        format!("oarlock_wait_duration_seconds_count{{{labels},outcome=\"cancelled\"}} 1\n"),
        format!("oarlock_hold_duration_seconds_count{{{labels},end=\"lost\"}} 1\n"),
        format!("oarlock_hold_duration_seconds_count{{{labels},end=\"broken\"}} 1\n"),
        format!("oarlock_lost_total{{{labels},cause=\"expired\"}} 1\n"),
        format!("oarlock_lost_total{{{labels},cause=\"broken\"}} 1\n"),
        format!("{waiting} 0\n"),
    ] {
        eventually(&line, || async { metrics().await.contains(&line) }).await;
    }
    server.stop().await;
}

/// The history lists what was done: not a break that failed, and also one that another program asked for.
#[tokio::test]
async fn breaks_are_listed_with_their_outcome() {
    let store = Store::local();
    let dir = tempfile::TempDir::new().unwrap();
    let log = dir.path().join("audit");
    let mut config = Config::default();
    config.access = Access::token(TOKEN).unwrap().allow_break(true);
    (config.audit, config.sample) = (Some(log.clone()), Duration::from_millis(100));
    let (server, locks) = (Running::with(&store, config).await, store.connect().await);
    let breaks = |name: &'static str| {
        let server = &server;
        async move { server.send("GET", &format!("/v1/locks/{name}/history"), "").await.json()["breaks"].clone() }
    };
    // From elsewhere.
    let other = locks.mutex("other").lock().await.unwrap();
    let ending = oarlock::state::Ending::new("ann", "maintenance");
    locks.break_hold("other", other.fence(), ending, Duration::from_secs(60)).await.unwrap();
    eventually("it was sampled", || async { breaks("other").await.as_array().unwrap().len() == 1 }).await;
    let seen = breaks("other").await;
    assert_eq!(
        (text(&seen[0], "by"), text(&seen[0], "why"), text(&seen[0], "outcome")),
        ("ann", "maintenance", "asked")
    );
    // By this server, asked for and sampled: one break.
    let held = locks.mutex("held").lock().await.unwrap();
    let path = format!("/v1/locks/held?fence={}&grace_ms=60000&reason=stuck", held.fence());
    assert_eq!(server.send("DELETE", &path, "").await.json()["outcome"], "asked");
    let is_shown = || async { server.send("GET", "/v1/locks/held", "").await.json()["state"] == "ending" };
    eventually("its end is asked for", is_shown).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let seen = breaks("held").await;
    assert_eq!((seen.as_array().unwrap().len(), text(&seen[0], "why")), (1, "stuck"), "{seen}");
    let entry = || async { std::fs::read_to_string(&log).unwrap().contains(r#""audit":"break-outcome""#) };
    eventually("the audit log has its outcome", entry).await;
    // A hold that is over is not broken.
    let fence = held.fence();
    held.release().await.unwrap();
    server.send("DELETE", &format!("/v1/locks/held?fence={fence}"), "").await.problem(409, "not-broken");
    assert_eq!(breaks("held").await.as_array().unwrap().len(), 1);
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

/// A layout of other programs, without an index: every key is read, as seldom as that takes long.
#[tokio::test]
async fn a_store_without_an_index_is_scanned() {
    let Some(store) = Store::plain() else { return };
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let guard = locks.mutex("x").lock().await.unwrap();
    let mut events = server.events("/v1/watch", &[]).await;
    let has_it =
        |event: &Value| event["locks"].as_array().is_some_and(|locks| locks.iter().any(|lock| lock["name"] == "x"));
    if !has_it(&events.next("locks").await) {
        while !has_it(&events.next("changes").await) {}
    }
    let listed = server.send("GET", "/v1/locks", "").await;
    assert_eq!((listed.status, text(&listed.json()["locks"][0], "name")), (200, "x"), "{listed:?}");
    assert_eq!(server.send("GET", "/v1/store", "").await.json()["listing"], "scan");
    let metrics = server.send("GET", "/metrics", "").await.text;
    for line in ["oarlock_store_up{backend=\"redis\"} 1\n", "oarlock_store_listed{backend=\"redis\"} 1\n"] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    guard.release().await.unwrap();
    server.stop().await;
}

/// Where the locks cannot be listed, the store is not down: pages and programs are told what to do instead.
#[tokio::test]
async fn a_store_that_cannot_list_is_up_and_says_what_to_do() {
    let Some(store) = Store::unlisted() else { return };
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let guard = locks.mutex("x").lock().await.unwrap();
    let mut events = server.events("/v1/watch", &[]).await;
    let told = events.next("trouble").await;
    assert!(text(&told, "detail").contains("GET /v1/locks/{name}") && told["listing"] == "unsupported", "{told}");
    let words = server.send("GET", "/v1/locks", "").await.problem(501, "unsupported");
    assert!(words.contains("oarlock show"), "{words}");
    let info = server.send("GET", "/v1/store", "").await.json();
    assert!(info["listing"] == "unsupported" && text(&info, "listing_advice") == words, "{info}");
    let metrics = server.send("GET", "/metrics", "").await.text;
    for line in ["oarlock_store_up{backend=\"etcd\"} 1\n", "oarlock_store_listed{backend=\"etcd\"} 0\n"] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert_eq!(server.send("GET", "/v1/locks/x", "").await.json()["state"], "held", "by its name");
    guard.release().await.unwrap();
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
