//! Many contenders of one name, by the server's own counters: the cost of an acquisition does not grow with them, and
//! a release wakes one of them. Figures are printed (`--nocapture`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::{Locks, ResourceName};
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::Etcd as Server;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error>;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// How many contenders start at once.
const GROUP: u32 = 50;

/// The most connections. Contenders of one client are as many claims, leases and watches at the server as those of
/// several, but are kept alive together.
const CLIENTS: u32 = 100;

/// What the server has counted so far.
struct Counted {
    at: Instant,
    /// Requests, streams among them.
    requests: f64,
    /// Those that keep leases alive.
    keeps: f64,
    /// Changes sent to watches.
    events: f64,
    /// Bytes sent to clients.
    bytes: f64,
}

fn counted(server: &Server) -> Result<Counted, String> {
    let metric = |name: &str| server.metric(name).map_err(|error| error.to_string());
    Ok(Counted {
        at: Instant::now(),
        requests: metric("grpc_server_started_total")?,
        keeps: server.metric_where("grpc_server_started_total", "LeaseKeepAlive").map_err(|error| error.to_string())?,
        events: metric("etcd_debugging_mvcc_events_total")?,
        bytes: metric("etcd_network_client_grpc_sent_bytes_total")?,
    })
}

async fn open(server: &Server) -> Result<Locks, oarlock_core::Error> {
    Locks::over(Etcd::open(Config::new([server.addr().to_string()])).await?)
}

async fn until_waiting(observer: &Locks, name: &ResourceName, number: u32) -> Result<(), Failure> {
    let patience = Instant::now() + PATIENCE;
    loop {
        let waiters = observer.inspect(name).await?.waiters.count();
        if waiters == usize::try_from(number).ok() {
            return Ok(());
        }
        assert!(Instant::now() < patience, "{waiters:?} of {number} are in the queue");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Each contender attempts again right after its turn, so that all others wait all the time. Counts the cost of so
/// many turns of each, after a first one, and while a last one is still to come.
async fn contend(server: &Arc<Server>, contenders: u32, turns: u32) -> Result<[Counted; 2], Failure> {
    let (first, name) = (open(server).await?, ResourceName::new("crowd")?);
    let held = first.mutex("crowd").fair().lock().await?;
    let (done, counts) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut clients = Vec::new();
    for _ in 0..contenders.min(CLIENTS) {
        clients.push(open(server).await?);
    }
    let mut crew = JoinSet::new();
    for (number, client) in (1..=contenders).zip(clients.iter().cycle().cloned()) {
        let server = server.clone();
        let (done, counts) = (done.clone(), counts.clone());
        crew.spawn(async move {
            for _ in 0..turns + 2 {
                let mutex = client.mutex("crowd");
                let guard = mutex.fair().wait_forever().lock().await.map_err(|error| error.to_string())?;
                guard.release().await.map_err(|error| error.to_string())?;
                let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                if done == contenders || done == contenders * (turns + 1) {
                    counts.lock().unwrap_or_else(PoisonError::into_inner).push(counted(&server)?);
                }
            }
            Ok::<_, String>(())
        });
        if number % GROUP == 0 || number == contenders {
            until_waiting(&first, &name, number).await?;
        }
    }
    held.release().await?;
    while let Some(turns) = tokio::time::timeout(PATIENCE, crew.join_next()).await? {
        turns??;
    }
    let mut counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
    counts.sort_by_key(|counted| counted.at);
    counts.try_into().map_err(|_| "there was nothing to count".into())
}

/// Five requests: joining the queue, a watch, a read of what changed meanwhile, the turn, the release. Keeping waiters
/// alive adds requests by time: a keep-alive and a read every third of the 10 s that the lease of a waiter lasts. No
/// waiter reads the whole queue.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_costs_the_same_however_many_wait() -> Result<(), Failure> {
    let Some(server) = Server::start_or_skip()?.map(Arc::new) else { return Ok(()) };
    let long = std::env::var_os("OARLOCK_LONG").is_some();
    let crowds: &[(u32, u32)] = if long { &[(2, 100), (16, 50), (128, 20), (1000, 2)] } else { &[(2, 50), (16, 10)] };
    for (contenders, turns) in crowds {
        let [before, after] = contend(&server, *contenders, *turns).await?;
        let (all, waiting) = (f64::from(contenders * turns), f64::from(*contenders));
        let clients = waiting.min(f64::from(CLIENTS));
        let spent = after.at.duration_since(before.at).as_secs_f64();
        let keeps = after.keeps - before.keeps;
        let requests = (after.requests - before.requests - 2.0 * keeps) / all;
        let events = (after.events - before.events) / all;
        let bytes = (after.bytes - before.bytes) / all;
        println!(
            "{contenders:5} contenders: {requests:.2} requests, {events:.2} events and {bytes:.0} bytes each, {:.0}/s; {:.2} \
             keep-alives a second of each client",
            all / spent,
            keeps / spent / clients,
        );
        assert!(requests < 6.5, "{contenders} contenders: {requests} requests for each acquisition");
        assert!(events < 1.5, "{contenders} contenders: {events} are woken by each release");
        // A turn may have one of its own, and so may a read after a third of the lease.
        let most = all + (0.6 * clients + 0.15 * waiting) * spent;
        assert!(keeps < most, "{contenders} contenders: {keeps} keep-alives in {spent} s");
        // A record has about 400. Of a long queue only keys are read, by waiters that have waited for a third of a
        // lease.
        assert!(bytes < 3000.0 + 100.0 * waiting, "{contenders} contenders: {bytes} bytes for each acquisition");
    }
    Ok(())
}
