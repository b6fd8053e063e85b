//! Where the servers of the tests keep their files: in memory, where there is room.
//!
//! The tests start hundreds of servers that live for seconds, each on a copy of a whole database. On a disk the kernel
//! spends more time on these files than the tests take themselves.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The file system in memory that Linux systems have.
const SHARED_MEMORY: &str = "/dev/shm";

/// A run needs less than a quarter of this.
const ENOUGH_KIB: u64 = 4 * 1024 * 1024;

/// A folder for temporary files, removed at the end of the run.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Option<TempDir>);

impl Scratch {
    /// In memory, unless `TMPDIR` names another place, or there is too little room.
    pub(crate) fn new() -> Self {
        let suits = std::env::var_os("TMPDIR").is_none()
            && std::fs::read_to_string("/proc/mounts").is_ok_and(|mounts| runs_programs(&mounts))
            && free_kib().is_some_and(|free| free >= ENOUGH_KIB);
        // Servers do not run as root: they must reach their own folders in it.
        let open = |folder: TempDir| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).ok()?;
            Some(folder)
        };
        let folder = || tempfile::Builder::new().prefix("oarlock-").tempdir_in(SHARED_MEMORY).ok();
        Self(suits.then(folder).flatten().and_then(open))
    }

    /// Lets `command` put its temporary files there.
    pub(crate) fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match &self.0 {
            Some(folder) => command.env("TMPDIR", folder.path()),
            None => command,
        }
    }

    /// Where it is, if not in the usual place.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(TempDir::path)
    }
}

/// Whether it is a file system in memory, from which programs may be started.
fn runs_programs(mounts: &str) -> bool {
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    mounts.lines().map(fields).any(|mount| match mount.as_slice() {
        [_, place, kind, options, ..] => {
            place == SHARED_MEMORY && kind == "tmpfs" && options.split(',').all(|option| option != "noexec")
        }
        _ => false,
    })
}

/// How much room there is.
fn free_kib() -> Option<u64> {
    let df = Command::new("df").args(["--output=avail", "-k", SHARED_MEMORY]).stderr(Stdio::null()).output().ok()?;
    String::from_utf8_lossy(&df.stdout).lines().nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_must_be_allowed_to_run_from_it() {
        let mounts = |options: &str| format!("/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs {options} 0 0\n");
        assert!(runs_programs(&mounts("rw,nosuid,nodev")));
        assert!(!runs_programs(&mounts("rw,nosuid,noexec")));
        assert!(!runs_programs("/dev/vda / ext4 rw 0 0\n"));
        assert!(!runs_programs("shm /dev/shm ext4 rw 0 0\n"));
    }

    #[test]
    fn a_program_is_told_where_it_is_and_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let scratch = Scratch(Some(folder));
        let mut command = Command::new("true");
        scratch.apply(&mut command);
        assert!(command.get_envs().any(|told| told == ("TMPDIR".as_ref(), Some(path.as_os_str()))));
        assert_eq!(scratch.path(), Some(path.as_path()));
        drop(scratch);
        assert!(!path.exists());
        let mut command = Command::new("true");
        assert_eq!(Scratch::default().apply(&mut command).get_envs().count(), 0);
    }
}
