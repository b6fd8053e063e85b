//! The embedded store, in a folder of its own; for a full disk, in a small file system in memory.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use super::{Deployment, ServerFault, wait};

struct Local {
    folder: TempDir,
    mounted: bool,
}

/// So large is the small file system.
const SIZE: &str = "size=4m";

pub(super) fn start() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Local { folder: TempDir::new()?, mounted: false }))
}

/// Only root can mount it.
pub(super) fn start_small() -> anyhow::Result<Box<dyn Deployment>> {
    let folder = TempDir::new()?;
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(folder.path()).output()?;
    ensure!(mounted.status.success(), "no small file system: {}", String::from_utf8_lossy(&mounted.stderr).trim());
    Ok(Box::new(Local { folder, mounted: true }))
}

impl Local {
    fn filler(&self) -> PathBuf {
        self.folder.path().join("filler")
    }
}

impl Deployment for Local {
    fn url(&self) -> String {
        format!("local:{}/store", self.folder.path().display())
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        if fault != ServerFault::DiskFull {
            bail!("{} is no fault of a folder", fault.name());
        }
        ensure!(self.mounted, "this folder is on a disk that must not be filled");
        let mut filler = fs::File::create(self.filler())?;
        let zeros = [0; 64 * 1024];
        // Until it is full, to the last block.
        while std::io::Write::write_all(&mut filler, &zeros).is_ok() {}
        while std::io::Write::write_all(&mut filler, &zeros[..512]).is_ok() {}
        wait(lease, 0.3, 1.5, random);
        drop(filler);
        fs::remove_file(self.filler()).context("the file that fills the disk")
    }

    fn version(&self) -> String {
        kernel()
    }
}

/// The version of the kernel, which decides here.
pub(super) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|text| format!("Linux {}", text.trim().split('.').take(2).collect::<Vec<_>>().join(".")))
        .unwrap_or_default()
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.mounted {
            let done = Command::new("umount").arg("-l").arg(self.folder.path()).status();
            if !done.is_ok_and(|status| status.success()) {
                eprintln!("{} stays mounted", self.folder.path().display());
            }
        }
    }
}
