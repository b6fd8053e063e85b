//! The 256 locks under which steps are made.
//!
//! A flock excludes open files, not threads, so the tasks of this process stand before a mutex of their own first; only
//! the one that has it asks the kernel. A plain flock also lets a busy process take its shard again before the one it
//! woke has run: whoever finds the shard taken, and every 32nd step of anyone, passes the *turnstile*, a second flock
//! that is held until the shard is had.

use std::fs::{File, TryLockError};
use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use oarlock_core::Result;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::directory::{Directory, open_or_create};
use crate::error::{closed, os_at};
use crate::state::{StateFile, is_unlinked};

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
        Self { dir, cells: (0..SHARDS).map(|_| OnceLock::new()).collect(), kept: Arc::default() }
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
            }))
        })
    }
}

impl Shard {
    /// Takes the flock if that needs no waiting.
    pub(crate) fn try_take(&mut self) -> Result<Option<Locked>> {
        let file = self.file()?;
        self.steps = self.steps.wrapping_add(1);
        let turnstile = if self.steps.is_multiple_of(TURNSTILE_EVERY) { Some(self.turnstile()?) } else { None };
        if let Some(turnstile) = &turnstile
            && !try_lock(turnstile).map_err(|error| self.failed(error))?
        {
            return Ok(None);
        }
        for _ in 0..LOOKS {
            if try_lock(&file).map_err(|error| self.failed(error))? {
                return Ok(Some(Locked(file)));
            }
            for _ in 0..SPINS_PER_LOOK {
                spin_loop();
            }
        }
        Ok(None)
    }

    /// Takes the flock, blocking this thread until it can be had.
    pub(crate) fn take(&mut self) -> Result<Locked> {
        let file = self.file()?;
        let turnstile = self.turnstile()?;
        lock(&turnstile).and_then(|()| lock(&file)).map_err(|error| self.failed(error))?;
        Ok(Locked(file))
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

    /// A directory that was removed under us would let two processes lock two different files of the same name.
    pub(crate) fn check_linked(&mut self) -> Result<()> {
        let file = self.file()?;
        if is_unlinked(&file).map_err(|error| self.failed(error))? {
            self.lock = None;
            return Err(closed("its directory was removed while it was in use"));
        }
        Ok(())
    }

    fn file(&mut self) -> Result<Arc<File>> {
        if let Some(file) = &self.lock {
            return Ok(file.clone());
        }
        let file = Arc::new(open_or_create(&self.dir.shard(self.number)).map_err(|error| self.failed(error))?);
        self.lock = Some(file.clone());
        Ok(file)
    }

    /// Opened for each use: it is needed seldom, and descriptors are few.
    fn turnstile(&self) -> Result<File> {
        open_or_create(&self.dir.turnstile(self.number)).map_err(|error| self.failed(error))
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
