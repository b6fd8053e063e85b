//! One session per open store: a file with a *liveness lock*, a flock that the process keeps until it ends. The kernel
//! drops it when the process dies.
//!
//! A session is dead when its file exists and its liveness lock is free. A *missing* file proves nothing: a cleaner of
//! old files may have removed it while its process lives. Then the lease decides, and a live process creates its file
//! again. A probe takes a *shared* flock, so that it does not look like a live process to other probes. The file is
//! locked before it gets its name, so no process ever finds the file of a live session unlocked.
//!
//! For the same reason a session that ends with claims leaves its file, unlocked, as the proof of its death. The file
//! says for how many seconds the proof is needed: the longest lease that the session asked for.

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
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, Lifetime, Result};

use crate::directory::Access;
use crate::error::{self, SCHEME, os, os_at};
use crate::identity;

/// The longest path a socket address takes, with its final zero.
const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 108 } else { 104 };

/// The most files of other sessions that are kept open.
const MAX_KNOWN: usize = if cfg!(target_os = "linux") { 64 } else { 16 };

/// The length of a session file: seconds as text, so that a person can read it.
const LEASE_DIGITS: usize = 20;

/// The folder of all sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    path: PathBuf,
    folder: File,
    opened_by: u32,
    access: Access,
    /// Files of sessions that were alive when they were last probed.
    known: Mutex<HashMap<SessionId, File>>,
}

/// What is known of the process of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is alive, or the probe failed.
    Alive,
    /// Its liveness lock is free.
    Dead,
    /// Its file is missing: only its leases can decide.
    Unknown,
}

impl Sessions {
    pub(crate) fn open(path: &Path, access: Access) -> Result<Self> {
        let folder = File::open(path).map_err(|error| os_at("open", path, error))?;
        Ok(Self { path: path.to_owned(), folder, opened_by: std::process::id(), access, known: Mutex::default() })
    }

    /// Whether this is the process that opened the store. A forked child shares the descriptors of its parent and so
    /// every lock: an unlock in the child would unlock for the parent too.
    pub(crate) fn is_ours(&self) -> bool {
        self.opened_by == std::process::id()
    }

    /// Returns an error in a process that did not open the store.
    pub(crate) fn check_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let parent = self.opened_by;
        let message = format!("process {parent} opened this store, and a forked child cannot use it: open another one");
        Err(error::closed(&message))
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

    /// Whether the process of this session is known to be dead.
    pub(crate) fn is_dead(&self, id: SessionId) -> bool {
        self.life(id) == Life::Dead
    }

    /// What is known of the process of this session.
    pub(crate) fn life(&self, id: SessionId) -> Life {
        if self.is_still_alive(id) {
            return Life::Alive;
        }
        let path = self.file(id);
        match File::open(&path) {
            // A file that was removed and created again meanwhile proves nothing by being unlocked.
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

    /// Whether a session that was alive at the last probe still is.
    fn is_still_alive(&self, id: SessionId) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = known.get(&id).is_some_and(is_locked);
        if !lives {
            // Dead, or its file was removed and created again.
            known.remove(&id);
        }
        lives
    }

    /// Keeps the file of a live session open: the next probe need not open it.
    fn keep(&self, id: SessionId, file: File) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(id, file);
    }

    /// Blocks this thread until the session is dead.
    pub(crate) fn wait_for_end(&self, id: SessionId) {
        if let Ok(file) = File::open(self.file(id)) {
            while file.lock_shared().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
        }
    }

    /// Removes the files of dead sessions. `spare` is added to the time for which they are needed.
    pub(crate) fn sweep(&self, spare: Duration) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                // A live session whose file was removed still reads from its socket.
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
                    // Under the lock: a process that has created this session but not announced it yet starts over.
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

/// Whether claims may exist that need the file of this dead session as the proof of its death.
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

/// Whether no process has this file locked. If so, this descriptor now has a shared lock, as other probes may.
fn is_free(file: &File) -> bool {
    match file.try_lock_shared() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    }
}

/// The error of a session that was ended by this process.
pub(crate) fn closed() -> Error {
    error::closed("this store was closed")
}

/// The session of one open store.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    sessions: Arc<Sessions>,
    file: RwLock<Option<File>>,
    inherit: bool,
    /// The longest lease asked for so far, in seconds; the same number as in the file.
    longest: AtomicU64,
    /// Claims that end with this session.
    claims: Mutex<HashSet<ClaimId>>,
}

impl Session {
    /// Starts a session. Its socket receives the notifications; `None` if it cannot have one.
    pub(crate) fn start(sessions: Arc<Sessions>, inherit: bool) -> Result<(Self, Option<UnixDatagram>)> {
        loop {
            let id = random_id()?;
            let mut socket = None;
            let bound = |sessions: &Sessions| {
                let address = sessions.socket_address(id);
                socket = bind(&address)?;
                // By its own path: a mode cannot be set through a link in /proc.
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
                    claims: Mutex::default(),
                };
                return Ok((session, socket));
            }
            let _ = std::fs::remove_file(sessions.socket(id));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<File>> {
        self.file.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the session has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.sessions.check_ours()?;
        self.keep_open().map(drop)
    }

    /// [Checks](Self::check), and keeps the session from being ended by this process until the answer is dropped.
    pub(crate) fn keep_open(&self) -> Result<OpenSession<'_>> {
        for _ in 0..identity::REOPENS {
            let kept = self.read();
            let Some(file) = &*kept else { return Err(closed()) };
            match identity::is_unlinked(file) {
                Ok(false) => return Ok(OpenSession(kept)),
                Ok(true) => {}
                Err(error) => return Err(os("cannot read the metadata of the session file", error)),
            }
            drop(kept);
            self.restore()?;
        }
        Err(identity::removed_all_the_time(&self.sessions.file(self.id)))
    }

    /// Creates the file of this session again if it was removed. Without it, other processes know the session as
    /// neither dead nor alive.
    pub(crate) fn restore(&self) -> Result<()> {
        let mut kept = self.file.write().unwrap_or_else(PoisonError::into_inner);
        let path = self.sessions.file(self.id);
        let Some(file) = &*kept else { return Ok(()) };
        if identity::is_at(file, &path).map_err(|error| os_at("read the metadata of", &path, error))? {
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

    /// Sets the modification times of this session's files, so that cleaners of old files spare them. Restores removed
    /// files.
    pub(crate) fn touch(&self) -> Result<()> {
        self.restore()?;
        if let Some(file) = &*self.read() {
            let _ = identity::touch(file);
        }
        let _ = identity::touch_path(&self.sessions.socket(self.id));
        Ok(())
    }

    /// Adds a claim that ends with this session, before it is stored. False if it was added before, or does not end
    /// with it.
    pub(crate) fn add(&self, claim: &Claim) -> Result<bool> {
        if claim.lifetime != Lifetime::Process {
            return Ok(false);
        }
        self.covers(claim.ttl)?;
        Ok(self.claims().insert(claim.id))
    }

    /// Removes a claim that has ended.
    pub(crate) fn remove(&self, id: ClaimId) {
        self.claims().remove(&id);
    }

    /// Writes into the file for how long other processes may need it after the death of this one, before a lease of
    /// that length is granted.
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

    /// Ends the session, also for processes that inherited it. Processes that watch it are notified now.
    pub(crate) fn end(&self) {
        if !self.sessions.is_ours() {
            return;
        }
        let Some(file) = self.file.write().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // Unlocked first: the kernel reports that the file was closed before it drops the lock.
        let _ = file.unlock();
        let _ = std::fs::remove_file(self.sessions.socket(self.id));
        if self.claims().is_empty() {
            let _ = std::fs::remove_file(self.sessions.file(self.id));
        } else {
            // From now on the file proves that those claims have ended.
            let _ = identity::touch(&file);
        }
    }
}

/// Creates the file of a session: locks it, calls `ready`, then gives it its name. `None` if a concurrent sweep removed
/// it as the leftover of a crash.
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
        // The leftover of an earlier restore, which no sweep has removed yet.
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

/// Keeps the session from ending while it exists.
#[derive(Debug)]
pub(crate) struct OpenSession<'a>(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, Option<File>>);

impl Drop for Session {
    fn drop(&mut self) {
        // A session that was inherited lives as long as the processes that inherited it.
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

/// `None` where the path is too long and /proc gives no shorter one. Then only the engine's slow poll notices changes.
fn bind(address: &Path) -> Result<Option<UnixDatagram>> {
    if !cfg!(target_os = "linux") && address.starts_with("/proc") {
        return Ok(None);
    }
    let failed = |error| os_at("bind", address, error);
    let socket = UnixDatagram::bind(address).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    Ok(Some(socket))
}
