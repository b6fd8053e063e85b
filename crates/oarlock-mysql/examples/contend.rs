//! One name and many contenders: hand-offs from one to another in a second, and the statements that each grant took. In turns, on one
//! server: `GET_LOCK` on a connection for each contender; fair and plain mutexes, and those of `mode=session`, of up to 16 clients.
//!
//! `cargo run --release -p oarlock-mysql --example contend [CONTENDERS…]`

#[path = "../../oarlock-session/examples/measure/crowd.rs"]
mod crowd;

use std::time::Duration;

use anyhow::{Context as _, Result};
use crowd::{Contender, Team, measure, members};
use oarlock_core::Locks;
use oarlock_mysql::{Config, MySql, MySqlSession, Named, floor};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let crowds: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let server = oarlock_testbed::MariaDb::start()?;
    let config = Config::new(server.addr().ip().to_string(), server.addr().port(), "locks");
    println!("contenders  hand-offs/s  ratio  grants/s  statements  who");
    for crowd in if crowds.is_empty() { vec![2, 16, 128] } else { crowds } {
        let (mut clients, mut sessions, mut rivals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..crowd.min(16) {
            clients.push(Locks::over(MySql::connect(config.clone()).await?)?);
            sessions.push(Locks::over(MySqlSession::connect(Named::new(config.clone())).await?)?);
        }
        let floor = floor::open(config.clone()).await?;
        for _ in 0..crowd {
            rivals.extend(floor.clone().rival("contended".into()).await?.map(Contender::Other));
        }
        let teams: [Team; 4] = [
            ("GET_LOCK", rivals),
            ("oarlock, fair", members(crowd, &clients, Contender::Fair)),
            ("oarlock", members(crowd, &clients, Contender::Oarlock)),
            ("oarlock, mode=session", members(crowd, &sessions, Contender::Oarlock)),
        ];
        let counted = async || Ok(floor.clone().calls().await?.context("it does not count")? as f64);
        measure(crowd, &teams, counted).await?;
        floor.close().await?;
        for client in clients.iter().chain(&sessions) {
            client.shutdown(Duration::from_secs(2)).await?;
        }
    }
    Ok(())
}
