//! The 256 locks under which steps are made.
//!
//! A flock excludes open files, not threads, so the tasks of this process first take a mutex; only the task that has it
//! asks the kernel. With a plain flock a busy process can take its shard again before the process that it woke has run.
//! So a step that finds the shard taken, and every 32nd step of each process, takes the *turnstile* first: a second
//! flock that is kept until the step has the shard.
//!
//! A flock excludes other processes only on the file that they open by the same name. So after locking, the step checks
//! that the name still leads to the file that it has open. If not, it starts over with the file that is there now.

use std::fs::{File, TryLockError};
use std::hint::spin_loop;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_core::Result;
use oarlock_core::clock::wall_micros;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::directory::Directory;
use crate::error::os_at;
use crate::identity;
use crate::state::StateFile;

const SHARDS: usize = 256;
/// Every so many steps, a step takes the turnstile also if its shard is free.
const TURNSTILE_EVERY: u32 = 32;
/// A step takes a few microseconds: a few tries are cheaper than waking a thread.
const TRIES: u32 = 4;
const SPINS_PER_TRY: u32 = 64;

/// The most descriptors that stay open between steps. Many systems allow a process 1024 in all (macOS: 256).
const MAX_KEPT: usize = if cfg!(target_os = "linux") { 256 } else { 64 };

/// The shards that this process has open.
#[derive(Debug)]
pub(crate) struct Shards {
    dir: Arc<Directory>,
    cells: Box<[OnceLock<Arc<Mutex<Shard>>>]>,
    kept: Arc<AtomicUsize>,
    /// Counts the times that all shards were told to check their files again.
    round: Arc<AtomicU64>,
}

/// One shard. One task at a time uses it.
#[derive(Debug)]
pub(crate) struct Shard {
    dir: Arc<Directory>,
    number: u8,
    steps: u32,
    lock: Option<Arc<File>>,
    /// The state file that was used last, with its file name.
    pub(crate) last: Option<(String, StateFile)>,
    /// For reading, and as long as the longest state file so far; and for writing.
    pub(crate) buffers: (Vec<u8>, Vec<u8>),
    kept: Arc<AtomicUsize>,
    keeps: bool,
    round: Arc<AtomicU64>,
    /// The round in which the file was last found at its path.
    found: u64,
}

/// The shard's flock, until it is dropped.
#[derive(Debug)]
pub(crate) struct Locked(Arc<File>);

impl Drop for Locked {
    fn drop(&mut self) {
        // It can only fail for an invalid descriptor.
        let _ = self.0.unlock();
    }
}

impl Shards {
    pub(crate) fn new(dir: Arc<Directory>) -> Self {
        Self { dir, cells: (0..SHARDS).map(|_| OnceLock::new()).collect(), kept: Arc::default(), round: Arc::default() }
    }

    /// Makes every shard check again that its path leads to its file. A removed file shows in its count of links; a
    /// file or directory that was moved does not.
    pub(crate) fn recheck(&self) {
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
                buffers: Default::default(),
                kept: self.kept.clone(),
                keeps: false,
                round: self.round.clone(),
                found: 0,
            }))
        })
    }
}

impl Shard {
    /// Takes the flock if it is free.
    pub(crate) fn try_take(&mut self) -> Result<Option<Locked>> {
        let mut file = self.file()?;
        self.steps = self.steps.wrapping_add(1);
        let turnstile = if self.steps.is_multiple_of(TURNSTILE_EVERY) { Some(self.turnstile()?) } else { None };
        if let Some(turnstile) = &turnstile
            && !try_lock(turnstile).map_err(|error| self.failed(error))?
        {
            return Ok(None);
        }
        for _ in 0..TRIES {
            if try_lock(&file).map_err(|error| self.failed(error))? {
                let locked = Locked(file);
                if self.is_current(&locked.0)? {
                    return Ok(Some(locked));
                }
                drop(locked);
                file = self.reopen()?;
                continue;
            }
            for _ in 0..SPINS_PER_TRY {
                spin_loop();
            }
        }
        Ok(None)
    }

    /// Takes the flock. Blocks this thread until it is free.
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

    /// Whether the locked file is the one that other processes would lock. Touches it if it looks old.
    fn is_current(&mut self, file: &File) -> Result<bool> {
        let stat = rustix::fs::fstat(file).map_err(|error| self.failed(error.into()))?;
        let round = self.round.load(Ordering::Relaxed);
        if stat.st_nlink == 0 {
            return Ok(false);
        }
        if self.found != round {
            if !identity::is_at(file, &self.dir.shard(self.number)).map_err(|error| self.failed(error))? {
                return Ok(false);
            }
            self.found = round;
        }
        let age = i64::try_from(wall_micros() / 1_000_000).unwrap_or(0).saturating_sub(stat.st_mtime);
        if u64::try_from(age).is_ok_and(|age| age > identity::TOUCH_AFTER.as_secs()) {
            // A file that cannot be touched locks as well.
            let _ = identity::touch(file);
        }
        Ok(true)
    }

    /// Opens the file again: its path does not lead to the open one.
    fn reopen(&mut self) -> Result<Arc<File>> {
        self.lock = None;
        self.last = None;
        self.file()
    }

    /// Closes files beyond what one process should keep open. Called after every step.
    pub(crate) fn tidy(&mut self) {
        if !self.keeps && self.kept.fetch_add(2, Ordering::Relaxed) >= MAX_KEPT {
            self.kept.fetch_sub(2, Ordering::Relaxed);
            self.close_unless_kept();
            return;
        }
        self.keeps = true;
    }

    /// Closes files that are not to stay open. Called after a sweep, which is no step.
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

    /// Opened for each use: it is needed seldom, and descriptors are few. If it is removed, the order of steps suffers
    /// for a moment; exclusion does not.
    fn turnstile(&self) -> Result<File> {
        self.open(&self.dir.turnstile(self.number))
    }

    /// Opens a file in the folder of the shards. A cleaner can remove empty folders, but the directory of the store has
    /// a live session in it: if it is missing, the whole store was removed.
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
