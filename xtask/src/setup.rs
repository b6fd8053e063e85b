//! Installs what the tests need, and only what is missing.

pub(crate) mod debian;
mod quiet;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::packages::{self, LONG_PACKAGES, PACKAGES, Package};
use crate::parts::Part;
use crate::workspace::{Failure, Workspace, stream};

/// Makes this machine ready for `parts`.
///
/// # Errors
/// When something is missing that cannot be installed from here; the message is then the command that would.
pub(crate) fn run(workspace: &Workspace, parts: &[Part]) -> Result<(), Failure> {
    for part in parts {
        if let Some((subcommand, component)) = part.component() {
            add_component(workspace, subcommand, component)?;
        }
    }
    if parts.iter().any(|part| part.needs_packages()) {
        install_packages(PACKAGES)?;
    }
    if parts.iter().any(|part| part.needs_long_packages()) {
        install_packages(LONG_PACKAGES)?;
    }
    Ok(())
}

/// Unpacks the servers that are not installed.
pub(crate) fn servers(workspace: &Workspace, parts: &[Part]) {
    if parts.iter().any(|part| part.needs_packages()) {
        debian::unpack_mysql(workspace);
    }
}

/// `rustup`'s minimal profile comes without the formatter and the linter.
fn add_component(workspace: &Workspace, subcommand: &str, component: &str) -> Result<(), Failure> {
    let is_there = workspace
        .cargo([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("cannot start cargo")?
        .success();
    if is_there {
        println!("rust component {component}: there");
        return Ok(());
    }
    println!("rust component {component}: missing");
    stream(Command::new("rustup").args(["component", "add", component]).current_dir(workspace.root())).map_err(
        |failure| Failure {
            why: format!("the Rust toolchain lacks {component}, and adding it failed: {}", failure.why),
            ..failure
        },
    )
}

fn install_packages(needed: &'static [Package]) -> Result<(), Failure> {
    let search = packages::search_path();
    let is_proven = |package: &Package| packages::is_there(package, &search);
    let wanting = packages::wanting(needed, &installed(needed), is_proven);
    for package in needed {
        let state = if wanting.missing.contains(&package) {
            "missing"
        } else if wanting.broken.contains(&package) {
            "broken"
        } else {
            "there"
        };
        println!("package {}: {state} ({})", package.name, package.purpose);
    }
    if !wanting.broken.is_empty() {
        return Err(Failure::new(format!(
            "installed, but without the programs in them; repair with: apt-get install --reinstall {}",
            names(&wanting.broken)
        )));
    }
    if wanting.missing.is_empty() {
        return Ok(());
    }
    if !is_root()? {
        return Err(Failure::new(by_hand(&wanting.missing)));
    }
    stream(apt_get().arg("update"))?;
    let services: Vec<_> = wanting.missing.iter().filter_map(|package| package.service).collect();
    quiet::without_services(&services, || {
        stream(
            apt_get()
                // Another install may be under way, as it often is shortly after a boot.
                .args(["-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends"])
                .args(wanting.missing.iter().map(|package| package.name)),
        )
    })?;
    match wanting.missing.iter().find(|package| !is_proven(package)) {
        None => Ok(()),
        Some(package) => {
            Err(Failure::new(format!("{} was installed, yet `{}` is not there", package.name, package.proof)))
        }
    }
}

/// What Debian says is installed; nothing on a system that is not Debian's.
fn installed(needed: &[Package]) -> BTreeSet<String> {
    // It exits with 1 when it does not know one of the names, and still answers for the others.
    Command::new("dpkg-query")
        .args(packages::DPKG_QUERY)
        .args(needed.iter().map(|package| package.name))
        .stderr(Stdio::null())
        .output()
        .map(|output| packages::installed(&String::from_utf8_lossy(&output.stdout)))
        .unwrap_or_default()
}

fn is_root() -> anyhow::Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot start `id -u`")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn names(packages: &[&Package]) -> String {
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    names.join(" ")
}

/// The message for a user who is not root.
fn by_hand(missing: &[&Package]) -> String {
    format!(
        "the tests need packages that only root can install. Run this, then try again:\n\
         sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends {}'",
        names(missing)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_one_line_says_it_all() {
        let missing: Vec<_> = PACKAGES.iter().collect();
        let text = by_hand(&missing);
        let line = text.lines().last().expect("a command line");
        for word in ["apt-get update", "apt-get install", "util-linux", "procps"] {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
}
