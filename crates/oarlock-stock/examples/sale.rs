//! A flash sale: many processes want one item, and what was sold is counted afterwards.
//!
//! `cargo run --release -p oarlock-stock --example sale -- URL [UNITS [REQUESTS [PROCESSES [TAKERS [SEGMENTS…]]]]]`
//!
//! URL is `postgres://…`, `mysql://…`, `redis://…`, `redis+cluster://h1:p1,h2:p2` or a file for SQLite. One line is
//! printed for each number of segments; the program fails when the units are not accounted for to the last one.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use mysql_async::prelude::Queryable as _;
use oarlock_rows::postgres::Cached;
use oarlock_stock::{Order, Redis, Shelf, Sql, Stock, Take};

const TAKER: &str = "OARLOCK_SALE_TAKER";

struct Plan {
    url: String,
    units: u64,
    requests: u64,
    processes: u64,
    takers: u64,
    segments: Vec<u32>,
}

impl Plan {
    fn read() -> anyhow::Result<Self> {
        let mut args = std::env::args().skip(1);
        let url = args.next().context("which database? postgres://…, mysql://… or a file")?;
        let rest: Vec<u64> = args.map(|arg| arg.parse()).collect::<Result<_, _>>()?;
        let at = |at: usize, otherwise: u64| rest.get(at).copied().unwrap_or(otherwise);
        let segments = rest.iter().skip(4).map(|count| u32::try_from(*count)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            url,
            units: at(0, 10_000),
            requests: at(1, 20_000),
            processes: at(2, 4).max(1),
            takers: at(3, 8).max(1),
            segments: if segments.is_empty() { vec![1, 4, 16, 64] } else { segments },
        })
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plan = Plan::read()?;
    if plan.url.starts_with("postgres:") {
        sale(&plan, async || {
            let (client, connection) = tokio_postgres::connect(&plan.url, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            Ok(Sql::new(Cached::new(client)))
        })
        .await
    } else if plan.url.starts_with("mysql:") {
        sale(&plan, async || {
            let mut conn = mysql_async::Conn::from_url(&plan.url).await?;
            conn.query_drop("set session transaction isolation level read committed").await?;
            Ok(Sql::new(conn))
        })
        .await
    } else if let Some(nodes) = plan.url.strip_prefix("redis+cluster://") {
        let nodes: Vec<_> = nodes.split(',').map(|node| format!("redis://{node}")).collect();
        sale(&plan, async || {
            let client = redis::cluster::ClusterClient::new(nodes.clone())?;
            Ok(Redis::new(client.get_async_connection().await?))
        })
        .await
    } else if plan.url.starts_with("redis:") {
        sale(&plan, async || {
            let client = redis::Client::open(plan.url.as_str())?;
            Ok(Redis::new(client.get_multiplexed_async_connection().await?))
        })
        .await
    } else {
        sale(&plan, async || {
            let connection = rusqlite::Connection::open(&plan.url)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "normal")?;
            connection.busy_timeout(std::time::Duration::from_secs(30))?;
            Ok(Sql::new(connection))
        })
        .await
    }
}

async fn sale<S: Shelf>(plan: &Plan, open: impl AsyncFn() -> anyhow::Result<S>) -> anyhow::Result<()> {
    if let Ok(process) = std::env::var(TAKER) {
        let (sku, process) = process.split_once('/').context("an item and a number")?;
        return take_part(plan, &open, sku, process).await;
    }
    let stock = Stock::new(open().await?);
    stock.init().await?;
    println!("{:>8}  {:>8}  {:>10}  {:>10}  {:>9}", "segments", "sold", "sold/s", "requests/s", "seconds");
    for segments in &plan.segments {
        let sku = format!("sale {:x}", fastrand::u64(..));
        stock.create(&sku, *segments).await?;
        stock.restock(&sku, &format!("{sku} delivery"), plan.units).await?;
        let start = Instant::now();
        let processes: Vec<Child> =
            (0..plan.processes).map(|process| spawn(&sku, process)).collect::<Result<_, _>>()?;
        let (mut told, mut last) = (0, 0.0_f64);
        for process in processes {
            let output = process.wait_with_output()?;
            ensure!(output.status.success(), "a process ended with {}", output.status);
            let text = String::from_utf8(output.stdout)?;
            let (sold, seconds) = text.trim().split_once(' ').context("what was sold")?;
            told += sold.parse::<u64>()?;
            last = last.max(seconds.parse()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let count = stock.count(&sku).await?;
        let expected = plan.units.min(plan.requests / plan.processes / plan.takers * plan.processes * plan.takers);
        if (count.held, told, count.available + count.held) != (expected, expected, plan.units) {
            bail!("{told} were told that they have one, of {}: {count:?}", plan.units);
        }
        let rate = |of: u64, seconds: f64| (of as f64 / seconds).round();
        println!(
            "{segments:>8}  {told:>8}  {:>10}  {:>10}  {seconds:>9.1}",
            rate(told, last),
            rate(plan.requests, seconds)
        );
    }
    Ok(())
}

fn spawn(sku: &str, process: u64) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args().skip(1)).env(TAKER, format!("{sku}/{process}")).stdout(Stdio::piped()).spawn()
}

/// One process: each taker asks for one unit after the other. Prints how many it got, and when the last one came.
async fn take_part<S: Shelf>(
    plan: &Plan,
    open: &impl AsyncFn() -> anyhow::Result<S>,
    sku: &str,
    process: &str,
) -> anyhow::Result<()> {
    let each = plan.requests / plan.processes / plan.takers;
    let mut stocks = Vec::new();
    for _ in 0..plan.takers {
        stocks.push(Stock::new(open().await?));
    }
    let start = Instant::now();
    let takers = stocks.into_iter().enumerate().map(|(taker, stock)| {
        let (sku, process) = (sku.to_owned(), process.to_owned());
        tokio::spawn(async move {
            let (mut sold, mut last) = (0_u64, 0.0);
            for request in 0..each {
                let id = format!("{sku} {process}.{taker}.{request}");
                let order = Order { sku: sku.clone(), id, quantity: 1, hold: None };
                if let Take::Reserved(_) = stock.take(order).await? {
                    (sold, last) = (sold + 1, start.elapsed().as_secs_f64());
                }
            }
            anyhow::Ok((sold, last))
        })
    });
    let (mut sold, mut last) = (0, 0.0_f64);
    for taker in takers.collect::<Vec<_>>() {
        let (one, at) = taker.await??;
        (sold, last) = (sold + one, last.max(at));
    }
    println!("{sold} {last}");
    Ok(())
}
