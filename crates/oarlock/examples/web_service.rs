//! A web service that locks while it serves a request. The program has what is the same in every framework: one client
//! for the process, a wait that is shorter than the request may take, the status of each outcome, a write that checks the
//! fence, and an orderly end. Requests are plain calls here; `interop/sql/examples` has the same with axum and sqlx.
//!
//! `cargo run -p oarlock --example web_service -- [--url URL]`

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock::{ErrorKind, Fence, Locks};
use rusqlite::{Connection, params};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What every request of the process shares. It is cheap to clone.
#[derive(Clone)]
struct App {
    locks: Locks,
    patience: Duration,               // how long a request may wait for a lock
    database: Arc<Mutex<Connection>>, // a pool of connections
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Paid { left: i64 },
    BadAmount,
    NotEnough,
    Busy,
    TooLate,
}

impl Answer {
    fn status(&self) -> u16 {
        match self {
            Self::Paid { .. } => 200,
            Self::BadAmount => 400,
            Self::NotEnough => 422,
            Self::Busy => 503, // with `Retry-After: 1`
            Self::TooLate => 409,
        }
    }
}

/// Takes `amount` from an account. Errors are answered with 500, and logged.
async fn withdraw(app: App, account: u32, amount: i64) -> Result<Answer, Failure> {
    if amount <= 0 {
        return Ok(Answer::BadAmount); // before the lock: a negative amount would pay into the account
    }
    let lock = app.locks.mutex(format!("account/{account}")).wait(app.patience).reason("withdraw");
    let guard = match lock.lock().await {
        Ok(guard) => guard,
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable) => return Ok(Answer::Busy),
        Err(error) => return Err(error.into()),
    };
    let (database, fence) = (app.database.clone(), guard.fence());
    // SQLite blocks its thread. With an async client of a database this is `guard.with(|held| async { … })`.
    let answer = tokio::task::spawn_blocking(move || {
        pay(&mut database.lock().unwrap_or_else(PoisonError::into_inner), account, amount, fence)
    });
    let answer = answer.await??;
    guard.release().await?;
    Ok(answer)
}

/// The transaction of a request. It writes its fence before it reads: a holder that was late is refused from then on.
fn pay(database: &mut Connection, account: u32, amount: i64, fence: Fence) -> rusqlite::Result<Answer> {
    let fence = i64::from(fence);
    let transaction = database.transaction()?;
    let record = "UPDATE account SET fence = ?1 WHERE id = ?2 AND fence <= ?1";
    if transaction.execute(record, params![fence, account])? == 0 {
        return Ok(Answer::TooLate);
    }
    let balance: i64 =
        transaction.query_row("SELECT balance FROM account WHERE id = ?1", [account], |row| row.get(0))?;
    if balance < amount {
        return Ok(Answer::NotEnough);
    }
    transaction.execute("UPDATE account SET balance = ?1 WHERE id = ?2", params![balance - amount, account])?;
    transaction.commit()?;
    Ok(Answer::Paid { left: balance - amount })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL);
         INSERT INTO account VALUES (7, 100, 0);",
    )?;
    // Once, before the first request: a client for each request would be a connection for each.
    let locks = oarlock::connect(url::from_args()?).await?;
    let (patience, database) = (Duration::from_secs(20), Arc::new(Mutex::new(database)));
    let app = App { locks: locks.clone(), patience, database };

    // Twelve requests at once. A task of its own: a client that hangs up does not end a payment half way.
    let requests: Vec<_> = (0..12).map(|_| tokio::spawn(withdraw(app.clone(), 7, 10))).collect();
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(request.await??.status());
    }
    let paid = statuses.iter().filter(|status| **status == 200).count();
    println!("12 requests for 10 each from 100: {statuses:?}");

    // A request cannot pay in by withdrawing less than nothing.
    let negative = withdraw(app.clone(), 7, -10).await?;
    println!("a request for -10: {negative:?}, status {}", negative.status());

    // An operator holds the account: a request gives up in time, and says so.
    let held = locks.mutex("account/7").reason("audit").lock().await?;
    let hurried = App { patience: Duration::from_millis(500), ..app };
    let refused = withdraw(hurried, 7, 10).await?;
    println!("while it is held: {refused:?}, status {}", refused.status());
    held.release().await?;

    // When the process is asked to end (TERM): no more requests, then this.
    locks.shutdown(Duration::from_secs(5)).await?;
    if negative.status() != 400 {
        return Err("a negative amount was accepted".into());
    }
    if paid == 10 && refused == Answer::Busy { Ok(()) } else { Err("an account was overdrawn, or not emptied".into()) }
}
