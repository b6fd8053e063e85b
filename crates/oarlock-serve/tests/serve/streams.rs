//! Streams: how many there are, and what they cost the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use oarlock_core::capabilities::Liveness;
use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Locks, Memory, ResourceName, Result};
use oarlock_serve::Config;

use super::support::{PATIENCE, Running, Store, eventually, is_long};

/// A store that counts how often it is read, and how many claims are renewed; it can be made to answer no more.
struct Counting {
    store: Memory,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    reads: AtomicUsize,
    renewals: AtomicUsize,
    /// Reads fail while this is true.
    is_down: AtomicBool,
    /// Holds end with a session while this is true: their lease does not count down, as that of ZooKeeper.
    has_sessions: AtomicBool,
}

/// A server over such a store, and a client of the store.
async fn counting(viewers: usize) -> (Running, Locks, Arc<Seen>) {
    counting_with(viewers, false, Config::default()).await
}

async fn counting_with(viewers: usize, is_down: bool, config: Config) -> (Running, Locks, Arc<Seen>) {
    over(Seen { is_down: is_down.into(), ..Seen::default() }, viewers, config).await
}

async fn over(seen: Seen, viewers: usize, mut config: Config) -> (Running, Locks, Arc<Seen>) {
    let (store, seen) = (Memory::new(), Arc::new(seen));
    let counting = Counting { store: store.connect(), seen: seen.clone() };
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.streams = 2 * viewers;
    (config.connections, config.rate) = (4 * viewers, 1_000_000);
    config.audit = Some("/dev/null".into());
    let server = Running::over(Locks::over(counting).unwrap(), config).await;
    (server, Locks::over(store).unwrap(), seen)
}

impl Driver for Counting {
    fn info(&self) -> Info {
        let mut info = Driver::info(&self.store);
        if self.seen.has_sessions.load(SeqCst) {
            info.capabilities.liveness = Liveness::Session;
        }
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        Driver::attempt(&self.store, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.seen.renewals.fetch_add(batch.len(), SeqCst);
        Driver::renew(&self.store, batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        Driver::release(&self.store, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.store, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.seen.reads.fetch_add(1, SeqCst);
        if self.seen.is_down.load(SeqCst) {
            return Err(Error::new(ErrorKind::Unreachable, "the store is away"));
        }
        let mut page = Driver::inspect(&self.store, query).await?;
        if self.seen.has_sessions.load(SeqCst) {
            for holder in page.resources.iter_mut().flat_map(|resource| &mut resource.holders) {
                holder.lease_left = Duration::from_secs(30);
            }
        }
        Ok(page)
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
    let (server, locks, seen) = counting(viewers).await;
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
    let (began, before) = (Instant::now(), seen.reads.load(SeqCst));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (ticks, read) = (began.elapsed().as_millis() / 500 + 2, seen.reads.load(SeqCst) - before);
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
        let before = seen.reads.load(SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        seen.reads.load(SeqCst) - before <= 1
    })
    .await;
    server.stop().await;
}

/// A page that is opened wants to see something at once: but the store is listed at most twice a second for that.
#[tokio::test]
async fn pages_that_come_and_go_read_the_store_as_often_as_one_that_stays() {
    let (server, _, seen) = counting(100).await;
    server.events("/v1/watch", &[]).await.next("locks").await;
    let (began, before) = (Instant::now(), seen.reads.load(SeqCst));
    for _ in 0..40 {
        server.events("/v1/watch", &[]).await.next("locks").await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let (ticks, read) = (began.elapsed().as_millis() / 500 + 2, seen.reads.load(SeqCst) - before);
    assert!(read as u128 <= ticks, "{read} listings in {ticks} ticks");
    server.stop().await;
}

/// A viewer follows the lock already, and what it saw last is older than the lease: that must neither end the stream of
/// the lease, nor renew a lease whose client did not ask.
#[tokio::test]
async fn the_stream_of_a_new_lease_is_not_judged_by_what_was_read_before() {
    let (server, _, seen) = counting(10).await;
    let mut viewer = server.events("/v1/locks/x/watch", &[]).await;
    viewer.next("lock").await;
    for round in 0..8 {
        let granted = server.send("POST", "/v1/locks/x", r#"{"ttl_ms": 60000, "wait_ms": 30000}"#).await.json();
        let lease = granted["lease"].as_str().unwrap().to_owned();
        let before = seen.renewals.load(SeqCst);
        let mut stream = server.events("/v1/locks/x/watch", &[("oarlock-lease", &lease)]).await;
        while stream.next("lock").await["state"] != "held" {}
        assert_eq!(seen.renewals.load(SeqCst), before, "round {round}: renewed without its client");
        let body = serde_json::json!({ "lease": lease }).to_string();
        assert_eq!(server.send("POST", "/v1/locks/x/release", &body).await.status, 200, "round {round}");
        stream.next("released").await;
    }
    server.stop().await;
}

/// A hold that ends with a session has the same lease at all times. That is no renewal, and no change.
#[tokio::test]
async fn a_lease_that_does_not_count_down_is_told_once() {
    let seen = Seen { has_sessions: true.into(), ..Seen::default() };
    let (server, locks, _) = over(seen, 10, Config::default()).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let (mut page, mut stream) = (server.events("/v1/watch", &[]).await, server.events("/v1/locks/x/watch", &[]).await);
    assert_eq!(stream.next("lock").await["holders"][0]["lease_left_ms"], 30_000);
    // The first sample with the lock in it, and what its stream says of that.
    while page.any().await.unwrap().1["locks"].as_array().is_none_or(Vec::is_empty) {}
    let of_page = async {
        loop {
            assert_eq!(page.any().await.unwrap().1["locks"].as_array().map_or(0, Vec::len), 0, "it is sent again");
        }
    };
    let of_stream = async {
        loop {
            assert_ne!(stream.any().await.unwrap().0, "lock", "nothing has changed");
        }
    };
    let both = async { tokio::join!(of_page, of_stream) };
    assert!(tokio::time::timeout(Duration::from_secs(3), both).await.is_err(), "it ends with the time");
    guard.release().await.unwrap();
    while stream.next("lock").await["state"] != "free" {}
    server.stop().await;
}

/// What is shown after trouble is over, also if it is what was shown before.
#[tokio::test]
async fn a_lock_is_shown_again_after_trouble() {
    let (server, locks, seen) = counting(10).await;
    let _guard = locks.mutex("x").lock().await.unwrap();
    let mut stream = server.events("/v1/locks/x/watch", &[]).await;
    let shown = stream.next("lock").await;
    seen.is_down.store(true, SeqCst);
    stream.next("trouble").await;
    seen.is_down.store(false, SeqCst);
    assert_eq!(stream.next("lock").await["holders"][0]["fence"], shown["holders"][0]["fence"]);
    server.stop().await;
}

/// A page takes `locks` for a new beginning, and would show that there are none while the store does not answer.
#[tokio::test]
async fn only_the_first_event_of_all_locks_is_a_new_beginning() {
    let (server, locks, seen) = counting_with(10, true, Config::default()).await;
    let _guard = locks.mutex("x").lock().await.unwrap();
    let mut page = server.events("/v1/watch", &[]).await;
    let mut next = async || tokio::time::timeout(PATIENCE, page.any()).await.expect("in time").expect("a stream");
    let (first, data) = next().await;
    assert_eq!((first.as_str(), &data["locks"]), ("locks", &serde_json::json!([])), "the store does not answer");
    for is_down in [false, true, false] {
        seen.is_down.store(is_down, SeqCst);
        loop {
            let (event, data) = next().await;
            assert_ne!(event, "locks", "{data}");
            assert_eq!(data["gone"].as_array().map_or(0, Vec::len), 0, "x is held all the time: {data}");
            // Trouble begins, or ends.
            if event == "trouble" && data["detail"].is_null() != is_down {
                break;
            }
        }
    }
    server.stop().await;
}

/// What could not be read again may have ended long ago: an alert on it would be false.
#[tokio::test]
async fn locks_that_could_not_be_read_again_feed_no_metric() {
    let mut config = Config::default();
    (config.metrics_names, config.sample) = (vec!["x".to_owned()], Duration::from_millis(100));
    let (server, locks, seen) = counting_with(10, false, config).await;
    let guard = locks.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("x").fair().wait(PATIENCE).lock().await }
    });
    let of_rows = [
        "oarlock_store_held{",
        "oarlock_store_waiting{",
        "oarlock_store_oldest_waiter_seconds{",
        "oarlock_lock_held_seconds{",
        "oarlock_lock_waiters{",
        "oarlock_lock_oldest_waiter_seconds{",
        "oarlock_lock_token{",
    ];
    let metrics = async || server.send("GET", "/metrics", "").await.text;
    for is_up in [true, false, true] {
        seen.is_down.store(!is_up, SeqCst);
        let line = format!("oarlock_store_up{{backend=\"mem\"}} {}\n", u8::from(is_up));
        eventually("it is sampled", || async {
            let text = metrics().await;
            text.contains(&line) && (!is_up || text.contains("oarlock_lock_waiters{name=\"x\"} 1\n"))
        })
        .await;
        let text = metrics().await;
        for metric in of_rows {
            assert_eq!(text.contains(metric), is_up, "{metric}\n{text}");
        }
    }
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    server.stop().await;
}

/// Sends a request from a thread of its own, and reads the whole answer.
fn ask(address: std::net::SocketAddr, path: &'static str) -> std::thread::JoinHandle<usize> {
    use std::io::{Read as _, Write as _};
    std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{:.300}", String::from_utf8_lossy(&answer));
        answer.len()
    })
}

/// One thread serves all clients, as that of the command line does.
#[tokio::test]
async fn many_big_listings_delay_no_renewal() {
    const LISTINGS: usize = 40;
    let (server, locks, seen) = counting(100).await;
    let mut guards = Vec::new();
    for number in 0..4000 {
        guards.push(locks.mutex(format!("job/{number}")).reason("r".repeat(200)).lock().await.unwrap());
    }
    let granted = server.send("POST", "/v1/locks/mine", r#"{"ttl_ms": 60000}"#).await.json();
    let lease = serde_json::json!({ "lease": granted["lease"] }).to_string();
    let all = "/v1/locks?limit=10000";
    let (began, before) = (Instant::now(), seen.reads.load(SeqCst));
    let alone = ask(server.address, all);
    eventually("one list is read", || async { alone.is_finished() }).await;
    let (took, reads) = (began.elapsed(), seen.reads.load(SeqCst) - before);
    assert!(alone.join().unwrap() > 1_000_000, "a big list");

    let before = seen.reads.load(SeqCst);
    let readers: Vec<_> = (0..LISTINGS).map(|_| ask(server.address, all)).collect();
    let (mut longest, began) = (Duration::ZERO, Instant::now());
    while !readers.iter().all(std::thread::JoinHandle::is_finished) {
        let sent = Instant::now();
        assert_eq!(server.send("POST", "/v1/locks/mine/renew", &lease).await.status, 200);
        longest = longest.max(sent.elapsed());
        assert!(began.elapsed() < 4 * PATIENCE, "the lists are not read");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let read = seen.reads.load(SeqCst) - before;
    println!(
        "one list: {took:?}, {reads} reads; {LISTINGS}: {:?}, {read} reads; longest renewal {longest:?}",
        began.elapsed()
    );
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(read <= LISTINGS / 2 * reads, "{read} reads for {LISTINGS} lists: one is {reads}");
    assert!(longest < (6 * took).max(Duration::from_secs(1)), "a renewal took {longest:?} beside lists of {took:?}");
    server.stop().await;
}
