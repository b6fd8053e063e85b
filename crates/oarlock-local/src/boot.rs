//! Which start of the machine this is: deadlines are moments of the boot clock, and mean nothing after the next one.

use std::io;

/// An identity of the running system, the same for all processes until the machine is started again.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// An identity of the running system, the same for all processes until the machine is started again.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn id() -> io::Result<String> {
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output()?;
    let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if id.is_empty() { Err(io::Error::other("sysctl does not tell kern.bootsessionuuid")) } else { Ok(id) }
}
