//! Clearing up after others: files of dead sessions, and of names nobody used for a day.
//!
//! Done by whoever opens the store, at most once a minute and a little at a time.

use std::fs::{DirEntry, Metadata};
use std::path::Path;
use std::time::{Duration, SystemTime};

use oarlock_core::model::{Calls, FORGET_AFTER};

use crate::directory::open_or_create;
use crate::link::Link;
use crate::place::Place;

const EVERY: Duration = Duration::from_secs(60);
/// How many state files one sweep looks at.
const MAX_FILES: usize = 256;

/// Sweeps if it is time. Whatever fails is left to the next one.
pub(crate) fn run(link: &Link) {
    let mark = link.dir.swept();
    if std::fs::metadata(&mark).is_ok_and(|mark| age(&mark).is_some_and(|age| age < EVERY)) {
        return;
    }
    let Ok(file) = open_or_create(&mark) else { return };
    let _ = file.set_modified(SystemTime::now());
    let _ = link.sessions.sweep();
    // Start anywhere, so that a large store is swept all over in time.
    let first = link.session.id.to_be_bytes()[0];
    let mut left = MAX_FILES;
    for shard in (0..=u8::MAX).map(|step| first.wrapping_add(step)) {
        let Ok(folder) = std::fs::read_dir(link.dir.states(shard)) else { continue };
        for entry in folder.flatten() {
            if left == 0 {
                return;
            }
            left -= 1;
            if is_old(&entry) {
                forget(link, shard, &entry);
            }
        }
    }
}

fn age(file: &Metadata) -> Option<Duration> {
    file.modified().ok()?.elapsed().ok()
}

/// A hint that spares most files the lock; what the file says decides.
fn is_old(entry: &DirEntry) -> bool {
    entry.metadata().is_ok_and(|file| age(&file).is_some_and(|age| age >= FORGET_AFTER))
}

/// Removes a state file if nobody used it for a day, under its shard's lock: a process that has it open finds it
/// unlinked when it has the lock next.
fn forget(link: &Link, shard: u8, entry: &DirEntry) {
    let Ok(file) = entry.file_name().into_string() else { return };
    let Some(mut locks) = link.shards.try_enter(shard) else { return };
    // A shard that is in use is swept another time.
    let Ok(Some(_locked)) = locks.try_take() else { return };
    let path = entry.path();
    if Path::new(&file).extension().is_some_and(|extension| extension == "new") {
        // Nobody writes it while we have the lock: it was left by a kill.
        let _ = std::fs::remove_file(path);
        return;
    }
    let place = Place { shard, file };
    let Ok((_, Some(mut record))) = link.load(&mut locks, &place) else { return };
    let now = link.now();
    let mut calls = Calls::new();
    if record.boot != link.boot {
        record.resource.void_deadlines(now);
    }
    record.resource.expire(now, &mut calls);
    record.resource.end_sessions(now, &mut calls, |session| !link.sessions.is_dead(session));
    if record.resource.is_forgettable(now) {
        let _ = std::fs::remove_file(path);
    }
}
