//! How long an uncontended lock and its release take through the engine, beside the two statements without which no
//! lease can be taken and given back: one row, one connection, no waiters, no label, no notice.
//!
//! `cargo run --release -p oarlock-postgres --example pair -- [pairs]`; `OARLOCK_URL` names a server, else one is
//! started that does not sync.

use std::time::{Duration, Instant};

use oarlock_core::Client;
use oarlock_postgres::{Config, Postgres};
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Client as Raw, NoTls};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS oarlock.pair
    (name bytea PRIMARY KEY, owner bytea, fence bigint NOT NULL, expires timestamptz NOT NULL) WITH (fillfactor = 70)";
const TAKE: &str = "INSERT INTO oarlock.pair AS old VALUES ($1, $2, 1, clock_timestamp() + interval '30 s')
    ON CONFLICT (name) DO UPDATE SET owner = $2, fence = old.fence + 1, expires = clock_timestamp() + interval '30 s'
    WHERE old.owner IS NULL OR old.expires < clock_timestamp() RETURNING fence";
const GIVE: &str = "UPDATE oarlock.pair SET owner = NULL WHERE name = $1 AND owner = $2";

fn main() -> anyhow::Result<()> {
    let pairs: usize = std::env::args().nth(1).map_or(Ok(2000), |pairs| pairs.parse())?;
    let (server, url) = match std::env::var("OARLOCK_URL") {
        Ok(url) => (None, url),
        Err(_) => {
            let server = oarlock_testbed::Postgres::start()?;
            let url = server.url();
            (Some(server), url)
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(compare(&url, pairs))?;
    drop(server);
    Ok(())
}

async fn compare(url: &str, pairs: usize) -> anyhow::Result<()> {
    let raw: tokio_postgres::Config = url.parse()?;
    let host = match raw.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.to_string_lossy().into_owned(),
        None => anyhow::bail!("the URL has no host"),
    };
    let mut config = Config::new(host, raw.get_ports().first().copied().unwrap_or(5432));
    config.user = raw.get_user().map(Into::into);
    config.database = raw.get_dbname().map(Into::into);
    if let Some(password) = raw.get_password() {
        config = config.password(String::from_utf8_lossy(password));
    }
    let client = Client::new(Postgres::connect(config).await?)?;
    let (raw, connection) = raw.connect(NoTls).await?;
    tokio::spawn(connection);
    raw.batch_execute(TABLE).await?;

    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    // In turns, so that whatever else the machine does meets both; the first of each only warms up.
    for round in 0..=20 {
        let (bare_round, our_round) = (raw_pairs(&raw, pairs / 20).await?, lock_pairs(&client, pairs / 20).await?);
        if round > 0 {
            bare.extend(bare_round);
            ours.extend(our_round);
        }
    }
    raw.batch_execute("DROP TABLE oarlock.pair").await?;
    let (bare, ours) = (report("two statements", bare), report("lock, release", ours));
    println!("ratio of the medians: {:.2}", ours / bare);
    client.shutdown(Duration::from_secs(1)).await?;
    Ok(())
}

async fn raw_pairs(raw: &Raw, pairs: usize) -> anyhow::Result<Vec<Duration>> {
    let mut spans = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let (name, owner) = (&b"deploy"[..], pair.to_be_bytes());
        let params = [(&name as _, Type::BYTEA), (&&owner[..] as _, Type::BYTEA)];
        let start = Instant::now();
        anyhow::ensure!(raw.query_typed(TAKE, &params).await?.len() == 1, "not taken");
        raw.execute_typed(GIVE, &params).await?;
        spans.push(start.elapsed());
    }
    Ok(spans)
}

async fn lock_pairs(client: &Client, pairs: usize) -> anyhow::Result<Vec<Duration>> {
    let lock = client.mutex("pair/deploy")?;
    let mut spans = Vec::with_capacity(pairs);
    for _ in 0..pairs {
        let start = Instant::now();
        lock.lock().await?.release().await?;
        spans.push(start.elapsed());
    }
    Ok(spans)
}

/// Prints the spread and answers with the median in microseconds.
fn report(what: &str, mut spans: Vec<Duration>) -> f64 {
    spans.sort_unstable();
    let at = |permille: usize| {
        let rank = spans.len().saturating_sub(1) * permille / 1000;
        spans.get(rank).map_or(0.0, |span| span.as_secs_f64() * 1e6)
    };
    println!("{what}: p50 {:.0} µs, p99 {:.0} µs, {} pairs", at(500), at(990), spans.len());
    at(500)
}
