//! `cargo xtask dist`: what users install. A program that needs no other file, an archive of it, a Debian package, a
//! wheel for Python, a Dockerfile, a bill of materials and checksums, all in `dist-files` of the folder of build products.

mod debian;
pub(crate) mod root;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::packages;
use crate::python;
use crate::workspace::{Failure, Workspace, stream};

/// The shells that completions are made for, and where Debian looks for them.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/oarlock"),
    ("zsh", "usr/share/zsh/vendor-completions/_oarlock"),
    ("fish", "usr/share/fish/vendor_completions.d/oarlock.fish"),
];

/// What was made.
#[derive(Debug)]
pub(crate) struct Dist {
    /// The folder of it all.
    pub(crate) folder: PathBuf,
    program: PathBuf,
    version: String,
    target: String,
    is_static: bool,
}

/// Makes all of it, and prints the sizes.
///
/// # Errors
/// When something does not build.
pub(crate) fn run(workspace: &Workspace) -> Result<Dist, Failure> {
    let dist = program(workspace)?;
    wheel(workspace, &dist)?;
    let pages = pages(&dist)?;
    archive(workspace, &dist, &pages)?;
    debian::package(workspace, &dist, &pages)?;
    if dist.is_static {
        let place = dist.folder.join("Dockerfile");
        fs::copy(workspace.root().join("packaging/Dockerfile"), place).context("no Dockerfile")?;
    } else {
        println!("Dockerfile: no: a program that is not static does not start in an empty image");
    }
    let bill = format!("oarlock-{}-{}.cdx.json", dist.version, dist.target);
    sbom::write(workspace, &dist.target, &dist.folder.join(bill))?;
    fs::remove_dir_all(pages).context("cannot remove a folder")?;
    checksums(&dist)?;
    Ok(dist)
}

/// Builds the program: with musl, so that it needs no library of the system, where that can be had.
fn program(workspace: &Workspace) -> Result<Dist, Failure> {
    let arch = std::env::consts::ARCH;
    let (musl, host) = (format!("{arch}-unknown-linux-musl"), format!("{arch}-unknown-linux-gnu"));
    let lacks = lacks_musl(&musl);
    if let Some(why) = &lacks {
        println!("static: no: {why}. The program needs the C library of this system, or a newer one");
    }
    let target = if lacks.is_none() { musl } else { host };
    let mut build =
        workspace.cargo(["build", "--locked", "--profile", "dist", "-p", "oarlock-cli", "--bin", "oarlock"]);
    build.args(["--target", &target]).env(format!("CC_{}", target.replace('-', "_")), compiler(&target));
    stream(&mut build)?;
    let folder = workspace.target().join("dist-files");
    if folder.exists() {
        fs::remove_dir_all(&folder).context("cannot remove what was made before")?;
    }
    fs::create_dir_all(&folder).context("cannot make a folder")?;
    let program = folder.join("oarlock");
    fs::copy(workspace.target().join(&target).join("dist/oarlock"), &program).context("no program was built")?;
    let version = answer(Command::new(&program).arg("--version"))?;
    let version = version.split_whitespace().last().unwrap_or_default().to_owned();
    Ok(Dist { folder, program, version, target, is_static: lacks.is_none() })
}

fn compiler(target: &str) -> &'static str {
    if target.ends_with("musl") { "musl-gcc" } else { "cc" }
}

/// What is missing to build for musl, if anything.
fn lacks_musl(target: &str) -> Option<String> {
    if !packages::search_path().iter().any(|folder| folder.join("musl-gcc").is_file()) {
        return Some("`musl-gcc` is not installed (Debian: musl-tools)".to_owned());
    }
    let is_there = || {
        let libraries = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
        libraries.is_ok_and(|found| Path::new(String::from_utf8_lossy(&found.stdout).trim()).is_dir())
    };
    if !is_there() {
        // What became of it is seen by looking again.
        let _ = Command::new("rustup").args(["target", "add", target]).status();
    }
    (!is_there()).then(|| format!("the Rust toolchain lacks {target}, and `rustup target add` failed"))
}

/// The package for Python: one wheel for all its versions.
fn wheel(workspace: &Workspace, dist: &Dist) -> Result<(), Failure> {
    let mut build = python::environment(workspace)?.program("maturin");
    build.args(["build", "--release", "--locked", "--out"]).arg(&dist.folder);
    stream(build.current_dir(workspace.root().join("python")).env("CARGO_TARGET_DIR", workspace.target()))
}

/// A folder with the manual pages and completions, as the program prints them, at their places in a system.
fn pages(dist: &Dist) -> anyhow::Result<PathBuf> {
    let folder = dist.folder.join("pages");
    let man = folder.join("usr/share/man/man1");
    fs::create_dir_all(&man)?;
    fs::write(man.join("oarlock.1"), answer(Command::new(&dist.program).arg("man"))?)?;
    for subcommand in subcommands(&answer(Command::new(&dist.program).arg("help"))?) {
        let page = answer(Command::new(&dist.program).args(["man", &subcommand]))?;
        fs::write(man.join(format!("oarlock-{subcommand}.1")), page)?;
    }
    for (shell, place) in SHELLS {
        let place = folder.join(place);
        fs::create_dir_all(place.parent().context("no folder for it")?)?;
        fs::write(place, answer(Command::new(&dist.program).args(["completions", shell]))?)?;
    }
    Ok(folder)
}

/// The subcommands in the text of `oarlock help`.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let names = list.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The program, its pages and the licences in one archive.
fn archive(workspace: &Workspace, dist: &Dist, pages: &Path) -> Result<(), Failure> {
    let name = format!("oarlock-{}-{}", dist.version, dist.target);
    let folder = dist.folder.join(&name);
    fs::create_dir_all(&folder).context("cannot make a folder")?;
    fs::copy(&dist.program, folder.join("oarlock")).context("no program")?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"] {
        fs::copy(workspace.root().join(file), folder.join(file)).with_context(|| format!("no {file}"))?;
    }
    copy_folder(&workspace.root().join("packaging/systemd"), &folder.join("systemd"))?;
    copy_folder(&pages.join("usr/share"), &folder.join("share"))?;
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--sort=name", "-czf"]).arg(format!("{name}.tar.gz"));
    stream(tar.arg(&name).current_dir(&dist.folder))?;
    fs::remove_dir_all(folder).context("cannot remove a folder")?;
    Ok(())
}

/// Copies a folder and all below it.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &place)?;
        } else {
            fs::copy(&path, &place).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes `SHA256SUMS-TARGET`, and prints every file with its size.
fn checksums(dist: &Dist) -> Result<(), Failure> {
    let folder = &dist.folder;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).context("cannot read what was made")? {
        let entry = entry.context("cannot read what was made")?;
        files.push((entry.file_name(), entry.metadata().context("no size")?.len()));
    }
    files.sort();
    let sums = answer(Command::new("sha256sum").args(files.iter().map(|(name, _)| name)).current_dir(folder))?;
    fs::write(folder.join(format!("SHA256SUMS-{}", dist.target)), sums).context("cannot write the checksums")?;
    println!("{}:", folder.display());
    for (name, size) in files {
        println!("{size:>12}  {}", name.to_string_lossy());
    }
    Ok(())
}

/// The output of a command that succeeds.
fn answer(command: &mut Command) -> anyhow::Result<String> {
    let line = crate::workspace::shown(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{line}`"))?;
    anyhow::ensure!(output.status.success(), "`{line}` failed");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_found_in_the_help() {
        let help = "Locks\n\nUsage: oarlock\n\nCommands:\n  run   Run it\n  break  End it: ask\n         first\n  help  Print\n\nOptions:\n  -h\n";
        assert_eq!(subcommands(help), ["run", "break"]);
    }
}
