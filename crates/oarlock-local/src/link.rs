//! One process's way to the store: everything that is open, and the step that all verbs are made of.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use oarlock_core::clock::{BootClock, Clock};
use oarlock_core::model::{Calls, Now, Resource};
use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use tokio::sync::oneshot;

use crate::blockers::Watches;
use crate::config::Config;
use crate::directory::{Access, Directory};
use crate::error::{SCHEME, foreign, os};
use crate::listen::Listener;
use crate::place::Place;
use crate::post::Post;
use crate::session::{Session, Sessions};
use crate::shard::{Locked, Shard, Shards};
use crate::state::{Next, Record, StateFile, Unread};
use crate::turn::{self, Handed};
use crate::watch::Hub;
use crate::{boot, sweep};

/// How often a file is read anew when somebody writes it at the same time.
const READS: usize = 8;

/// Who may make a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A store whose session is open, and stays so until the step is made.
    Session,
    /// Any store, also a closed one.
    Nothing,
    /// The same, and what is written must be on the disk before it is answered.
    Disk,
}

/// Whom a step concerns.
#[derive(Debug, Default)]
struct News {
    /// Who should look again.
    calls: Calls,
    /// Who was granted.
    handed: Vec<Handed>,
}

/// What is open.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) dir: Arc<Directory>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) session: Session,
    pub(crate) hub: Arc<Hub>,
    pub(crate) boot: Arc<str>,
    clock: Arc<dyn Clock>,
    pub(crate) shards: Shards,
    pub(crate) next_sweep: sweep::Next,
    post: Post,
    /// How often the disk was waited for.
    syncs: AtomicU64,
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Arc<Self>> {
        Self::open_on(config, Arc::new(BootClock)).await
    }

    /// Opens the store on a clock that tests can move.
    pub(crate) async fn open_on(config: Config, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        offload(move || {
            let access = if config.group { Access::Group } else { Access::Owner };
            let dir = Arc::new(Directory::prepare(&config.dir, access)?);
            let sessions = Arc::new(Sessions::open(&dir.sessions, access)?);
            let (session, socket) = Session::start(sessions.clone(), config.inherit)?;
            let listener = Listener::new(socket).map_err(|error| os("cannot open a pipe", error))?;
            let post = Post::open(sessions.clone()).map_err(|error| os("cannot open a socket", error))?;
            let link = Arc::new(Self {
                hub: Hub::new(sessions.clone(), listener),
                boot: boot::id()
                    .map(Into::into)
                    .map_err(|error| os("cannot tell which start of the machine this is", error))?,
                next_sweep: sweep::Next::after(clock.now()),
                clock,
                shards: Shards::new(dir.clone()),
                post,
                syncs: AtomicU64::new(0),
                session,
                sessions,
                dir,
            });
            sweep::run(&Arc::downgrade(&link));
            Ok(link)
        })?
        .await
    }

    pub(crate) fn now(&self) -> Now {
        Now { boot: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    /// One atomic step on one resource; whoever it concerns is told.
    pub(crate) async fn step<T: Send + 'static>(
        self: Arc<Self>,
        name: ResourceName,
        needs: Needs,
        run: impl FnOnce(&mut Resource, Now, &mut Calls) -> T + Send + 'static,
    ) -> Result<T> {
        self.sessions.check_ours()?;
        sweep::now_and_then(&self);
        let place = Place::of(&name);
        let mut shard = self.shards.enter(place.shard).await;
        // A disk takes milliseconds.
        if needs != Needs::Disk
            && let Some(locked) = shard.try_take()?
        {
            return self.finish(&mut shard, locked, &place, (&name, needs), run);
        }
        // Another process is at it, for microseconds or, if it is stopped, for long: not on the runtime's time.
        offload(move || {
            let locked = shard.take()?;
            self.finish(&mut shard, locked, &place, (&name, needs), run)
        })?
        .await
    }

    fn finish<T>(
        &self,
        shard: &mut Shard,
        locked: Locked,
        place: &Place,
        (name, needs): (&ResourceName, Needs),
        run: impl FnOnce(&mut Resource, Now, &mut Calls) -> T,
    ) -> Result<T> {
        let mut news = News::default();
        let answer = self.locked_step(shard, place, (name, needs), run, &mut news);
        drop(locked);
        self.tell(news);
        let answer = match &shard.last {
            // Others need not wait for the disk: they see what was written all the same.
            Some((_, file)) if needs == Needs::Disk && answer.is_ok() => {
                self.syncs.fetch_add(1, Ordering::Relaxed);
                file.sync().and(answer)
            }
            _ => answer,
        };
        shard.tidy();
        answer
    }

    /// Tells the claims that a step concerns.
    fn tell(&self, News { calls, handed }: News) {
        if !handed.is_empty() {
            let mine = self.post.hand(handed, self.session.id);
            self.hub.hand(mine.into_iter().map(|handed| (handed.claim, handed.word)));
        }
        if !calls.is_empty() {
            let mine = self.post.send(&calls, self.session.id);
            self.hub.tell(mine);
        }
    }

    fn locked_step<T>(
        &self,
        shard: &mut Shard,
        place: &Place,
        (name, needs): (&ResourceName, Needs),
        run: impl FnOnce(&mut Resource, Now, &mut Calls) -> T,
        News { calls, handed }: &mut News,
    ) -> Result<T> {
        // The wait for the shard may have been long, and the store closed meanwhile.
        let _open = if needs == Needs::Session { Some(self.session.keep_open()?) } else { None };
        let (file, record) = self.load(shard, place)?;
        // Read under the lock, so that time goes forward from one step to the next.
        let now = self.now();
        let version = record.as_ref().map(Record::version);
        let mut resource = match record {
            Some(record) if record.name != *name => return Err(foreign(&self.dir.state(place), "holds another name")),
            Some(record) => self.of_this_boot(record, now),
            None => Resource::default(),
        };
        let watches = Watches::of(resource.entries());
        let answer = run(&mut resource, now, calls);
        let me = self.session.id;
        *handed = turn::hand(&mut resource, now, calls, |session| session == me || self.post.reaches(session));
        watches.call_changed(resource.entries(), calls);
        if version.is_none() && resource.is_free() && resource.last_fence().is_none() {
            return Ok(answer);
        }
        let next = Next { name: name.clone(), boot: self.boot.clone(), resource };
        let path = || self.dir.state(place);
        let written = StateFile::write(file, path, version, next, &mut shard.buffer, self.dir.access);
        match written {
            Ok(file) => shard.last = Some((place.file.clone(), file)),
            Err(error) => {
                calls.clear();
                handed.clear();
                return Err(error);
            }
        }
        Ok(answer)
    }

    /// What a record says, with deadlines that mean something.
    pub(crate) fn of_this_boot(&self, record: Record, now: Now) -> Resource {
        let mut resource = record.resource;
        if record.boot != self.boot {
            // No process has survived, whatever is left of its session's file.
            resource.end_sessions(now, &mut Calls::new(), |_| false);
            resource.void_deadlines(now);
        }
        resource
    }

    /// The file of a name and what it says; the shard's lock must be had.
    pub(crate) fn load(&self, shard: &mut Shard, place: &Place) -> Result<(Option<StateFile>, Option<Record>)> {
        if let Some((_, mut file)) = shard.last.take_if(|(kept, _)| *kept == place.file) {
            match file.read(&mut shard.buffer) {
                Ok(record) => return Ok((Some(file), record)),
                Err(Unread::Unlinked) => {}
                Err(Unread::Damaged(error) | Unread::Failed(error)) => return Err(error),
            }
        }
        let Some(mut file) = StateFile::open(self.dir.state(place))? else { return Ok((None, None)) };
        match file.read(&mut shard.buffer) {
            Ok(record) => Ok((Some(file), record)),
            // Only possible if somebody removes files by hand.
            Err(Unread::Unlinked) => Ok((None, None)),
            Err(Unread::Damaged(error) | Unread::Failed(error)) => Err(error),
        }
    }

    /// What a state file says, without its lock: for showing, never for deciding. `None` if it says nothing.
    pub(crate) fn peek(&self, place: &Place) -> Result<Option<Record>> {
        let mut buffer = Vec::new();
        let mut torn = None;
        for _ in 0..READS {
            let Some(mut file) = StateFile::open_to_show(self.dir.state(place))? else { return Ok(None) };
            match file.read(&mut buffer) {
                Ok(record) => return Ok(record),
                Err(Unread::Unlinked) => {}
                Err(Unread::Damaged(error)) => torn = Some(error),
                Err(Unread::Failed(error)) => return Err(error),
            }
        }
        match torn {
            Some(error) => Err(error),
            None => Err(Error::new(ErrorKind::Os, "the state file is replaced all the time").on(SCHEME).retry_now()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// Runs what may block on a thread of its own.
///
/// Not on the runtime's pool: a runtime waits for its pool when it is dropped, and a stopped process elsewhere must not
/// keep this one from ending.
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
    let gone = |_| Error::new(ErrorKind::Internal, "a step ended without an answer").on(SCHEME).applied_unknown();
    Ok(async move { answered.await.map_err(gone)? })
}

impl fmt::Display for Link {
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

    /// After a power loss no process is left that could remember what was done.
    #[tokio::test]
    async fn a_memo_is_on_the_disk_before_it_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let store = Local::open(Config::new(dir.path())).await.unwrap();
        let claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("x").unwrap());
        let syncs = || store.link.syncs.load(Ordering::Relaxed);
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
