//! Subcommands of cargo that parts of the long tier need.

use std::path::PathBuf;

use crate::packages;
use crate::workspace::{Failure, Workspace, stream};

/// Where a tool is: installed, or built once for this, in the newest version that is compatible with `version`.
pub(crate) fn installed(workspace: &Workspace, tool: &str, version: &str) -> Result<PathBuf, Failure> {
    let tools = workspace.target().join("tools");
    let mut folders = packages::search_path();
    folders.push(tools.join("bin"));
    if let Some(folder) = folders.iter().find(|folder| folder.join(tool).is_file()) {
        return Ok(folder.join(tool));
    }
    let version = format!("^{version}");
    let install = ["install", "--quiet", "--locked", tool, "--version", &version, "--root"];
    stream(workspace.cargo(install).arg(&tools))?;
    Ok(tools.join("bin").join(tool))
}
