//! The directory and its folders: made owner-only, and refused where others could interfere.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use oarlock_core::{Error, ErrorKind, Result};

use crate::error::{SCHEME, os_at};
use crate::mount;
use crate::place::Place;

/// The store's directory, checked.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) root: PathBuf,
    pub(crate) sessions: PathBuf,
    states: PathBuf,
    shards: PathBuf,
    protection: Mutex<Option<File>>,
}

impl Directory {
    /// Makes what is missing and checks who else could write there.
    pub(crate) fn prepare(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root).map_err(|error| os_at("find", root, error))?;
        make(&root)?;
        check(&root)?;
        mount::check(&root)?;
        let dir = Self {
            sessions: root.join("session"),
            states: root.join("state"),
            shards: root.join("shard"),
            protection: Mutex::default(),
            root,
        };
        for folder in [&dir.sessions, &dir.states, &dir.shards] {
            make(folder)?;
        }
        dir.protect();
        Ok(dir)
    }

    /// systemd-tmpfiles leaves alone what is below a directory with a flock: takes a shared one for as long as the store
    /// is open. It fails while that program is at work; then the next minute has to do.
    pub(crate) fn protect(&self) {
        let Ok(root) = File::open(&self.root) else { return };
        if root.try_lock_shared().is_ok() {
            *self.protection.lock().unwrap_or_else(PoisonError::into_inner) = Some(root);
        }
    }

    /// The file whose flock guards a shard.
    pub(crate) fn shard(&self, shard: u8) -> PathBuf {
        self.shards.join(format!("{shard:02x}"))
    }

    /// The file whose flock keeps those who wait for a shard from being overtaken for ever.
    pub(crate) fn turnstile(&self, shard: u8) -> PathBuf {
        self.shards.join(format!("{shard:02x}.turn"))
    }

    /// The folder with a shard's state files.
    pub(crate) fn states(&self, shard: u8) -> PathBuf {
        self.states.join(format!("{shard:02x}"))
    }

    /// The state file of a name.
    pub(crate) fn state(&self, place: &Place) -> PathBuf {
        let mut path = self.states(place.shard);
        path.push(&place.file);
        path
    }

    /// When the store was last swept, and how far.
    pub(crate) fn swept(&self) -> PathBuf {
        self.root.join("swept")
    }
}

/// Makes a folder for its owner only, with what leads to it.
pub(crate) fn make(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        Error::new(ErrorKind::CannotCreate, format!("cannot create {}", path.display())).on(SCHEME).because(error)
    })
}

/// How every file of the store is opened for writing: owner-only, made if missing, never emptied.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn check(root: &Path) -> Result<()> {
    let stat = std::fs::metadata(root).map_err(|error| os_at("look at", root, error))?;
    let me = rustix::process::geteuid().as_raw();
    let dir = root.display();
    let denied = |message: String| Err(Error::new(ErrorKind::Denied, message).on(SCHEME));
    if stat.uid() != me {
        let owner = stat.uid();
        return denied(format!(
            "{dir} belongs to user {owner}, who could take or free any lock. Name a directory that belongs to you (user {me})"
        ));
    }
    if stat.mode() & 0o022 != 0 {
        return denied(format!(
            "{dir} can be written by others, who could take or free any lock. Run: chmod go-w {dir}"
        ));
    }
    Ok(())
}
