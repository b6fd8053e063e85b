//! Who waits for news inside this process, and the streams on which they get it.
//!
//! Claims are told by [datagram](crate::post), and what came for a claim before its watch was armed is [kept](crate::expect)
//! for it. Deaths and changes of files are seen by inotify: one instance per open
//! store, made when first needed. Without inotify (on other systems, or where the user has no instance left) a thread
//! waits for the end of each watched session, and the engine's slow poll notices the rest.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::ClaimId;
use oarlock_core::clock::Moment;
use oarlock_core::driver::{Grant, Hint, HintSender, Listeners, Watch};
use oarlock_core::model::Session;

use crate::expect::Expected;
use crate::listen::{Listener, Sight};
use crate::session::{Life, Sessions};
use crate::turn::{Answer, Word};

/// How many sessions are waited for by threads, where there is no inotify; the slow poll has to do for more.
const MAX_WAITED_FOR: usize = 64;
/// How many session files are watched at most after the last ear for them is gone.
const MAX_SEEN_ENDS: usize = 64;
/// Enough to wait for a lock and pass it on.
const WAITER_STACK: usize = 128 * 1024;

/// Everyone in this process who waits for news.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) sessions: Arc<Sessions>,
    inner: Mutex<Inner>,
    pub(crate) sight: Sight,
    listener: Listener,
}

#[derive(Debug, Default)]
struct Inner {
    closed: bool,
    last_key: u64,
    turns: HashMap<ClaimId, Ear>,
    expected: Expected,
    mailboxes: Listeners,
    /// By the number inotify gave to a file or folder.
    files: HashMap<i32, Vec<FileEar>>,
    /// The numbers of session files. They are watched on when their last ear is gone: in a queue that goes round, the same
    /// sessions are watched again and again.
    sessions: HashMap<Session, i32>,
    /// By the session whose end a thread waits for, as inotify does not. A thread waits on when its last ear is gone.
    waited_for: HashMap<Session, Vec<Ear>>,
}

/// Where one watch hears.
#[derive(Clone, Debug)]
struct Ear {
    key: u64,
    hints: HintSender,
    hint: Hint,
}

impl Ear {
    fn tell(&self) {
        // Whoever dropped the watch wants to hear no more.
        self.hints.send(self.hint);
    }
}

/// What is watched about a file or folder, and for whom.
#[derive(Clone, Debug)]
struct FileEar {
    ear: Ear,
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

impl Hub {
    pub(crate) fn new(sessions: Arc<Sessions>, listener: Listener) -> Arc<Self> {
        Arc::new(Self { sessions, inner: Mutex::default(), sight: Sight::default(), listener })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch for the turn of a claim, which also fires when one of these sessions ends.
    pub(crate) fn turn(self: &Arc<Self>, id: ClaimId, ends: &[Session]) -> Watch {
        let (ear, ears) = self.ear(Some(id));
        let mut inner = self.lock();
        if inner.closed {
            return ears.into_watch();
        }
        inner.turns.insert(id, ear.clone());
        let kept = inner.expected.take_call(id);
        let mut missed = kept == Some(true);
        for session in ends {
            if inner.sees_end(*session, &ear) {
                continue;
            }
            // A file that is missing belongs to a dead session: the attempt that follows finds that out.
            if !self.see(&mut inner, &self.sessions.file(*session), About::End(*session), &ear) {
                self.wait_for(&mut inner, *session, &ear);
            }
            // A claim that does not look again must be told of an end that came before the watch.
            missed |= kept.is_some() && self.sessions.is_dead(*session);
        }
        if missed {
            ear.tell();
        }
        drop(inner);
        self.listener.start(self);
        ears.into_watch()
    }

    /// Keeps what this claim will be told, from before it asks the state file. False if it would not be heard.
    pub(crate) fn expect(&self, id: ClaimId) -> bool {
        let mut inner = self.lock();
        let hears = !inner.closed && self.listener.hears();
        if hears {
            inner.expected.begin(id);
        }
        hears
    }

    /// The state file said that an expected claim waits.
    pub(crate) fn answered(&self, id: ClaimId, answer: Answer) {
        self.lock().expected.answered(id, answer);
    }

    /// This claim waits no longer.
    pub(crate) fn unexpect(&self, id: ClaimId) {
        self.lock().expected.forget(id);
    }

    /// The grant that this claim was handed with its turn.
    pub(crate) fn handed(&self, id: ClaimId, now: Moment) -> Option<Grant> {
        self.lock().expected.take_grant(id, now)
    }

    /// A watch for whatever concerns the claims of this store's session.
    pub(crate) fn mailbox(self: &Arc<Self>) -> Watch {
        let inner = self.lock();
        let watch = if inner.closed { Watch::ended() } else { inner.mailboxes.watch() };
        drop(inner);
        self.listener.start(self);
        watch
    }

    /// A watch for changes of a file in a folder, and for the end of any session: it may have been a holder's.
    pub(crate) fn file(self: &Arc<Self>, folder: &Path, file: &str) -> Watch {
        let (ear, mut ears) = self.ear(None);
        let mut inner = self.lock();
        if inner.closed {
            return ears.into_watch();
        }
        self.see(&mut inner, folder, About::Change(file.into()), &ear);
        self.see(&mut inner, self.sessions.path(), About::AnyEnd, &ear);
        // Nothing else keeps the stream from ending where there is no inotify.
        ears.silence = Some(ear.hints);
        drop(inner);
        self.listener.start(self);
        ears.into_watch()
    }

    fn ear(self: &Arc<Self>, claim: Option<ClaimId>) -> (Ear, Ears) {
        let (hints, heard) = Watch::channel();
        let mut inner = self.lock();
        inner.last_key += 1;
        let key = inner.last_key;
        drop(inner);
        let ear = Ear { key, hints, hint: Hint { claim } };
        (ear, Ears { key, claim, heard, hub: self.clone(), silence: None })
    }

    /// Whether inotify tells about it from now on.
    fn see(&self, inner: &mut Inner, path: &Path, about: About, ear: &Ear) -> bool {
        let was_blind = self.sight.eye().is_none();
        let Some(number) = self.sight.add(path) else { return false };
        if let About::End(session) = about {
            if inner.sessions.len() >= MAX_SEEN_ENDS {
                inner.sessions.clear();
                inner.disarm(&self.sight);
            }
            inner.sessions.insert(session, number);
        }
        inner.files.entry(number).or_default().push(FileEar { ear: ear.clone(), about });
        if was_blind {
            self.listener.reload();
        }
        true
    }

    /// Lets a thread wait for the end of a session that cannot be seen.
    fn wait_for(self: &Arc<Self>, inner: &mut Inner, session: Session, ear: &Ear) {
        if let Some(ears) = inner.waited_for.get_mut(&session) {
            ears.push(ear.clone());
            return;
        }
        // Where the file is missing only the lease can end what the session holds.
        if inner.waited_for.len() >= MAX_WAITED_FOR || self.sessions.life(session) != Life::Alive {
            return;
        }
        // A closed store does not live on for the sake of a session that goes on.
        let (sessions, hub) = (self.sessions.clone(), Arc::downgrade(self));
        let wait = move || {
            sessions.wait_for_end(session);
            let Some(hub) = hub.upgrade() else { return };
            let ears = hub.lock().waited_for.remove(&session);
            ears.iter().flatten().for_each(Ear::tell);
        };
        let thread = std::thread::Builder::new().name("oarlock-end".to_owned()).stack_size(WAITER_STACK);
        if thread.spawn(wait).is_ok() {
            inner.waited_for.insert(session, vec![ear.clone()]);
        }
    }

    /// Passes on that these claims should look again.
    pub(crate) fn tell(&self, ids: impl IntoIterator<Item = ClaimId>) {
        let mut inner = self.lock();
        for id in ids {
            let kept = inner.expected.call(id);
            inner.tell(id, kept);
        }
    }

    /// Passes on that these claims were handed their turns.
    pub(crate) fn hand(&self, handed: impl IntoIterator<Item = (ClaimId, Word)>) {
        let mut inner = self.lock();
        for (id, word) in handed {
            let kept = inner.expected.hand(id, word);
            inner.tell(id, kept);
        }
    }

    /// Some news were lost: everyone looks again.
    pub(crate) fn tell_all(&self) {
        let mut inner = self.lock();
        // Ends may be among what was lost.
        inner.sessions.clear();
        inner.expected.call_all();
        inner.turns.values().for_each(Ear::tell);
        inner.mailboxes.tell(Hint::ANY);
        inner.files.values().flatten().for_each(|file| file.ear.tell());
    }

    /// Something happened to what inotify calls `number`; `file` is the name inside a folder, and `ended` says that it
    /// was closed or removed.
    pub(crate) fn saw(self: &Arc<Self>, number: i32, file: Option<&OsStr>, ended: bool) {
        let mut inner = self.lock();
        if ended {
            // From now on it has to be looked at anew: it may have been made again.
            inner.sessions.retain(|_, watched| *watched != number);
        }
        let Some(ears) = inner.files.get(&number) else { return };
        let mut session = None;
        for FileEar { ear, about } in ears {
            match about {
                About::Change(name) if file.is_some_and(|file| file == name) => ear.tell(),
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

    /// The last descriptor of a session's file was closed. The kernel says so just before it drops the lock, so look
    /// whether it has, and if not wait for it elsewhere: whoever is told too early would find the session alive.
    fn session_ended(self: &Arc<Self>, session: Session) {
        if self.sessions.is_dead(session) {
            self.tell_of_end(session);
            return;
        }
        let hub = self.clone();
        let wait = move || {
            hub.sessions.wait_for_end(session);
            hub.tell_of_end(session);
        };
        let _ = std::thread::Builder::new().name("oarlock-end".to_owned()).spawn(wait);
    }

    fn tell_of_end(&self, session: Session) {
        let inner = self.lock();
        let concerned = |about: &About| matches!(about, About::AnyEnd) || *about == About::End(session);
        inner.files.values().flatten().filter(|file| concerned(&file.about)).for_each(|file| file.ear.tell());
    }

    /// inotify no longer knows `number`: what it stood for is gone.
    pub(crate) fn unsaw(&self, number: i32) {
        let mut inner = self.lock();
        inner.sessions.retain(|_, watched| *watched != number);
        for file in inner.files.remove(&number).into_iter().flatten() {
            file.ear.tell();
        }
    }

    /// Ends every watch.
    pub(crate) fn close(&self) {
        if !self.sessions.is_ours() {
            return;
        }
        let mut inner = self.lock();
        *inner = Inner { closed: true, last_key: inner.last_key, ..Inner::default() };
        self.listener.stop();
    }

    fn forget(&self, key: u64, claim: Option<ClaimId>) {
        // A forked child shares the inotify instance of its parent, and a thread that it lacks may have had the lock.
        if !self.sessions.is_ours() {
            return;
        }
        let mut inner = self.lock();
        if let Some(id) = claim
            && inner.turns.get(&id).is_some_and(|ear| ear.key == key)
        {
            inner.turns.remove(&id);
        }
        inner.waited_for.values_mut().for_each(|ears| ears.retain(|ear| ear.key != key));
        inner.files.values_mut().for_each(|files| files.retain(|file| file.ear.key != key));
        inner.disarm(&self.sight);
    }
}

impl Inner {
    /// Whether the end of this session is seen already; then this ear hears of it.
    fn sees_end(&mut self, session: Session, ear: &Ear) -> bool {
        let files = self.sessions.get(&session).and_then(|number| self.files.get_mut(number));
        files.map(|files| files.push(FileEar { ear: ear.clone(), about: About::End(session) })).is_some()
    }

    /// Stops to watch what is of no use to any ear.
    fn disarm(&mut self, sight: &Sight) {
        let Self { files, sessions, .. } = self;
        files.retain(|number, files| {
            let used = !files.is_empty() || sessions.values().any(|watched| watched == number);
            if !used {
                sight.remove(*number);
            }
            used
        });
    }

    /// Tells the watch of a claim; what is `kept` will be found by the watch that is armed next.
    fn tell(&mut self, id: ClaimId, kept: bool) {
        if let Some(turn) = self.turns.get(&id) {
            turn.tell();
            self.expected.take_call(id);
        } else if !kept {
            self.mailboxes.tell(Hint::about(id));
        }
    }
}

/// The stream of one watch; dropping it disarms the watch.
struct Ears {
    key: u64,
    claim: Option<ClaimId>,
    heard: Watch,
    hub: Arc<Hub>,
    silence: Option<HintSender>,
}

impl Ears {
    fn into_watch(self) -> Watch {
        Watch::new(self)
    }
}

impl Stream for Ears {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.heard.poll_changed(cx)
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.hub.forget(self.key, self.claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session as Own;

    /// The kernel says that a session's file was closed before it drops the lock: whoever is told then finds it alive.
    #[tokio::test]
    async fn an_end_is_told_once_the_lock_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Arc::new(Sessions::open(dir.path(), crate::directory::Access::Owner).unwrap());
        let (session, _socket) = Own::start(sessions.clone(), false).unwrap();
        let hub = Hub::new(sessions.clone(), Listener::new(None).unwrap());
        let (ear, mut ears) = hub.ear(None);
        hub.lock().files.insert(1, vec![FileEar { ear, about: About::End(session.id) }]);
        // A session without claims would leave no proof of its end.
        let claim = oarlock_core::Claim::new(ClaimId::from_bits(1), oarlock_core::ResourceName::new("x").unwrap());
        session.stands(&claim).unwrap();
        hub.saw(1, None, true);
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), ears.heard.changed()).await;
        assert!(early.is_err(), "told while the lock was held");
        session.end();
        assert!(ears.heard.changed().await.is_some());
        assert!(sessions.is_dead(session.id));
    }

    #[tokio::test]
    async fn without_inotify_an_end_is_told_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let sessions = Arc::new(Sessions::open(dir.path(), crate::directory::Access::Owner).unwrap());
        let (session, _socket) = Own::start(sessions.clone(), false).unwrap();
        let (other, _other_socket) = Own::start(sessions.clone(), false).unwrap();
        let listener = Listener::new(None).unwrap();
        let hub = Arc::new(Hub { sessions, inner: Mutex::default(), sight: Sight::blind(), listener });
        let turn = |id, of: &Own| hub.turn(ClaimId::from_bits(id), &[of.id]);
        let (mut first, mut second, mut elsewhere) = (turn(1, &session), turn(2, &session), turn(3, &other));
        drop(turn(4, &session));
        assert_eq!(hub.lock().waited_for.get(&session.id).map(Vec::len), Some(2));
        session.end();
        assert_eq!(first.changed().await, Some(Hint { claim: Some(ClaimId::from_bits(1)) }));
        assert_eq!(second.changed().await, Some(Hint { claim: Some(ClaimId::from_bits(2)) }));
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(50), elsewhere.changed()).await;
        assert!(quiet.is_err(), "told of the end of another session");
        hub.close();
        assert_eq!(elsewhere.changed().await, None);
    }
}
