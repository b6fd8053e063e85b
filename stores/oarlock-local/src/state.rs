//! The state file of one name: two [slots](crate::slot) that hold the state of the model.
//!
//! A state file is created, grown and shrunk by a rename, so that a kill never leaves a file without a whole slot.
//! Every other change is one `pwrite` into the older slot. Both slots are allocated when the file is created, so that a
//! release needs no space on a full disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_core::model::{Notified, Now, Resource};
use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use serde::Deserialize;

use crate::directory::Access;
use crate::error::{SCHEME, foreign, newer, os_at};
use crate::identity;
use crate::slot::{self, Newest, Trouble};

/// The version of the JSON that layout 1 has as its payload. This code reads it, and writes the bytes of layout 2: the
/// name, the boot id, and the state as the model writes it.
const FORMAT: u32 = 1;

/// Reading a state file does not change its time of access: a step reads what another one has just written, so the
/// kernel would write that time again and again.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[expect(clippy::cast_possible_wrap, reason = "a flag of open(2), as that call takes it")]
const NO_ATIME: i32 = rustix::fs::OFlags::NOATIME.bits() as i32;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NO_ATIME: i32 = 0;

/// Slots this much larger than their record are made smaller.
const SHRINK_FACTOR: usize = 16;

/// The payload of layout 1.
#[derive(Deserialize)]
struct Read {
    format: u32,
    name: ResourceName,
    boot: Arc<str>,
    resource: Resource,
}

/// The part of it that tells its version.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The newest record of a state file.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) name: ResourceName,
    pub(crate) boot: Arc<str>,
    pub(crate) resource: Resource,
    newest: Newest,
    slot_size: usize,
}

impl Record {
    /// The resource, with deadlines of this boot: those from before it are replaced, because they mean nothing now.
    pub(crate) fn of_boot(self, boot: &str, now: Now) -> Resource {
        let mut resource = self.resource;
        if *self.boot != *boot {
            // No process survived the restart, even if its session file did.
            resource.end_sessions(now, &mut Notified::new(), |_| false);
            resource.void_deadlines(now);
        }
        resource
    }
}

/// An open state file.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    path: PathBuf,
    /// What this process wrote last. While it is the newest record, the file need not be parsed.
    written: Option<Record>,
}

impl StateFile {
    /// Opens the state file of a name; `None` if there is none.
    pub(crate) fn open(path: PathBuf) -> Result<Option<Self>> {
        Self::open_with(OpenOptions::new().read(true).write(true), path)
    }

    /// Opens the state file of a name for reading only. Closing a file that is open for writing would look like a
    /// change to the processes that watch it.
    pub(crate) fn open_to_show(path: PathBuf) -> Result<Option<Self>> {
        Self::open_with(OpenOptions::new().read(true), path)
    }

    fn open_with(options: &mut OpenOptions, path: PathBuf) -> Result<Option<Self>> {
        let opened = match options.custom_flags(NO_ATIME).open(&path) {
            // Only its owner may open a file like that; in a group it may be that of another user.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.custom_flags(0).open(&path),
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(Self { file, path, written: None })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(os_at("open", &path, error)),
        }
    }

    /// Reads the newest record; `None` if the file is empty, `Err(Unlinked)` if it was replaced or removed.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Record>, Unread> {
        let failed = |error| Unread::Failed(os_at("read", &self.path, error));
        let (links, length) = identity::links_and_size(&self.file).map_err(failed)?;
        if links == 0 {
            return Err(Unread::Unlinked);
        }
        let length = usize::try_from(length).unwrap_or(0);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let Some(buffer) = buffer.get_mut(..length) else { return Ok(None) };
        self.file.read_exact_at(buffer, 0).map_err(failed)?;
        let is_newest =
            |written: &mut Record| written.slot_size == length / 2 && slot::is_still_newest(buffer, &written.newest);
        if let Some(written) = self.written.take_if(is_newest) {
            return Ok(Some(written));
        }
        let newest = match slot::newest(buffer) {
            Ok(Some(newest)) => newest,
            Ok(None) => return Ok(None),
            Err(Trouble::Newer) => return Err(Unread::Failed(newer(&self.path))),
            Err(Trouble::Damaged) => return Err(Unread::Damaged(foreign(&self.path, "is not a whole state file"))),
        };
        let payload = &buffer[newest.payload.clone()];
        let record = match newest.layout {
            slot::OLDEST => parse_json(payload, &self.path),
            _ => parse(payload).ok_or_else(|| foreign(&self.path, "cannot be parsed")),
        };
        let record = record.map_err(Unread::Failed)?;
        Ok(Some(Record { newest, slot_size: length / 2, ..record }))
    }

    /// Writes `next` after `before`, in place if it fits. Returns the file that holds the state from now on.
    pub(crate) fn write(
        kept: Option<Self>,
        path: impl FnOnce() -> PathBuf,
        before: Option<Version>,
        next: Next,
        buffer: &mut Vec<u8>,
        access: Access,
    ) -> Result<Self> {
        let (path, kept) = kept.map_or_else(|| (path(), None), |kept| (kept.path, Some(kept.file)));
        let sequence = before.map_or(1, |before| before.sequence + 1);
        slot::begin(buffer);
        for text in [next.name.as_str(), &next.boot] {
            // Neither is longer than this: a name has its own limit.
            buffer.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            buffer.extend_from_slice(text.as_bytes());
        }
        next.resource.to_bytes(buffer);
        let Some(crc) = slot::seal(buffer, sequence) else {
            return Err(Error::new(ErrorKind::Internal, "the state of this name is too long").on(SCHEME));
        };
        let length = buffer.len();
        let fits = |size: usize| length <= size && size <= SHRINK_FACTOR * slot::size_for(length);
        let (file, slot, slot_size) = match (kept, before) {
            (Some(kept), Some(before)) if fits(before.slot_size) => {
                let slot = 1 - before.slot;
                let at = u64::try_from(slot * before.slot_size).unwrap_or(u64::MAX);
                // A failed write leaves a torn slot, but a failing disk can report the failure of a write that was
                // done.
                let failed = |error| os_at("write", &path, error).applied_unknown();
                kept.write_all_at(buffer, at).map_err(failed)?;
                (kept, slot, before.slot_size)
            }
            _ => {
                let size = slot::size_for(length);
                buffer.resize(2 * size, 0);
                let file =
                    replace(&path, buffer, access).map_err(|error| os_at("write", &path, error).applied_unknown())?;
                (file, 0, size)
            }
        };
        let newest = Newest::written(sequence, crc, (slot, slot_size), length);
        let Next { name, boot, resource } = next;
        Ok(Self { file, path, written: Some(Record { name, boot, resource, newest, slot_size }) })
    }
}

impl StateFile {
    /// Waits until the file is on the disk. Only memos need that: unlike claims, they outlive a restart of the machine.
    pub(crate) fn sync(&self) -> Result<()> {
        let folder = self.path.parent().map(File::open).transpose();
        // The folder too: the file may have been renamed just now.
        let synced = self.file.sync_data().and_then(|()| folder?.map_or(Ok(()), |folder| folder.sync_all()));
        synced.map_err(|error| os_at("sync", &self.path, error).applied_unknown())
    }
}

/// The state to write.
pub(crate) struct Next {
    pub(crate) name: ResourceName,
    pub(crate) boot: Arc<str>,
    pub(crate) resource: Resource,
}

/// The record that the next one follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    sequence: u64,
    slot: usize,
    slot_size: usize,
}

impl Record {
    /// A record whose place in the file the caller adds.
    fn read(name: ResourceName, boot: Arc<str>, resource: Resource) -> Self {
        let newest = Newest { sequence: 0, layout: 0, crc: 0, slot: 0, payload: 0..0 };
        Self { name, boot, resource, newest, slot_size: 0 }
    }

    pub(crate) fn version(&self) -> Version {
        Version { sequence: self.newest.sequence, slot: self.newest.slot, slot_size: self.slot_size }
    }
}

/// Why a file could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The file was replaced or removed: its name leads to it no longer.
    Unlinked,
    /// No slot is whole. Under the lock the file is damaged; without it, another process may be writing.
    Damaged(Error),
    /// Any other failure.
    Failed(Error),
}

pub(crate) fn parse(payload: &[u8]) -> Option<Record> {
    let (name, rest) = text(payload)?;
    let (boot, resource) = text(rest)?;
    let (name, resource) = (ResourceName::new(name).ok()?, Resource::from_bytes(resource)?);
    Some(Record::read(name, boot.into(), resource))
}

/// The text at the beginning, and what follows it.
fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

pub(crate) fn parse_json(payload: &[u8], path: &Path) -> Result<Record> {
    let read = match serde_json::from_slice::<Read>(payload) {
        Ok(read) if read.format == FORMAT => read,
        other => {
            let format = serde_json::from_slice::<Format>(payload).map(|read| read.format);
            let is_newer = format.is_ok_and(|format| format > FORMAT);
            let why =
                other.err().map_or_else(|| "has an unknown format".to_owned(), |e| format!("cannot be parsed ({e})"));
            return Err(if is_newer { newer(path) } else { foreign(path, &why) });
        }
    };
    Ok(Record::read(read.name, read.boot, read.resource))
}

/// Replaces the file at `path`. The rename is the moment of the change.
fn replace(path: &Path, content: &[u8], access: Access) -> io::Result<File> {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(NO_ATIME);
    let mut create = || match access.create(&mut options, &new) {
        // Some file systems give a new file to another user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => access.create(options.custom_flags(0), &new),
        created => created,
    };
    let mut file = match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                access.make(folder).map_err(io::Error::other)?;
            }
            create()?
        }
        created => created?,
    };
    file.write_all(content)?;
    std::fs::rename(&new, path)?;
    Ok(file)
}
