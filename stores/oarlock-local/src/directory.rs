//! The directory of the store and its folders. They are created for their owner, or for a group if the URL says so. A
//! directory that other users can write to is refused.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use oarlock_core::{Error, ErrorKind, Result};

use crate::error::{SCHEME, os_at};
use crate::identity;
use crate::mount;
use crate::paths::Paths;

/// The store's directory, checked.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) root: PathBuf,
    pub(crate) sessions: PathBuf,
    states: PathBuf,
    shards: PathBuf,
    pub(crate) access: Access,
    protection: Mutex<Option<File>>,
}

/// Who may use the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Their owner.
    Owner,
    /// The group of the directory.
    Group,
}

impl Access {
    fn folder_mode(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            // Files inside get the group of the folder, not that of their creator.
            Self::Group => 0o2770,
        }
    }

    fn file_mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
        }
    }

    /// Creates a file that does not have its final name yet.
    pub(crate) fn create(self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        let file = options.mode(self.file_mode()).open(path)?;
        if self == Self::Group {
            // The umask removed the rights of the group.
            file.set_permissions(Permissions::from_mode(self.file_mode()))?;
        }
        Ok(file)
    }

    /// Sets the mode of a socket, which cannot be opened.
    pub(crate) fn open_up(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Owner => Ok(()),
            Self::Group => std::fs::set_permissions(path, Permissions::from_mode(self.file_mode())),
        }
    }

    /// Creates a folder and its parents.
    pub(crate) fn make(self, path: &Path) -> Result<()> {
        let is_new = self == Self::Group && !path.exists();
        let made = DirBuilder::new().recursive(true).mode(self.folder_mode()).create(path);
        let made = made.and_then(|()| match is_new {
            true => std::fs::set_permissions(path, Permissions::from_mode(self.folder_mode())),
            false => Ok(()),
        });
        made.map_err(|error| {
            Error::new(ErrorKind::CannotCreate, format!("cannot create {}", path.display())).on(SCHEME).because(error)
        })
    }

    /// Opens a file for writing. Creates it if it is missing, never truncates it. For a group it has its mode before
    /// its name.
    pub(crate) fn open_or_create(self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if self == Self::Owner {
            return options.create(true).truncate(false).mode(self.file_mode()).open(path);
        }
        for _ in 0..identity::REOPENS {
            match options.open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            let own = path.with_extension(format!("{}-{:x}.new", std::process::id(), next_number()));
            match self.create(OpenOptions::new().write(true).create_new(true), &own) {
                Ok(file) => drop(file),
                // Left by an earlier process with this pid, or by one in another container: try the next name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            let linked = std::fs::hard_link(&own, path);
            std::fs::remove_file(&own)?;
            if let Err(error) = linked
                && error.kind() != io::ErrorKind::AlreadyExists
            {
                return Err(error);
            }
        }
        Err(io::Error::from(io::ErrorKind::NotFound))
    }
}

/// A number of its own for each call, so that no two threads use one name.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Directory {
    /// Creates what is missing, and checks that no other user can write there.
    pub(crate) fn prepare(root: &Path, access: Access) -> Result<Self> {
        let root = std::path::absolute(root).map_err(|error| os_at("find", root, error))?;
        access.make(&root)?;
        check(&root, access)?;
        mount::check(&root)?;
        let dir = Self {
            sessions: root.join("session"),
            states: root.join("state"),
            shards: root.join("shard"),
            protection: Mutex::default(),
            access,
            root,
        };
        for folder in [&dir.sessions, &dir.states, &dir.shards] {
            access.make(folder)?;
        }
        dir.protect();
        Ok(dir)
    }

    /// Takes a shared flock of the directory for as long as the store is open: systemd-tmpfiles skips a directory with
    /// a flock. It fails while that program runs; the sweep tries again a minute later.
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

    /// The file whose flock keeps the processes that wait for a shard from being overtaken forever.
    pub(crate) fn turnstile(&self, shard: u8) -> PathBuf {
        self.shards.join(format!("{shard:02x}.turn"))
    }

    /// The folder with a shard's state files.
    pub(crate) fn states(&self, shard: u8) -> PathBuf {
        self.states.join(format!("{shard:02x}"))
    }

    /// The state file of a name.
    pub(crate) fn state(&self, paths: &Paths) -> PathBuf {
        let mut path = self.states(paths.shard);
        path.push(&paths.file);
        path
    }

    /// The file that tells when the store was last swept, and how far.
    pub(crate) fn swept(&self) -> PathBuf {
        self.root.join("swept")
    }
}

fn check(root: &Path, access: Access) -> Result<()> {
    let stat = std::fs::metadata(root).map_err(|error| os_at("read the metadata of", root, error))?;
    let me = rustix::process::geteuid().as_raw();
    let dir = root.display();
    let denied = |message: String| Err(Error::new(ErrorKind::Denied, message).on(SCHEME));
    if access == Access::Group {
        if stat.mode() & 0o002 != 0 {
            return denied(format!(
                "{dir} can be written by all users, who could take or free any lock. Run: chmod o-w {dir}"
            ));
        }
        if stat.mode() & 0o2070 != 0o2070 {
            let why = "is not for its group, as group=yes asks. Its owner has to run";
            return denied(format!("{dir} {why}: chmod 2770 {dir}"));
        }
        return Ok(());
    }
    let group = "or add ?group=yes to its URL if its group is meant to share its locks";
    if stat.uid() != me {
        let owner = stat.uid();
        return denied(format!(
            "{dir} belongs to user {owner}, who could take or free any lock. Name a directory that belongs to you (user {me}), {group}"
        ));
    }
    if stat.mode() & 0o022 != 0 {
        return denied(format!(
            "{dir} can be written by others, who could take or free any lock. Run: chmod go-w {dir}, {group}"
        ));
    }
    Ok(())
}
