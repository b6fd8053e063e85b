//! One name and many contenders: hand-offs from one to another in a second, and what the server was asked, and told of, for each
//! grant. In turns, on one server:
//!
//! - bare keys, of which each watches the one before it;
//! - a fair mutex through the engine;
//! - the server's own lock service, which the lock calls of other clients use;
//! - programs of other languages, each given as a command that understands the lines of `interop/README.md`.
//!
//! `cargo run --release -p oarlock-etcd --example contend [CONTENDERS… [COMMAND…]]`. Contenders of the first three have a
//! connection each, those of a program share one.

#[path = "../../oarlock-zookeeper/examples/contend/peer.rs"]
mod peer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use oarlock_core::Locks;
use oarlock_core::floor::Rival;
use oarlock_etcd::bench::Service;
use oarlock_etcd::{Config, Etcd, floor};
use oarlock_testbed::Etcd as Server;
use peer::Peer;
use tokio::task::JoinSet;

const ROUNDS: usize = 3;
const SPAN: Duration = Duration::from_secs(2);

/// Who contends.
#[derive(Clone)]
enum Contender {
    Bare(Arc<dyn Rival>),
    Ours(Locks),
    Service(Arc<Service>),
}

/// Those who are measured together.
enum Team {
    Tasks(Vec<Contender>),
    Program(Peer, usize),
}

/// Whose turn it was last, and how often it was another's before.
#[derive(Default)]
struct Turns {
    last: AtomicUsize,
    grants: AtomicU32,
    hand_offs: AtomicU32,
}

impl Turns {
    fn note(&self, who: usize) {
        let before = self.last.swap(who, Ordering::AcqRel);
        self.grants.fetch_add(1, Ordering::AcqRel);
        self.hand_offs.fetch_add(u32::from(before != who), Ordering::AcqRel);
    }
}

impl Contender {
    async fn turn(&self, who: usize, turns: &Turns) -> oarlock_core::Result<()> {
        match self {
            Self::Bare(rival) => {
                rival.clone().take().await?;
                turns.note(who);
                rival.clone().give().await?;
            }
            Self::Ours(client) => {
                let guard = client.mutex("contended").fair().wait_forever().lock().await?;
                turns.note(who);
                guard.release().await?;
            }
            Self::Service(service) => {
                let key = service.lock().await?;
                turns.note(who);
                service.unlock(key).await?;
            }
        }
        Ok(())
    }
}

/// Grants, hand-offs, and the seconds that they took.
async fn contend(contenders: &[Contender]) -> Result<(f64, f64, f64)> {
    let (turns, start) = (Arc::new(Turns::default()), Instant::now());
    let mut crew: JoinSet<oarlock_core::Result<()>> = JoinSet::new();
    for (who, contender) in contenders.iter().cloned().enumerate() {
        let turns = turns.clone();
        crew.spawn(async move {
            while start.elapsed() < SPAN {
                contender.turn(who + 1, &turns).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    let count = |count: &AtomicU32| f64::from(count.load(Ordering::Acquire));
    Ok((count(&turns.grants), count(&turns.hand_offs), start.elapsed().as_secs_f64()))
}

/// What the server has counted so far: requests, streams among them, and changes told.
fn counted(server: &Server) -> Result<(f64, f64)> {
    Ok((server.metric("grpc_server_started_total")?, server.metric("etcd_debugging_mvcc_events_total")?))
}

/// Hand-offs in a second; requests and events for each grant.
async fn round(server: &Server, team: &mut Team) -> Result<[f64; 3]> {
    let before = counted(server)?;
    let (grants, hand_offs, took) = match team {
        Team::Tasks(contenders) => contend(contenders).await?,
        Team::Program(peer, count) => peer.load(*count, SPAN)?,
    };
    let after = counted(server)?;
    // One alone hands nothing over.
    let counts = if hand_offs > 1.0 { hand_offs } else { grants };
    Ok([counts / took, (after.0 - before.0) / grants, (after.1 - before.1) / grants])
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (crowds, commands): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.parse::<usize>().is_ok());
    let crowds: Vec<usize> = crowds.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let server = Server::start()?;
    let config = Config::new([server.addr().to_string()]);
    println!("contenders  hand-offs/s  of bare  requests  events  who");
    for crowd in if crowds.is_empty() { vec![2, 16, 128] } else { crowds } {
        let floor = floor::open(config.clone()).await?;
        let (mut bare, mut ours, mut served) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..crowd {
            bare.extend(floor.clone().rival("contended".into()).await?.map(Contender::Bare));
            ours.push(Contender::Ours(Locks::over(Etcd::open(config.clone()).await?)?));
            served.push(Contender::Service(Arc::new(Service::open(&config, "contended").await?)));
        }
        let mut teams = vec![
            ("bare keys".to_owned(), Team::Tasks(bare)),
            ("oarlock, fair".to_owned(), Team::Tasks(ours.clone())),
            ("lock service".to_owned(), Team::Tasks(served.clone())),
        ];
        for command in &commands {
            let peer = Peer::start(command, &server.url())?;
            teams.push((peer.name.clone(), Team::Program(peer, crowd)));
        }
        let mut figures = vec![Vec::new(); teams.len()];
        // The first round of all is there to warm up.
        for number in 0..=ROUNDS {
            for ((_, team), figures) in teams.iter_mut().zip(&mut figures) {
                let figure = round(&server, team).await?;
                figures.extend((number > 0).then_some(figure));
            }
        }
        let least = median(&mut figures[0])[0];
        for ((name, _), figures) in teams.iter().zip(&mut figures) {
            let [rate, requests, events] = median(figures);
            println!("{crowd:10}  {rate:11.0}  {:7.2}  {requests:8.1}  {events:6.1}  {name}", rate / least);
        }
        floor.close().await?;
        for contender in ours.into_iter().chain(served) {
            match contender {
                Contender::Ours(client) => client.shutdown(Duration::from_secs(2)).await?,
                Contender::Service(service) => service.close().await?,
                Contender::Bare(_) => {}
            }
        }
    }
    Ok(())
}

/// The round in the middle, by its hand-offs.
fn median(rounds: &mut [[f64; 3]]) -> [f64; 3] {
    rounds.sort_by(|one, other| one[0].total_cmp(&other[0]));
    rounds[rounds.len() / 2]
}
