//! The boot id of the machine. Deadlines are moments of the boot clock and mean nothing after a restart.

use std::io;

/// The boot id: the same for all processes until the machine restarts.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The boot id: the same for all processes until the machine restarts.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn id() -> io::Result<String> {
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output()?;
    let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if id.is_empty() { Err(io::Error::other("sysctl does not know kern.bootsessionuuid")) } else { Ok(id) }
}
