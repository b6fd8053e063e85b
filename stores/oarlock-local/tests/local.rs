//! The embedded store against real files and real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "in tests, also outside test functions")]

#[path = "local/cleaner.rs"]
mod cleaner;
#[path = "local/crash.rs"]
mod crash;
#[path = "local/death.rs"]
mod death;
#[path = "local/directory.rs"]
mod directory;
#[path = "local/exclusion.rs"]
mod exclusion;
#[path = "local/files.rs"]
mod files;
#[path = "local/forked.rs"]
mod forked;
#[path = "local/group.rs"]
mod group;
#[path = "local/handed.rs"]
mod handed;
#[path = "local/helper.rs"]
mod helper;
#[path = "local/names.rs"]
mod names;
#[path = "local/queue.rs"]
mod queue;
#[path = "local/stall.rs"]
mod stall;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oarlock_core::driver::{Attempt, Cursor, Grant, Interest, Pending, Release, Watch};
use oarlock_core::driver::{Driver, End};
use oarlock_core::state::{Query, ResourceState};
use oarlock_core::{Claim, ClaimId, ResourceName};
use oarlock_local::{Config, Local};
use tempfile::TempDir;

/// Long enough for a machine under load, short enough to tell a hang: nothing passes by waiting for it.
const PATIENCE: Duration = Duration::from_secs(120);

fn temp() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn open(dir: &Path) -> Local {
    Local::open(Config::new(dir)).await.unwrap()
}

fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

/// A claim with an id of its own, also among several processes.
fn claim(text: &str) -> Claim {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let next = u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    Claim::new(ClaimId::from_bits(u128::from(std::process::id()) << 64 | next), name(text))
}

fn waiting(text: &str) -> Claim {
    let mut claim = claim(text);
    claim.wait = true;
    claim
}

async fn granted(store: &Local, claim: &Claim) -> Grant {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Pending(pending) => panic!("not granted: {pending:?}"),
    }
}

async fn pending(store: &Local, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("granted: {grant:?}"),
    }
}

async fn release(store: &Local, claim: &Claim) -> Release {
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap()
}

async fn show(store: &Local, text: &str) -> ResourceState {
    store.inspect(&Query::name(name(text))).await.unwrap().resources.remove(0)
}

async fn turn(store: &Local, claim: &Claim, cursor: Cursor) -> Watch {
    store.watch(&Interest::Turn(Arc::new(claim.clone()), cursor)).await.unwrap()
}

async fn hint(watch: &mut Watch) {
    tokio::time::timeout(PATIENCE, watch.changed()).await.expect("no hint came").expect("the watch ended");
}

/// Waits for its turn as the engine does: attempt, arm, attempt again, wait for a hint. Never polls.
async fn take_turn(store: &Local, claim: &Claim) -> Grant {
    let mut armed: Option<(Cursor, Watch)> = None;
    loop {
        let pending = match store.attempt(claim).await.unwrap() {
            Attempt::Granted(grant) => return grant,
            Attempt::Pending(pending) => pending,
        };
        match &mut armed {
            Some((cursor, watch)) if *cursor == pending.cursor => hint(watch).await,
            _ => armed = Some((pending.cursor.clone(), turn(store, claim, pending.cursor).await)),
        }
    }
}
