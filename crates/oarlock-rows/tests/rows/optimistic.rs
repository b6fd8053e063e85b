//! No writer overwrites what it has not seen.

use std::time::Duration;

use oarlock_rows::{Change, Classify, Client, Contention, Dialect, Error, Outcome, Retry, Version, Versioned};

use crate::contexts::{Lite, Maria, My, Pg, TestContext, restock};

type Value<B> = <<B as TestContext>::Conn as Client>::Value;
type Row<B> = <<B as TestContext>::Conn as Client>::Row;

const TASKS: i64 = 6;
const EACH: i64 = 15;

fn patient() -> Retry {
    Retry::default()
        .attempts(1000)
        .deadline(Duration::from_secs(60))
        .pauses(Duration::from_millis(1), Duration::from_millis(20))
}

fn one_more<B: TestContext>(row: &Row<B>) -> Change<Value<B>> {
    Change::set("stock", B::int(row, "stock") + 1)
}

async fn all<B: TestContext>(versions: &[Version]) {
    let Some(context) = B::start().await else { return };
    for version in versions {
        let items = Versioned::new("items", "id", version.clone());
        no_change_is_lost(&context, &items).await;
        the_second_writer_is_told(&context, &items).await;
        a_row_may_be_left_deleted_or_missing(&context, &items).await;
        attempts_run_out(&context, &items).await;
        a_version_means_the_same_on_every_connection(&context, &items).await;
    }
    nothing_to_change_is_refused(&context).await;
    a_row_without_a_version_is_not_missing(&context).await;
}

async fn no_change_is_lost<B: TestContext>(context: &B, items: &Versioned) {
    restock(&mut context.conn().await, 0).await;
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let mut conn = context.conn().await;
        tasks.push(async move {
            let mut conflicts = 0;
            for _ in 0..EACH {
                let done = items.modify(&mut conn, 1, &patient().when_busy(), |row| one_more::<B>(row)).await;
                let done = done.map_err(|failed| failed.error.to_string()).unwrap();
                assert_eq!((done.value, done.attempts), (Outcome::Changed, done.conflicts + 1));
                conflicts += done.conflicts;
            }
            conflicts
        });
    }
    let conflicts: u32 = join_all(tasks).await.into_iter().sum();
    let seen = items.read(&mut context.conn().await, 1).await.map_err(|error| error.to_string()).unwrap().unwrap();
    assert_eq!(B::int(&seen.row, "stock"), TASKS * EACH, "{items:?}");
    println!("note: {items:?}: {} changes, {conflicts} conflicts", TASKS * EACH);
}

async fn the_second_writer_is_told<B: TestContext>(context: &B, items: &Versioned) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    let seen = items.read(&mut ours, 1).await.map_err(|error| error.to_string()).unwrap().unwrap();
    let columns = |stock: i64| vec![("stock".to_owned(), stock.into())];
    items.update(&mut theirs, 1, &seen.version, columns(7)).await.map_err(|error| error.to_string()).unwrap();
    let second = items.update(&mut ours, 1, &seen.version, columns(9)).await.unwrap_err();
    assert_eq!(second.contention(), Some(Contention::Stale));
    let Error::Conflict { current: Some((row, version)) } = second else { panic!("{second}") };
    assert_eq!(B::int(&row, "stock"), 7);
    assert_ne!(version, seen.version);
    // So is who deletes.
    assert!(matches!(items.delete(&mut ours, 1, &seen.version).await, Err(Error::Conflict { current: Some(_) })));
    items.delete(&mut ours, 1, &version).await.map_err(|error| error.to_string()).unwrap();
    let gone = items.update(&mut theirs, 1, &version, columns(1)).await.unwrap_err();
    assert!(matches!(gone, Error::Conflict { current: None }), "{gone}");
}

/// Read on one connection, as for a form in a browser, and written on another with other settings.
async fn a_version_means_the_same_on_every_connection<B: TestContext>(context: &B, items: &Versioned) {
    let (mut ours, mut theirs) = (context.conn().await, context.conn().await);
    restock(&mut ours, 10).await;
    let settings: &[&str] = match ours.dialect() {
        Dialect::Postgres => &["set time zone 'Asia/Kolkata'", "set datestyle = 'German'"],
        Dialect::Sqlite => &[],
        _ => &["set time_zone = '+05:30'"],
    };
    for setting in settings {
        theirs.execute(setting, Vec::new()).await.unwrap();
    }
    let seen = items.read(&mut ours, 1).await.map_err(|error| error.to_string()).unwrap().unwrap();
    let columns = vec![("stock".to_owned(), 7.into())];
    items.update(&mut theirs, 1, &seen.version, columns).await.map_err(|error| format!("{items:?}: {error}")).unwrap();
}

async fn a_row_may_be_left_deleted_or_missing<B: TestContext>(context: &B, items: &Versioned) {
    let mut conn = context.conn().await;
    restock(&mut conn, 10).await;
    for (id, change, outcome) in [
        (2, Change::Leave, Outcome::Left),
        (2, Change::Delete, Outcome::Deleted),
        (2, Change::Delete, Outcome::Missing),
        (3, Change::Leave.and("stock", 5), Outcome::Changed),
    ] {
        let done = items.modify(&mut conn, id, &Retry::never(), |_| change.clone()).await;
        assert_eq!(done.map_err(|failed| failed.error.to_string()).unwrap().value, outcome);
    }
    let seen = items.read(&mut conn, 3).await.map_err(|error| error.to_string()).unwrap().unwrap();
    assert_eq!(B::int(&seen.row, "stock"), 5);
}

/// A client beside which another one changes the row each time, between reading and writing. The first `times` only.
struct Meddled<'a, B: TestContext> {
    ours: B::Conn,
    theirs: B::Conn,
    items: &'a Versioned,
    times: u32,
}

impl<B: TestContext> Client for Meddled<'_, B> {
    type Row = Row<B>;
    type Value = Value<B>;
    type Error = <B::Conn as Client>::Error;

    fn dialect(&self) -> Dialect {
        self.ours.dialect()
    }

    async fn rows(&mut self, sql: &str, values: Vec<Value<B>>) -> Result<Vec<Row<B>>, Self::Error> {
        self.ours.rows(sql, values).await
    }

    async fn execute(&mut self, sql: &str, values: Vec<Value<B>>) -> Result<u64, Self::Error> {
        if self.times > 0 {
            self.times -= 1;
            let met = self.items.modify(&mut self.theirs, 4, &Retry::never(), |row| one_more::<B>(row)).await;
            assert_eq!(met.map(|met| met.value).ok(), Some(Outcome::Changed));
        }
        self.ours.execute(sql, values).await
    }

    fn last_text(row: &Row<B>) -> Option<String> {
        B::Conn::last_text(row)
    }
}

async fn attempts_run_out<B: TestContext>(context: &B, items: &Versioned) {
    let (ours, theirs) = (context.conn().await, context.conn().await);
    let mut conn = Meddled::<B> { ours, theirs, items, times: 3 };
    restock(&mut conn.theirs, 10).await;
    let failed = items.modify(&mut conn, 4, &patient().attempts(3), |row| one_more::<B>(row)).await.unwrap_err();
    assert_eq!((failed.attempts, failed.conflicts), (3, 3));
    let Error::Conflict { current: Some((row, _)) } = failed.error else { panic!("{}", failed.error) };
    assert_eq!(B::int(&row, "stock"), 13, "{items:?}");
    conn.times = 2;
    let done = items.modify(&mut conn, 4, &patient().attempts(3), |row| one_more::<B>(row)).await;
    let done = done.map_err(|failed| failed.error.to_string()).unwrap();
    assert_eq!((done.value, done.attempts, done.conflicts), (Outcome::Changed, 3, 2));
    let seen = items.read(&mut conn, 4).await.map_err(|error| error.to_string()).unwrap().unwrap();
    assert_eq!(B::int(&seen.row, "stock"), 16, "{items:?}");
}

async fn nothing_to_change_is_refused<B: TestContext>(context: &B) {
    let mut conn = context.conn().await;
    let items = Versioned::new("items", "id", Version::integer("version"));
    let failed = items.modify(&mut conn, 1, &patient(), |_| Change::Set(Vec::new())).await.unwrap_err();
    assert!(matches!(failed.error, Error::Refused(_)), "{}", failed.error);
    assert_eq!((failed.attempts, failed.conflicts), (1, 0));
}

async fn a_row_without_a_version_is_not_missing<B: TestContext>(context: &B) {
    let mut conn = context.conn().await;
    for sql in [
        "drop table if exists old_items",
        "create table old_items (id bigint primary key, stock bigint not null, version bigint)",
        "insert into old_items (id, stock) values (1, 10)",
    ] {
        conn.execute(sql, Vec::new()).await.unwrap();
    }
    let items = Versioned::new("old_items", "id", Version::integer("version"));
    let failed = items.modify(&mut conn, 1, &patient(), |row| one_more::<B>(row)).await.unwrap_err();
    assert!(matches!(failed.error, Error::Refused(_)), "{}", failed.error);
    assert_eq!((failed.attempts, failed.conflicts), (1, 0));
}

async fn join_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn postgres() {
    all::<Pg>(&[Version::integer("version"), Version::timestamp("changed"), Version::Xmin]).await;
}

#[tokio::test]
async fn mariadb() {
    all::<Maria>(&[Version::integer("version"), Version::timestamp("changed")]).await;
}

#[tokio::test]
async fn mysql() {
    all::<My>(&[Version::integer("version"), Version::timestamp("changed")]).await;
}

#[tokio::test]
async fn sqlite() {
    all::<Lite>(&[Version::integer("version"), Version::timestamp("changed")]).await;
    let context = Lite::start().await.unwrap();
    let error = Versioned::new("items", "id", Version::Xmin).read(&mut context.conn().await, 1).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
}
