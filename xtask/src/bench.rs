//! `cargo xtask bench`: `oarlock bench` in release on every store that can be started here, in one table.

use crate::workspace::{Failure, Workspace, stream};

/// Builds and runs it; `flags` are those of `oarlock bench`.
///
/// # Errors
/// When a build or a run fails.
pub(crate) fn run(workspace: &Workspace, flags: &[String]) -> Result<(), Failure> {
    const CLI: [&str; 4] = ["--release", "--locked", "-p", "oarlock-cli"];
    stream(workspace.cargo(["build"]).args(CLI).args(["--bin", "oarlock", "--example", "stores"]))?;
    let mut bench = workspace.cargo(["run"]);
    bench.args(CLI).args(["--example", "stores", "--"]).args(flags);
    stream(bench.env_remove("OARLOCK_URL"))
}
