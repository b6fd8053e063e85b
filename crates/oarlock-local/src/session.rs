//! One session per open store: a file that is flock'd for life, so that the kernel itself tells when its process died.
//!
//! A session is dead when its file is missing or its flock can be had. Probing takes a *shared* flock, so that probers
//! do not take each other for the living. The file is locked before it gets its name: by its name it is never seen
//! unlocked while its process lives.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use oarlock_core::model::Session as SessionId;
use oarlock_core::{Error, ErrorKind, Result};

use crate::error::{SCHEME, closed, os, os_at};
use crate::state::is_unlinked;

/// The longest path a socket address takes, with its final zero.
const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 108 } else { 104 };

/// The folder of all sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    path: PathBuf,
    folder: File,
}

impl Sessions {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let folder = File::open(path).map_err(|error| os_at("open", path, error))?;
        Ok(Self { path: path.to_owned(), folder })
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
        let path = self.socket(id);
        if path.as_os_str().as_bytes().len() < MAX_SOCKET_PATH {
            return path;
        }
        PathBuf::from(format!("/proc/self/fd/{}/{id:032x}.sock", self.folder.as_raw_fd()))
    }

    /// Whether the process of this session is gone. What cannot be found out counts as alive.
    pub(crate) fn is_dead(&self, id: SessionId) -> bool {
        match File::open(self.file(id)) {
            Ok(file) => is_free(&file),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Blocks this thread until the session is dead.
    pub(crate) fn wait_for_end(&self, id: SessionId) {
        if let Ok(file) = File::open(self.file(id)) {
            while file.lock_shared().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
        }
    }

    /// Removes the files that dead sessions left behind.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                let session = path.with_extension("");
                if !session.exists() {
                    // A session announces itself after it has bound its socket, under another name until then.
                    if !session.with_extension("new").exists() && !session.exists() {
                        let _ = std::fs::remove_file(&path);
                    }
                }
                continue;
            }
            let Ok(file) = File::open(&path) else { continue };
            if is_free(&file) {
                // Still locked: whoever made a session but did not announce it yet finds that it has to start over.
                let _ = std::fs::remove_file(path.with_extension("sock"));
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(())
    }
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
}

impl Session {
    /// Starts a session, with the socket on which it is told things.
    pub(crate) fn start(sessions: Arc<Sessions>, inherit: bool) -> Result<(Self, Option<UnixDatagram>)> {
        loop {
            let id = random_id()?;
            let path = sessions.file(id);
            let unannounced = path.with_extension("new");
            let failed = |error| os_at("create", &path, error);
            let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unannounced);
            let file = created.map_err(failed)?;
            // A sweep that came between took it for the leftover of a crash: start over.
            if file.try_lock().is_err() {
                continue;
            }
            let socket = bind(&sessions.socket_address(id))?;
            match std::fs::rename(&unannounced, &path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let _ = std::fs::remove_file(sessions.socket(id));
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            if inherit {
                rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(|error| failed(error.into()))?;
            }
            return Ok((Self { id, sessions, file: RwLock::new(Some(file)), inherit }, socket));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<File>> {
        self.file.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to go on once the session has ended, or others must think so.
    pub(crate) fn check(&self) -> Result<()> {
        self.keep_open().map(drop)
    }

    /// [Checks](Self::check), and keeps the session from being ended by this process until the answer is dropped.
    pub(crate) fn keep_open(&self) -> Result<KeptOpen<'_>> {
        let kept = self.read();
        let Some(file) = &*kept else { return Err(closed("this store was closed")) };
        match is_unlinked(file) {
            Ok(false) => Ok(KeptOpen(kept)),
            Ok(true) => Err(closed("its session file was removed while it was in use")),
            Err(error) => Err(os("cannot look at the session file", error)),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.read().is_none()
    }

    /// Ends the session, also for processes that inherited it: whoever watches it sees that now.
    pub(crate) fn end(&self) {
        let Some(file) = self.file.write().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // Unlocked first: the notice that the file was closed goes out before the kernel drops the lock with it.
        let _ = file.unlock();
        self.remove_files();
    }

    fn remove_files(&self) {
        let _ = std::fs::remove_file(self.sessions.file(self.id));
        let _ = std::fs::remove_file(self.sessions.socket(self.id));
    }
}

/// A session that does not end now.
#[derive(Debug)]
pub(crate) struct KeptOpen<'a>(#[expect(dead_code, reason = "held, not read")] RwLockReadGuard<'a, Option<File>>);

impl Drop for Session {
    fn drop(&mut self) {
        // Inherited by a process that we started, it goes on without us; otherwise it ends here.
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
