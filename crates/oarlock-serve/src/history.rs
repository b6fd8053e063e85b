//! Who held and waited, sampled and kept in a bounded SQLite database: in a file, or in memory.
//!
//! A hold that begins and ends between two samples is not in it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use oarlock::state::{ClaimId, Ending};
use oarlock::{Error, ErrorKind, Fence, Result};
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use crate::board::{Row, Sample};
use crate::problem::Problem;
use crate::view;

/// The most rows of each table: the oldest are deleted.
const MAX_ROWS: i64 = 50_000;

/// Jobs that wait for the database; a sample that does not fit is left out.
const MAX_JOBS: usize = 64;

/// How many of them may read: the others are for samples, which come once.
const MAX_READS: usize = MAX_JOBS / 2;

/// When a client that found it busy may come back.
const RETRY: Duration = Duration::from_secs(1);

/// How many of the last holds of a lock are shown, and how many count for percentiles.
const SHOWN: i64 = 100;
const COUNTED: i64 = 1000;

const TABLES: [&str; 3] = ["holds", "waits", "breaks"];

const SCHEMA: &str = include_str!("sql/history.sql");

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The database, in a thread of its own.
#[derive(Debug)]
pub(crate) struct History {
    jobs: mpsc::SyncSender<Job>,
    /// One for each read that may still begin.
    reads: Arc<Semaphore>,
    /// Changes that are missing in it.
    missing: Arc<AtomicU64>,
}

/// What a sample adds.
#[derive(Debug)]
enum Change {
    Hold {
        name: String,
        claim: String,
        fence: Option<String>,
        kind: &'static str,
        holder: String,
        reason: Option<String>,
        since: i64,
    },
    HoldEnded {
        name: String,
        claim: String,
        until: i64,
    },
    Wait {
        name: String,
        claim: String,
        since: i64,
    },
    WaitEnded {
        name: String,
        claim: String,
        until: i64,
        granted: bool,
    },
    Broken(Break),
}

/// A hold whose end was asked for, or that was ended.
#[derive(Debug)]
struct Break {
    at: i64,
    name: String,
    claim: String,
    /// Empty where the store has none.
    fence: String,
    by: String,
    why: String,
    outcome: &'static str,
}

impl History {
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let shown = path.map_or_else(|| "memory".to_owned(), |path| path.display().to_string());
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Config, format!("cannot keep the history in {shown}: {error}"))
        };
        let connection = match path {
            Some(path) => {
                // It names hosts, users and reasons: for its owner alone.
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
                file.map_err(|error| failed(&error))?;
                Connection::open(path)
            }
            None => Connection::open_in_memory(),
        };
        let mut connection = connection.map_err(|error| failed(&error))?;
        prepare(&connection).map_err(|error| failed(&error))?;
        let (sender, jobs) = mpsc::sync_channel::<Job>(MAX_JOBS);
        let missing = Arc::new(AtomicU64::new(0));
        let counted = missing.clone();
        let run = move || {
            let mut is_told = false;
            for job in jobs {
                job(&mut connection);
                if !is_told && counted.load(Ordering::Relaxed) > 0 {
                    let _ = writeln!(
                        std::io::stderr(),
                        "warning: the history in {shown} could not be written, or not in time, and is not complete; \
                         the metric oarlock_history_missing_total counts what is missing"
                    );
                    is_told = true;
                }
            }
        };
        let thread = thread::Builder::new().name("oarlock-history".to_owned()).spawn(run);
        thread.map_err(|error| Error::new(ErrorKind::Os, "cannot start a thread").because(error))?;
        Ok(Self { jobs: sender, reads: Arc::new(Semaphore::new(MAX_READS)), missing })
    }

    /// Notes what changed between two samples.
    pub(crate) fn note(&self, before: &Sample, now: &Sample) {
        self.add(changes(before, now));
    }

    /// Changes that could not be written: the history lacks them.
    pub(crate) fn missing(&self) -> u64 {
        self.missing.load(Ordering::Relaxed)
    }

    /// Writes changes, or counts them: requests must not wait for a disk.
    fn add(&self, changes: Vec<Change>) {
        let (count, missing) = (changes.len() as u64, self.missing.clone());
        if count == 0 {
            return;
        }
        let job: Job = Box::new(move |connection| {
            if with_room(connection, |connection| write(connection, &changes)).is_err() {
                missing.fetch_add(count, Ordering::Relaxed);
            }
        });
        if self.jobs.try_send(job).is_err() {
            self.missing.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Notes a break by a client of this server, when it is done.
    pub(crate) fn broken(&self, name: &str, id: ClaimId, fence: Fence, ending: &Ending, outcome: &'static str) {
        self.add(vec![Change::Broken(Break {
            at: crate::state::wall_millis(),
            name: name.to_owned(),
            claim: view::claim(id),
            fence: fence.to_string(),
            by: ending.by.clone(),
            why: ending.why.clone(),
            outcome,
        })]);
    }

    /// What is known of a lock.
    pub(crate) async fn of(&self, name: &str) -> std::result::Result<Value, Problem> {
        let (sender, answer) = oneshot::channel();
        let name = name.to_owned();
        let internal = |detail: String| {
            let problem = Problem::new(http::StatusCode::SERVICE_UNAVAILABLE, "no-history", detail);
            problem.retry_after(RETRY)
        };
        let busy = || internal("the history is busy: try again".to_owned());
        let permit = self.reads.clone().try_acquire_owned().map_err(|_| busy())?;
        let sent = self.jobs.try_send(Box::new(move |connection| {
            let _ = sender.send(read(connection, &name));
            drop(permit);
        }));
        sent.map_err(|_| busy())?;
        let answer = answer.await.map_err(|_| internal("the history has ended".to_owned()))?;
        answer.map_err(|error| internal(error.to_string()))
    }
}

/// Makes the tables, also in a file of an earlier version.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    let mut columns = connection.prepare("SELECT name FROM pragma_table_info('breaks')")?;
    let columns = columns.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    for (column, kind) in [("outcome", "TEXT"), ("claim", "TEXT NOT NULL DEFAULT ''")] {
        if !columns.iter().any(|present| present == column) {
            connection.execute_batch(&format!("ALTER TABLE breaks ADD COLUMN {column} {kind}"))?;
        }
    }
    Ok(())
}

fn since(row: &Row, age_ms: u64) -> i64 {
    row.at_ms.saturating_sub(i64::try_from(age_ms).unwrap_or(i64::MAX))
}

/// Claims that began and ended. Of the first sample after a start, all claims begin.
fn changes(before: &Sample, now: &Sample) -> Vec<Change> {
    let mut changes = Vec::new();
    for (name, row) in &now.rows {
        let earlier = before.rows.get(name);
        if earlier.is_some_and(|earlier| std::sync::Arc::ptr_eq(earlier, row)) {
            continue;
        }
        let held = |claim: &str, fence: &Option<String>| {
            earlier.is_some_and(|row| row.lock.holders.iter().any(|h| h.claim == claim && h.fence == *fence))
        };
        for holder in row.lock.holders.iter().filter(|holder| !held(&holder.claim, &holder.fence)) {
            changes.push(Change::Hold {
                name: name.clone(),
                claim: holder.claim.clone(),
                fence: holder.fence.clone(),
                kind: holder.kind.as_str(),
                holder: view::person(&holder.label),
                reason: holder.label.reason.clone(),
                since: since(row, holder.held_ms),
            });
        }
        // Also from the command line, or by another program.
        let was_asked = |claim: &str| {
            earlier.is_some_and(|row| row.lock.holders.iter().any(|h| h.claim == claim && h.ending.is_some()))
        };
        for holder in row.lock.holders.iter().filter(|holder| !was_asked(&holder.claim)) {
            if let Some(ending) = &holder.ending {
                changes.push(Change::Broken(Break {
                    at: now.at_ms,
                    name: name.clone(),
                    claim: holder.claim.clone(),
                    fence: holder.fence.clone().unwrap_or_default(),
                    by: ending.by.clone(),
                    why: ending.why.clone(),
                    outcome: "asked",
                }));
            }
        }
        let waited = |claim: &str| {
            earlier.is_some_and(|row| row.lock.waiters.iter().flatten().any(|waiter| waiter.claim == claim))
        };
        for waiter in row.lock.waiters.iter().flatten().filter(|waiter| !waited(&waiter.claim)) {
            let since = since(row, waiter.waited_ms);
            changes.push(Change::Wait { name: name.clone(), claim: waiter.claim.clone(), since });
        }
    }
    for (name, row) in &before.rows {
        let later = now.rows.get(name);
        if later.is_some_and(|later| std::sync::Arc::ptr_eq(later, row)) {
            continue;
        }
        let holds = |claim: &str| later.is_some_and(|row| row.lock.holders.iter().any(|holder| holder.claim == claim));
        for holder in row.lock.holders.iter().filter(|holder| !holds(&holder.claim)) {
            changes.push(Change::HoldEnded { name: name.clone(), claim: holder.claim.clone(), until: now.at_ms });
        }
        let waits = |claim: &str| {
            later.is_some_and(|row| row.lock.waiters.iter().flatten().any(|waiter| waiter.claim == claim))
        };
        for waiter in row.lock.waiters.iter().flatten().filter(|waiter| !waits(&waiter.claim)) {
            let (claim, granted) = (waiter.claim.clone(), holds(&waiter.claim));
            changes.push(Change::WaitEnded { name: name.clone(), claim, until: now.at_ms, granted });
        }
    }
    changes
}

/// Writes; if the database has no more room, deletes the oldest quarter of each table and writes again.
fn with_room(
    connection: &mut Connection,
    mut write: impl FnMut(&mut Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    match write(connection) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
            for table in TABLES {
                let bounds = format!("SELECT min(rowid) + (max(rowid) - min(rowid)) / 4 FROM {table}");
                connection.execute(&format!("DELETE FROM {table} WHERE rowid <= ({bounds})"), [])?;
            }
            write(connection)
        }
        done => done,
    }
}

fn write(connection: &mut Connection, changes: &[Change]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for change in changes {
        match change {
            Change::Hold { name, claim, fence, kind, holder, reason, since } => transaction.prepare_cached(
                "INSERT OR IGNORE INTO holds (name, claim, fence, kind, holder, reason, since_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?.execute(params![name, claim, fence.as_deref().unwrap_or_default(), kind, holder, reason, since])?,
            Change::HoldEnded { name, claim, until } => transaction.prepare_cached(
                "UPDATE holds SET until_ms = ?3 WHERE name = ?1 AND claim = ?2 AND until_ms IS NULL",
            )?.execute(params![name, claim, until])?,
            Change::Wait { name, claim, since } => transaction.prepare_cached(
                "INSERT OR IGNORE INTO waits (name, claim, since_ms) VALUES (?1, ?2, ?3)",
            )?.execute(params![name, claim, since])?,
            Change::WaitEnded { name, claim, until, granted } => transaction.prepare_cached(
                "UPDATE waits SET until_ms = ?3, granted = ?4 WHERE name = ?1 AND claim = ?2 AND until_ms IS NULL",
            )?.execute(params![name, claim, until, granted])?,
            // A break by this server is sampled, too, and after a restart what was sampled before is sampled again. A hold
            // of some stores has no fence: its claim tells it from the next one. Older files have no claims.
            Change::Broken(Break { at, name, claim, fence, by, why, outcome }) => transaction.prepare_cached(
                "INSERT INTO breaks (at_ms, name, claim, fence, by, why, outcome) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE NOT EXISTS (SELECT 1 FROM breaks WHERE name = ?2 AND (claim = ?3 OR claim = '' AND fence <> '') AND fence = ?4 AND by = ?5 AND why = ?6)",
            )?.execute(params![at, name, claim, fence, by, why, outcome])?,
        };
    }
    for table in TABLES {
        let bound = format!("DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - ?1");
        transaction.execute(&bound, [MAX_ROWS])?;
    }
    transaction.commit()
}

fn read(connection: &Connection, name: &str) -> rusqlite::Result<Value> {
    let mut query = connection.prepare_cached(
        "SELECT claim, fence, kind, holder, reason, since_ms, until_ms FROM holds WHERE name = ?1 ORDER BY since_ms DESC LIMIT ?2",
    )?;
    let holds = query.query_map(params![name, SHOWN], |row| {
        let fence: String = row.get(1)?;
        Ok(json!({
            "claim": row.get::<_, String>(0)?,
            "fence": Some(fence).filter(|fence| !fence.is_empty()),
            "kind": row.get::<_, String>(2)?,
            "holder": row.get::<_, String>(3)?,
            "reason": row.get::<_, Option<String>>(4)?,
            "since_ms": row.get::<_, i64>(5)?,
            "until_ms": row.get::<_, Option<i64>>(6)?,
        }))
    })?;
    let holds = holds.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut query = connection.prepare_cached(
        "SELECT at_ms, fence, by, why, outcome FROM breaks WHERE name = ?1 ORDER BY at_ms DESC LIMIT ?2",
    )?;
    let breaks = query.query_map(params![name, SHOWN], |row| {
        let (by, why, outcome): (String, String, Option<String>) = (row.get(2)?, row.get(3)?, row.get(4)?);
        let (at, fence): (i64, String) = (row.get(0)?, row.get(1)?);
        Ok(json!({ "at_ms": at, "fence": fence, "by": by, "why": why, "outcome": outcome }))
    })?;
    let breaks = breaks.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(json!({
        "name": name,
        "holds": holds,
        "breaks": breaks,
        "held_ms": percentiles(connection, "holds", name)?,
        "waited_ms": percentiles(connection, "waits", name)?,
        "note": "sampled: a hold that began and ended between two samples is not here",
    }))
}

/// Of the last ones that have ended.
fn percentiles(connection: &Connection, table: &str, name: &str) -> rusqlite::Result<Value> {
    let mut query = connection.prepare_cached(&format!(
        "SELECT until_ms - since_ms FROM {table} WHERE name = ?1 AND until_ms IS NOT NULL ORDER BY until_ms DESC LIMIT ?2"
    ))?;
    let spans = query.query_map(params![name, COUNTED], |row| row.get::<_, i64>(0))?;
    let mut spans = spans.collect::<rusqlite::Result<Vec<i64>>>()?;
    spans.sort_unstable();
    // The smallest that is not below this share of them.
    let at = |percent: usize| spans.get((spans.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    Ok(json!({ "count": spans.len(), "p50": at(50), "p90": at(90), "p99": at(99), "max": spans.last() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(at: i64, claim: &str, fence: &str, outcome: &'static str) -> Change {
        let [name, claim, fence, by, why] = ["x", claim, fence, "ben", "stuck"].map(str::to_owned);
        Change::Broken(Break { at, name, claim, fence, by, why, outcome })
    }

    /// The same operator breaks two holds for the same reason, in a store without fences.
    #[test]
    fn each_break_of_a_hold_without_a_fence_is_listed_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        prepare(&connection).unwrap();
        for (at, claim) in [(1, "first"), (2, "second"), (3, "second")] {
            write(&mut connection, &[broken(at, claim, "", "asked")]).unwrap();
        }
        let breaks = read(&connection, "x").unwrap()["breaks"].clone();
        let at: Vec<_> = breaks.as_array().unwrap().iter().map(|listed| listed["at_ms"].as_i64()).collect();
        assert_eq!(at, [Some(2), Some(1)], "{breaks}");
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_counted() {
        let history = History::open(None).unwrap();
        let note = |at| history.add(vec![broken(at, "c", "7", "asked"), broken(at, "d", "8", "asked")]);
        note(1);
        assert_eq!(history.of("x").await.unwrap()["breaks"].as_array().unwrap().len(), 2);
        let writes = |may: bool| {
            let job = move |connection: &mut Connection| connection.pragma_update(None, "query_only", !may).unwrap();
            history.jobs.send(Box::new(job)).unwrap();
        };
        writes(false);
        note(2);
        history.of("x").await.unwrap();
        assert_eq!(history.missing(), 2, "the database refused them");
        writes(true);
        // The database is at work, and its queue is full.
        let (go_on, wait) = mpsc::channel::<()>();
        history
            .jobs
            .send(Box::new(move |_| {
                let _ = wait.recv();
            }))
            .unwrap();
        for at in 0..=MAX_JOBS {
            note(3 + i64::try_from(at).unwrap());
        }
        let missing = history.missing();
        assert!(missing > 2 && missing.is_multiple_of(2), "{missing}");
        drop(go_on);
        while history.of("x").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(history.missing(), missing, "it goes on");
    }

    /// Hundreds of pages may read at one moment, and a sample comes once.
    #[tokio::test]
    async fn reads_leave_room_for_samples() {
        let history = History::open(None).unwrap();
        let (go_on, wait) = mpsc::channel::<()>();
        let stuck: Job = Box::new(move |_| {
            let _ = wait.recv();
        });
        history.jobs.send(stuck).unwrap();
        let mut reads: Vec<_> = (0..2 * MAX_JOBS).map(|_| Box::pin(history.of("x"))).collect();
        let mut refused = 0;
        for read in &mut reads {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx))).await;
            if let std::task::Poll::Ready(answer) = polled {
                assert_eq!(answer.unwrap_err().code, "no-history");
                refused += 1;
            }
        }
        assert_eq!(refused, 2 * MAX_JOBS - MAX_READS);
        history.add(vec![broken(1, "c", "7", "asked")]);
        assert_eq!(history.missing(), 0, "there is room");
        drop((go_on, reads));
        let read = async {
            loop {
                if let Ok(read) = history.of("x").await {
                    return read;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(20), read).await.expect("there is room for reads again");
        assert_eq!(read["breaks"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_full_history_goes_on_with_the_newest() {
        let mut connection = Connection::open_in_memory().unwrap();
        prepare(&connection).unwrap();
        connection.execute_batch("PRAGMA max_page_count = 100").unwrap();
        let name = |number: u32| format!("{number}-{}", "n".repeat(1000));
        for number in 0..1000 {
            let hold = Change::Hold {
                name: name(number),
                claim: String::new(),
                fence: None,
                kind: "mutex",
                holder: String::new(),
                reason: None,
                since: 0,
            };
            with_room(&mut connection, |connection| write(connection, std::slice::from_ref(&hold))).unwrap();
        }
        let holds = |number| read(&connection, &name(number)).unwrap()["holds"].as_array().unwrap().len();
        assert_eq!((holds(0), holds(999)), (0, 1));
    }

    #[test]
    fn a_file_of_an_earlier_version_is_used_and_a_break_is_listed_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        let earlier = "CREATE TABLE breaks (at_ms INTEGER NOT NULL, name TEXT NOT NULL, fence TEXT NOT NULL, by TEXT NOT NULL, why TEXT NOT NULL);
            INSERT INTO breaks VALUES (1, 'x', '7', 'ann', '')";
        connection.execute_batch(earlier).unwrap();
        prepare(&connection).unwrap();
        prepare(&connection).unwrap();
        for (at, outcome) in [(2, "asked"), (3, "released")] {
            write(&mut connection, &[broken(at, "c", "8", outcome)]).unwrap();
        }
        let breaks = read(&connection, "x").unwrap()["breaks"].clone();
        let list = breaks.as_array().unwrap();
        assert_eq!(
            (list.len(), &list[0]["outcome"], &list[1]["outcome"]),
            (2, &json!("asked"), &Value::Null),
            "{breaks}"
        );
    }
}
