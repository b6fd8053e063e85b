//! One name and many contenders, each with a connection of its own: hand-offs in a second through the engine, and by bare
//! keys of which each watches the one before it; and what the server was asked for each of them.
//!
//! `cargo run --release -p oarlock-etcd --example contend -- 2 16 128`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oarlock_core::Client;
use oarlock_core::floor::Rival;
use oarlock_etcd::{Config, Etcd, floor};
use oarlock_testbed::Etcd as Server;
use tokio::task::JoinSet;

const ROUNDS: u32 = 3;
const SPAN: Duration = Duration::from_secs(3);

/// Who contends.
#[derive(Clone)]
enum Contender {
    Ours(Client),
    Bare(Arc<dyn Rival>),
}

impl Contender {
    async fn turn(&self) -> oarlock_core::Result<()> {
        match self {
            Self::Ours(client) => {
                let guard = client.mutex("contended")?.fair().wait_forever().lock().await?;
                guard.release().await?;
                Ok(())
            }
            Self::Bare(rival) => {
                rival.clone().take().await?;
                rival.clone().give().await
            }
        }
    }
}

/// What the server has counted so far: requests, streams among them, and changes told.
fn counted(server: &Server) -> anyhow::Result<(f64, f64)> {
    Ok((server.metric("grpc_server_started_total")?, server.metric("etcd_debugging_mvcc_events_total")?))
}

/// Everybody takes turns for a while: turns in a second, requests for each, changes told for each.
async fn round(server: &Server, contenders: &[Contender]) -> anyhow::Result<(f64, f64, f64)> {
    let (turns, start, before) = (Arc::new(AtomicU64::new(0)), Instant::now(), counted(server)?);
    let mut crew: JoinSet<oarlock_core::Result<()>> = JoinSet::new();
    for contender in contenders {
        let (contender, turns) = (contender.clone(), turns.clone());
        crew.spawn(async move {
            while start.elapsed() < SPAN {
                contender.turn().await?;
                turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    let (took, after) = (start.elapsed().as_secs_f64(), counted(server)?);
    let turns = f64::from(u32::try_from(turns.load(Ordering::Relaxed))?);
    Ok((turns / took, (after.0 - before.0) / turns, (after.1 - before.1) / turns))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let crowds: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let server = Server::start()?;
    let config = Config::new([server.addr().to_string()]);
    for crowd in if crowds.is_empty() { vec![2, 16, 128] } else { crowds } {
        let floor = floor::open(config.clone()).await?;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..crowd {
            ours.push(Contender::Ours(Client::new(Etcd::open(config.clone()).await?)?));
            let rival = floor.clone().rival("contended".into()).await?;
            bare.extend(rival.map(Contender::Bare));
        }
        let (mut rates, mut costs) = ([Vec::new(), Vec::new()], [(0.0, 0.0); 2]);
        for _ in 0..ROUNDS {
            for (side, contenders) in [&ours, &bare].into_iter().enumerate() {
                let (rate, requests, events) = round(&server, contenders).await?;
                rates[side].push(rate);
                costs[side] = (requests, events);
            }
        }
        let [ours_rate, bare_rate] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        println!(
            "{crowd:5} contenders: oarlock {ours_rate:6.0}/s, {:.1} requests and {:.1} events each; bare keys {bare_rate:6.0}/s, \
             {:.1} and {:.1}; ratio {:.2}",
            costs[0].0,
            costs[0].1,
            costs[1].0,
            costs[1].1,
            ours_rate / bare_rate
        );
        floor.close().await?;
        for contender in ours {
            if let Contender::Ours(client) = contender {
                client.shutdown(Duration::from_secs(2)).await?;
            }
        }
    }
    Ok(())
}
