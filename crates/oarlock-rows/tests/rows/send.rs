//! Every asynchronous function can be used in a task that moves between threads: this compiles, or it does not.

#![allow(dead_code, reason = "compiled, not run")]

use std::time::Duration;

use oarlock_rows::{Change, Client, Locked, Mode, Retry, Version, Versioned, Wait, mysql, postgres};

fn items() -> Versioned {
    Versioned::new("items", "id", Version::integer("version"))
}

fn locked() -> Locked {
    Locked::new("items", "id")
}

fn on_postgres(mut client: tokio_postgres::Client) {
    tokio::spawn(async move {
        let _ = postgres::transaction(&mut client, &Retry::default(), async |tx| {
            locked().lock(tx, [1_i64], Mode::Update, Wait::No).await.ok();
            items().modify(tx, 7_i64, &Retry::never(), |_| Change::Leave).await.ok();
            tx.execute("update items set stock = stock + 1 where id = 1", Vec::new()).await?;
            Ok::<_, tokio_postgres::Error>(())
        })
        .await;
        versioned(&mut client).await;
        versioned(&mut postgres::Cached::new(client)).await;
    });
}

fn on_mysql(mut conn: mysql_async::Conn) {
    tokio::spawn(async move {
        let _ = mysql::transaction(&mut conn, &Retry::default(), async |tx| {
            locked().lock(tx, [1_i64], Mode::Update, Wait::UpTo(Duration::from_secs(1))).await.ok();
            items().modify(tx, 7_i64, &Retry::never(), |_| Change::Leave).await.ok();
            mysql_async::prelude::Queryable::query_drop(tx, "update items set stock = 1").await?;
            Ok::<_, mysql_async::Error>(())
        })
        .await;
        versioned(&mut conn).await;
    });
}

/// `sqlite::transaction` is not here: a transaction of SQLite cannot move between threads, and its page says so.
fn on_sqlite(mut connection: rusqlite::Connection) {
    tokio::spawn(async move {
        versioned(&mut connection).await;
        let _ = Retry::default().run(async || Ok::<_, rusqlite::Error>(())).await;
    });
}

async fn versioned<C: Client<Value: From<i64>> + Send>(client: &mut C) {
    fn is_send<T>(work: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        work
    }
    let _ = is_send(items().read(client, 7)).await;
    let _ = is_send(items().update(client, 7, "1", Vec::new())).await;
    let _ = is_send(items().delete(client, 7, "1")).await;
    let _ = is_send(items().modify(client, 7, &Retry::default(), |_| Change::Leave)).await;
    let _ = is_send(locked().lock(client, [7], Mode::Update, Wait::No)).await;
}
