//! One session per open store: a file that is flock'd for life, so that the kernel itself tells when its process died.
//!
//! A session is dead when its file is there and its flock can be had. A file that is *missing* proves nothing: a cleaner
//! of old files may have removed it while its process lives. Then the lease decides, and a living process makes its file
//! anew. Probing takes a *shared* flock, so that probers do not take each other for the living. The file is locked before
//! it gets its name: by its name it is never seen unlocked while its process lives.
//!
//! For the same reason a session that ends with claims leaves its file, unlocked, as the proof of its death. The file
//! says for how many seconds such a proof is needed: the longest lease that the session asked for.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use oarlock_core::model::Session as SessionId;
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Result, Tether};

use crate::directory::Access;
use crate::error::{SCHEME, closed, os, os_at};
use crate::identity;

/// The longest path a socket address takes, with its final zero.
const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 108 } else { 104 };

/// How many files of other sessions are kept open.
const MAX_SEEN: usize = if cfg!(target_os = "linux") { 64 } else { 16 };

/// The length of what a session file says: seconds, as text, for those who look at it by hand.
const LEASE_DIGITS: usize = 20;

/// The folder of all sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    path: PathBuf,
    folder: File,
    opened_by: u32,
    access: Access,
    /// Files of sessions that were alive when they were last looked at.
    seen: Mutex<HashMap<SessionId, File>>,
}

/// What is known of the process of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It lives, or this cannot be found out.
    Alive,
    /// Its lock is free.
    Dead,
    /// Its file is missing: only its leases can tell.
    Unknown,
}

impl Sessions {
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self> {
        let folder = File::open(path).map_err(|error| os_at("open", path, error))?;
        Ok(Self { path: path.to_owned(), folder, opened_by: std::process::id(), access, seen: Mutex::default() })
    }

    /// Whether this is the process that opened the store. A forked child shares the descriptors of its parent, and with
    /// them every lock: what it unlocked, its parent would lose.
    pub(crate) fn is_ours(&self) -> bool {
        self.opened_by == std::process::id()
    }

    /// Refuses what only the process that opened the store may do.
    pub(crate) fn check_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let parent = self.opened_by;
        Err(closed(&format!("process {parent} opened this store, and a forked child cannot use it: open another one")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self, id: SessionId) -> PathBuf {
        self.path.join(format!("{id:032x}"))
    }

    fn socket(&self, id: SessionId) -> PathBuf {
        self.path.join(format!("{id:032x}.sock"))
    }

    /// A path to the socket that is short enough for its address.
    pub(crate) fn socket_address(&self, id: SessionId) -> PathBuf {
        self.address(self.socket(id))
    }

    fn address(&self, path: PathBuf) -> PathBuf {
        if path.as_os_str().as_bytes().len() < MAX_SOCKET_PATH {
            return path;
        }
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        path.file_name().map(|name| folder.join(name)).unwrap_or(folder)
    }

    /// Whether the process of this session is known to be gone.
    pub(crate) fn is_dead(&self, id: SessionId) -> bool {
        self.life(id) == Life::Dead
    }

    /// What is known of the process of this session.
    pub(crate) fn life(&self, id: SessionId) -> Life {
        if self.lives_on(id) {
            return Life::Alive;
        }
        let path = self.file(id);
        match File::open(&path) {
            // A file that was removed and made again meanwhile is unlocked for another reason.
            Ok(file) if is_free(&file) => match identity::is_at(&file, &path) {
                Ok(true) => Life::Dead,
                Ok(false) | Err(_) => Life::Unknown,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Life::Unknown,
            Ok(file) => {
                self.keep(id, file);
                Life::Alive
            }
            Err(_) => Life::Alive,
        }
    }

    /// Whether a session that was seen alive still is.
    fn lives_on(&self, id: SessionId) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = seen.get(&id).is_some_and(is_locked);
        if !lives {
            // Dead, or its file was removed and made again.
            seen.remove(&id);
        }
        lives
    }

    /// Keeps the file of a session that is alive: the next look need not find it.
    fn keep(&self, id: SessionId, file: File) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MAX_SEEN {
            seen.clear();
        }
        seen.insert(id, file);
    }

    /// Blocks this thread until the session is dead.
    pub(crate) fn wait_for_end(&self, id: SessionId) {
        if let Ok(file) = File::open(self.file(id)) {
            while file.lock_shared().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
        }
    }

    /// Removes the files that dead sessions left behind. `spare` is added to the time for which they are needed.
    pub(crate) fn sweep(&self, spare: Duration) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                // A live session may have lost its file; its socket still has a reader.
                let session = path.with_extension("");
                if !session.exists() && !session.with_extension("new").exists() && self.is_refused(&path) {
                    let _ = std::fs::remove_file(&path);
                }
                continue;
            }
            let Ok(file) = File::open(&path) else { continue };
            if is_free(&file) && identity::is_at(&file, &path).unwrap_or(false) {
                let _ = std::fs::remove_file(path.with_extension("sock"));
                if path.extension().is_some() || !is_needed(&file, spare) {
                    // Still locked: whoever made a session but did not announce it yet finds that it has to start over.
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
        Ok(())
    }

    /// Whether no process reads from this socket.
    fn is_refused(&self, path: &Path) -> bool {
        let tried = UnixDatagram::unbound().and_then(|socket| socket.connect(self.address(path.to_owned())));
        tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Whether claims may still stand that this dead session's file proves to be over.
fn is_needed(file: &File, spare: Duration) -> bool {
    let mut text = [0; LEASE_DIGITS];
    let Ok(length) = file.read_at(&mut text, 0) else { return false };
    let seconds = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim().parse().ok());
    let Some(lease) = seconds.map(Duration::from_secs) else { return false };
    let age = file.metadata().and_then(|file| file.modified()).ok().and_then(|then| then.elapsed().ok());
    age.is_none_or(|age| age < lease.saturating_add(spare))
}

/// Whether a process has this file locked.
fn is_locked(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Whether nobody has this file locked; if so, it is locked by this descriptor, shared with others who look.
fn is_free(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

/// The session of one open store.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    sessions: Arc<Sessions>,
    file: RwLock<Option<File>>,
    inherit: bool,
    /// The longest lease asked for so far, in seconds; the file says the same.
    longest: AtomicU64,
    /// Claims that end with this session.
    standing: Mutex<HashSet<ClaimId>>,
}

impl Session {
    /// Starts a session, with the socket on which it is told things.
    pub(crate) fn start(sessions: Arc<Sessions>, inherit: bool) -> Result<(Self, Option<UnixDatagram>)> {
        loop {
            let id = random_id()?;
            let mut socket = None;
            let bound = |sessions: &Sessions| {
                let address = sessions.socket_address(id);
                socket = bind(&address)?;
                // By its own path: a mode is not set through a link in /proc.
                let path = sessions.socket(id);
                let opened = if socket.is_some() { sessions.access.open_up(&path) } else { Ok(()) };
                opened.map_err(|error| os_at("open up", &path, error))
            };
            if let Some(file) = announce(&sessions, id, inherit, 0, bound)? {
                let session = Self {
                    id,
                    sessions,
                    file: RwLock::new(Some(file)),
                    inherit,
                    longest: AtomicU64::new(0),
                    standing: Mutex::default(),
                };
                return Ok((session, socket));
            }
            let _ = std::fs::remove_file(sessions.socket(id));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<File>> {
        self.file.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to go on once the session has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.sessions.check_ours()?;
        self.keep_open().map(drop)
    }

    /// [Checks](Self::check), and keeps the session from being ended by this process until the answer is dropped.
    pub(crate) fn keep_open(&self) -> Result<KeptOpen<'_>> {
        for _ in 0..identity::REOPENS {
            let kept = self.read();
            let Some(file) = &*kept else { return Err(closed("this store was closed")) };
            match identity::is_unlinked(file) {
                Ok(false) => return Ok(KeptOpen(kept)),
                Ok(true) => {}
                Err(error) => return Err(os("cannot look at the session file", error)),
            }
            drop(kept);
            self.restore()?;
        }
        Err(identity::removed_all_the_time(&self.sessions.file(self.id)))
    }

    /// Makes the file of this session anew if it was removed. Others took this session for neither dead nor alive
    /// meanwhile.
    pub(crate) fn restore(&self) -> Result<()> {
        let mut kept = self.file.write().unwrap_or_else(PoisonError::into_inner);
        let path = self.sessions.file(self.id);
        let Some(file) = &*kept else { return Ok(()) };
        if identity::is_at(file, &path).map_err(|error| os_at("look at", &path, error))? {
            return Ok(());
        }
        let longest = self.longest.load(Ordering::Relaxed);
        for _ in 0..identity::REOPENS {
            if let Some(file) = announce(&self.sessions, self.id, self.inherit, longest, |_| Ok(()))? {
                *kept = Some(file);
                return Ok(());
            }
        }
        Err(identity::removed_all_the_time(&path))
    }

    /// Shows cleaners of old files that this session is in use, and restores what they have removed.
    pub(crate) fn touch(&self) -> Result<()> {
        self.restore()?;
        if let Some(file) = &*self.read() {
            let _ = identity::touch(file);
        }
        let _ = identity::touch_path(&self.sessions.socket(self.id));
        Ok(())
    }

    /// A claim is about to stand in this session; answers whether it did not before.
    pub(crate) fn stands(&self, claim: &Claim) -> Result<bool> {
        if claim.tether != Tether::Process {
            return Ok(false);
        }
        self.covers(claim.ttl)?;
        Ok(self.standing().insert(claim.id))
    }

    /// A claim of this session is over.
    pub(crate) fn fell(&self, id: ClaimId) {
        self.standing().remove(&id);
    }

    /// Notes in the file for how long others may need it after our death, before a lease of that length is granted.
    pub(crate) fn covers(&self, lease: Duration) -> Result<()> {
        let seconds = lease.as_secs().saturating_add(1);
        if seconds <= self.longest.load(Ordering::Relaxed) {
            return Ok(());
        }
        let kept = self.read();
        let Some(file) = &*kept else { return Ok(()) };
        let longest = self.longest.fetch_max(seconds, Ordering::Relaxed).max(seconds);
        note(file, longest).map_err(|error| os_at("write", &self.sessions.file(self.id), error))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.read().is_none()
    }

    /// Ends the session, also for processes that inherited it: whoever watches it sees that now.
    pub(crate) fn end(&self) {
        if !self.sessions.is_ours() {
            return;
        }
        let Some(file) = self.file.write().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // Unlocked first: the notice that the file was closed goes out before the kernel drops the lock with it.
        let _ = file.unlock();
        let _ = std::fs::remove_file(self.sessions.socket(self.id));
        if self.standing().is_empty() {
            let _ = std::fs::remove_file(self.sessions.file(self.id));
        } else {
            // The proof that those claims are over, from now on.
            let _ = identity::touch(&file);
        }
    }
}

/// Makes the file of a session: locked first, then `ready`, then found by its name. `None` if a sweep that came between
/// took it for the leftover of a crash.
fn announce(
    sessions: &Sessions,
    id: SessionId,
    inherit: bool,
    longest: u64,
    ready: impl FnOnce(&Sessions) -> Result<()>,
) -> Result<Option<File>> {
    let path = sessions.file(id);
    let unannounced = path.with_extension("new");
    let failed = |error: io::Error| {
        if error.kind() == io::ErrorKind::NotFound {
            identity::directory_removed()
        } else {
            os_at("create", &path, error)
        }
    };
    let created = sessions.access.create(OpenOptions::new().write(true).create_new(true), &unannounced);
    let file = match created {
        // Left by a restoration that a sweep has not noticed yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let _ = std::fs::remove_file(&unannounced);
            return Ok(None);
        }
        created => created.map_err(failed)?,
    };
    if file.try_lock().is_err() {
        return Ok(None);
    }
    ready(sessions)?;
    if longest > 0 {
        note(&file, longest).map_err(failed)?;
    }
    match std::fs::rename(&unannounced, &path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && sessions.path.exists() => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    if inherit {
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(|error| failed(error.into()))?;
    }
    Ok(Some(file))
}

fn note(file: &File, seconds: u64) -> io::Result<()> {
    file.write_all_at(format!("{seconds:>LEASE_DIGITS$}").as_bytes(), 0)
}

/// A session that does not end now.
#[derive(Debug)]
pub(crate) struct KeptOpen<'a>(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, Option<File>>);

impl Drop for Session {
    fn drop(&mut self) {
        // Inherited by a process that we started, or the parent's of a forked child, it goes on without us.
        if !self.inherit {
            self.end();
        }
    }
}

fn random_id() -> Result<SessionId> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
    Ok(SessionId::from_be_bytes(bits))
}

/// `None` where the path is too long and there is no way round: the slow poll of the engine has to do.
fn bind(address: &Path) -> Result<Option<UnixDatagram>> {
    if !cfg!(target_os = "linux") && address.starts_with("/proc") {
        return Ok(None);
    }
    let failed = |error| os_at("bind", address, error);
    let socket = UnixDatagram::bind(address).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(Some(socket))
}
