//! `cargo xtask faults`: `oarlock torture` on every store that can be started here, with faults of its servers.

use std::process::Command;

use crate::workspace::{Failure, Workspace, stream};

/// Builds and runs it; `flags` are those of `oarlock-faults`.
///
/// # Errors
/// When a build fails, or a run is not as it must be.
pub(crate) fn run(workspace: &Workspace, flags: &[String]) -> Result<(), Failure> {
    // Not by package: other features would build half of the workspace again.
    const ALL: [&str; 3] = ["build", "--locked", "--workspace"];
    stream(workspace.cargo(ALL).args(["--bin", "oarlock", "--bin", "oarlock-faults", "--bin", "interop"]))?;
    let mut faults = Command::new(workspace.target().join("debug/oarlock-faults"));
    stream(faults.args(flags).current_dir(workspace.root()).env_remove("OARLOCK_URL"))
}
