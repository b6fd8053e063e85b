//! What this program mounts, and the networks that it makes, end with it, however it ends: it runs in a mount namespace
//! and a network namespace of its own. In the latter there is nothing but loopback and what is made there.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the namespaces.
const IS_APART: &str = "OARLOCK_FAULTS_APART";

/// What runs in the namespaces first, before the words of the command: loopback of a new one is down.
const UP: [&str; 4] = ["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];

/// Starts this program again in namespaces of its own, in the same process. Returns if it is there already, or if it lacks
/// the right: then it cannot mount anything either. Without a network of its own it may still mount.
pub(crate) fn enter() {
    if std::env::var_os(IS_APART).is_some() {
        return;
    }
    let unshare = |flags: &[&str], first: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(flags).arg("--").args(first);
        unshare
    };
    let Ok(here) = std::env::current_exe() else { return };
    let kinds: [(&[&str], &[&str]); 2] = [(&["--mount", "--net"], &UP), (&["--mount"], &[])];
    for (flags, first) in kinds {
        let may = unshare(flags, first).arg("true").stderr(Stdio::null()).status();
        if may.is_ok_and(|status| status.success()) {
            // It returns only when it fails.
            let mut again = unshare(flags, first);
            let error = again.arg(here).args(std::env::args_os().skip(1)).env(IS_APART, "1").exec();
            eprintln!("faults: no namespaces: {error}");
            return;
        }
    }
}
