//! Sends requests to the web service of the cookbook.

use std::time::Duration;

use oarlock_testbed::Postgres;
use sqlx::{Executor as _, PgPool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[path = "../examples/web_service.rs"]
#[allow(dead_code, reason = "its `main` is not called")]
mod web_service;

use web_service::{App, router};

/// Sends a request for 10 from the account 7; the answer, with its headers.
async fn withdraw(port: u16) -> String {
    withdraw_amount(port, "10").await
}

async fn withdraw_amount(port: u16, amount: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!(
        "POST /accounts/7/withdraw/{amount} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut answer));
    read.await.expect("an answer").unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

/// Serves with this patience, on a port of its own.
async fn serve(app: App) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router(app)).await });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_not_overdrawn() {
    let Some(server) = Postgres::start_or_skip().unwrap() else { return };
    let pool = PgPool::connect(&server.url()).await.unwrap();
    pool.execute("create table account (id bigint primary key, balance bigint not null, fence bigint not null)")
        .await
        .unwrap();
    pool.execute("insert into account values (7, 100, 0)").await.unwrap();
    let locks = oarlock::connect(server.url()).await.unwrap();
    let app = App { locks: locks.clone(), patience: Duration::from_secs(60), pool: pool.clone() };
    let port = serve(app.clone()).await;

    let requests: Vec<_> = (0..12).map(|_| tokio::spawn(withdraw(port))).collect();
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(status(&request.await.unwrap()).to_owned());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [vec!["200"; 10], vec!["422"; 2]].concat());

    // Neither a negative amount, which would pay in, nor nothing, nor what is no number.
    for amount in ["-10", "0", "-9223372036854775808", "ten"] {
        let refused = withdraw_amount(port, amount).await;
        assert_eq!(status(&refused), "400", "{amount}: {refused}");
        assert!(amount == "ten" || refused.ends_with("the amount must be 1 or more\n"), "{amount}: {refused}");
    }
    let left: i64 = sqlx::query_scalar("select balance from account").fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0);

    // An operator holds the account: a request gives up in time, and says so.
    let held = locks.mutex("account/7").reason("audit").lock().await.unwrap();
    let hurried = serve(App { patience: Duration::from_millis(100), ..app }).await;
    let refused = withdraw(hurried).await;
    assert!(status(&refused) == "503" && refused.contains("retry-after: 1"), "{refused}");
    held.release().await.unwrap();

    // A later holder has written.
    pool.execute("update account set balance = 100, fence = 9223372036854775807").await.unwrap();
    assert_eq!(status(&withdraw(port).await), "409");
    let left: i64 = sqlx::query_scalar("select balance from account").fetch_one(&pool).await.unwrap();
    assert_eq!(left, 100);
}
