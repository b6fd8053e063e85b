//! `cargo xtask interop`: the programs of other languages are built, and Oarlock meets them on real servers.

mod languages;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages;
use crate::workspace::{Failure, Workspace, stream};
use languages::LANGUAGES;

/// The options of `cargo xtask interop`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InteropOptions {
    /// Every version of every client, and more rounds.
    pub(crate) all: bool,
    /// Speed side by side, instead of whether it works.
    pub(crate) speed: bool,
    /// The program that meets them, if it was built with the tests.
    pub(crate) built: Option<PathBuf>,
    /// These clients only; empty means all.
    pub(crate) only: Vec<String>,
}

/// The flag for [`InteropOptions::built`].
pub(crate) const BUILT: &str = "--built";

/// This program, also when the build of the tests has replaced its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The command that runs it beside the tests, with the program that was built with them; nothing where this program
/// does not know its own path.
pub(crate) fn command(built: &Path, all: bool) -> Option<Command> {
    let own = if Path::new(OWN_PROGRAM).exists() { OWN_PROGRAM.into() } else { std::env::current_exe().ok()? };
    let mut command = Command::new(own);
    command.args(["interop", BUILT]).arg(built);
    if all {
        command.arg("--all");
    }
    Some(command)
}

/// Builds what is missing, and runs it.
///
/// # Errors
/// When a case is red, or nothing could be run. Where `CI` is set, also when a language is missing.
pub(crate) fn run(workspace: &Workspace, options: &InteropOptions) -> Result<(), Failure> {
    let out = workspace.target().join("interop");
    let mut skipped = Vec::new();
    for language in LANGUAGES {
        if let Some(why) = language.lacks(workspace) {
            println!("{}: skipped: {why}", language.name);
            skipped.push(language.name);
            continue;
        }
        println!("{}: there", language.name);
        (language.build)(workspace, &out, options.all)?;
    }
    if !skipped.is_empty() && std::env::var_os("CI").is_some() {
        return Err(Failure::new(format!("skipped, which is a failure where CI is set: {}", skipped.join(", "))));
    }
    let has_protoc = packages::search_path().iter().any(|folder| folder.join("protoc").is_file());
    if options.speed {
        // Other crates to be measured beside ours: a workspace of its own, which nothing else needs.
        let manifest = workspace.root().join("interop/rust/Cargo.toml");
        let mut build = workspace.cargo(["build", "--quiet", "--locked", "--release", "--manifest-path"]);
        build.arg(manifest).env("CARGO_TARGET_DIR", workspace.target());
        if has_protoc {
            build.args(["--features", "etcd"]);
        } else {
            println!("etcd-client: skipped: `protoc` is not installed (Debian: protobuf-compiler)");
        }
        stream(&mut build)?;
    }
    let mut runner = if let Some(built) = &options.built {
        Command::new(built)
    } else {
        let profile: &[&str] = if options.speed { &["--release"] } else { &[] };
        let build = ["build", "--quiet", "--locked", "-p", "oarlock-interop", "--bins"];
        stream(workspace.cargo(build).args(profile))?;
        let mut runner = workspace.cargo(["run", "--quiet", "--locked", "-p", "oarlock-interop", "--bin", "interop"]);
        runner.args(profile).arg("--");
        runner
    };
    runner.arg("--root").arg(workspace.root()).arg("--out").arg(&out);
    if options.speed && !has_protoc {
        runner.args(["--without-client", "etcd-client"]);
    }
    for language in skipped {
        runner.args(["--without", language]);
    }
    for client in &options.only {
        runner.args(["--only", client]);
    }
    for (flag, given) in [("--all", options.all), ("--speed", options.speed)] {
        if given {
            runner.arg(flag);
        }
    }
    stream(runner.env_remove("OARLOCK_URL"))
}
