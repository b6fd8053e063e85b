//! One name and many contenders: hand-offs from one to another in a second, and the statements that each grant took. In turns, on one
//! server: `pg_advisory_lock` on a connection for each contender; fair and plain mutexes, and those of `mode=session`, of up to 16 clients.
//!
//! `cargo run --release -p oarlock-postgres --example contend [CONTENDERS…]`

#[path = "../../oarlock-session/examples/measure/crowd.rs"]
mod crowd;

use std::time::Duration;

use anyhow::Result;
use crowd::{Contender, Team, measure, members};
use oarlock_core::Locks;
use oarlock_postgres::{Advisory, Config, Postgres, PostgresSession, floor};
use tokio_postgres::NoTls;

/// All that clients asked for and was answered, but not what functions ask for within.
const COUNT: &str =
    "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let crowds: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let server = oarlock_testbed::Postgres::start_with(&[
        ("max_connections", "500"),
        ("shared_preload_libraries", "pg_stat_statements"),
        ("pg_stat_statements.track", "top"),
    ])?;
    let mut config = Config::new(server.addr().ip().to_string(), server.addr().port());
    (config.user, config.database) = (Some("postgres".into()), Some("postgres".into()));
    let (root, connection) = tokio_postgres::connect(&server.url(), NoTls).await?;
    tokio::spawn(connection);
    root.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
    println!("contenders  hand-offs/s  ratio  grants/s  statements  who");
    for crowd in if crowds.is_empty() { vec![2, 16, 128] } else { crowds } {
        let (mut clients, mut sessions, mut rivals) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..crowd.min(16) {
            clients.push(Locks::over(Postgres::connect(config.clone()).await?)?);
            sessions.push(Locks::over(PostgresSession::connect(Advisory::new(config.clone())).await?)?);
        }
        let floor = floor::open(config.clone()).await?;
        for _ in 0..crowd {
            rivals.extend(floor.clone().rival("contended".into()).await?.map(Contender::Other));
        }
        let teams: [Team; 4] = [
            ("pg_advisory_lock", rivals),
            ("oarlock, fair", members(crowd, &clients, Contender::Fair)),
            ("oarlock", members(crowd, &clients, Contender::Oarlock)),
            ("oarlock, mode=session", members(crowd, &sessions, Contender::Oarlock)),
        ];
        let counted = async || Ok(root.query_one(COUNT, &[]).await?.get::<_, i64>(0) as f64);
        measure(crowd, &teams, counted).await?;
        floor.close().await?;
        for client in clients.iter().chain(&sessions) {
            client.shutdown(Duration::from_secs(2)).await?;
        }
    }
    Ok(())
}
