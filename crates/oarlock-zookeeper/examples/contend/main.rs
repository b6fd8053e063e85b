//! One lock, and 1, 2, 16 and 128 who want it: hand-offs a second (pairs of one alone), and for each grant the requests that the
//! server got and the events that it sent. In turns, on one server:
//!
//! - the raw recipe: a sequential node, a watch on the one before it, a look;
//! - a fair mutex through the engine;
//! - the lock that the client crate has;
//! - programs of other languages, each given as a command that understands the lines of `interop/README.md`.
//!
//! `cargo run --release -p oarlock-zookeeper --example contend [SECONDS [COMMAND…]]`. Contenders of the first three have a session
//! each, those of a program share one.

mod peer;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use oarlock_core::floor::Rival;
use oarlock_core::{Locks, Mutex};
use oarlock_zookeeper::{Config, ZooKeeper, floor};
use peer::Peer;
use zookeeper_client as zk;

/// How often everybody has a turn.
const TURNS: usize = 4;

/// Where the client crate's lock is.
const FOLDER: &str = "/contend";

#[derive(Clone)]
enum Contender {
    Raw(Arc<dyn Rival>),
    Engine(Mutex),
    Crate(zk::Client),
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
            Self::Raw(rival) => {
                rival.clone().take().await?;
                turns.note(who);
                rival.clone().give().await?;
            }
            Self::Engine(lock) => {
                let guard = lock.lock().await?;
                turns.note(who);
                guard.release().await?;
            }
            Self::Crate(client) => {
                let prefix = zk::LockPrefix::new_curator(FOLDER, "lock-")?;
                let lock = client.lock(prefix, b"", zk::Acls::anyone_all()).await?;
                turns.note(who);
                // Its node is deleted in the background: nobody waits for that.
                drop(lock);
            }
        }
        Ok(())
    }
}

/// What became of a load: grants and hand-offs a second, and for each grant the messages that the server got and sent.
#[derive(Clone, Copy, Default)]
struct Load {
    grants: f64,
    hand_offs: f64,
    received: f64,
    sent: f64,
}

impl Team {
    async fn load(&mut self, server: SocketAddr, span: Duration) -> Result<Load> {
        let before = messages(server)?;
        let (grants, hand_offs, took) = match self {
            Self::Tasks(contenders) => contend(span, contenders).await?,
            Self::Program(peer, count) => peer.load(*count, span)?,
        };
        let after = messages(server)?;
        Ok(Load {
            grants: grants / took,
            hand_offs: hand_offs / took,
            received: (after.0 - before.0) / grants,
            sent: (after.1 - before.1) / grants,
        })
    }
}

/// Grants, hand-offs, and the seconds that they took.
async fn contend(span: Duration, contenders: &[Contender]) -> Result<(f64, f64, f64)> {
    let turns = Arc::new(Turns::default());
    let begun = Instant::now();
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
    let count = |count: &AtomicUsize| count.load(Ordering::Acquire) as f64;
    Ok((count(&turns.grants), count(&turns.hand_offs), begun.elapsed().as_secs_f64()))
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

/// Everybody, with their names. The raw recipe comes first.
async fn teams(server: SocketAddr, count: usize, commands: &[String]) -> Result<Vec<(String, Team)>> {
    let config = Config::new([server.to_string()]);
    let least = floor::open(config.clone()).await?;
    let (mut raw, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        raw.extend(least.clone().rival("contend".into()).await?.map(Contender::Raw));
        let client = Locks::over(ZooKeeper::open(config.clone()).await?)?;
        ours.push(Contender::Engine(client.mutex("contend").fair().wait(Duration::from_secs(60))));
        let client = zk::Client::connector().with_session_timeout(config.session_timeout);
        theirs.push(Contender::Crate(client.connect(&server.to_string()).await?));
    }
    if let Some(Contender::Crate(client)) = theirs.first() {
        client.mkdir(FOLDER, &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())).await?;
    }
    let mut teams = vec![
        ("raw".to_owned(), Team::Tasks(raw)),
        ("engine".to_owned(), Team::Tasks(ours)),
        ("zookeeper-client".to_owned(), Team::Tasks(theirs)),
    ];
    for command in commands {
        let peer = Peer::start(command, &server.to_string())?;
        teams.push((peer.name.clone(), Team::Program(peer, count)));
    }
    Ok(teams)
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let seconds = args.first().map_or(Ok(2.0), |text| text.parse())?;
    let server = oarlock_testbed::ZooKeeper::start()?;
    println!("contenders              who  hand-offs/s  of raw  requests  events");
    for count in [1, 2, 16, 128] {
        let mut teams = teams(server.addr(), count, args.get(1..).unwrap_or_default()).await?;
        let mut sums = vec![Load::default(); teams.len()];
        // The first turn of all is there to warm up.
        for turn in 0..=TURNS {
            for ((_, team), sum) in teams.iter_mut().zip(&mut sums) {
                let load = team.load(server.addr(), Duration::from_secs_f64(seconds)).await?;
                if turn > 0 {
                    sum.grants += load.grants / TURNS as f64;
                    sum.hand_offs += load.hand_offs / TURNS as f64;
                    sum.received += load.received / TURNS as f64;
                    sum.sent += load.sent / TURNS as f64;
                }
            }
        }
        // One alone hands nothing over.
        let speed = |load: &Load| if count == 1 { load.grants } else { load.hand_offs };
        for ((who, _), load) in teams.iter().zip(&sums) {
            let (rate, of_raw) = (speed(load), speed(load) / speed(&sums[0]));
            let events = load.sent - load.received;
            println!("{count:>10} {who:>16} {rate:>12.0} {of_raw:>7.2} {:>9.2} {events:>7.2}", load.received);
        }
    }
    Ok(())
}
