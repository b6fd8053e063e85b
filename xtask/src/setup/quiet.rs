//! Installs packages without the services that they would start, now or at the next boot.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::workspace::{Failure, stream};

/// Debian asks this program before a package starts a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Its answer: forbidden.
const REFUSE: &str = "#!/bin/sh\nexit 101\n";

/// Runs `install` in such a way that none of these services is left running or enabled by it.
pub(super) fn without_services(
    services: &[&str],
    install: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    if services.is_empty() {
        return install();
    }
    let refusal = Refusal::at(Path::new(POLICY))?;
    let result = install();
    drop(refusal);
    // Where systemd does not run, nothing would start them at a boot either.
    if result.is_ok() && Path::new("/run/systemd/system").is_dir() {
        stream(Command::new("systemctl").arg("disable").args(services))?;
    }
    result
}

/// Refuses the start of every service while it lives, unless the machine has a policy of its own.
#[derive(Debug)]
struct Refusal {
    /// What to remove at the end.
    placed: Option<PathBuf>,
}

impl Refusal {
    fn at(policy: &Path) -> anyhow::Result<Self> {
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o755).open(policy) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Self { placed: None }),
            Err(error) => return Err(error).with_context(|| format!("cannot write {}", policy.display())),
        };
        let refusal = Self { placed: Some(policy.to_owned()) };
        file.write_all(REFUSE.as_bytes()).with_context(|| format!("cannot write {}", policy.display()))?;
        // Whatever the umask says: a file that cannot be run counts as no policy.
        fs::set_permissions(policy, Permissions::from_mode(0o755))
            .with_context(|| format!("cannot make {} a program", policy.display()))?;
        Ok(refusal)
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        if let Some(policy) = &self.placed
            && let Err(error) = fs::remove_file(policy)
        {
            eprintln!("xtask: remove {} by hand, or no service will start: {error}", policy.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place for a policy where none is yet.
    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("oarlock-xtask-{}-{name}", std::process::id()))
    }

    #[test]
    fn services_are_refused_for_the_duration() {
        let policy = place("none-before");
        let refusal = Refusal::at(&policy).expect("a policy");
        let answer = Command::new("sh").arg(&policy).args(["redis-server", "start"]).status().expect("sh");
        assert_eq!(answer.code(), Some(101));
        let mode = fs::metadata(&policy).expect("the policy").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        drop(refusal);
        assert!(!policy.exists());
    }

    #[test]
    fn a_policy_of_the_machine_stays() {
        let policy = place("one-before");
        fs::write(&policy, "#!/bin/sh\nexit 0\n").expect("a policy");
        drop(Refusal::at(&policy).expect("nothing to do"));
        assert_eq!(fs::read_to_string(&policy).expect("still there"), "#!/bin/sh\nexit 0\n");
        fs::remove_file(&policy).expect("clean");
    }

    #[test]
    fn packages_without_services_need_no_policy() {
        assert!(without_services(&[], || Ok(())).is_ok());
        let failure = without_services(&[], || Err(Failure::new("no"))).expect_err("the failure of the install");
        assert_eq!(failure.why, "no");
    }
}
