//! An uncontended lock and release through the engine, beside the same two statements sent raw and the fewest statements that a lease
//! needs at all: one task, and 64 with a name each. All of them send one request after the other without waiting, on one connection.
//!
//! `cargo run --release -p oarlock-postgres --example pair`

#[path = "../../oarlock-session/examples/measure/pairs.rs"]
mod pairs;

use oarlock_core::Locks;
use oarlock_postgres::{Config, Postgres, floor};
use pairs::{Who, measure};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let server = oarlock_testbed::Postgres::start()?;
    let mut config = Config::new(server.addr().ip().to_string(), server.addr().port());
    (config.user, config.database) = (Some("postgres".into()), Some("postgres".into()));
    let client = Locks::over(Postgres::connect(config.clone()).await?)?;
    let all = [
        Who::Other(floor::statements(config.clone()).await?),
        Who::Oarlock(client),
        Who::Other(floor::open(config).await?),
    ];
    println!("tasks  pairs/s  ratio        p50  ratio        p99  who");
    for tasks in [1, 64] {
        measure(tasks, &all).await?;
    }
    Ok(())
}
