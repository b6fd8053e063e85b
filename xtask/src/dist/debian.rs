//! The Debian package.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::{Dist, answer, copy_folder};
use crate::workspace::{Failure, Workspace, stream};

/// The scripts of the package.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files that the user may change: an update asks before it replaces them.
const CONFIGURATION: &str = "/etc/default/oarlock\n";

/// Makes the package from the program and its pages.
pub(super) fn package(workspace: &Workspace, dist: &Dist, pages: &Path) -> Result<(), Failure> {
    let architecture = answer(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let stage = dist.folder.join("stage");
    stage_files(workspace, dist, pages, &stage, &architecture)?;
    let package = dist.folder.join(format!("oarlock_{}_{architecture}.deb", dist.version));
    stream(Command::new("dpkg-deb").args(["--root-owner-group", "-Zxz", "--build"]).arg(&stage).arg(package))?;
    fs::remove_dir_all(stage).context("cannot remove a folder")?;
    Ok(())
}

fn stage_files(
    workspace: &Workspace,
    dist: &Dist,
    pages: &Path,
    stage: &Path,
    architecture: &str,
) -> anyhow::Result<()> {
    let packaging = workspace.root().join("packaging");
    copy_folder(pages, stage)?;
    copy_folder(&packaging.join("systemd"), &stage.join("usr/lib/systemd/system"))?;
    let documents = stage.join("usr/share/doc/oarlock");
    for folder in [&stage.join("usr/bin"), &stage.join("etc/default"), &stage.join("etc/oarlock/once.d"), &documents] {
        fs::create_dir_all(folder)?;
    }
    fs::create_dir_all(stage.join("DEBIAN"))?;
    fs::copy(&dist.program, stage.join("usr/bin/oarlock"))?;
    fs::copy(packaging.join("debian/default"), stage.join("etc/default/oarlock"))?;
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| fs::read_to_string(workspace.root().join(file)));
    let [mit, apache] = licences;
    fs::write(documents.join("copyright"), format!("MIT OR Apache-2.0\n\n{}\n\n{}", mit?, apache?))?;
    for page in fs::read_dir(stage.join("usr/share/man/man1"))? {
        super::answer(Command::new("gzip").args(["-9n"]).arg(page?.path()))?;
    }
    let size: u64 = size(stage)?.div_ceil(1024);
    // A program that is not static runs with the C library of the system that built it, or a newer one.
    let depends = if dist.is_static { String::new() } else { format!("Depends: libc6 (>= {})\n", libc()?) };
    let version = &dist.version;
    let control = format!(
        "Package: oarlock\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Oarlock authors \
         <oarlock@users.noreply.github.com>\nInstalled-Size: {size}\n{depends}Section: admin\nPriority: optional\n\
         Homepage: https://github.com/oarlock/oarlock\nDescription: distributed locks for the command line\n Runs a \
         command while it holds a lock in Redis, etcd, ZooKeeper, PostgreSQL,\n MySQL, MariaDB or a directory; once per \
         slot on one machine of many; or on an\n elected leader. Brings systemd units for `oarlock serve` and for a timer.\n"
    );
    fs::write(stage.join("DEBIAN/control"), control)?;
    fs::write(stage.join("DEBIAN/conffiles"), CONFIGURATION)?;
    for script in SCRIPTS {
        let place = stage.join("DEBIAN").join(script);
        fs::copy(packaging.join("debian").join(script), &place)?;
    }
    modes(stage)?;
    for program in ["usr/bin/oarlock", "DEBIAN/postinst", "DEBIAN/prerm", "DEBIAN/postrm"] {
        fs::set_permissions(stage.join(program), fs::Permissions::from_mode(0o755))?;
    }
    // Its URL may have a password.
    fs::set_permissions(stage.join("etc/default/oarlock"), fs::Permissions::from_mode(0o640))?;
    Ok(())
}

/// Lets everybody read, whatever the umask of this process is.
fn modes(folder: &Path) -> anyhow::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            modes(&path)?;
        } else {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

/// The version of the C library that programs are linked with here.
fn libc() -> anyhow::Result<String> {
    let text = answer(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    Ok(text.split_whitespace().last().context("no C library")?.to_owned())
}

/// The bytes of all files in a folder.
fn size(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += if entry.path().is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}
