//! Which lock for a row: the same change under a version, under `SELECT … FOR UPDATE` and under a mutex, with many rows
//! and with one.
//!
//! `cargo run --release -p oarlock-rows --example contend -- URL [LOCK_URL [CLIENTS [SECONDS]]]`
//!
//! URL is `postgres://…` or `mysql://…`; `LOCK_URL` is where the mutex is, the same store unless it is given. Each
//! client adds one to a row it picks at random. The program fails when the sum of all rows is not the number of
//! changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use mysql_async::prelude::Queryable as _;
use oarlock::Locks;
use oarlock_rows::{Change, Client, Locked, Mode, Retry, Version, Versioned, Wait, mysql, postgres};

/// How many processes the mutex is to see.
const SHOPS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum How {
    Optimistic,
    Pessimistic,
    Mutex,
}

struct Plan {
    locks: Vec<Locks>,
    rows: i64,
    clients: usize,
    span: Duration,
    how: How,
}

/// One of the databases.
trait TestContext: Send + Sync + 'static {
    type Conn: Client<Value: From<i64>> + Send + 'static;

    async fn connect(&self) -> anyhow::Result<Self::Conn>;
    fn stock(row: &<Self::Conn as Client>::Row) -> i64;
    async fn pessimistic(conn: &mut Self::Conn, id: i64) -> anyhow::Result<u32>;
}

macro_rules! pessimistic {
    ($client:ident, $conn:ident, $id:ident) => {{
        let items = Locked::new("contended", "id");
        let retry = patient();
        let done = $client::transaction($conn, &retry, async |tx| {
            let rows = items.lock(tx, [$id], Mode::Update, Wait::UpTo(Duration::from_secs(30))).await?;
            let stock = rows.first().map(Self::stock).unwrap_or(0) + 1;
            Client::execute(tx, &write(stock, $id), Vec::new()).await?;
            Ok(())
        });
        let done = done
            .await
            .map_err(|failed: oarlock_rows::Failed<oarlock_rows::Error<_, _>>| anyhow::anyhow!("{}", failed.error));
        Ok(done?.conflicts)
    }};
}

struct Pg(String);

impl TestContext for Pg {
    type Conn = tokio_postgres::Client;

    async fn connect(&self) -> anyhow::Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.0, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    fn stock(row: &tokio_postgres::Row) -> i64 {
        row.get("stock")
    }

    async fn pessimistic(conn: &mut tokio_postgres::Client, id: i64) -> anyhow::Result<u32> {
        pessimistic!(postgres, conn, id)
    }
}

struct Maria(String);

impl TestContext for Maria {
    type Conn = mysql_async::Conn;

    async fn connect(&self) -> anyhow::Result<mysql_async::Conn> {
        let mut conn = mysql_async::Conn::from_url(&self.0).await?;
        conn.query_drop("set session transaction isolation level read committed").await?;
        Ok(conn)
    }

    fn stock(row: &mysql_async::Row) -> i64 {
        row.get("stock").unwrap_or(0)
    }

    async fn pessimistic(conn: &mut mysql_async::Conn, id: i64) -> anyhow::Result<u32> {
        pessimistic!(mysql, conn, id)
    }
}

fn patient() -> Retry {
    Retry::default().attempts(100_000).deadline(Duration::from_secs(60)).when_busy()
}

fn write(stock: i64, id: i64) -> String {
    format!("update contended set stock = {stock} where id = {id}")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().context("which database? postgres://… or mysql://…")?;
    let lock_url = args.next().unwrap_or_else(|| url.clone());
    let clients = args.next().map_or(Ok(16), |count| count.parse())?;
    let span = Duration::from_secs_f64(args.next().map_or(Ok(3.0), |seconds| seconds.parse())?);
    match url.split(':').next() {
        Some("postgres") => compare(Pg(url), &lock_url, clients, span).await,
        Some("mysql") => compare(Maria(url), &lock_url, clients, span).await,
        _ => bail!("which database? postgres://… or mysql://…"),
    }
}

async fn compare<B: TestContext>(context: B, lock_url: &str, clients: usize, span: Duration) -> anyhow::Result<()> {
    let context = Arc::new(context);
    println!(
        "{:>6}  {:<12}  {:>9}  {:>12}  {:>8}  {:>8}",
        "rows", "how", "changes/s", "again/change", "p50 ms", "p99 ms"
    );
    for rows in [1000, 1] {
        for how in [How::Optimistic, How::Pessimistic, How::Mutex] {
            let mut locks = Vec::new();
            for _ in 0..SHOPS {
                locks.push(oarlock::builder(lock_url).connect().await?);
            }
            measure(&context, Plan { locks, rows, clients, span, how }).await?;
        }
    }
    Ok(())
}

async fn measure<B: TestContext>(context: &Arc<B>, plan: Plan) -> anyhow::Result<()> {
    let mut conn = context.connect().await?;
    let numbers: Vec<_> = (1..=plan.rows).map(|id| format!("({id}, 0, 1)")).collect();
    for sql in [
        "drop table if exists contended".to_owned(),
        "create table contended (id bigint primary key, stock bigint not null, version bigint not null)".to_owned(),
        format!("insert into contended (id, stock, version) values {}", numbers.join(", ")),
    ] {
        conn.execute(&sql, Vec::new()).await?;
    }
    let mut conns = Vec::new();
    for _ in 0..plan.clients {
        conns.push(context.connect().await?);
    }
    let (plan, start) = (Arc::new(plan), Instant::now());
    let clients: Vec<_> = conns
        .into_iter()
        .enumerate()
        .map(|(number, conn)| {
            let (plan, runtime) = (plan.clone(), tokio::runtime::Handle::current());
            tokio::task::spawn_blocking(move || runtime.block_on(client::<B>(&plan, number, conn, start)))
        })
        .collect();
    let (mut spans, mut again) = (Vec::new(), 0_u64);
    for client in clients {
        let (taken, conflicts) = client.await??;
        spans.extend(taken);
        again += conflicts;
    }
    let took = start.elapsed().as_secs_f64();
    let sum =
        if conn.dialect() == oarlock_rows::Dialect::Postgres { "sum(stock)::text" } else { "cast(sum(stock) as char)" };
    let sum = conn.rows(&format!("select {sum} from contended"), Vec::new()).await?;
    let sum = sum.first().and_then(B::Conn::last_text).context("no sum")?;
    ensure!(sum == spans.len().to_string(), "{} changes, and the rows say {sum}", spans.len());
    spans.sort_unstable();
    let at =
        |part: f64| spans.get(((spans.len() - 1) as f64 * part) as usize).map_or(0.0, |span| span.as_secs_f64() * 1e3);
    println!(
        "{:>6}  {:<12}  {:>9.0}  {:>12.2}  {:>8.2}  {:>8.1}",
        plan.rows,
        format!("{:?}", plan.how).to_lowercase(),
        spans.len() as f64 / took,
        again as f64 / spans.len() as f64,
        at(0.5),
        at(0.99)
    );
    for locks in &plan.locks {
        locks.shutdown(Duration::from_secs(5)).await?;
    }
    Ok(())
}

/// One client: changes until the time is up, with how long each took and how often it was tried again.
async fn client<B: TestContext>(
    plan: &Plan,
    number: usize,
    mut conn: B::Conn,
    start: Instant,
) -> anyhow::Result<(Vec<Duration>, u64)> {
    let items = Versioned::new("contended", "id", Version::integer("version"));
    let (mut spans, mut again) = (Vec::new(), 0);
    while start.elapsed() < plan.span {
        let id = fastrand::i64(1..=plan.rows);
        let begun = Instant::now();
        again += u64::from(match plan.how {
            How::Optimistic => {
                let done = items.modify(&mut conn, id, &patient(), |row| Change::set("stock", B::stock(row) + 1)).await;
                done.map_err(|failed| anyhow::anyhow!("{}", failed.error))?.conflicts
            }
            How::Pessimistic => B::pessimistic(&mut conn, id).await?,
            How::Mutex => {
                let lock = plan.locks[number % plan.locks.len()].mutex(format!("contended/{id}"));
                let guard = lock.wait(Duration::from_secs(60)).lock().await?;
                let rows = conn.rows(&format!("select * from contended where id = {id}"), Vec::new()).await?;
                let stock = rows.first().map_or(0, B::stock) + 1;
                conn.execute(&write(stock, id), Vec::new()).await?;
                guard.release().await?;
                0
            }
        });
        spans.push(begun.elapsed());
    }
    Ok((spans, again))
}
