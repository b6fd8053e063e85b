//! Two doctors on call, one of whom must stay: each sees the other, and both go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock::{Locks, Mutex};
use oarlock_rows::{Client, Dialect, Error, Locked, Version, Versioned};
use tokio::sync::{Barrier, Semaphore};

use crate::demo::crowd;
use crate::demo::database::{self, Database, Rows, patient};
use crate::demo::strategy::{Outcome, Strategy};
use crate::demo::trouble::{Boxed, boxed};

/// How long a doctor thinks about it: between looking and going.
const THINKING: Duration = Duration::from_millis(15);

/// The row of the ward, whose version each decision moves on.
const WARD: i64 = 0;

pub(crate) struct Plan {
    pub(crate) nights: u64,
    /// The protection that is left out, to see that it is noticed.
    pub(crate) sabotage: Option<Strategy>,
    /// Whether the second doctor asks only when the first one has decided: nothing can go wrong then.
    pub(crate) in_turn: bool,
    pub(crate) name: String,
}

/// The strategies that this database has. A transaction of SQLite cannot be fooled like this, so there is none to show.
pub(crate) fn strategies(dialect: Dialect) -> Vec<Strategy> {
    let mut strategies = vec![Strategy::None];
    if dialect != Dialect::Sqlite {
        strategies.push(Strategy::Transaction);
    }
    strategies.extend([
        Strategy::RowVersion,
        Strategy::Mutex,
        Strategy::Version,
        Strategy::ForUpdate,
        Strategy::Serializable,
    ]);
    strategies
}

pub(crate) async fn run<B: Database>(plan: &Arc<Plan>, database: &B, locks: &[Locks]) -> Result<Vec<Outcome>, Boxed> {
    let mut outcomes = Vec::new();
    for strategy in strategies(database.connect().await?.dialect()) {
        let done = if plan.sabotage == Some(strategy) { Strategy::None } else { strategy };
        outcomes.push(nights(plan, database, locks, strategy, done).await?);
    }
    Ok(outcomes)
}

/// Both ask to go, every night. `shown` is what it is called, `strategy` what is done.
async fn nights<B: Database>(
    plan: &Arc<Plan>,
    database: &B,
    locks: &[Locks],
    shown: Strategy,
    strategy: Strategy,
) -> Result<Outcome, Boxed> {
    let mut conn = database.connect().await?;
    let ward = [
        "drop table if exists doctors",
        "create table doctors (id bigint primary key, on_call bigint not null, version bigint not null)",
        "insert into doctors (id, on_call, version) values (0, 0, 1), (1, 1, 1), (2, 1, 1)",
    ];
    database::run(&mut conn, &ward).await?;
    let together = Arc::new(Barrier::new(2));
    let failed = Arc::new(Semaphore::new(0));
    let mut doctors = Vec::new();
    let start = Instant::now();
    for (doctor, shop) in (1_i64..=2).zip(locks.iter().cycle()) {
        let mut conn = database.connect().await?;
        let lock = shop.mutex(&plan.name).wait(database::PATIENCE);
        let (plan, together, failed) = (plan.clone(), together.clone(), failed.clone());
        doctors.push(crowd::start(async move || {
            let done = async {
                let (mut uncovered, mut again) = (0, 0);
                for _ in 0..plan.nights {
                    together.wait().await;
                    if plan.in_turn && doctor == 2 {
                        together.wait().await;
                    }
                    again += leave::<B>(&mut conn, &lock, strategy, doctor).await?;
                    if plan.in_turn && doctor == 1 {
                        together.wait().await;
                    }
                    together.wait().await;
                    if doctor == 1 {
                        uncovered += u64::from(database::query(&mut conn, "sum(on_call)", "doctors").await? == 0);
                        database::run(&mut conn, &["update doctors set on_call = 1 where id > 0"]).await?;
                    }
                }
                Ok((uncovered, again))
            };
            // A doctor that waits for one that failed would wait for ever.
            tokio::select! {
                done = done => done.inspect_err(|_| failed.close()),
                _ = failed.acquire() => Ok((0, 0)),
            }
        }));
    }
    let (mut uncovered, mut again) = (0, 0);
    for (nights, tries) in crowd::all(doctors).await? {
        (uncovered, again) = (uncovered + nights, again + u64::from(tries));
    }
    let took = start.elapsed();
    let verdict = if uncovered == 0 {
        "right".to_owned()
    } else {
        format!("NO DOCTOR on call in {uncovered} of {} nights", plan.nights)
    };
    let name = match shown {
        Strategy::None => "no lock",
        Strategy::Transaction => "a transaction each, REPEATABLE READ",
        Strategy::RowVersion => "a version on each doctor's row",
        Strategy::Mutex => "a mutex",
        Strategy::Version => "a version on the ward's row",
        Strategy::ForUpdate => "SELECT … FOR UPDATE of both rows",
        Strategy::Serializable | Strategy::Segments => "a transaction each, SERIALIZABLE",
    };
    let has_tries = !matches!(shown, Strategy::None | Strategy::Transaction | Strategy::Mutex);
    let figures = vec![("nights", plan.nights), ("uncovered", uncovered)];
    let again = has_tries.then_some(again);
    Ok(Outcome { strategy: shown, name: name.to_owned(), is_right: uncovered == 0, verdict, figures, again, took })
}

/// A doctor who goes if the other one stays. Says how often it was tried again.
async fn leave<B: Database>(conn: &mut B::Conn, lock: &Mutex, strategy: Strategy, doctor: i64) -> Result<u32, Boxed> {
    let go = format!("update doctors set on_call = 0 where id = {doctor}");
    match strategy {
        Strategy::Mutex => {
            let guard = lock.lock().await?;
            careless(conn, &go).await?;
            guard.release().await?;
            Ok(0)
        }
        Strategy::Transaction => in_transaction(conn, "repeatable read", &go).await,
        Strategy::Serializable => in_transaction(conn, "serializable", &go).await,
        Strategy::RowVersion => versioned(conn, doctor, &go).await,
        Strategy::Version => versioned(conn, WARD, &go).await,
        Strategy::ForUpdate => {
            let table = Locked::new("doctors", "id");
            let rows = Rows { table: &table, keys: &[2, 1], column: "on_call", pause: THINKING };
            let decide =
                &mut |on_call: &[i64]| if on_call.iter().sum::<i64>() == 2 { vec![go.clone()] } else { Vec::new() };
            B::locked(conn, &rows, decide).await
        }
        Strategy::None | Strategy::Segments => careless(conn, &go).await.map(|()| 0).map_err(Into::into),
    }
}

/// Looks, thinks, and goes.
async fn careless<C: Client>(conn: &mut C, go: &str) -> Result<(), C::Error> {
    if database::query(conn, "sum(on_call)", "doctors").await? == 2 {
        tokio::time::sleep(THINKING).await;
        conn.execute(go, Vec::new()).await?;
    }
    Ok(())
}

/// The same in one transaction, from its beginning again when the database says so.
async fn in_transaction<C: Client>(conn: &mut C, isolation: &str, go: &str) -> Result<u32, Boxed> {
    let retry = patient();
    let done = retry.run(async || {
        match conn.dialect() {
            Dialect::Postgres => drop(conn.execute(&format!("begin isolation level {isolation}"), Vec::new()).await?),
            // It knows no other isolation.
            Dialect::Sqlite => drop(conn.execute("begin", Vec::new()).await?),
            _ => {
                conn.execute(&format!("set transaction isolation level {isolation}"), Vec::new()).await?;
                conn.execute("start transaction", Vec::new()).await?;
            }
        }
        let done = careless(conn, go).await;
        ended(conn, done).await
    });
    done.await.map(|done| done.conflicts).map_err(|failed| failed.error.into())
}

/// Goes only if the row `guard` is still the one that was seen before looking; both are written together or not at all.
async fn versioned<C: Client<Value: From<i64>>>(conn: &mut C, guard: i64, go: &str) -> Result<u32, Boxed> {
    let doctors = Versioned::new("doctors", "id", Version::integer("version"));
    let retry = patient();
    let done = retry.run(async || {
        let Some(seen) = doctors.read(conn, guard).await? else { return Ok(()) };
        if database::query(conn, "sum(on_call)", "doctors").await? != 2 {
            return Ok(());
        }
        tokio::time::sleep(THINKING).await;
        conn.execute("begin", Vec::new()).await?;
        // The ward itself is never on call: this moves its version on and changes nothing else.
        let moved = doctors.update(conn, guard, &seen.version, vec![("on_call".to_owned(), 0.into())]).await;
        let done = match moved {
            Ok(()) => conn.execute(go, Vec::new()).await.map(drop).map_err(Into::into),
            Err(error) => Err(error),
        };
        ended(conn, done).await
    });
    done.await.map(|done| done.conflicts).map_err(|failed: oarlock_rows::Failed<Error<_, _>>| boxed(failed.error))
}

/// Keeps what was done, or nothing of it.
async fn ended<C: Client, E: From<C::Error>>(conn: &mut C, done: Result<(), E>) -> Result<(), E> {
    let end = if done.is_ok() { "commit" } else { "rollback" };
    let ended = conn.execute(end, Vec::new()).await;
    done?;
    if let Err(error) = ended {
        // What could not be committed must not stay open; where nothing is open this does nothing.
        let _ = conn.execute("rollback", Vec::new()).await;
        return Err(error.into());
    }
    Ok(())
}
