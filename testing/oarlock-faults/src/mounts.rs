//! What this program mounts ends with it, however it ends: it runs in a mount namespace of its own.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the namespace.
const IS_APART: &str = "OARLOCK_FAULTS_APART";

/// Starts this program again in a mount namespace of its own, in the same process. Returns if it is there already, or if
/// it lacks the right: then it cannot mount anything either.
pub(crate) fn apart() {
    if std::env::var_os(IS_APART).is_some() {
        return;
    }
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--"]);
        unshare
    };
    let may = unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if let (true, Ok(here)) = (may, std::env::current_exe()) {
        // It returns only when it fails.
        let error = unshare().arg(here).args(std::env::args_os().skip(1)).env(IS_APART, "1").exec();
        eprintln!("faults: no mount namespace: {error}");
    }
}
