//! `cargo xtask test --only python`: builds the Python package, and tests it on real servers with the command line and a
//! Rust program on the other side.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::workspace::{Failure, Workspace, stream};

/// The folder of the package.
const FOLDER: &str = "python";

/// The most lines of Rust between the library and Python. If it needs more, the library's API is wrong.
const MOST_LINES: usize = 800;

/// A virtual environment under the folder of build products.
#[derive(Debug)]
pub(crate) struct Environment(PathBuf);

impl Environment {
    /// The environment `name` with these packages, of the versions that `versions` pins.
    ///
    /// # Errors
    /// When there is no Python, or a package cannot be had.
    pub(crate) fn with(workspace: &Workspace, name: &str, versions: &[&str]) -> Result<Self, Failure> {
        let (folder, wanted) = (workspace.target().join(name), versions.join("\n"));
        let stamp = folder.join("installed");
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            return Ok(Self(folder));
        }
        stream(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let environment = Self(folder);
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        stream(environment.program("python").args(install).args(versions))?;
        std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(environment)
    }

    /// A program in it.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.env("VIRTUAL_ENV", &self.0).env_remove("PYTHONHOME").env_remove("PYTHONPATH");
        command
    }
}

/// What builds and tests the package.
pub(crate) fn environment(workspace: &Workspace) -> Result<Environment, Failure> {
    Environment::with(workspace, "python", &["maturin==1.16.0", "pytest==9.2.0", "mypy==2.4.1"])
}

/// Builds the package, checks its types and runs its tests.
///
/// # Errors
/// When one of them fails, or the native part has grown too much.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let folder = workspace.root().join(FOLDER);
    let lines = lines(&folder.join("src"))?;
    println!("the native part has {lines} lines of Rust, at most {MOST_LINES}");
    if lines > MOST_LINES {
        return Err(Failure::new(format!(
            "{FOLDER}/src has {lines} lines: what in the library's API makes it so long?"
        )));
    }
    let manifest = folder.join("Cargo.toml");
    stream(workspace.cargo(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let environment = environment(workspace)?;
    let target = workspace.target();
    let mut clippy = workspace.cargo(["clippy", "--quiet", "--locked", "--manifest-path"]);
    stream(clippy.arg(&manifest).args(["--", "-D", "warnings"]).env("CARGO_TARGET_DIR", &target))?;
    let mut build = environment.program("maturin");
    stream(build.args(["develop", "--quiet", "--locked"]).current_dir(&folder).env("CARGO_TARGET_DIR", &target))?;
    stream(environment.program("mypy").current_dir(&folder))?;
    let build = ["build", "--quiet", "--locked", "-p", "oarlock-cli", "-p", "oarlock-testbed", "--bins"];
    stream(&mut workspace.cargo(build))?;
    test(&environment, &folder, &target.join("debug"))
}

/// Runs the tests with the programs in `programs` on the other side.
pub(crate) fn test(environment: &Environment, folder: &Path, programs: &Path) -> Result<(), Failure> {
    let mut pytest = environment.program("python");
    pytest.args(["-m", "pytest"]).current_dir(folder).env_remove("OARLOCK_URL");
    pytest.env("OARLOCK_BIN", programs.join("oarlock"));
    stream(pytest.env("OARLOCK_LOCK_PROCESS", programs.join("lock-process")))
}

/// All lines of the Rust files in a folder.
fn lines(folder: &Path) -> anyhow::Result<usize> {
    let mut lines = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            lines += std::fs::read_to_string(&path)?.lines().count();
        }
    }
    Ok(lines)
}
