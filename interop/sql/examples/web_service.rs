//! A web service with axum and sqlx that locks while it serves a request.
//!
//! `cargo run --manifest-path interop/sql/Cargo.toml --example web_service -- postgres://localhost/shop` serves on port
//! 8080. `tests/axum.rs` sends it requests.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use oarlock::{ErrorKind, Fence, Locks};
use sqlx::PgPool;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What every request of the process shares. It is cheap to clone.
#[derive(Clone)]
pub struct App {
    pub locks: Locks,
    pub patience: Duration, // how long a request may wait for a lock
    pub pool: PgPool,
}

/// The answer to a request.
enum Answer {
    Paid { left: i64 },
    BadAmount,
    NotEnough,
    Busy,
    TooLate,
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Paid { left } => left.to_string().into_response(),
            Self::BadAmount => (StatusCode::BAD_REQUEST, "the amount must be 1 or more\n").into_response(),
            Self::NotEnough => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response(),
            Self::TooLate => StatusCode::CONFLICT.into_response(),
        }
    }
}

pub fn router(app: App) -> Router {
    Router::new().route("/accounts/{account}/withdraw/{amount}", post(serve)).with_state(app)
}

/// A task of its own: axum drops a handler when its client hangs up, and a payment must not end half way.
async fn serve(State(app): State<App>, Path((account, amount)): Path<(i64, i64)>) -> Response {
    match tokio::spawn(withdraw(app, account, amount)).await {
        Ok(Ok(answer)) => answer.into_response(),
        Ok(Err(error)) => failed(&error.to_string()),
        Err(panic) => failed(&panic.to_string()),
    }
}

fn failed(why: &str) -> Response {
    eprintln!("withdraw: {why}");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

async fn withdraw(app: App, account: i64, amount: i64) -> Result<Answer, Failure> {
    if amount <= 0 {
        return Ok(Answer::BadAmount); // before the lock: a negative amount would pay into the account
    }
    let lock = app.locks.mutex(format!("account/{account}")).wait(app.patience).reason("withdraw");
    let guard = match lock.lock().await {
        Ok(guard) => guard,
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unreachable) => return Ok(Answer::Busy),
        Err(error) => return Err(error.into()),
    };
    // Dropped at its next await after a loss. sqlx rolls a transaction back that is dropped.
    let answer = guard.with(|held| pay(app.pool, account, amount, held.fence())).await?;
    guard.release().await?;
    Ok(answer)
}

/// The transaction of a request. It writes its fence before it reads: a holder that was late is refused from then on.
async fn pay(pool: PgPool, account: i64, amount: i64, fence: Fence) -> Result<Answer, Failure> {
    let mut transaction = pool.begin().await?;
    let recorded = sqlx::query("UPDATE account SET fence = $1 WHERE id = $2 AND fence <= $1")
        .bind(i64::from(fence))
        .bind(account)
        .execute(&mut *transaction)
        .await?;
    if recorded.rows_affected() == 0 {
        return Ok(Answer::TooLate);
    }
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account WHERE id = $1")
        .bind(account)
        .fetch_one(&mut *transaction)
        .await?;
    if balance < amount {
        return Ok(Answer::NotEnough);
    }
    sqlx::query("UPDATE account SET balance = $1 WHERE id = $2")
        .bind(balance - amount)
        .bind(account)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Answer::Paid { left: balance - amount })
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("give the URL of a PostgreSQL database with a table `account`")?;
    // Once, before the first request: a client for each request would be a connection for each.
    let locks = oarlock::connect(&*url).await?;
    let app = App { locks: locks.clone(), patience: Duration::from_secs(5), pool: PgPool::connect(&url).await? };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    let asked_to_end = async { _ = tokio::signal::ctrl_c().await };
    axum::serve(listener, router(app)).with_graceful_shutdown(asked_to_end).await?;
    // No request is left: release what is still held.
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
