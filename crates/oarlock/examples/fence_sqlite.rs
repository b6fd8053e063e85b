//! A holder is paused for longer than its lease, and writes before it looks. The database refuses the write, because the
//! row already has a larger fence.
//!
//! `cargo run -p oarlock --example fence_sqlite -- [--url URL]`. `paused_holder` shows the same with a real SIGSTOP.

use std::time::Duration;

use oarlock::Fence;
use rusqlite::{Connection, params};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let locks = oarlock::blocking::connect(url::from_args()?)?;
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL);
         INSERT INTO account VALUES (7, 100, 0);",
    )?;

    let lease = Duration::from_secs(1);
    let paused = locks.mutex("account/7").ttl(lease).no_renewal().lock()?;
    println!("the first holder has fence {}, and pauses", paused.fence());

    let next = locks.mutex("account/7").lock()?; // granted when the lease of the first has ended
    println!("the second holder has fence {}", next.fence());
    if !set_balance(&database, 70, next.fence())? {
        return Err("the write of the holder was refused".into());
    }

    // The first holder wakes up and writes what it computed before its pause.
    if set_balance(&database, 90, paused.fence())? {
        return Err("the late write was accepted".into());
    }
    println!("the late write of the first holder is refused; had it looked: held = {}", paused.is_held());
    let balance: i64 = database.query_row("SELECT balance FROM account WHERE id = 7", [], |row| row.get(0))?;
    println!("the balance is {balance}");
    next.release()?;
    if balance == 70 { Ok(()) } else { Err("the write of the second holder is gone".into()) }
}

/// Writes if no holder with a larger fence has written before: the check and the write are one statement.
fn set_balance(database: &Connection, balance: i64, fence: Fence) -> rusqlite::Result<bool> {
    let changed = database.execute(
        "UPDATE account SET balance = ?1, fence = ?2 WHERE id = 7 AND fence <= ?2",
        params![balance, i64::from(fence)],
    )?;
    Ok(changed == 1)
}
