//! `cargo xtask bench`: `oarlock bench` in release on every store that can be started here, in one table.
//! With `--goals`: the goals of speed.

use crate::workspace::{Failure, Workspace, stream};

/// Builds `oarlock` and this example of it, and runs the example with `flags`.
///
/// # Errors
/// When a build or a run fails.
pub(crate) fn run(workspace: &Workspace, example: &str, flags: &[String]) -> Result<(), Failure> {
    const CLI: [&str; 4] = ["--release", "--locked", "-p", "oarlock-cli"];
    stream(workspace.cargo(["build"]).args(CLI).args(["--bin", "oarlock", "--example", example]))?;
    let mut bench = workspace.cargo(["run"]);
    bench.args(CLI).args(["--example", example, "--"]).args(flags);
    stream(bench.env_remove("OARLOCK_URL"))
}
