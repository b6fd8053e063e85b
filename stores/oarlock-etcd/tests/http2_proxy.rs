//! etcd behind a proxy that speaks HTTP/2 itself, as load balancers and service meshes do: all clients share one
//! connection to the server, and the proxy ends connections and streams as it likes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use oarlock_core::{Guard, Locks, ResourceName};
use oarlock_etcd::{Config, Etcd};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

const TTL: Duration = Duration::from_secs(3);

/// The request whose answer is a stream of notifications.
const WATCH: &str = "/etcdserverpb.Watch/Watch";

struct Proxy {
    addr: SocketAddr,
    /// One task for each client.
    clients: Arc<Mutex<JoinSet<()>>>,
    /// How many streams it has reset.
    reset: Arc<AtomicUsize>,
}

impl Proxy {
    /// In front of `server`. It resets a stream of notifications on which nothing was answered for `idle`.
    async fn start(server: SocketAddr, idle: Duration) -> Self {
        let (upstream, connection) = h2::client::handshake(TcpStream::connect(server).await.unwrap()).await.unwrap();
        tokio::spawn(connection);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, clients) = (listener.local_addr().unwrap(), Arc::<Mutex<JoinSet<()>>>::default());
        let (served, reset) = (clients.clone(), Arc::<AtomicUsize>::default());
        let count = reset.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, count) = (upstream.clone(), count.clone());
                served.lock().unwrap().spawn(async move {
                    // Whatever ends it, the client connects again.
                    let _ = serve(client, upstream, idle, count).await;
                });
            }
        });
        Self { addr, clients, reset }
    }

    /// Ends all connections of clients. Says how many there were.
    fn cut(&self) -> usize {
        let mut clients = self.clients.lock().unwrap();
        while clients.try_join_next().is_some() {}
        let count = clients.len();
        clients.abort_all();
        count
    }

    async fn client(&self) -> Locks {
        Locks::over(Etcd::open(Config::new([self.addr.to_string()])).await.unwrap()).unwrap()
    }
}

async fn serve(
    client: TcpStream,
    mut upstream: SendRequest<Bytes>,
    idle: Duration,
    reset: Arc<AtomicUsize>,
) -> Result<(), h2::Error> {
    let mut requests = h2::server::handshake(client).await?;
    // They end with the connection of their client.
    let mut streams = JoinSet::new();
    while let Some(request) = requests.accept().await {
        let (request, answer) = request?;
        upstream = upstream.ready().await?;
        let (head, body) = request.into_parts();
        // The answer to one request may take longer on a busy machine. The client reports that, and does not ask again.
        let idle = if head.uri.path() == WATCH { idle } else { PATIENCE };
        let asked = upstream.send_request(Request::from_parts(head, ()), body.is_end_stream())?;
        streams.spawn(pass_on(body, answer, asked, idle, reset.clone()));
    }
    Ok(())
}

/// One request and its answer, both of which may be streams.
async fn pass_on(
    body: RecvStream,
    mut answer: SendResponse<Bytes>,
    (answered, server): (h2::client::ResponseFuture, SendStream<Bytes>),
    idle: Duration,
    reset: Arc<AtomicUsize>,
) -> Result<(), h2::Error> {
    let is_whole = body.is_end_stream();
    let up = async {
        // A client may say nothing for long.
        if is_whole { Ok(()) } else { pump(body, server, PATIENCE, &reset).await }
    };
    let down = async {
        let (head, body) = answered.await?.into_parts();
        let is_whole = body.is_end_stream();
        let client = answer.send_response(Response::from_parts(head, ()), is_whole)?;
        if is_whole { Ok(()) } else { pump(body, client, idle, &reset).await }
    };
    tokio::try_join!(up, down).map(|_| ())
}

async fn pump(
    mut from: RecvStream,
    mut to: SendStream<Bytes>,
    idle: Duration,
    reset: &AtomicUsize,
) -> Result<(), h2::Error> {
    loop {
        let Ok(data) = tokio::time::timeout(idle, from.data()).await else {
            to.send_reset(h2::Reason::CANCEL);
            reset.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let Some(data) = data else { break };
        let data = data?;
        from.flow_control().release_capacity(data.len())?;
        to.send_data(data, false)?;
    }
    match from.trailers().await? {
        Some(trailers) => to.send_trailers(trailers),
        None => to.send_data(Bytes::new(), true),
    }
}

/// Waits for `job`; returns once it is in the queue.
async fn waiter(proxy: &Proxy) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let client = proxy.client().await;
    let lock = client.mutex("job").ttl(TTL).wait(PATIENCE);
    let waiting = tokio::spawn(async move { (lock.lock().await.unwrap(), Instant::now()) });
    let name = ResourceName::new("job").unwrap();
    let queued = async {
        while client.inspect(&name).await.unwrap().waiters.count() != Some(1) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, queued).await.unwrap();
    waiting
}

/// Longer than a lease.
const LONG: u32 = 12;

/// Holds `job` for so many tenths of a lease behind a proxy, while `meanwhile` happens once in each, and hands it over to
/// a waiter. Says how long that took.
async fn held_and_handed_over(proxy: &Proxy, tenths: u32, meanwhile: impl Fn(u32)) -> Duration {
    let holder = proxy.client().await;
    let guard = holder.mutex("job").ttl(TTL).lock().await.unwrap();
    let waiting = waiter(proxy).await;
    for step in 0..tenths {
        meanwhile(step);
        tokio::time::sleep(TTL / 10).await;
        assert!(guard.is_held(), "lost after {step} tenths of a lease: {:?}", guard.loss());
        assert!(!waiting.is_finished(), "granted twice");
    }
    let (fence, released) = (guard.fence(), Instant::now());
    guard.release().await.unwrap();
    let (theirs, granted) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert!(theirs.fence() > fence, "fence {} after {fence}", theirs.fence());
    theirs.release().await.unwrap();
    granted - released
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_held_and_handed_over() {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr(), PATIENCE).await;
    let mut took = held_and_handed_over(&proxy, LONG, |_| ()).await;
    for _ in 0..5 {
        took += held_and_handed_over(&proxy, 0, |_| ()).await;
    }
    // A waiter without notifications polls so often.
    assert!(took < TTL / 3, "handed over six times in {took:?}: the notifications did not come through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_ends_its_connections_costs_no_lock() {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr(), PATIENCE).await;
    let cuts = Mutex::new(0);
    held_and_handed_over(&proxy, LONG, |step| {
        if step % 6 == 5 {
            *cuts.lock().unwrap() += proxy.cut();
        }
    })
    .await;
    assert!(cuts.into_inner().unwrap() >= 3, "nothing was cut");
}

/// Most do so after a minute: a stream of notifications is silent for longer. The waiter opens another one, which the
/// release then comes through.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_resets_silent_streams_costs_no_lock() {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
    // Streams that end sooner are opened again after a pause.
    let proxy = Proxy::start(server.addr(), Duration::from_millis(1200)).await;
    let mut took = held_and_handed_over(&proxy, LONG, |_| ()).await;
    for _ in 0..4 {
        took += held_and_handed_over(&proxy, 5, |_| ()).await;
    }
    assert!(proxy.reset.load(Ordering::Relaxed) >= 5, "hardly a stream was reset");
    // A waiter without notifications polls so often.
    assert!(took < TTL / 3, "handed over five times in {took:?}: no notification came through after a reset");
}
