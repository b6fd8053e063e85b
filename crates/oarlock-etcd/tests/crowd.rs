//! Many contenders of one name, by what the server counts: what an acquisition costs does not grow with them, and a release
//! wakes one of them. Figures are printed (`--nocapture`).

use std::time::{Duration, Instant};

use oarlock_core::Client;
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::Etcd as Server;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error>;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// What the server has counted so far: requests, streams among them, and changes told to those who watch.
fn counted(server: &Server) -> Result<(f64, f64), Failure> {
    Ok((server.metric("grpc_server_started_total")?, server.metric("etcd_debugging_mvcc_events_total")?))
}

/// Each contender, on a connection of its own, has so many turns: requests and events for each of them.
async fn contend(server: &Server, contenders: u32, turns: u32) -> Result<(f64, f64), Failure> {
    let mut clients = Vec::new();
    for _ in 0..contenders {
        clients.push(Client::new(Etcd::open(Config::new([server.addr().to_string()])).await?)?);
    }
    // Everybody has a lease for waiting and one for holding, as whoever has been here for a while.
    for turns in [1, turns] {
        let (before, start) = (counted(server)?, Instant::now());
        let mut crew = JoinSet::new();
        for client in clients.clone() {
            crew.spawn(async move {
                for _ in 0..turns {
                    client.mutex("crowd")?.fair().wait_forever().lock().await?.release().await?;
                }
                Ok::<_, oarlock_core::Error>(())
            });
        }
        while let Some(done) = tokio::time::timeout(PATIENCE, crew.join_next()).await? {
            done??;
        }
        let (after, all) = (counted(server)?, f64::from(contenders * turns));
        let (requests, events) = ((after.0 - before.0) / all, (after.1 - before.1) / all);
        if turns > 1 {
            let rate = all / start.elapsed().as_secs_f64();
            println!("{contenders:5} contenders: {requests:.2} requests and {events:.2} events each, {rate:.0}/s");
            return Ok((requests, events));
        }
    }
    Err("there was nothing to count".into())
}

/// Five requests: coming last, a watch, a look whether something happened meanwhile, the turn, the release. What keeps
/// waiters alive is counted too, and goes by time.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_costs_the_same_however_many_wait() -> Result<(), Failure> {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let long = std::env::var_os("OARLOCK_LONG").is_some();
    let crowds: &[(u32, u32)] = if long { &[(2, 100), (16, 50), (128, 20), (1000, 4)] } else { &[(2, 50), (16, 10)] };
    for (contenders, turns) in crowds {
        let (requests, events) = contend(&server, *contenders, *turns).await?;
        let most = if *contenders < 1000 { 6.5 } else { 9.0 };
        assert!(requests < most, "{contenders} contenders: {requests} requests for each acquisition");
        assert!(events < 1.5, "{contenders} contenders: {events} are woken by each release");
    }
    Ok(())
}
