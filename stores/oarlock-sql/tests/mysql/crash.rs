//! A process that is killed while it holds, and who comes after it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_core::Locks;
use oarlock_sql::mysql::MySql;
use oarlock_testbed::Flavour;

use crate::store::{config, start, until};

/// Where the victim finds its server.
const SERVER: &str = "OARLOCK_TEST_SERVER";

/// Not a test by itself: the process that is killed.
#[tokio::test]
async fn victim() {
    let Ok(addr) = std::env::var(SERVER) else { return };
    let addr: SocketAddr = addr.parse().unwrap();
    let client = Locks::over(MySql::connect(config(addr)).await.unwrap()).unwrap();
    let _guard = client.mutex("killed").lock().await.unwrap();
    println!("\nheld");
    std::thread::sleep(Duration::from_secs(60));
}

fn spawn_victim(addr: SocketAddr) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::victim", "--nocapture"]).env(SERVER, addr.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "held"), "the victim did not get the lock");
    child
}

/// With leases of half a minute, and a look every quarter of a second.
async fn the_next_in_line_gets_past_a_killed_holder_at_its_next_look(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let client = Locks::over(MySql::connect(config(server.addr())).await.unwrap()).unwrap();
    let mut waits = Vec::new();
    for _ in 0..5 {
        let addr = server.addr();
        let mut victim = tokio::task::spawn_blocking(move || spawn_victim(addr)).await.unwrap();
        let next = client.mutex("killed");
        let next = tokio::spawn(async move { next.fair().lock().await.map(|guard| (guard, Instant::now())) });
        until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 1).await;
        victim.kill().unwrap();
        let killed = Instant::now();
        victim.wait().unwrap();
        let (guard, granted) = tokio::time::timeout(Duration::from_secs(15), next).await.unwrap().unwrap().unwrap();
        waits.push(granted.saturating_duration_since(killed));
        guard.release().await.unwrap();
    }
    waits.sort();
    println!("from SIGKILL to the next grant: {waits:?}");
    // Without the liveness lock it would be half a minute. How long a busy machine takes to look is no fault of ours.
    let bound = if std::env::var_os("OARLOCK_LONG").is_some() { 1000 } else { 3000 };
    assert!(waits[2] < Duration::from_millis(bound), "{waits:?}");
}

on_both!(the_next_in_line_gets_past_a_killed_holder_at_its_next_look,);
