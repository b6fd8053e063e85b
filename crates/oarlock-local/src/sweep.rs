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
use crate::shard::Shard;

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
    if let Ok(Some(_locked)) = locks.try_take() {
        forget_locked(link, &mut locks, &Place { shard, file }, &entry.path());
    }
    locks.close_unless_kept();
}

fn forget_locked(link: &Link, locks: &mut Shard, place: &Place, path: &Path) {
    if path.extension().is_some_and(|extension| extension == "new") {
        // Nobody writes it while we have the lock: it was left by a kill.
        let _ = std::fs::remove_file(path);
        return;
    }
    let Ok((_, Some(record))) = link.load(locks, place) else { return };
    let now = link.now();
    let mut calls = Calls::new();
    let mut resource = link.of_this_boot(record, now);
    resource.expire(now, &mut calls);
    resource.end_sessions(now, &mut calls, |session| !link.sessions.is_dead(session));
    if resource.is_forgettable(now) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use oarlock_core::clock::{BootClock, Clock, Moment};
    use oarlock_core::driver::{Attempt, End};
    use oarlock_core::{Claim, ClaimId, ResourceName, Tether};

    use super::*;
    use crate::config::Config;
    use crate::link::Needs;

    /// The machine's clock, some hours on.
    #[derive(Debug, Default)]
    struct Later(AtomicU64);

    impl Later {
        fn span(&self) -> Duration {
            Duration::from_secs(3600 * self.0.load(Ordering::SeqCst))
        }
    }

    impl Clock for Later {
        fn now(&self) -> Moment {
            BootClock.now() + self.span()
        }

        fn wall_micros(&self) -> u64 {
            BootClock.wall_micros() + u64::try_from(self.span().as_micros()).unwrap()
        }
    }

    async fn open(dir: &Path, clock: Arc<Later>) -> Arc<Link> {
        Link::open_on(Config::new(dir), clock).await.unwrap()
    }

    async fn attempt(link: &Arc<Link>, claim: &Claim) {
        let (me, asked) = (link.session.id, claim.clone());
        let step = link
            .clone()
            .step(claim.resource.clone(), Needs::Session, move |r, now, calls| r.attempt(&asked, me, now, calls));
        assert!(matches!(step.await.unwrap().unwrap(), Attempt::Granted(_)));
    }

    async fn release(link: &Arc<Link>, claim: &Claim) {
        let (id, end) = (claim.id, End::Withdrawn);
        let step = link
            .clone()
            .step(claim.resource.clone(), Needs::Nothing, move |r, now, calls| r.release(id, &end, now, calls));
        step.await.unwrap();
    }

    fn claim(name: &str) -> Claim {
        Claim::new(ClaimId::from_bits(u128::from(name.len() as u64)), ResourceName::new(name).unwrap())
    }

    fn path(link: &Link, claim: &Claim) -> PathBuf {
        link.dir.state(&Place::of(&claim.resource))
    }

    /// Lets the next sweep come, and files look as old as they would be then.
    fn age_files(dir: &Path, files: &[PathBuf]) {
        let _ = std::fs::remove_file(dir.join("swept"));
        for file in files {
            let file = std::fs::File::options().write(true).open(file).unwrap();
            file.set_modified(SystemTime::now() - FORGET_AFTER).unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_unused_for_a_day_is_forgotten_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(Later::default());
        let link = open(dir.path(), clock.clone()).await;
        let (unused, mut held, mut dead) = (claim("unused"), claim("held by lease"), claim("held by the dead"));
        (held.ttl, dead.ttl) = (2 * FORGET_AFTER, 2 * FORGET_AFTER);
        held.tether = Tether::Lease;
        attempt(&link, &unused).await;
        release(&link, &unused).await;
        attempt(&link, &held).await;
        let gone = open(dir.path(), clock.clone()).await;
        attempt(&gone, &dead).await;
        drop(gone);
        let files = [path(&link, &unused), path(&link, &held), path(&link, &dead)];

        age_files(dir.path(), &files);
        clock.0.store(23, Ordering::SeqCst);
        drop(open(dir.path(), clock.clone()).await);
        assert!(files.iter().all(|file| file.exists()), "too early");

        age_files(dir.path(), &files);
        clock.0.store(25, Ordering::SeqCst);
        drop(open(dir.path(), clock.clone()).await);
        assert_eq!(files.each_ref().map(|file| file.exists()), [false, true, false]);

        // The first store still has the forgotten file open: what it writes now must be found by others.
        attempt(&link, &unused).await;
        assert!(files[0].exists());
        let seen = open(dir.path(), clock).await.peek(&Place::of(&unused.resource)).unwrap().unwrap();
        assert_eq!(seen.resource.entries().len(), 1);
    }

    #[tokio::test]
    async fn what_the_dead_leave_is_removed_and_the_living_are_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let living = open(dir.path(), Arc::default()).await;
        for left in ["0123", "0123.sock", "4567.new", "89ab.sock"] {
            std::fs::write(dir.path().join("session").join(left), "").unwrap();
        }
        let mut half_written = path(&living, &claim("x"));
        std::fs::create_dir_all(half_written.parent().unwrap()).unwrap();
        half_written.set_extension("new");
        std::fs::write(&half_written, "half").unwrap();
        age_files(dir.path(), std::slice::from_ref(&half_written));
        drop(open(dir.path(), Arc::default()).await);
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path().join("session")).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        let file = living.sessions.file(living.session.id);
        assert_eq!(left, [file.clone(), file.with_extension("sock")]);
        assert!(!half_written.exists());
        assert!(!living.sessions.is_dead(living.session.id));
    }
}
