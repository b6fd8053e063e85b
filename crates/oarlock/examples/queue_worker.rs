//! A web request takes a lock and puts the work into a queue. The worker of the queue continues with the same lock, so
//! that a second request for the same import is refused until the work is done.
//!
//! `cargo run -p oarlock --example queue_worker -- [--url URL]`. Not on ZooKeeper: its locks end with their session.

use std::sync::mpsc;
use std::time::Duration;

use oarlock::blocking::{self, Locks};
use oarlock::{Fence, Lifetime, LockTicket};

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error>;

/// The lease: longer than a message can wait in the queue, because no process renews the lock there.
const LONGEST_DELAY: Duration = Duration::from_secs(600);

fn main() -> Result<(), Failure> {
    let url = url::from_args()?;
    let (web, worker) = (blocking::connect(&url)?, blocking::connect(&url)?);
    let (queue, messages) = mpsc::channel();

    let Some(fence) = request(&web, &queue)? else { return Err("the first request was refused".into()) };
    println!("the request returns; the import is locked with fence {fence}");
    if request(&web, &queue)?.is_some() {
        return Err("two imports at the same time".into());
    }
    println!("a second request is refused: the import runs");

    let continued = work(&worker, &messages.recv()?)?;
    println!("the worker is done, with fence {continued}");
    let free = web.mutex("import/customers").try_lock()?.is_some();
    if free && continued == fence { Ok(()) } else { Err("the lock changed its fence, or was not released".into()) }
}

/// The web request: it does not wait for the import. The message is a secret: its reader can release the lock.
fn request(locks: &Locks, queue: &mpsc::Sender<String>) -> Result<Option<Fence>, Failure> {
    let import = locks.mutex("import/customers").lifetime(Lifetime::Lease).ttl(LONGEST_DELAY);
    let Some(guard) = import.try_lock()? else { return Ok(None) };
    let ticket = guard.hand_over()?; // until it is adopted, the lock lives for the rest of its lease
    queue.send(serde_json::to_string(&ticket)?)?;
    Ok(Some(ticket.fence()))
}

/// The worker, in another process: renews the lock from here on. `adopt` fails if the lease has ended meanwhile.
///
/// Deliver each message once. Two workers that adopt the same ticket both hold the lock, with the *same* fence, so that
/// no fence can tell them apart. With a queue that delivers again, delete the message before `adopt` (a worker that
/// dies after that loses the import), or note which tickets were adopted, in a table with a unique index.
fn work(locks: &Locks, message: &str) -> Result<Fence, Failure> {
    let ticket: LockTicket = serde_json::from_str(message)?;
    let guard = locks.adopt(&ticket)?;
    guard.check()?; // between the steps of the import
    let fence = guard.fence();
    guard.release()?;
    Ok(fence)
}
