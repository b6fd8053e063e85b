//! Everything that several clients held of one lock, while servers forget and clocks jump: how often two held it at
//! once, and whether every grant had the larger fence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oarlock_conformance::history::{History, Hold, Rules};
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::{Locks, Weight};
use oarlock_testbed::{Redis as Server, RedisClock};

use super::{A_WHILE, over};

const LEASE: Duration = Duration::from_millis(500);

/// What a run came to.
struct Seen {
    holds: usize,
    overlaps: usize,
}

/// How long each scene is played.
fn span() -> Duration {
    Duration::from_secs(if std::env::var_os("OARLOCK_LONG").is_some() { 30 } else { 2 })
}

/// Fewer holds show nothing.
const ENOUGH: usize = 10;

struct Scene {
    began: Moment,
    holds: AtomicUsize,
}

impl Scene {
    /// For its span, and on a busy machine until enough was held.
    fn goes_on(&self) -> bool {
        let played = BootClock.now().since(self.began);
        let enough = self.holds.load(Ordering::Relaxed) >= ENOUGH || played > Duration::from_secs(60);
        played < span() || !enough
    }
}

/// One client that takes the lock again and again until then.
async fn contend(addrs: Vec<SocketAddr>, owner: u64, scene: Arc<Scene>) -> History {
    let client = Locks::over(over(addrs.into_iter()).await).unwrap();
    let lock = client.mutex("history").ttl(LEASE).no_renewal().wait(Duration::from_millis(200));
    let mut history = History::new();
    while scene.goes_on() {
        let asked = BootClock.now();
        // Some rounds fail while servers come and go: what counts is what was granted.
        let Ok(guard) = lock.lock().await else { continue };
        let granted = BootClock.now();
        let held = Duration::from_millis(5 + granted.as_nanos() % 60);
        tokio::select! {
            _ = guard.lost() => {}
            () = tokio::time::sleep(held) => {}
        }
        // A task that was kept from its processor wakes up after belief has ended.
        let (resource, fence, ended) = ("history".to_owned(), guard.fence(), BootClock.now().min(guard.ends_at()));
        let (weight, capacity, queued) = (Weight::All, None, None);
        history.hold(Hold { resource, owner, weight, capacity, fence, asked, granted, ended, queued });
        scene.holds.fetch_add(1, Ordering::Relaxed);
        let _ = guard.release().await;
    }
    history
}

/// Four clients, and what happens meanwhile. Fences rise in any case.
async fn play(what: &str, addrs: Vec<SocketAddr>, meanwhile: impl AsyncFn(usize)) -> Seen {
    let scene = Arc::new(Scene { began: BootClock.now(), holds: AtomicUsize::new(0) });
    let clients: Vec<_> = (1..=4).map(|owner| tokio::spawn(contend(addrs.clone(), owner, scene.clone()))).collect();
    let mut round = 0;
    while scene.goes_on() {
        meanwhile(round).await;
        round += 1;
    }
    let mut history = History::new();
    for client in clients {
        history.merge(tokio::time::timeout(Duration::from_secs(60), client).await.unwrap().unwrap());
    }
    let verdict = history.check(&Rules::new().least_holds(ENOUGH));
    let overlaps = verdict.violations.iter().filter(|violation| violation.name() == "Overlap").count();
    println!("{what}: {} holds, {overlaps} pairs of them at once, {round} times something happened", verdict.holds);
    assert_eq!(verdict.violations.len(), overlaps, "{what}: {verdict}");
    Seen { holds: verdict.holds, overlaps }
}

async fn rest(_: usize) {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn addrs(servers: &[Server]) -> Vec<SocketAddr> {
    servers.iter().map(Server::addr).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_stay_away_for_a_lease_cost_no_exclusion() {
    for count in [4, 5] {
        let servers = servers!(count);
        let seen = play(&format!("{count} servers, nothing happens"), addrs(&servers), rest).await;
        assert_eq!(seen.overlaps, 0);
        let forget = async |round: usize| {
            let server = &servers[round % servers.len()];
            server.kill().unwrap();
            tokio::time::sleep(LEASE + LEASE / 4).await;
            server.restart().unwrap();
            // The next one only when this one has votes again.
            tokio::time::sleep(LEASE).await;
        };
        let seen = play(&format!("{count} servers, one forgets and stays away"), addrs(&servers), forget).await;
        assert_eq!(seen.overlaps, 0);
    }
}

/// What the page says that Redlock does not promise: two may hold it, and the later one has the larger fence.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_forget_or_jump_cost_exclusion_at_most() {
    let servers = servers!(3);
    let forget = async |round: usize| {
        servers[round % servers.len()].restart().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let forgot = play("3 servers, one forgets and is back at once", addrs(&servers), forget).await;
    let nodes = clocks!(3);
    let jump = async |round: usize| {
        let micros = if round.is_multiple_of(2) { A_WHILE } else { 0 };
        nodes[round / 2 % nodes.len()].set_clock(micros).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let jumped = play("3 servers, a clock jumps", nodes.iter().map(RedisClock::addr).collect(), jump).await;
    assert!(forgot.holds > forgot.overlaps && jumped.holds > jumped.overlaps, "it never was exclusive");
}
