//! A transaction is done as a whole or not at all, whatever happens within.

use std::sync::LazyLock;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use oarlock_rows::{
    Change, Classify as _, Client, Contention, Locked, Mode, Retry, Version, Versioned, Wait, mysql, postgres,
};
use tokio::sync::oneshot;

use crate::contexts::{Lite, Maria, My, Pg, Sql, TestContext, restock, stocks};

type Boxed = Box<dyn std::error::Error + Send + Sync>;

static PATIENT: LazyLock<Retry> = LazyLock::new(|| Retry::default().attempts(200).deadline(Duration::from_secs(60)));

fn items() -> Versioned {
    Versioned::new("items", "id", Version::integer("version"))
}

fn one_more<B: TestContext>(row: &<B::Conn as Client>::Row) -> Change<<B::Conn as Client>::Value> {
    Change::set("stock", B::int(row, "stock") + 1)
}

/// Changes row 1, then modifies row 2, while another one wants them the other way round and is not the victim.
async fn a_victim_that_modifies_is_rerun_from_the_beginning<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 0).await;
    let (changed, is_changed) = oneshot::channel();
    let (locked, is_locked) = oneshot::channel();
    let (mut runs, mut first) = (0, Some((changed, is_locked)));
    let victim = mysql::transaction(&mut ours, &PATIENT, async |tx| {
        runs += 1;
        tx.query_drop("update items set stock = stock + 1 where id = 1").await?;
        if let Some((changed, is_locked)) = first.take() {
            changed.send(()).unwrap();
            is_locked.await?;
        }
        items().modify(tx, 2, &PATIENT, one_more::<Sql<IS_MYSQL>>).await?;
        Ok::<_, Boxed>(())
    });
    let other = async {
        is_changed.await.unwrap();
        let mut tx = theirs.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
        // The server ends the one that has changed less.
        for id in 100..200 {
            tx.query_drop(format!("insert into items (id, stock) values ({id}, 0)")).await.unwrap();
        }
        tx.query_drop("update items set stock = stock + 10 where id = 2").await.unwrap();
        locked.send(()).unwrap();
        tx.query_drop("update items set stock = stock + 10 where id = 1").await.unwrap();
        tx.commit().await.unwrap();
    };
    let both = async { tokio::join!(victim, other).0 };
    tokio::time::timeout(Duration::from_secs(60), both).await.unwrap().unwrap();
    assert_eq!(stocks::<Sql<IS_MYSQL>>(&mut theirs).await[..2], [11, 11]);
    assert_eq!(runs, 2);
}

#[tokio::test]
async fn a_victim_that_modifies_is_rerun_from_the_beginning_on_mariadb() {
    let Some(context) = Maria::start().await else { return };
    a_victim_that_modifies_is_rerun_from_the_beginning(&context).await;
}

#[tokio::test]
async fn a_victim_that_modifies_is_rerun_from_the_beginning_on_mysql() {
    let Some(context) = My::start().await else { return };
    a_victim_that_modifies_is_rerun_from_the_beginning(&context).await;
}

#[tokio::test]
async fn a_victim_that_modifies_is_rerun_from_the_beginning_on_postgres() {
    let Some(context) = Pg::start().await else { return };
    let (mut ours, mut theirs, watch) = (context.conn().await, context.conn().await, context.conn().await);
    restock(&mut ours, 0).await;
    // The server ends the one that finds the deadlock, and each looks for one after this time, once.
    ours.batch_execute("set deadlock_timeout = '10ms'").await.unwrap();
    theirs.batch_execute("set deadlock_timeout = '10min'").await.unwrap();
    let (changed, is_changed) = oneshot::channel();
    let (waits, is_waiting) = oneshot::channel();
    let (commits, is_committed) = oneshot::channel();
    let (mut runs, mut first, mut second) = (0, Some((changed, is_waiting)), Some(is_committed));
    let victim = postgres::transaction(&mut ours, &PATIENT, async |tx| {
        runs += 1;
        if runs == 2 {
            // Otherwise the row is free: a victim that takes it first is a victim again.
            second.take().unwrap().await?;
        }
        tx.batch_execute("update items set stock = stock + 1 where id = 1").await?;
        if let Some((changed, is_waiting)) = first.take() {
            changed.send(()).unwrap();
            is_waiting.await?;
        }
        items().modify(tx, 2_i64, &PATIENT, one_more::<Pg>).await?;
        Ok::<_, Boxed>(())
    });
    let other = async {
        is_changed.await.unwrap();
        let tx = theirs.transaction().await.unwrap();
        tx.batch_execute("update items set stock = stock + 10 where id = 2").await.unwrap();
        tx.batch_execute("update items set stock = stock + 10 where id = 1").await.unwrap();
        tx.commit().await.unwrap();
        commits.send(()).unwrap();
    };
    let look = async {
        let waiting = "select 1 from pg_locks where not granted";
        while watch.query_opt(waiting, &[]).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        waits.send(()).unwrap();
    };
    let all = async { tokio::join!(victim, other, look).0 };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap().unwrap();
    assert_eq!(stocks::<Pg>(&mut theirs).await[..2], [11, 11]);
    assert_eq!(runs, 2);
}

/// The server has undone everything at the first error, and answers a commit with success all the same.
#[tokio::test]
async fn an_error_that_was_swallowed_is_not_a_success_on_postgres() {
    let Some(context) = Pg::start().await else { return };
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 0).await;
    let table = Locked::new("items", "id");
    let tx = theirs.transaction().await.unwrap();
    tx.batch_execute("update items set stock = 0 where id = 1").await.unwrap();
    let swallowed = postgres::transaction(&mut ours, &PATIENT, async |tx| {
        tx.batch_execute("insert into items (id, stock) values (5, 5)").await?;
        let busy = table.lock(tx, [1_i64], Mode::Update, Wait::No).await.unwrap_err();
        assert_eq!(busy.contention(), Some(Contention::Busy), "{busy}");
        Ok::<_, tokio_postgres::Error>(())
    });
    let failed = swallowed.await.unwrap_err();
    assert_eq!(
        (failed.error.code().map(tokio_postgres::error::SqlState::code), failed.attempts),
        (Some("25P02"), 1),
        "{}",
        failed.error
    );
    assert_eq!(stocks::<Pg>(&mut ours).await, [0; 4]);
    // Inside a savepoint it may be swallowed.
    let saved = postgres::transaction(&mut ours, &PATIENT, async |tx| {
        tx.batch_execute("insert into items (id, stock) values (5, 5)").await?;
        let mut part = tx.transaction().await?;
        table.lock(&mut part, [1_i64], Mode::Update, Wait::No).await.unwrap_err();
        part.rollback().await
    });
    saved.await.unwrap();
    assert_eq!(stocks::<Pg>(&mut ours).await, [0, 0, 0, 0, 5]);
}

/// What was read is old for as long as the transaction lasts.
#[tokio::test]
async fn an_old_picture_is_not_looked_at_again_on_sqlite() {
    let context = Lite::start().await.unwrap();
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 0).await;
    let mut tx = ours.transaction().unwrap();
    assert!(items().read(&mut tx, 1).await.unwrap().is_some());
    items().modify(&mut theirs, 1, &PATIENT, one_more::<Lite>).await.unwrap();
    let failed = items().modify(&mut tx, 1, &PATIENT, one_more::<Lite>).await.unwrap_err();
    assert_eq!((failed.error.contention(), failed.attempts), (Some(Contention::Stale), 1), "{}", failed.error);
    drop(tx);
    items().modify(&mut ours, 1, &PATIENT, one_more::<Lite>).await.unwrap();
    assert_eq!(stocks::<Lite>(&mut theirs).await[0], 2);
}
