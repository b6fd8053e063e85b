//! A transaction that locked a row has it until its end.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use oarlock_rows::{Classify, Client, Contention, Error, Locked, Mode, Retry, Wait, mysql, postgres, sqlite};

use crate::contexts::{Lite, Maria, My, Pg, Sql, TestContext, restock, stocks};

type Boxed = Box<dyn std::error::Error + Send + Sync>;

fn items() -> Locked {
    Locked::new("items", "id")
}

static PATIENT: LazyLock<Retry> = LazyLock::new(|| Retry::default().attempts(200).deadline(Duration::from_secs(60)));

fn ids<B: TestContext>(rows: &[<B::Conn as Client>::Row]) -> Vec<i64> {
    rows.iter().map(|row| B::int(row, "id")).collect()
}

/// What another one gets while rows 1 and 2 are locked.
async fn others<C: Client<Value: From<i64>>>(tx: &mut C, id: impl Fn(&C::Row) -> i64) {
    let found =
        items().lock(tx, [4, 3, 2, 1], Mode::Update, Wait::Skip).await.map_err(|error| error.to_string()).unwrap();
    assert_eq!(found.iter().map(id).collect::<Vec<_>>(), [3, 4], "the others, in the order of their keys");
}

async fn busy<C: Client<Value: From<i64>>>(tx: &mut C, wait: Wait) -> Duration {
    let start = Instant::now();
    let error = items().lock(tx, [1], Mode::Update, wait).await.map(drop).unwrap_err();
    assert_eq!(error.contention(), Some(Contention::Busy), "{wait:?}: {error}");
    start.elapsed()
}

async fn postgres_keeps_others_out(context: &Pg) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    let mut tx = ours.transaction().await.unwrap();
    let rows = items().lock(&mut tx, [2_i64, 1, 99], Mode::Update, Wait::No).await.unwrap();
    assert_eq!(ids::<Pg>(&rows), [1, 2], "a row that is not there is not there");
    others(&mut theirs.transaction().await.unwrap(), |row| Pg::int(row, "id")).await;
    busy(&mut theirs.transaction().await.unwrap(), Wait::No).await;
    let waited = busy(&mut theirs.transaction().await.unwrap(), Wait::UpTo(Duration::from_millis(300))).await;
    assert!(waited >= Duration::from_millis(290), "{waited:?}");
    tx.commit().await.unwrap();
    items().lock(&mut theirs.transaction().await.unwrap(), [1_i64], Mode::Update, Wait::No).await.unwrap();
    let none: [i64; 0] = [];
    let mut tx = theirs.transaction().await.unwrap();
    assert!(items().lock(&mut tx, none, Mode::Update, Wait::No).await.unwrap().is_empty());
}

/// Outside of a transaction a row would be free again before its reader could look at it.
async fn refuses_outside_of_a_transaction<B: TestContext>(context: &B) {
    let mut conn = context.conn().await;
    restock(&mut conn, 10).await;
    for wait in [Wait::No, Wait::Skip, Wait::UpTo(Duration::from_secs(1))] {
        let error = items().lock(&mut conn, [1], Mode::Update, wait).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{wait:?}: {error}");
        assert!(error.to_string().contains("transaction"), "{error}");
    }
}

/// Which modes live beside each other, as PostgreSQL's manual says.
async fn has_four_modes(context: &Pg) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    let beside = |one: Mode, other: Mode| match (one, other) {
        (Mode::KeyShare, other) => other != Mode::Update,
        (one, Mode::KeyShare) => one != Mode::Update,
        (one, other) => (one, other) == (Mode::Share, Mode::Share),
    };
    let modes = [Mode::Update, Mode::NoKeyUpdate, Mode::Share, Mode::KeyShare];
    for (one, other) in modes.into_iter().flat_map(|one| modes.map(|other| (one, other))) {
        let mut tx = ours.transaction().await.unwrap();
        items().lock(&mut tx, [1_i64], one, Wait::No).await.unwrap();
        let mut rival = theirs.transaction().await.unwrap();
        let got = items().lock(&mut rival, [1_i64], other, Wait::No).await;
        assert_eq!(got.is_ok(), beside(one, other), "{one:?} and {other:?}");
    }
}

async fn mariadb_keeps_others_out<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    let mut tx = ours.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    let rows = items().lock(&mut tx, [2_i64, 1, 99], Mode::NoKeyUpdate, Wait::No).await.unwrap();
    assert_eq!(ids::<Sql<IS_MYSQL>>(&rows), [1, 2]);
    let mut rival = theirs.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    others(&mut rival, |row| Sql::<IS_MYSQL>::int(row, "id")).await;
    busy(&mut rival, Wait::No).await;
    let waited = busy(&mut rival, Wait::UpTo(Duration::from_millis(300))).await;
    assert!(waited >= Duration::from_millis(900), "a whole second: {waited:?}");
    tx.commit().await.unwrap();
    for mode in [Mode::Share, Mode::KeyShare] {
        items().lock(&mut rival, [1], mode, Wait::UpTo(Duration::from_secs(1))).await.unwrap();
    }
}

#[tokio::test]
async fn on_sqlite() {
    let context = Lite::start().await.unwrap();
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    theirs.busy_timeout(Duration::ZERO).unwrap();
    // Without a transaction that writes, nothing would be locked.
    let error = items().lock(&mut ours, [1], Mode::Update, Wait::No).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    sqlite::transaction(&mut ours, &Retry::never(), async |tx| {
        let rows = items().lock(tx, [2, 1], Mode::Update, Wait::No).await?;
        assert_eq!(ids::<Lite>(&rows), [1, 2]);
        let skipped = items().lock(tx, [1], Mode::Update, Wait::Skip).await;
        assert!(matches!(skipped, Err(Error::Refused(_))));
        let rival = sqlite::transaction(&mut theirs, &PATIENT, async |_| Ok::<_, rusqlite::Error>(())).await;
        let failed = rival.unwrap_err();
        assert_eq!((failed.error.contention(), failed.attempts), (Some(Contention::Busy), 1), "a wait that was chosen");
        Ok::<_, Boxed>(())
    })
    .await
    .unwrap();
}

/// A transaction that read, and wants to write after another transaction did.
#[tokio::test]
async fn sqlite_tells_that_a_picture_is_old() {
    let context = Lite::start().await.unwrap();
    let (mut ours, theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 1).await;
    let mut first = true;
    let done = PATIENT.run(async || {
        let tx = ours.transaction()?;
        let stock: i64 = tx.query_row("select stock from items where id = 1", [], |row| row.get(0))?;
        if std::mem::take(&mut first) {
            rusqlite::Connection::execute(&theirs, "update items set stock = 10 where id = 1", [])?;
        }
        rusqlite::Connection::execute(&tx, "update items set stock = ? where id = 1", [stock + 1]).inspect_err(
            |error| {
                assert_eq!(error.sqlite_error().map(|error| error.extended_code), Some(517));
            },
        )?;
        tx.commit()
    });
    assert_eq!(done.await.unwrap().conflicts, 1);
    assert_eq!(stocks::<Lite>(&mut ours).await, [11, 1, 1, 1]);
}

/// Two that lock one row after the other, each in the other's order, until they met in the middle.
async fn postgres_reruns_the_victim_of_a_deadlock(context: &Pg) {
    restock(&mut context.conn().await, 0).await;
    let meet = tokio::sync::Barrier::new(2);
    let one = async |order: [i64; 2]| {
        let (mut client, mut first) = (context.conn().await, true);
        let done = postgres::transaction(&mut client, &PATIENT, async |tx| {
            let sql = "update items set stock = stock + 1 where id = $1";
            tokio_postgres::Transaction::execute(tx, sql, &[&order[0]]).await?;
            if std::mem::take(&mut first) {
                meet.wait().await;
            }
            tokio_postgres::Transaction::execute(tx, sql, &[&order[1]]).await
        });
        done.await.unwrap().conflicts
    };
    let (one, other) = tokio::join!(one([1, 2]), one([2, 1]));
    assert!(one + other >= 1, "one of them was the victim");
    assert_eq!(stocks::<Pg>(&mut context.conn().await).await, [2, 2, 0, 0]);
}

async fn mariadb_reruns_the_victim_of_a_deadlock<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    restock(&mut context.conn().await, 0).await;
    let meet = tokio::sync::Barrier::new(2);
    let one = async |order: [i64; 2]| {
        let (mut conn, mut first) = (context.conn().await, true);
        let done = mysql::transaction(&mut conn, &PATIENT, async |tx| {
            let sql = "update items set stock = stock + 1 where id = ?";
            tx.exec_drop(sql, (order[0],)).await?;
            if std::mem::take(&mut first) {
                meet.wait().await;
            }
            tx.exec_drop(sql, (order[1],)).await
        });
        done.await.unwrap().conflicts
    };
    let (one, other) = tokio::join!(one([1, 2]), one([2, 1]));
    assert!(one + other >= 1, "one of them was the victim");
    assert_eq!(stocks::<Sql<IS_MYSQL>>(&mut context.conn().await).await, [2, 2, 0, 0]);
}

/// The server ends only the statement then: without a rollback the first half would be kept.
async fn keeps_nothing_of_what_had_to_wait_too_long<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 0).await;
    let mut tx = ours.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    items().lock(&mut tx, [2_i64], Mode::Update, Wait::No).await.unwrap();
    let failed = mysql::transaction(&mut theirs, &PATIENT, async |tx| {
        tx.query_drop("update items set stock = 5 where id = 1").await?;
        items().lock(tx, [2], Mode::Update, Wait::No).await?;
        Ok::<_, Boxed>(())
    });
    let failed = failed.await.unwrap_err();
    assert_eq!((failed.error.contention(), failed.attempts), (Some(Contention::Busy), 1), "{}", failed.error);
    drop(tx);
    assert_eq!(stocks::<Sql<IS_MYSQL>>(&mut theirs).await, [0, 0, 0, 0]);
}

async fn reruns_what_could_not_be_put_in_order(context: &Pg) {
    restock(&mut context.conn().await, 1).await;
    let meet = tokio::sync::Barrier::new(2);
    // Each goes off duty if the other is still on: the two writes touch different rows.
    let leave = async |id: i64| {
        let (mut client, mut first) = (context.conn().await, true);
        client.batch_execute("set default_transaction_isolation = serializable").await.unwrap();
        let done = postgres::transaction(&mut client, &PATIENT, async |tx| {
            let on: i64 = tx.query_one("select sum(stock)::bigint from items where id <= 2", &[]).await?.get(0);
            if std::mem::take(&mut first) {
                meet.wait().await;
            }
            if on < 2 {
                return Ok(false);
            }
            let sql = "update items set stock = 0 where id = $1";
            tokio_postgres::Transaction::execute(tx, sql, &[&id]).await?;
            Ok::<_, tokio_postgres::Error>(true)
        });
        done.await.unwrap()
    };
    let (one, other) = tokio::join!(leave(1), leave(2));
    assert_ne!(one.value, other.value, "exactly one may leave");
    assert!(one.conflicts + other.conflicts >= 1);
}

/// Rows are locked in the order of their keys, whatever order they are named in.
async fn the_order_of_names_makes_no_deadlock(context: &Pg) {
    restock(&mut context.conn().await, 0).await;
    let many = async |order: [i64; 4]| {
        let mut client = context.conn().await;
        let mut conflicts = 0;
        for _ in 0..50 {
            let done = postgres::transaction(&mut client, &PATIENT, async |tx| {
                items().lock(tx, order, Mode::Update, Wait::UpTo(Duration::from_secs(30))).await?;
                tokio_postgres::Transaction::execute(tx, "update items set stock = stock + 1", &[]).await?;
                Ok::<_, Error<tokio_postgres::Row, tokio_postgres::Error>>(())
            });
            conflicts += done.await.map_err(|failed| failed.error.to_string()).unwrap().conflicts;
        }
        conflicts
    };
    let (one, two, three) = tokio::join!(many([1, 2, 3, 4]), many([4, 3, 2, 1]), many([2, 4, 1, 3]));
    assert_eq!(one + two + three, 0);
    assert_eq!(stocks::<Pg>(&mut context.conn().await).await, [150; 4]);
}

/// The same on MariaDB, which locks what it passes on its way.
async fn nor_does_it_on_mariadb<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    restock(&mut context.conn().await, 0).await;
    let many = async |order: [i64; 4]| {
        let mut conn = context.conn().await;
        let mut conflicts = 0;
        for _ in 0..50 {
            let done = mysql::transaction(&mut conn, &PATIENT, async |tx| {
                items().lock(tx, order, Mode::Update, Wait::UpTo(Duration::from_secs(30))).await?;
                tx.query_drop("update items set stock = stock + 1 where id in (1, 2, 3, 4)").await?;
                Ok::<_, Error<mysql_async::Row, mysql_async::Error>>(())
            });
            conflicts += done.await.map_err(|failed| failed.error.to_string()).unwrap().conflicts;
        }
        conflicts
    };
    let (one, two, three) = tokio::join!(many([1, 2, 3, 4]), many([4, 3, 2, 1]), many([2, 4, 1, 3]));
    assert_eq!(one + two + three, 0);
    assert_eq!(stocks::<Sql<IS_MYSQL>>(&mut context.conn().await).await, [150; 4]);
}

/// A picture that is too old to be written on, where the server looks for that.
async fn reruns_what_was_read_from_an_old_picture<const IS_MYSQL: bool>(context: &Sql<IS_MYSQL>) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 1).await;
    if let Err(error) = ours.query_drop("set session innodb_snapshot_isolation = on").await {
        eprintln!("skipped: this server has no snapshot isolation: {error}");
        return;
    }
    ours.query_drop("set session transaction isolation level repeatable read").await.unwrap();
    let mut first = true;
    let done = mysql::transaction(&mut ours, &PATIENT, async |tx| {
        let stock: Option<i64> = tx.query_first("select stock from items where id = 1").await?;
        if std::mem::take(&mut first) {
            theirs.query_drop("update items set stock = 10 where id = 1").await?;
        }
        tx.exec_drop("update items set stock = ? where id = 1", (stock.unwrap() + 1,)).await
    });
    let done = done.await.unwrap();
    assert_eq!(done.conflicts, 1, "1020, and once");
    assert_eq!(stocks::<Sql<IS_MYSQL>>(&mut theirs).await[0], 11);
}

/// A dropped transaction is rolled back, and its rows are free.
async fn a_dropped_future_leaves_nothing_locked(context: &Pg) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 1).await;
    let (told, locked) = tokio::sync::oneshot::channel();
    let mut told = Some(told);
    let retry = Retry::never();
    let work = postgres::transaction(&mut ours, &retry, async |tx| {
        items().lock(tx, [1_i64], Mode::Update, Wait::No).await?;
        tokio_postgres::Transaction::execute(tx, "update items set stock = 9 where id = 1", &[]).await?;
        told.take().map(|told| told.send(()));
        std::future::pending::<()>().await;
        Ok::<_, Boxed>(())
    });
    tokio::select! {
        _ = work => panic!("it waits for ever"),
        locked = locked => locked.unwrap(),
    }
    let mut tx = theirs.transaction().await.unwrap();
    items().lock(&mut tx, [1_i64], Mode::Update, Wait::UpTo(Duration::from_secs(20))).await.unwrap();
    drop(tx);
    assert_eq!(stocks::<Pg>(&mut ours).await, [1; 4]);
}

#[tokio::test]
async fn on_postgres() {
    let Some(context) = Pg::start().await else { return };
    postgres_keeps_others_out(&context).await;
    refuses_outside_of_a_transaction(&context).await;
    has_four_modes(&context).await;
    postgres_reruns_the_victim_of_a_deadlock(&context).await;
    reruns_what_could_not_be_put_in_order(&context).await;
    the_order_of_names_makes_no_deadlock(&context).await;
    a_dropped_future_leaves_nothing_locked(&context).await;
}

#[tokio::test]
async fn on_mariadb() {
    let Some(context) = Maria::start().await else { return };
    mariadb_keeps_others_out(&context).await;
    refuses_outside_of_a_transaction(&context).await;
    mariadb_reruns_the_victim_of_a_deadlock(&context).await;
    keeps_nothing_of_what_had_to_wait_too_long(&context).await;
    nor_does_it_on_mariadb(&context).await;
    reruns_what_was_read_from_an_old_picture(&context).await;
}

#[tokio::test]
async fn on_mysql() {
    let Some(context) = My::start().await else { return };
    mariadb_keeps_others_out(&context).await;
    mariadb_reruns_the_victim_of_a_deadlock(&context).await;
    keeps_nothing_of_what_had_to_wait_too_long(&context).await;
    nor_does_it_on_mariadb(&context).await;
}
