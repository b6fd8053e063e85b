//! Removes the files of dead sessions, and of names that no process has used for a day.
//!
//! A process sweeps when it opens the store and while it uses it, but all processes together at most once a minute and
//! a part at a time. Each sweep goes on where the last sweep of any process stopped.

use std::fs::{DirEntry, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use oarlock_core::clock::Moment;
use oarlock_core::model::{FORGET_AFTER, Notified};

use crate::identity;
use crate::paths::Paths;
use crate::shard::Shard;
use crate::store::Store;

const EVERY: Duration = Duration::from_secs(60);
/// A session's file is kept for its longest lease and this time after it was last touched: a session in use touches it
/// [every minute](EVERY), and may have asked for a lease since.
const SPARE: Duration = Duration::from_secs(120);
/// A sweep ends after the shard in which it has removed this many state files,
const MAX_FORGOTTEN: usize = 256;
/// or in which it has seen this many. A shard is always swept to its end, so that no file is skipped forever.
const MAX_SEEN: usize = 4096;

/// When this process sweeps next.
#[derive(Debug)]
pub(crate) struct Next(AtomicU64);

impl Next {
    /// True for one caller when it is time.
    fn is_due(&self, now: Moment) -> bool {
        let next = self.0.load(Ordering::Relaxed);
        let after = (now + EVERY).as_nanos();
        now.as_nanos() >= next && self.0.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn after(now: Moment) -> Self {
        Self(AtomicU64::new((now + EVERY).as_nanos()))
    }
}

/// Sweeps on a thread of its own, at most once a minute in this process.
pub(crate) fn now_and_then(store: &Arc<Store>) {
    if !store.next_sweep.is_due(store.boot_now()) {
        return;
    }
    let store = Arc::downgrade(store);
    let _ = std::thread::Builder::new().name("oarlock-sweep".to_owned()).spawn(move || run(&store));
}

/// Touches the files of this process, and sweeps if no process has for a minute. The next sweep retries what fails.
///
/// The sweep keeps the store open for one shard at a time, so that dropping the store does not wait for the whole
/// sweep.
pub(crate) fn run(store: &Weak<Store>) {
    if let Some(store) = store.upgrade() {
        store.dir.protect();
        store.shards.recheck();
        let _ = store.session.touch();
    }
    let Some((mark, first)) = store.upgrade().and_then(|store| begin(&store)) else { return };
    let (mut forgotten, mut seen) = (0, 0);
    for shard in (0..=u8::MAX).map(|step| first.wrapping_add(step)) {
        let Some(store) = store.upgrade() else { return };
        let Ok(folder) = std::fs::read_dir(store.dir.states(shard)) else { continue };
        for entry in folder.flatten() {
            seen += 1;
            if is_old(&entry) && forget(&store, shard, &entry) {
                forgotten += 1;
            }
        }
        if forgotten >= MAX_FORGOTTEN || seen >= MAX_SEEN {
            let _ = mark.write_all_at(&[shard.wrapping_add(1)], 0);
            return;
        }
    }
}

/// Marks the begin of a sweep and removes files of dead sessions. Returns the first shard; `None` if it is not time.
fn begin(store: &Store) -> Option<(File, u8)> {
    let path = store.dir.swept();
    if std::fs::metadata(&path).is_ok_and(|mark| age(&mark).is_some_and(|age| age < EVERY)) {
        return None;
    }
    let mut mark = store.dir.access.open_or_create(&path).ok()?;
    let _ = identity::touch(&mark);
    let mut first = [0];
    let _ = mark.read(&mut first);
    let _ = store.sessions.sweep(SPARE);
    Some((mark, first[0]))
}

fn age(file: &Metadata) -> Option<Duration> {
    file.modified().ok()?.elapsed().ok()
}

/// Saves locking for most files. What the file says decides.
fn is_old(entry: &DirEntry) -> bool {
    entry.metadata().is_ok_and(|file| age(&file).is_some_and(|age| age >= FORGET_AFTER))
}

/// Removes a state file that no process has used for a day; true if it did. Under its shard's lock: a process that has
/// it open finds it unlinked at its next step.
fn forget(store: &Store, shard: u8, entry: &DirEntry) -> bool {
    let Ok(file) = entry.file_name().into_string() else { return false };
    let Some(mut locks) = store.shards.try_enter(shard) else { return false };
    // A shard in use is swept another time.
    let forgotten = match locks.try_take() {
        Ok(Some(_locked)) => forget_locked(store, &mut locks, &Paths { shard, file }, &entry.path()),
        _ => false,
    };
    locks.close_unless_kept();
    forgotten
}

fn forget_locked(store: &Store, locks: &mut Shard, paths: &Paths, path: &Path) -> bool {
    if path.extension().is_some_and(|extension| extension == "new") {
        // No process writes it while this one has the lock: a killed process left it.
        return std::fs::remove_file(path).is_ok();
    }
    let Ok((_, Some(record))) = store.load(locks, paths) else { return false };
    let now = store.now();
    let mut notified = Notified::new();
    let mut resource = store.of_this_boot(record, now);
    resource.expire(now, &mut notified);
    resource.end_sessions(now, &mut notified, |session| !store.sessions.is_dead(session));
    if resource.is_forgettable(now) {
        return std::fs::remove_file(path).is_ok();
    }
    // A lease of many days that no process renews must not look unused to cleaners of old files.
    let _ = identity::touch_path(path);
    false
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::SystemTime;

    use oarlock_core::clock::{BootClock, Clock};
    use oarlock_core::driver::{Attempt, End};
    use oarlock_core::{Claim, ClaimId, Lifetime, ResourceName};

    use super::*;
    use crate::config::Config;
    use crate::store::Needs;

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

    async fn open(dir: &Path, clock: Arc<Later>) -> Arc<Store> {
        Store::open_on(Config::new(dir), clock).await.unwrap()
    }

    async fn attempt(store: &Arc<Store>, claim: &Claim) {
        let (me, asked) = (store.session.id, claim.clone());
        let step = store
            .clone()
            .step(claim.resource.clone(), Needs::Session, move |r, now, notified| r.attempt(&asked, me, now, notified));
        assert!(matches!(step.await.unwrap().unwrap(), Attempt::Granted(_)));
    }

    async fn release(store: &Arc<Store>, claim: &Claim) {
        let (id, end) = (claim.id, End::Withdrawn);
        let step = store
            .clone()
            .step(claim.resource.clone(), Needs::Nothing, move |r, now, notified| r.release(id, &end, now, notified));
        step.await.unwrap();
    }

    fn claim(name: &str) -> Claim {
        Claim::new(ClaimId::from_bits(u128::from(name.len() as u64)), ResourceName::new(name).unwrap())
    }

    fn path(store: &Store, claim: &Claim) -> PathBuf {
        store.dir.state(&Paths::of(&claim.resource))
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
        let store = open(dir.path(), clock.clone()).await;
        let (unused, mut held, mut dead) = (claim("unused"), claim("held by lease"), claim("held by the dead"));
        (held.ttl, dead.ttl) = (2 * FORGET_AFTER, 2 * FORGET_AFTER);
        held.lifetime = Lifetime::Lease;
        attempt(&store, &unused).await;
        release(&store, &unused).await;
        attempt(&store, &held).await;
        let gone = open(dir.path(), clock.clone()).await;
        gone.session.add(&dead).unwrap();
        attempt(&gone, &dead).await;
        drop(gone);
        let files = [path(&store, &unused), path(&store, &held), path(&store, &dead)];

        age_files(dir.path(), &files);
        clock.0.store(23, Ordering::SeqCst);
        drop(open(dir.path(), clock.clone()).await);
        assert!(files.iter().all(|file| file.exists()), "too early");

        age_files(dir.path(), &files);
        clock.0.store(25, Ordering::SeqCst);
        drop(open(dir.path(), clock.clone()).await);
        assert_eq!(files.each_ref().map(|file| file.exists()), [false, true, false]);

        // The first store still has the removed file open: other processes must find what it writes now.
        attempt(&store, &unused).await;
        assert!(files[0].exists());
        let seen = open(dir.path(), clock).await.peek(&Paths::of(&unused.resource)).unwrap().unwrap();
        assert_eq!(seen.resource.entries().len(), 1);
    }

    #[tokio::test]
    async fn files_of_dead_processes_are_removed_and_those_of_live_ones_are_not() {
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

    /// Without its file a session is not known to be dead, and its claims would last as long as their leases.
    #[tokio::test]
    async fn the_file_of_a_dead_session_is_kept_while_its_leases_may_last() {
        let dir = tempfile::tempdir().unwrap();
        let gone = open(dir.path(), Arc::default()).await;
        let mut claim = claim("x");
        claim.ttl = 2 * FORGET_AFTER;
        gone.session.add(&claim).unwrap();
        let file = gone.sessions.file(gone.session.id);
        drop(gone);
        let sweep_at_age = async |age| {
            let _ = std::fs::remove_file(dir.path().join("swept"));
            let file = std::fs::File::options().write(true).open(&file).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            drop(open(dir.path(), Arc::default()).await);
        };
        sweep_at_age(claim.ttl).await;
        assert!(file.exists(), "its lease may have begun a minute after it was touched");
        assert!(!file.with_extension("sock").exists());
        sweep_at_age(claim.ttl + 2 * SPARE).await;
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn a_lease_of_many_days_does_not_look_unused() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), Arc::default()).await;
        let mut held = claim("x");
        (held.ttl, held.lifetime) = (10 * FORGET_AFTER, Lifetime::Lease);
        attempt(&store, &held).await;
        let file = path(&store, &held);
        age_files(dir.path(), std::slice::from_ref(&file));
        drop(open(dir.path(), Arc::default()).await);
        assert!(std::fs::metadata(&file).unwrap().modified().unwrap().elapsed().unwrap() < FORGET_AFTER);
    }

    #[tokio::test]
    async fn a_store_in_use_touches_its_files_and_notices_a_moved_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let clock = Arc::new(Later::default());
        let store = open(&root, clock.clone()).await;
        attempt(&store, &claim("x")).await;
        let file = store.sessions.file(store.session.id);
        for path in [file.clone(), file.with_extension("sock")] {
            let long_ago = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        run(&Arc::downgrade(&store));
        for path in [file.clone(), file.with_extension("sock")] {
            let stat = std::fs::symlink_metadata(&path).unwrap();
            assert!(stat.modified().unwrap().elapsed().unwrap() < EVERY, "{path:?}");
        }
        std::fs::rename(&root, dir.path().join("moved")).unwrap();
        let other = open(&root, clock).await;
        run(&Arc::downgrade(&store));
        assert!(file.exists(), "its session is not among those of its directory");
        // In the same shard, whose file is open since before the move.
        let shard = Paths::of(&claim("x").resource).shard;
        let locked = other.shards.enter(shard).await.try_take().unwrap().unwrap();
        let both = store.shards.enter(shard).await.try_take().unwrap();
        assert!(both.is_none(), "two processes are inside of one shard");
        drop(locked);
        let later = (0..100_000).map(|number| claim(&format!("later {number}")));
        let later = later.into_iter().find(|claim| Paths::of(&claim.resource).shard == shard).unwrap();
        attempt(&store, &later).await;
        let seen = other.peek(&Paths::of(&later.resource)).unwrap();
        assert!(seen.is_some(), "the store still uses the moved directory");
    }

    /// Creates so many leftover files in the folder of a shard.
    fn fill(dir: &Path, shard: u8, count: usize) -> Vec<PathBuf> {
        let folder = dir.join(format!("state/{shard:02x}"));
        std::fs::create_dir_all(&folder).unwrap();
        let files: Vec<_> = (0..count).map(|n| folder.join(format!("{n:04}.new"))).collect();
        files.iter().for_each(|file| std::fs::write(file, "").unwrap());
        files
    }

    #[tokio::test]
    async fn files_in_use_do_not_hide_old_ones_and_the_next_sweep_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let open = || open(dir.path(), Arc::default());
        drop(open().await);
        let young = fill(dir.path(), 3, 2 * MAX_FORGOTTEN);
        let many = fill(dir.path(), 7, MAX_FORGOTTEN + 1);
        let late = fill(dir.path(), 9, 1);
        age_files(dir.path(), &[many.clone(), late.clone()].concat());
        let left = |files: &[PathBuf]| files.iter().filter(|file| file.exists()).count();

        drop(open().await);
        assert_eq!([left(&young), left(&many), left(&late)], [young.len(), 0, 1]);
        // The mark says where to go on.
        let mark = std::fs::File::options().write(true).open(dir.path().join("swept")).unwrap();
        assert_eq!(std::fs::read(dir.path().join("swept")).unwrap(), [8]);
        mark.set_modified(SystemTime::now() - EVERY).unwrap();
        drop(open().await);
        assert_eq!([left(&young), left(&late)], [young.len(), 0]);
    }

    #[tokio::test]
    async fn a_store_that_is_used_for_long_sweeps_too() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(Later::default());
        let store = open(dir.path(), clock.clone()).await;
        let old = fill(dir.path(), 3, 1);
        age_files(dir.path(), &old);
        attempt(&store, &claim("x")).await;
        assert!(!store.next_sweep.is_due(store.now().boot), "too early");
        clock.0.store(1, Ordering::SeqCst);
        attempt(&store, &claim("longer")).await;
        assert!(!store.next_sweep.is_due(store.now().boot), "twice");
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while old[0].exists() {
            assert!(std::time::Instant::now() < until, "not swept");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
