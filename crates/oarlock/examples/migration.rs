//! Four replicas of a service start at once, and each brings the schema up to date first: one of them does the work.
//!
//! `cargo run -p oarlock --example migration -- [--url URL]`

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MIGRATIONS: [&str; 2] =
    ["CREATE TABLE item (id INTEGER PRIMARY KEY)", "ALTER TABLE item ADD COLUMN stock INTEGER NOT NULL DEFAULT 0"];

fn main() -> Result<(), Failure> {
    let (url, folder) = (url::from_args()?, tempfile::tempdir()?);
    let file = folder.path().join("app.db");
    let applied: Result<Vec<usize>, Failure> = std::thread::scope(|scope| {
        let replicas: Vec<_> = (0..4).map(|_| scope.spawn(|| migrate(&url, &file))).collect();
        replicas.into_iter().map(|replica| replica.join().map_err(|_| "a replica panicked")?).collect()
    });
    let applied = applied?;
    println!("migrations applied by each replica: {applied:?}");
    let all = applied.iter().sum::<usize>();
    if all == MIGRATIONS.len() { Ok(()) } else { Err("a migration ran twice, or not at all".into()) }
}

/// Applies what is missing. The version is read under the lock: another replica may have migrated while this one waited.
///
/// The check and the step are not one atomic step. Where a late step does harm, the database checks the fence: on
/// PostgreSQL with `oarlock.check` in the transaction of the step. MySQL and MariaDB commit each change of the schema
/// by itself: there make every step repeatable, and write the version after it.
fn migrate(url: &str, file: &Path) -> Result<usize, Failure> {
    let locks = oarlock::blocking::connect(url)?;
    let guard = locks.mutex("migrate/app").wait(Duration::from_secs(600)).reason("schema").lock()?;
    let mut database = Connection::open(file)?;
    let done: u16 = database.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for (version, statement) in (1_u16..).zip(MIGRATIONS).skip(done.into()) {
        guard.check()?; // between two steps: a lost lock ends the migration here
        let step = database.transaction()?;
        step.execute_batch(statement)?;
        step.pragma_update(None, "user_version", version)?; // in the same transaction as the step
        step.commit()?;
    }
    guard.release()?;
    Ok(MIGRATIONS.len() - usize::from(done))
}
