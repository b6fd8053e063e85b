//! An open store: its files, sockets and threads, and the atomic step that every verb is made of.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::model::{Notified, Now, Resource};
use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use tokio::sync::oneshot;

use crate::blockers::Watches;
use crate::config::Config;
use crate::directory::{Access, Directory};
use crate::error::{SCHEME, foreign, os};
use crate::events::EventThread;
use crate::notify::Notifier;
use crate::paths::Paths;
use crate::session::{Session, Sessions};
use crate::shard::{Locked, Shard, Shards};
use crate::state::{Next, Record, StateFile, Unread};
use crate::turn::{self, Handed};
use crate::watch::Hub;
use crate::{boot, sweep};

/// What a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A session that is open and stays open until the step is done.
    Session,
    /// Nothing: a closed store can make the step too.
    Nothing,
    /// As `Nothing`, and what was written must be on the disk before the answer.
    Disk,
}

/// The notifications that a step causes.
#[derive(Debug, Default)]
struct Notifications {
    /// Claims that must attempt again.
    notified: Notified,
    /// Claims that the step granted to.
    handed: Vec<Handed>,
}

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) dir: Arc<Directory>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) session: Session,
    pub(crate) hub: Arc<Hub>,
    pub(crate) boot: Arc<str>,
    clock: Arc<dyn Clock>,
    pub(crate) shards: Shards,
    pub(crate) next_sweep: sweep::Next,
    notifier: Notifier,
    /// Counts syncs to the disk.
    syncs: AtomicU64,
}

impl Store {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        Self::open_on(config, Arc::new(BootClock)).await
    }

    /// Opens the store with a clock that tests can move.
    pub(crate) async fn open_on(config: Config, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        offload(move || {
            let access = if config.group { Access::Group } else { Access::Owner };
            let dir = Arc::new(Directory::prepare(&config.dir, access)?);
            let sessions = Arc::new(Sessions::open(&dir.sessions, access)?);
            let (session, socket) = Session::start(sessions.clone(), config.inherit)?;
            let events = EventThread::new(socket).map_err(|error| os("cannot open a pipe", error))?;
            let notifier = Notifier::open(sessions.clone()).map_err(|error| os("cannot open a socket", error))?;
            let store = Arc::new(Self {
                hub: Hub::new(sessions.clone(), events),
                boot: boot::id()
                    .map(Into::into)
                    .map_err(|error| os("cannot read the boot id of the machine", error))?,
                next_sweep: sweep::Next::after(clock.now()),
                clock,
                shards: Shards::new(dir.clone()),
                notifier,
                syncs: AtomicU64::new(0),
                session,
                sessions,
                dir,
            });
            sweep::run(&Arc::downgrade(&store));
            Ok(store)
        })?
        .await
    }

    pub(crate) fn now(&self) -> Now {
        Now { boot: self.boot_now(), wall_micros: self.clock.wall_micros() }
    }

    pub(crate) fn boot_now(&self) -> Moment {
        self.clock.now()
    }

    /// Makes one atomic step on one resource, and sends the notifications that it causes.
    pub(crate) async fn step<T: Send + 'static>(
        self: Arc<Self>,
        name: ResourceName,
        needs: Needs,
        run: impl FnOnce(&mut Resource, Now, &mut Notified) -> T + Send + 'static,
    ) -> Result<T> {
        self.sessions.check_ours()?;
        sweep::now_and_then(&self);
        let paths = Paths::of(&name);
        let mut shard = self.shards.enter(paths.shard).await;
        // A sync to the disk takes milliseconds: not on the runtime's thread.
        if needs != Needs::Disk
            && let Some(locked) = shard.try_take()?
        {
            return self.finish(&mut shard, locked, &paths, (&name, needs), run);
        }
        // Another process has the shard: for microseconds or, if it is stopped, for long. Do not block the runtime.
        offload(move || {
            let locked = shard.take()?;
            self.finish(&mut shard, locked, &paths, (&name, needs), run)
        })?
        .await
    }

    fn finish<T>(
        &self,
        shard: &mut Shard,
        locked: Locked,
        paths: &Paths,
        (name, needs): (&ResourceName, Needs),
        run: impl FnOnce(&mut Resource, Now, &mut Notified) -> T,
    ) -> Result<T> {
        let mut notifications = Notifications::default();
        let answer = self.locked_step(shard, paths, (name, needs), run, &mut notifications);
        drop(locked);
        self.notify(notifications);
        let answer = match &shard.last {
            // Other processes see what was written before it is on the disk, and need not wait.
            Some((_, file)) if needs == Needs::Disk && answer.is_ok() => {
                self.syncs.fetch_add(1, Ordering::Relaxed);
                file.sync().and(answer)
            }
            _ => answer,
        };
        shard.tidy();
        answer
    }

    /// Sends the notifications of a step.
    fn notify(&self, Notifications { notified, handed }: Notifications) {
        if !handed.is_empty() {
            let mine = self.notifier.send_grants(handed, self.session.id);
            self.hub.notify_granted(mine.into_iter().map(|handed| (handed.claim, handed.grant)));
        }
        if !notified.is_empty() {
            let mine = self.notifier.send_hints(&notified, self.session.id);
            self.hub.notify(mine);
        }
    }

    fn locked_step<T>(
        &self,
        shard: &mut Shard,
        paths: &Paths,
        (name, needs): (&ResourceName, Needs),
        run: impl FnOnce(&mut Resource, Now, &mut Notified) -> T,
        Notifications { notified, handed }: &mut Notifications,
    ) -> Result<T> {
        // The store may have been closed during a long wait for the shard.
        let _open = if needs == Needs::Session { Some(self.session.keep_open()?) } else { None };
        let (file, record) = self.load(shard, paths)?;
        // Read under the lock, so that time never goes back from one step to the next.
        let now = self.now();
        let version = record.as_ref().map(Record::version);
        let mut resource = match record {
            Some(record) if record.name != *name => {
                return Err(foreign(&self.dir.state(paths), "holds the state of another name"));
            }
            Some(record) => self.of_this_boot(record, now),
            None => Resource::default(),
        };
        let watches = Watches::of(resource.entries());
        let answer = run(&mut resource, now, notified);
        let me = self.session.id;
        *handed = turn::hand(&mut resource, now, notified, |session| session == me || self.notifier.reaches(session));
        watches.notify_changed(resource.entries(), notified);
        if version.is_none() && resource.is_free() && resource.last_fence().is_none() {
            return Ok(answer);
        }
        let next = Next { name: name.clone(), boot: self.boot.clone(), resource };
        let path = || self.dir.state(paths);
        let written = StateFile::write(file, path, version, next, &mut shard.buffers.1, self.dir.access);
        match written {
            Ok(file) => shard.last = Some((paths.file.clone(), file)),
            Err(error) => {
                notified.clear();
                handed.clear();
                return Err(error);
            }
        }
        Ok(answer)
    }

    /// The resource of a record. Deadlines from before the last boot are replaced: they mean nothing now.
    pub(crate) fn of_this_boot(&self, record: Record, now: Now) -> Resource {
        record.of_boot(&self.boot, now)
    }

    /// Opens and reads the state file of a name. The caller must have the shard's lock.
    pub(crate) fn load(&self, shard: &mut Shard, paths: &Paths) -> Result<(Option<StateFile>, Option<Record>)> {
        if let Some((_, mut file)) = shard.last.take_if(|(kept, _)| *kept == paths.file) {
            match file.read(&mut shard.buffers.0) {
                Ok(record) => return Ok((Some(file), record)),
                Err(Unread::Unlinked) => {}
                Err(Unread::Damaged(error) | Unread::Failed(error)) => return Err(error),
            }
        }
        let Some(mut file) = StateFile::open(self.dir.state(paths))? else { return Ok((None, None)) };
        match file.read(&mut shard.buffers.0) {
            Ok(record) => Ok((Some(file), record)),
            // Only possible if a user or another program removes files.
            Err(Unread::Unlinked) => Ok((None, None)),
            Err(Unread::Damaged(error) | Unread::Failed(error)) => Err(error),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// Runs blocking work on a thread of its own.
///
/// Not on the runtime's pool: a runtime that is dropped waits for its pool, and another process that is stopped must
/// not keep this one from ending.
pub(crate) fn offload<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<impl Future<Output = Result<T>> + Send> {
    let (answer, answered) = oneshot::channel();
    let run = move || {
        let _ = answer.send(work());
    };
    std::thread::Builder::new()
        .name("oarlock-step".to_owned())
        .spawn(run)
        .map_err(|error| os("cannot start a thread", error))?;
    let gone = |_| {
        Error::new(ErrorKind::Internal, "the thread of this request ended without an answer")
            .on(SCHEME)
            .applied_unknown()
    };
    Ok(async move { answered.await.map_err(gone)? })
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dir.root.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::driver::{Driver as _, End};
    use oarlock_core::{Claim, ClaimId};

    use super::*;
    use crate::Local;

    /// After a power loss no process remembers the memo.
    #[tokio::test]
    async fn a_memo_is_on_the_disk_before_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let store = Local::open(Config::new(dir.path())).await.unwrap();
        let claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("x").unwrap());
        let syncs = || store.store.syncs.load(Ordering::Relaxed);
        store.attempt(&claim).await.unwrap();
        store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(syncs(), 0);
        store.attempt(&claim).await.unwrap();
        let mut renewal = oarlock_core::driver::Renewal::of(Arc::new(claim.clone()));
        renewal.memo = Some(b"slot 7".as_slice().into());
        store.renew(&[renewal]).await.remove(0).unwrap();
        assert_eq!(syncs(), 1);
        store.release(&claim.resource, claim.id, &End::Done { memo: Some(b"slot 8".as_slice().into()) }).await.unwrap();
        assert_eq!(syncs(), 2);
    }
}
