//! Examines the directory of the store.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use oarlock_core::Result;
use oarlock_core::doctor::{Check, Doctor, Report, Severity};
use oarlock_core::guarantees::Promise;
use oarlock_core::url::Url;

use crate::config::{Config, other_default_dir};
use crate::error::os_at;
use crate::mount;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[&NETWORK, &OPEN, &TWO_STORES, &DISK],
    examine: |url| {
        Box::pin(async move {
            let mut report = Report::default();
            if let Err(error) = examine(&url, &mut report) {
                report.on(&url.to_string()).failed(&error);
            }
            report
        })
    },
};

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
    let there = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if let Some(kind) = mount::shared_kind(there)? {
        let reason = format!("it is on {kind}: another machine can hold the same lock");
        on.find(&NETWORK, reason);
    }
    let space = rustix::fs::statvfs(there).map_err(|error| os_at("read the free space of", there, error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    on.fact("free space", format!("{} MiB", free >> 20));
    if free < LEAST {
        on.find(&DISK, format!("{} MiB are free", free >> 20));
    }
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
    report.never_used = there != dir;
    Ok(())
}
