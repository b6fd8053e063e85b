//! Examines the directory of the store.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::doctor::{Check, Doctor, OnServer, Report, Severity, examined, patience, within};
use oarlock_core::guarantees::Promise;
use oarlock_core::model::{Notified, Now};
use oarlock_core::state::ResourceState;
use oarlock_core::url::Url;
use oarlock_core::{Error, Result};
use rustix::fs::Access;

use crate::config::{Config, other_default_dir};
use crate::error::os_at;
use crate::session::Sessions;
use crate::state::StateFile;
use crate::store::offload;
use crate::{boot, directory, mount};

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[&NETWORK, &OPEN, &TWO_STORES, &DISK],
    examine: |url| {
        Box::pin(examined(url, async |url, report| {
            let (limit, url) = (patience(url), url.clone());
            // A file system that hangs, hangs a thread of its own.
            let examined = async { offload(move || Ok(examine_directory(&url)))?.await };
            let (found, failed) = within(limit, examined).await?;
            report.merge(found);
            failed.map_or(Ok(()), Err)
        }))
    },
};

/// What was found before something failed, and what failed.
fn examine_directory(url: &Url) -> (Report, Option<Error>) {
    let mut report = Report::default();
    let failed = examine(url, &mut report).err();
    (report, failed)
}

static NETWORK: Check = Check {
    id: "local-network",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "use a directory on a disk of this machine, or a store with a server",
};
static OPEN: Check = Check {
    id: "local-open",
    severity: Severity::Void,
    promise: Promise::BeliefEndsFirst,
    fix: "chmod 700 the directory, or 2770 with group=yes in the URL",
};
static TWO_STORES: Check = Check {
    id: "local-two-stores",
    severity: Severity::Warning,
    promise: Promise::BeliefEndsFirst,
    fix: "name one directory for all programs with -u local:/path or OARLOCK_URL, and remove the other",
};
static DISK: Check = Check {
    id: "local-disk",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "make room on the file system; without it no grant can be written",
};

/// The least free space, in bytes.
const LEAST: u64 = 16 << 20;

fn examine(url: &Url, report: &mut Report) -> Result<()> {
    let config = Config::from_url(url)?;
    let dir = config.dir.as_path();
    let name = dir.display().to_string();
    let mut on = report.on(&name);
    // What does not exist yet will be made on the file system of what does.
    let there = existing(dir)?;
    let space = rustix::fs::statvfs(there).map_err(|error| os_at("read the free space of", there, error.into()))?;
    judge_file_system(mount::shared_kind(there)?, space.f_bavail.saturating_mul(space.f_frsize), &mut on);
    if there == dir {
        let found = dir.metadata().map_err(|error| os_at("look at", dir, error))?;
        let mode = found.permissions().mode();
        on.fact("directory", format!("mode {:o}, user {}", mode & 0o7777, found.uid()));
        let others = if config.group { 0o002 } else { 0o022 };
        if mode & others != 0 {
            let reason = format!("its mode is {:o}: other users can remove or forge locks", mode & 0o7777);
            on.find(&OPEN, reason);
        }
    }
    if url.path().is_empty()
        && let Some(other) = other_default_dir()
    {
        let reason = format!(
            "programs that are started without XDG_STATE_HOME, as from cron, use {}, and do not share these locks",
            other.display()
        );
        on.find(&TWO_STORES, reason);
    }
    if there == dir {
        report.locks = list(&config)?;
    } else if let Err(error) = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK) {
        return Err(os_at("create the directory of the store in", there, error.into()));
    }
    Ok(())
}

/// What the file system is, if other machines share it, and its free space in bytes.
fn judge_file_system(shared: Option<&str>, free: u64, on: &mut OnServer<'_>) {
    if let Some(kind) = shared {
        on.find(&NETWORK, format!("it is on {kind}: another machine can hold the same lock"));
    }
    on.fact("free space", format!("{} MiB", free >> 20));
    if free < LEAST {
        on.find(&DISK, format!("{} MiB are free", free >> 20));
    }
}

/// The nearest directory that exists. One that may not be examined at is an error: it is not known what is in it.
fn existing(dir: &Path) -> Result<&Path> {
    for path in dir.ancestors() {
        match path.metadata() {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(os_at("look at", path, error)),
        }
    }
    Ok(Path::new("/"))
}

/// Reads all state files, and writes nothing: a store that is opened creates folders and removes old files.
fn list(config: &Config) -> Result<Vec<ResourceState>> {
    let (folder, states) = (config.dir.join("session"), config.dir.join("state"));
    if !states.is_dir() || !folder.is_dir() {
        return Ok(Vec::new());
    }
    let access = if config.group { directory::Access::Group } else { directory::Access::Owner };
    let sessions = Sessions::open(&folder, access)?;
    let boot: Arc<str> =
        boot::id().map(Into::into).map_err(|error| os_at("read the boot id for", &config.dir, error))?;
    let now = Now { boot: BootClock.now(), wall_micros: BootClock.wall_micros() };
    let (mut locks, mut buffer) = (Vec::new(), Vec::new());
    for shard in 0..=u8::MAX {
        let Ok(files) = std::fs::read_dir(states.join(format!("{shard:02x}"))) else { continue };
        for file in files.flatten() {
            // A file that another process writes or removes at this moment is not needed.
            let Ok(Some(mut state)) = StateFile::open_to_show(file.path()) else { continue };
            let Ok(Some(record)) = state.read(&mut buffer) else { continue };
            let name = record.name.clone();
            let mut resource = record.of_boot(&boot, now);
            resource.end_sessions(now, &mut Notified::new(), |session| !sessions.is_dead(session));
            locks.push(resource.state(name, now));
        }
    }
    locks.retain(|state| !state.is_free());
    Ok(locks)
}

#[cfg(test)]
mod tests {
    use oarlock_core::doctor::Report;

    use super::{LEAST, existing, judge_file_system};
    use crate::mount::refused;

    /// No network is needed to have the type of its file system. 0x6969 is NFS, 0xef53 is ext4.
    #[test]
    fn a_file_system_that_others_share_and_one_that_is_full_are_found() {
        let ids = |magic, free| {
            let mut report = Report::default();
            judge_file_system(refused(magic), free, &mut report.on("/srv/locks"));
            report.findings.iter().map(|finding| finding.check.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(0xef53, LEAST), [""; 0]);
        assert_eq!(ids(0x6969, LEAST), ["local-network"]);
        assert_eq!(ids(0xef53, LEAST - 1), ["local-disk"]);
    }

    #[test]
    fn a_path_that_cannot_be_looked_at_is_not_a_store_that_was_never_used() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(existing(&dir.path().join("a/b")).unwrap(), dir.path());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(existing(&dir.path().join("file/store")).is_err());
    }
}
