//! One lock, many contenders, each on a connection of its own: hand-offs a second through the engine against the raw recipe
//! (a sequential node, a watch on the one before it, a look), and how many requests the server gets for each. In turns.
//!
//! `cargo run --release -p oarlock-zookeeper --example contend [SECONDS]`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oarlock_core::floor::Rival;
use oarlock_core::{Client, Mutex};
use oarlock_zookeeper::{Config, ZooKeeper, floor};

#[derive(Clone)]
enum Contender {
    Engine(Mutex),
    Raw(Arc<dyn Rival>),
}

/// Whose turn it was last, and how often it was another's before.
#[derive(Default)]
struct Turns {
    last: AtomicUsize,
    grants: AtomicUsize,
    hand_offs: AtomicUsize,
}

impl Turns {
    fn note(&self, who: usize) {
        let before = self.last.swap(who, Ordering::AcqRel);
        self.grants.fetch_add(1, Ordering::AcqRel);
        self.hand_offs.fetch_add(usize::from(before != who), Ordering::AcqRel);
    }
}

impl Contender {
    async fn turn(&self, who: usize, turns: &Turns) -> Result<()> {
        match self {
            Self::Engine(lock) => {
                let guard = lock.lock().await?;
                turns.note(who);
                guard.release().await?;
            }
            Self::Raw(rival) => {
                rival.clone().take().await?;
                turns.note(who);
                rival.clone().give().await?;
            }
        }
        Ok(())
    }
}

/// What became of a load: hand-offs a second, and for each grant the messages that the server got and sent.
#[derive(Clone, Copy, Default)]
struct Load {
    hand_offs: f64,
    received: f64,
    sent: f64,
}

async fn load(server: SocketAddr, span: Duration, contenders: &[Contender]) -> Result<Load> {
    let turns = Arc::new(Turns::default());
    let (before, begun) = (messages(server)?, Instant::now());
    let tasks: Vec<_> = contenders
        .iter()
        .cloned()
        .enumerate()
        .map(|(who, contender)| {
            let turns = turns.clone();
            tokio::spawn(async move {
                while begun.elapsed() < span {
                    contender.turn(who + 1, &turns).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let (took, after) = (begun.elapsed().as_secs_f64(), messages(server)?);
    let grants = turns.grants.load(Ordering::Acquire) as f64;
    Ok(Load {
        hand_offs: turns.hand_offs.load(Ordering::Acquire) as f64 / took,
        received: (after.0 - before.0) / grants,
        sent: (after.1 - before.1) / grants,
    })
}

/// How many messages the server has received and sent so far.
fn messages(server: SocketAddr) -> Result<(f64, f64)> {
    let mut line = TcpStream::connect(server)?;
    line.write_all(b"mntr")?;
    let mut said = String::new();
    line.read_to_string(&mut said)?;
    let number = |name: &str| {
        let text = said.lines().find_map(|line| line.strip_prefix(name)).context("not said")?;
        anyhow::Ok(text.trim().parse()?)
    };
    Ok((number("zk_packets_received")?, number("zk_packets_sent")?))
}

#[tokio::main]
async fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(4.0), |text| text.parse())?;
    let server = oarlock_testbed::ZooKeeper::start()?;
    let config = Config::new([server.addr().to_string()]);
    println!("contenders   hand-offs/s engine, raw, ratio   received each engine, raw   sent each engine, raw");
    for count in [2, 16, 128] {
        let least = floor::open(config.clone()).await?;
        let (mut ours, mut raw) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let client = Client::new(ZooKeeper::open(config.clone()).await?)?;
            ours.push(Contender::Engine(client.mutex("contend")?.fair().wait(Duration::from_secs(60))));
            raw.extend(least.clone().rival("contend".into()).await?.map(Contender::Raw));
        }
        let (mut engine, mut floor) = (Load::default(), Load::default());
        for _ in 0..2 {
            for (sum, contenders) in [(&mut engine, &ours), (&mut floor, &raw)] {
                let load = load(server.addr(), Duration::from_secs_f64(seconds), contenders).await?;
                sum.hand_offs += load.hand_offs / 2.0;
                sum.received += load.received / 2.0;
                sum.sent += load.sent / 2.0;
            }
        }
        println!(
            "{count:>10} {:>18.0} {:>6.0} {:>6.2} {:>20.2} {:>6.2} {:>17.2} {:>6.2}",
            engine.hand_offs,
            floor.hand_offs,
            engine.hand_offs / floor.hand_offs,
            engine.received,
            floor.received,
            engine.sent,
            floor.sent
        );
    }
    Ok(())
}
