//! The 256 locks under which steps are made.
//!
//! A flock excludes open files, not threads, so the tasks of this process stand before a mutex of their own first; only
//! the one that has it asks the kernel. A plain flock also lets a busy process take its shard again before the one it
//! woke has run: whoever finds the shard taken, and every 32nd step of anyone, passes the *turnstile*, a second flock
//! that is held until the shard is had.
//!
//! A flock is worth something only on the file that others find by the same name. So whoever has it looks whether that is
//! still the file it has open, and if not, starts over with the one that is there now.

use std::fs::{File, TryLockError};
use std::hint::spin_loop;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_core::Result;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::directory::Directory;
use crate::error::os_at;
use crate::identity;
use crate::state::StateFile;

const SHARDS: usize = 256;
/// How often a step that finds its shard free passes the turnstile all the same.
const TURNSTILE_EVERY: u32 = 32;
/// A step takes a few microseconds: looking again a few times is cheaper than waking a thread.
const LOOKS: u32 = 4;
const SPINS_PER_LOOK: u32 = 64;

/// How many descriptors are kept open between steps; many systems allow a process no more than 1024 (macOS: 256).
const MAX_KEPT: usize = if cfg!(target_os = "linux") { 256 } else { 64 };

/// The shards, as this process has them open.
#[derive(Debug)]
pub(crate) struct Shards {
    dir: Arc<Directory>,
    cells: Box<[OnceLock<Arc<Mutex<Shard>>>]>,
    kept: Arc<AtomicUsize>,
    /// How often this process has asked itself whether the directory is still the one that it opened.
    round: Arc<AtomicU64>,
}

/// One shard, to be used by one task at a time.
#[derive(Debug)]
pub(crate) struct Shard {
    dir: Arc<Directory>,
    number: u8,
    steps: u32,
    lock: Option<Arc<File>>,
    /// The state file used last, by its file name.
    pub(crate) last: Option<(String, StateFile)>,
    pub(crate) buffer: Vec<u8>,
    kept: Arc<AtomicUsize>,
    keeps: bool,
    round: Arc<AtomicU64>,
    /// The round in which the file was last found by its name.
    found: u64,
}

/// The shard's flock, had.
#[derive(Debug)]
pub(crate) struct Locked(Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // It fails for descriptors that are none; this is one.
        let _ = self.0.unlock();
    }
}

impl Shards {
    pub(crate) fn new(dir: Arc<Directory>) -> Self {
        Self { dir, cells: (0..SHARDS).map(|_| OnceLock::new()).collect(), kept: Arc::default(), round: Arc::default() }
    }

    /// Lets every shard look again whether its file is still found by its name: removing a file shows in its count of
    /// links, but moving it, or the whole directory, does not.
    pub(crate) fn doubt(&self) {
        self.round.fetch_add(1, Ordering::Relaxed);
    }

    /// The shard, once no other task of this process uses it.
    pub(crate) async fn enter(&self, number: u8) -> OwnedMutexGuard<Shard> {
        self.cell(number).clone().lock_owned().await
    }

    /// The shard, if no other task of this process uses it.
    pub(crate) fn try_enter(&self, number: u8) -> Option<OwnedMutexGuard<Shard>> {
        self.cell(number).clone().try_lock_owned().ok()
    }

    fn cell(&self, number: u8) -> &Arc<Mutex<Shard>> {
        self.cells[usize::from(number)].get_or_init(|| {
            Arc::new(Mutex::new(Shard {
                dir: self.dir.clone(),
                number,
                steps: 0,
                lock: None,
                last: None,
                buffer: Vec::new(),
                kept: self.kept.clone(),
                keeps: false,
                round: self.round.clone(),
                found: 0,
            }))
        })
    }
}

impl Shard {
    /// Takes the flock if that needs no waiting.
    pub(crate) fn try_take(&mut self) -> Result<Option<Locked>> {
        let mut file = self.file()?;
        self.steps = self.steps.wrapping_add(1);
        let turnstile = if self.steps.is_multiple_of(TURNSTILE_EVERY) { Some(self.turnstile()?) } else { None };
        if let Some(turnstile) = &turnstile
            && !try_lock(turnstile).map_err(|error| self.failed(error))?
        {
            return Ok(None);
        }
        for _ in 0..LOOKS {
            if try_lock(&file).map_err(|error| self.failed(error))? {
                let locked = Locked(file);
                if self.is_current(&locked.0)? {
                    return Ok(Some(locked));
                }
                drop(locked);
                file = self.reopen()?;
                continue;
            }
            for _ in 0..SPINS_PER_LOOK {
                spin_loop();
            }
        }
        Ok(None)
    }

    /// Takes the flock, blocking this thread until it can be had.
    pub(crate) fn take(&mut self) -> Result<Locked> {
        let turnstile = self.turnstile()?;
        lock(&turnstile).map_err(|error| self.failed(error))?;
        let mut file = self.file()?;
        for _ in 0..identity::REOPENS {
            lock(&file).map_err(|error| self.failed(error))?;
            let locked = Locked(file);
            if self.is_current(&locked.0)? {
                return Ok(locked);
            }
            drop(locked);
            file = self.reopen()?;
        }
        Err(identity::removed_all_the_time(&self.dir.shard(self.number)))
    }

    /// Whether the locked file is the one that others would lock. Touches it if it has not been for long.
    fn is_current(&mut self, file: &File) -> Result<bool> {
        let stat = file.metadata().map_err(|error| self.failed(error))?;
        let round = self.round.load(Ordering::Relaxed);
        if stat.nlink() == 0 {
            return Ok(false);
        }
        if self.found != round {
            if !identity::is_at(file, &self.dir.shard(self.number)).map_err(|error| self.failed(error))? {
                return Ok(false);
            }
            self.found = round;
        }
        if stat.modified().is_ok_and(|then| then.elapsed().is_ok_and(|age| age > identity::TOUCH_AFTER)) {
            // A file that cannot be touched is as good a lock.
            let _ = identity::touch(file);
        }
        Ok(true)
    }

    /// What was open is not what is found by its name any more.
    fn reopen(&mut self) -> Result<Arc<File>> {
        self.lock = None;
        self.last = None;
        self.file()
    }

    /// Forgets open files beyond what one process should keep; called after every step.
    pub(crate) fn tidy(&mut self) {
        if !self.keeps && self.kept.fetch_add(2, Ordering::Relaxed) >= MAX_KEPT {
            self.kept.fetch_sub(2, Ordering::Relaxed);
            self.close_unless_kept();
            return;
        }
        self.keeps = true;
    }

    /// Forgets open files, unless they are kept anyway; called after a look that is no step.
    pub(crate) fn close_unless_kept(&mut self) {
        if !self.keeps {
            self.lock = None;
            self.last = None;
        }
    }

    fn file(&mut self) -> Result<Arc<File>> {
        if let Some(file) = &self.lock {
            return Ok(file.clone());
        }
        let file = Arc::new(self.open(&self.dir.shard(self.number))?);
        self.lock = Some(file.clone());
        Ok(file)
    }

    /// Opened for each use: it is needed seldom, and descriptors are few. If it is removed, order suffers for a moment,
    /// exclusion does not.
    fn turnstile(&self) -> Result<File> {
        self.open(&self.dir.turnstile(self.number))
    }

    /// Opens a file of the shards' folder. A cleaner removes folders that are empty, but the directory itself has a live
    /// session in it: without it the whole store was removed.
    fn open(&self, path: &Path) -> Result<File> {
        let access = self.dir.access;
        match access.open_or_create(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !self.dir.root.exists() {
                    return Err(identity::directory_removed());
                }
                path.parent().map_or(Ok(()), |folder| access.make(folder))?;
                access.open_or_create(path).map_err(|error| self.failed(error))
            }
            opened => opened.map_err(|error| self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> oarlock_core::Error {
        os_at("lock", &self.dir.shard(self.number), error)
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
