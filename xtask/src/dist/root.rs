//! The part `dist`: installs what was made in a clean Debian, and uses it there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::{Dist, copy_folder};
use crate::packages;
use crate::python;
use crate::workspace::{Failure, Workspace, stream};

/// The suite that is installed.
const SUITE: &str = "bookworm";

/// What the tests need there beside what is tested.
const NEEDED: &str = "python3,python3-pip,redis-server,postgresql";

/// What is done in the clean system. Each step must succeed.
const STEPS: &str = r#"
set -eu
mount -t proc proc /proc
dpkg -i /dist/oarlock_*.deb
oarlock --version
test -s /usr/share/man/man1/oarlock-run.1.gz
test -s /usr/share/bash-completion/completions/oarlock
test -s /usr/lib/systemd/system/oarlock-serve.service
test "$(oarlock run --url local:/tmp/locks installed -- echo ran)" = ran
mkdir /opt/archive
tar -xzf /dist/oarlock-*.tar.gz -C /opt/archive --strip-components=1
test "$(/opt/archive/oarlock run --url local:/tmp/locks unpacked -- echo ran)" = ran
python3 -m pip install --quiet --no-index --find-links /wheels --break-system-packages --root-user-action ignore pytest /dist/oarlock-*.whl
cd /repository/python/tests
OARLOCK_BIN=/usr/bin/oarlock OARLOCK_LOCK_PROCESS=/opt/lock-process python3 -m pytest -q -p no:cacheprovider
# An update keeps what the user wrote, a purge does not.
echo 'OARLOCK_URL=local:/tmp/locks' >> /etc/default/oarlock
dpkg --force-confold -i /dist/oarlock_*.deb
grep -q 'local:/tmp/locks' /etc/default/oarlock
dpkg --purge oarlock
test ! -e /usr/bin/oarlock
test ! -e /etc/default/oarlock
python3 -m pip uninstall --quiet --yes --break-system-packages --root-user-action ignore oarlock
echo 'installed, used, removed'
"#;

/// Makes what users install, and tries it.
///
/// # Errors
/// When a step fails, or the clean system cannot be made.
pub(crate) fn test(workspace: &Workspace) -> Result<(), Failure> {
    let dist = super::run(workspace)?;
    if !packages::search_path().iter().any(|folder| folder.join("debootstrap").is_file()) {
        return Err(Failure::new("`debootstrap` is not installed, which makes a clean system (Debian: debootstrap)"));
    }
    let lock_process = lock_process(workspace)?;
    let root = tempfile::Builder::new().prefix("clean-root-").tempdir_in(workspace.target()).context("no folder")?;
    fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).context("no permission")?;
    let cache = workspace.target().join("debian-archives");
    fs::create_dir_all(&cache).context("cannot make a folder")?;
    let mut bootstrap = Command::new("debootstrap");
    bootstrap
        .args(["--variant=minbase", &format!("--include={NEEDED}")])
        .arg(format!("--cache-dir={}", cache.display()));
    stream(bootstrap.arg(SUITE).arg(root.path()))?;
    furnish(workspace, &dist, root.path(), &lock_process)?;
    // Its own processes and mounts: nothing of it is left behind.
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--pid", "--fork", "--kill-child", "chroot"]).arg(root.path());
    inside.args(["/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"]);
    stream(inside.args(["/bin/sh", "-c", STEPS]))
}

/// The Rust program on the other side, with the stores of the tests.
fn lock_process(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let program = ["build", "--quiet", "--locked", "-p", "oarlock-testbed", "--bin", "lock-process"];
    stream(workspace.cargo(program).args(["--features", "oarlock/postgres,oarlock/redis"]))?;
    Ok(workspace.target().join("debug/lock-process"))
}

/// Copies what was made, and what tests it, into the clean system.
fn furnish(workspace: &Workspace, dist: &Dist, root: &Path, lock_process: &Path) -> Result<(), Failure> {
    copy_folder(&dist.folder, &root.join("dist"))?;
    // At their places in the repository, without the sources of the package: the tests use what is installed.
    let here = root.join("repository");
    copy_folder(&workspace.root().join("python/tests"), &here.join("python/tests"))?;
    fs::create_dir_all(here.join("docs")).context("cannot make a folder")?;
    fs::copy(workspace.root().join("docs/python.md"), here.join("docs/python.md")).context("no page for Python")?;
    fs::copy(lock_process, root.join("opt/lock-process")).context("no program on the other side")?;
    let mut download = python::environment(workspace)?.program("python");
    download.args(["-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version=3.11", "--dest"]);
    stream(download.arg(root.join("wheels")).arg("pytest==9.2.0"))
}
