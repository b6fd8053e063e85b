//! Streams: how many there are, and what they cost the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Locks, Memory, ResourceName, Result};
use oarlock_serve::Config;

use super::support::{PATIENCE, Running, Store, eventually, is_long};

/// A store that counts how often it is read, and how many claims are renewed.
struct Counting {
    store: Memory,
    reads: Arc<AtomicUsize>,
    renewals: Arc<AtomicUsize>,
}

/// A server over such a store, and a client of the store.
async fn counting(viewers: usize) -> (Running, Locks, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (store, reads, renewals) = (Memory::new(), Arc::default(), Arc::default());
    let counting = Counting { store: store.connect(), reads: Arc::clone(&reads), renewals: Arc::clone(&renewals) };
    let mut config = Config::default();
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.streams = 2 * viewers;
    (config.connections, config.rate) = (4 * viewers, 1_000_000);
    config.audit = Some("/dev/null".into());
    let server = Running::over(Locks::over(counting).unwrap(), config).await;
    (server, Locks::over(store).unwrap(), reads, renewals)
}

impl Driver for Counting {
    fn info(&self) -> Info {
        Driver::info(&self.store)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        Driver::attempt(&self.store, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renewals.fetch_add(batch.len(), SeqCst);
        Driver::renew(&self.store, batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        Driver::release(&self.store, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.store, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.reads.fetch_add(1, SeqCst);
        Driver::inspect(&self.store, query).await
    }

    async fn close(&self) -> Result<()> {
        Driver::close(&self.store).await
    }
}

#[tokio::test]
async fn streams_are_bounded_and_a_client_beyond_is_told() {
    let store = Store::local();
    let mut config = Config::default();
    config.streams = 3;
    let server = Running::with(&store, config).await;
    let (mut one, mut two) = (server.events("/v1/watch", &[]).await, server.events("/v1/locks/x/watch", &[]).await);
    let mut three = server.events("/v1/locks/y/watch", &[]).await;
    one.next("locks").await;
    two.next("lock").await;
    three.next("lock").await;
    for path in ["/v1/watch", "/v1/locks/x/watch"] {
        let refused = server.send("GET", path, "").await;
        let words = refused.problem(503, "too-many-streams");
        assert!(words.contains("all 3 streams") && refused.head.contains("retry-after: 5"), "{refused:?}");
    }
    assert_eq!(server.send("GET", "/v1/locks", "").await.status, 200, "other requests are answered");
    drop(two);
    // The place is free once the server has noticed.
    let began = Instant::now();
    loop {
        let mut again = server.events("/v1/locks/x/watch", &[]).await;
        if again.is_open().await {
            again.next("lock").await;
            break;
        }
        assert!(began.elapsed() < PATIENCE, "a stream that ended keeps its place");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;
}

/// Pages share the samples of the whole store, and streams of one lock share its follower: what the store is asked does
/// not depend on how many look.
#[tokio::test]
async fn many_viewers_read_the_store_as_often_as_one() {
    let viewers = if is_long() { 1000 } else { 60 };
    let (server, locks, reads, _) = counting(viewers).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let (mut pages, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..viewers {
        let mut page = server.events("/v1/watch", &[]).await;
        page.next("locks").await;
        pages.push(page);
        let mut stream = server.events("/v1/locks/x/watch", &[]).await;
        assert_eq!(stream.next("lock").await["state"], "held");
        streams.push(stream);
    }
    // Nothing changes: both are read every half second, so that a tick is two reads, however long it takes.
    let (began, before) = (Instant::now(), reads.load(SeqCst));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (ticks, read) = (began.elapsed().as_millis() / 500 + 2, reads.load(SeqCst) - before);
    assert!(read as u128 <= 2 * ticks, "{read} reads in {ticks} ticks for {viewers} viewers of each kind");
    assert!(read >= 2, "it is read at all");
    guard.release().await.unwrap();
    for stream in &mut streams {
        while stream.next("lock").await["state"] != "free" {}
    }
    for page in &mut pages {
        while page.next("changes").await["gone"] != serde_json::json!(["x"]) {}
    }
    drop((streams, pages));
    let metrics = || async { server.send("GET", "/metrics", "").await.text };
    eventually("all are gone", || async { metrics().await.contains("oarlock_viewers 0\n") }).await;
    // The follower of the lock ends with its last stream: from then on only the whole store is read, every 5 s.
    eventually("the lock is not followed any more", || async {
        let before = reads.load(SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        reads.load(SeqCst) - before <= 1
    })
    .await;
    server.stop().await;
}

/// A page that is opened wants to see something at once: but the store is listed at most twice a second for that.
#[tokio::test]
async fn pages_that_come_and_go_read_the_store_as_often_as_one_that_stays() {
    let (server, _, reads, _) = counting(100).await;
    server.events("/v1/watch", &[]).await.next("locks").await;
    let (began, before) = (Instant::now(), reads.load(SeqCst));
    for _ in 0..40 {
        server.events("/v1/watch", &[]).await.next("locks").await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let (ticks, read) = (began.elapsed().as_millis() / 500 + 2, reads.load(SeqCst) - before);
    assert!(read as u128 <= ticks, "{read} listings in {ticks} ticks");
    server.stop().await;
}

/// A viewer follows the lock already, and what it saw last is older than the lease: that must neither end the stream of
/// the lease, nor renew a lease whose client did not ask.
#[tokio::test]
async fn the_stream_of_a_new_lease_is_not_judged_by_what_was_read_before() {
    let (server, _, _, renewals) = counting(10).await;
    let mut viewer = server.events("/v1/locks/x/watch", &[]).await;
    viewer.next("lock").await;
    for round in 0..8 {
        let granted = server.send("POST", "/v1/locks/x", r#"{"ttl_ms": 60000, "wait_ms": 30000}"#).await.json();
        let lease = granted["lease"].as_str().unwrap().to_owned();
        let before = renewals.load(SeqCst);
        let mut stream = server.events("/v1/locks/x/watch", &[("oarlock-lease", &lease)]).await;
        while stream.next("lock").await["state"] != "held" {}
        assert_eq!(renewals.load(SeqCst), before, "round {round}: renewed without its client");
        let body = serde_json::json!({ "lease": lease }).to_string();
        assert_eq!(server.send("POST", "/v1/locks/x/release", &body).await.status, 200, "round {round}");
        stream.next("released").await;
    }
    server.stop().await;
}
