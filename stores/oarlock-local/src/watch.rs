//! The verb `watch`, and the watches of this process.
//!
//! Claims are notified by [datagram](crate::notify). What comes for a claim before its watch is armed is
//! [kept](crate::expected) for it. inotify reports the end of sessions and changes of files. Without inotify (on other
//! systems, or when the user has no instance left) a thread waits for the end of each watched session, and the engine's
//! slow poll notices the rest.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::clock::Moment;
use oarlock_core::driver::{Grant, Hint, HintSender, Interest, Waiters, Watch};
use oarlock_core::model::Session;
use oarlock_core::{ClaimId, Result};

use crate::blockers::from_cursor;
use crate::events::EventThread;
use crate::expected::Received;
use crate::inotify::Inotify;
use crate::paths::Paths;
use crate::session::{Life, Sessions};
use crate::store::Store;
use crate::turn::TurnGrant;

/// The most threads that wait for the end of a session, without inotify. The slow poll notices the end of others.
const MAX_WAITED_FOR: usize = 64;
/// The most session files that stay watched after their last listener is gone.
const MAX_WATCHED_ENDS: usize = 64;
/// Enough to wait for a lock and notify.
const WAITER_STACK: usize = 128 * 1024;

/// The watches of this process.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) sessions: Arc<Sessions>,
    /// The claims and mailboxes of this process, notified by datagram.
    pub(crate) waiters: Waiters<Received>,
    inner: Mutex<Inner>,
    pub(crate) inotify: Inotify,
    events: EventThread,
}

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    last_key: u64,
    /// By the inotify descriptor of a file or folder.
    files: HashMap<i32, Vec<FileListener>>,
    /// The inotify descriptors of session files. They stay watched when their last listener is gone: in a queue that
    /// goes round, the same sessions are watched again and again.
    sessions: HashMap<Session, i32>,
    /// By the session whose end a thread waits for, without inotify. The thread goes on when its last listener is gone.
    waited_for: HashMap<Session, Vec<Listener>>,
}

/// The sending side of one watch.
#[derive(Clone, Debug)]
struct Listener {
    key: u64,
    hints: HintSender,
    hint: Hint,
}

impl Listener {
    fn notify(&self) {
        // False if the watch was dropped, which needs no more hints.
        self.hints.send(self.hint);
    }
}

/// What a listener wants to know about a file or folder.
#[derive(Clone, Debug)]
struct FileListener {
    listener: Listener,
    about: About,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    /// The end of this session.
    End(Session),
    /// The end of any session.
    AnyEnd,
    /// Changes of the file of this name in a folder.
    Change(OsString),
}

impl Store {
    /// Arms a watch.
    pub(crate) fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.session.check()?;
        match interest {
            Interest::Turn(claim, cursor) => Ok(self.hub.turn(claim.id, &from_cursor(cursor))),
            Interest::Mailbox => Ok(self.hub.mailbox()),
            Interest::Resource(name) => {
                let paths = Paths::of(name);
                let folder = self.dir.states(paths.shard);
                self.dir.access.make(&folder).map_err(|error| error.about(name))?;
                Ok(self.hub.file(&folder, &paths.file))
            }
        }
    }
}

impl Hub {
    pub(crate) fn new(sessions: Arc<Sessions>, events: EventThread) -> Arc<Self> {
        Arc::new(Self {
            sessions,
            waiters: Waiters::default(),
            inner: Mutex::default(),
            inotify: Inotify::default(),
            events,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for the turn of a claim, and for the end of these sessions.
    pub(crate) fn turn(self: &Arc<Self>, id: ClaimId, ends: &[Session]) -> Watch {
        let (listener, listeners) = self.listen(Some(id));
        let mut inner = self.lock();
        if inner.closed {
            return listeners.into_watch();
        }
        let expected = self.waiters.arm(id, listener.hints.clone(), |_| ());
        let mut missed = false;
        for session in ends {
            if inner.add_to_watched_end(*session, &listener) {
                continue;
            }
            // A missing file belongs to a dead session: the next attempt finds that out.
            if !self.watch_file(&mut inner, &self.sessions.file(*session), About::End(*session), &listener) {
                self.wait_for(&mut inner, *session, &listener);
            }
            // No attempt follows for this claim, so it must be notified of an end that came before the watch.
            missed |= expected && self.sessions.is_dead(*session);
        }
        if missed {
            listener.notify();
        }
        drop(inner);
        self.events.start(self);
        listeners.into_watch()
    }

    /// Keeps the notifications for this claim, from before it asks the state file. False if none can be received.
    pub(crate) fn expect(&self, id: ClaimId) -> bool {
        self.events.receives() && self.waiters.expect(id, Received::begin)
    }

    /// The grant that came for this claim with a notification. The claim then waits no longer.
    pub(crate) fn handed(&self, id: ClaimId, now: impl FnOnce() -> Moment) -> Option<Grant> {
        let grant = self.waiters.kept(id, |received| received.take_grant(now())).flatten()?;
        self.waiters.forget(id);
        Some(grant)
    }

    /// Watches for notifications to claims of this store's session that have no watch of their own.
    pub(crate) fn mailbox(self: &Arc<Self>) -> Watch {
        let watch = self.waiters.mailbox();
        self.events.start(self);
        watch
    }

    /// Watches for changes of a file in a folder, and for the end of any session: it may be that of a holder.
    pub(crate) fn file(self: &Arc<Self>, folder: &Path, file: &str) -> Watch {
        let (listener, mut listeners) = self.listen(None);
        let mut inner = self.lock();
        if inner.closed {
            return listeners.into_watch();
        }
        self.watch_file(&mut inner, folder, About::Change(file.into()), &listener);
        self.watch_file(&mut inner, self.sessions.path(), About::AnyEnd, &listener);
        // Without inotify nothing else keeps the stream from ending.
        listeners.keeps_open = Some(listener.hints);
        drop(inner);
        self.events.start(self);
        listeners.into_watch()
    }

    fn listen(self: &Arc<Self>, claim: Option<ClaimId>) -> (Listener, ListenerStream) {
        let (sender, hints) = Watch::channel();
        let mut inner = self.lock();
        inner.last_key += 1;
        let key = inner.last_key;
        drop(inner);
        let listener = Listener { key, hints: sender, hint: claim.map_or(Hint::ANY, Hint::about) };
        (listener, ListenerStream { key, hints, hub: self.clone(), keeps_open: None })
    }

    /// Lets inotify watch a file or folder for a listener. False if it cannot.
    fn watch_file(&self, inner: &mut Inner, path: &Path, about: About, listener: &Listener) -> bool {
        let is_first = self.inotify.fd().is_none();
        let Some(descriptor) = self.inotify.add(path) else { return false };
        if let About::End(session) = about {
            if inner.sessions.len() >= MAX_WATCHED_ENDS {
                inner.sessions.clear();
                inner.disarm(&self.inotify);
            }
            inner.sessions.insert(session, descriptor);
        }
        inner.files.entry(descriptor).or_default().push(FileListener { listener: listener.clone(), about });
        if is_first {
            self.events.reload();
        }
        true
    }

    /// Lets a thread wait for the end of a session that inotify does not watch.
    fn wait_for(self: &Arc<Self>, inner: &mut Inner, session: Session, listener: &Listener) {
        if let Some(listeners) = inner.waited_for.get_mut(&session) {
            listeners.push(listener.clone());
            return;
        }
        // If the file is missing, only the lease can end what the session holds.
        if inner.waited_for.len() >= MAX_WAITED_FOR || self.sessions.life(session) != Life::Alive {
            return;
        }
        // A waiting thread must not keep a closed store in memory.
        let (sessions, hub) = (self.sessions.clone(), Arc::downgrade(self));
        let wait = move || {
            sessions.wait_for_end(session);
            let Some(hub) = hub.upgrade() else { return };
            let listeners = hub.lock().waited_for.remove(&session);
            listeners.iter().flatten().for_each(Listener::notify);
        };
        let thread = std::thread::Builder::new().name("oarlock-end".to_owned()).stack_size(WAITER_STACK);
        if thread.spawn(wait).is_ok() {
            inner.waited_for.insert(session, vec![listener.clone()]);
        }
    }

    /// Notifies these claims to attempt again.
    pub(crate) fn notify(&self, ids: impl IntoIterator<Item = ClaimId>) {
        ids.into_iter().for_each(|id| _ = self.waiters.notify(id, Received::call));
    }

    /// Notifies these claims of their grants.
    pub(crate) fn notify_granted(&self, granted: impl IntoIterator<Item = (ClaimId, TurnGrant)>) {
        for (id, grant) in granted {
            self.waiters.notify(id, |received| received.grant(grant));
        }
    }

    /// Notifies every watch, after events or datagrams were lost.
    pub(crate) fn notify_all(&self) {
        let mut inner = self.lock();
        // The lost events may include the end of a session.
        inner.sessions.clear();
        self.waiters.notify_all();
        inner.files.values().flatten().for_each(|file| file.listener.notify());
    }

    /// inotify reports a change. `file` is the name inside a folder; `ended` says that the file was closed or removed.
    pub(crate) fn file_changed(self: &Arc<Self>, descriptor: i32, file: Option<&OsStr>, ended: bool) {
        let mut inner = self.lock();
        if ended {
            // The next watch must open the file by its name: it may be a new one.
            inner.sessions.retain(|_, watched| *watched != descriptor);
        }
        let Some(listeners) = inner.files.get(&descriptor) else { return };
        let mut session = None;
        for FileListener { listener, about } in listeners {
            match about {
                About::Change(name) if file.is_some_and(|file| file == name) => listener.notify(),
                About::Change(_) => {}
                About::End(watched) => session = Some(*watched),
                About::AnyEnd => session = file.and_then(|file| u128::from_str_radix(file.to_str()?, 16).ok()),
            }
        }
        drop(inner);
        if let Some(session) = session.filter(|_| ended) {
            self.session_ended(session);
        }
    }

    /// The last descriptor of a session's file was closed. The kernel reports that just before it drops the lock. A
    /// waiter that is notified too early would find the session alive, so a thread waits for the lock first if it is
    /// not free yet.
    fn session_ended(self: &Arc<Self>, session: Session) {
        if self.sessions.is_dead(session) {
            self.notify_end(session);
            return;
        }
        let hub = self.clone();
        let wait = move || {
            hub.sessions.wait_for_end(session);
            hub.notify_end(session);
        };
        let _ = std::thread::Builder::new().name("oarlock-end".to_owned()).spawn(wait);
    }

    fn notify_end(&self, session: Session) {
        let inner = self.lock();
        let concerned = |about: &About| matches!(about, About::AnyEnd) || *about == About::End(session);
        inner.files.values().flatten().filter(|file| concerned(&file.about)).for_each(|file| file.listener.notify());
    }

    /// inotify watches a file no longer: it was removed.
    pub(crate) fn watch_removed(&self, descriptor: i32) {
        let mut inner = self.lock();
        inner.sessions.retain(|_, watched| *watched != descriptor);
        for file in inner.files.remove(&descriptor).into_iter().flatten() {
            file.listener.notify();
        }
    }

    /// Ends every watch.
    pub(crate) fn close(&self) {
        if !self.sessions.is_ours() {
            return;
        }
        let mut inner = self.lock();
        *inner = Inner { closed: true, last_key: inner.last_key, ..Inner::default() };
        self.waiters.end();
        self.events.stop();
    }

    fn forget(&self, key: u64) {
        // A forked child shares the inotify instance of its parent, and a thread that the child lacks may have this
        // lock.
        if !self.sessions.is_ours() {
            return;
        }
        let mut inner = self.lock();
        inner.waited_for.values_mut().for_each(|listeners| listeners.retain(|listener| listener.key != key));
        inner.files.values_mut().for_each(|files| files.retain(|file| file.listener.key != key));
        inner.disarm(&self.inotify);
    }
}

impl Inner {
    /// Adds a listener to a session whose end is watched already. False if it is not.
    fn add_to_watched_end(&mut self, session: Session, listener: &Listener) -> bool {
        let files = self.sessions.get(&session).and_then(|descriptor| self.files.get_mut(descriptor));
        files.map(|files| files.push(FileListener { listener: listener.clone(), about: About::End(session) })).is_some()
    }

    /// Stops watching the files that no listener needs.
    fn disarm(&mut self, inotify: &Inotify) {
        let Self { files, sessions, .. } = self;
        files.retain(|descriptor, files| {
            let used = !files.is_empty() || sessions.values().any(|watched| watched == descriptor);
            if !used {
                inotify.remove(*descriptor);
            }
            used
        });
    }
}

/// The stream of one watch; dropping it disarms the watch.
struct ListenerStream {
    key: u64,
    hints: Watch,
    hub: Arc<Hub>,
    keeps_open: Option<HintSender>,
}

impl ListenerStream {
    fn into_watch(self) -> Watch {
        Watch::new(self)
    }
}

impl Stream for ListenerStream {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.hints.poll_changed(cx)
    }
}

impl Drop for ListenerStream {
    fn drop(&mut self) {
        self.hub.forget(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session as Own;

    /// The kernel reports that a session's file was closed before it drops the lock: a waiter would find the session
    /// alive.
    #[tokio::test]
    async fn the_end_of_a_session_is_notified_after_its_lock_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Arc::new(Sessions::open(dir.path(), crate::directory::Access::Owner).unwrap());
        let (session, _socket) = Own::start(sessions.clone(), false).unwrap();
        let hub = Hub::new(sessions.clone(), EventThread::new(None).unwrap());
        let (listener, mut listeners) = hub.listen(None);
        hub.lock().files.insert(1, vec![FileListener { listener, about: About::End(session.id) }]);
        // A session without claims would leave no proof of its end.
        let claim = oarlock_core::Claim::new(ClaimId::from_bits(1), oarlock_core::ResourceName::new("x").unwrap());
        session.add(&claim).unwrap();
        hub.file_changed(1, None, true);
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), listeners.hints.changed()).await;
        assert!(early.is_err(), "notified while the lock was held");
        session.end();
        assert!(listeners.hints.changed().await.is_some());
        assert!(sessions.is_dead(session.id));
    }

    #[tokio::test]
    async fn without_inotify_the_end_of_a_session_is_notified_too() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Arc::new(Sessions::open(dir.path(), crate::directory::Access::Owner).unwrap());
        let (session, _socket) = Own::start(sessions.clone(), false).unwrap();
        let (other, _other_socket) = Own::start(sessions.clone(), false).unwrap();
        let events = EventThread::new(None).unwrap();
        let hub = Arc::new(Hub {
            sessions,
            waiters: Waiters::default(),
            inner: Mutex::default(),
            inotify: Inotify::unavailable(),
            events,
        });
        let turn = |id, of: &Own| hub.turn(ClaimId::from_bits(id), &[of.id]);
        let (mut first, mut second, mut elsewhere) = (turn(1, &session), turn(2, &session), turn(3, &other));
        drop(turn(4, &session));
        assert_eq!(hub.lock().waited_for.get(&session.id).map(Vec::len), Some(2));
        session.end();
        assert_eq!(first.changed().await, Some(Hint::about(ClaimId::from_bits(1))));
        assert_eq!(second.changed().await, Some(Hint::about(ClaimId::from_bits(2))));
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(50), elsewhere.changed()).await;
        assert!(quiet.is_err(), "notified of the end of another session");
        hub.close();
        assert_eq!(elsewhere.changed().await, None);
    }
}
