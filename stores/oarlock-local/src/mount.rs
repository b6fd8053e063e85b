//! Refuses file systems on which locks are not reliable.
//!
//! The store relies on flock, on Unix sockets and on a page cache that all processes share. All three are certain only
//! where one kernel owns the files. So file systems that other kernels share are refused by their type.

use std::path::Path;

use oarlock_core::{Error, ErrorKind, Result};

use crate::error::{SCHEME, os_at};

/// The file systems refused, by the magic numbers of statfs(2).
const REFUSED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "CEPH"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x7375_7245, "Coda"),
    (0x564c, "NCP"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0xaad7_aaea, "PanFS"),
    (0xbeef_dead, "StorNext"),
    (0x6163_6673, "ACFS"),
    (0x0131_11a8, "IBRIX"),
    (0x7c7c_6673, "Parallels shared folders"),
    (0x786f_4256, "VirtualBox shared folders"),
    (0xbacb_acbc, "VMware shared folders"),
];

/// The name of a file system of this type, if it is refused.
pub(crate) fn refused(magic: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Refuses a directory whose files another kernel may change.
pub(crate) fn check(dir: &Path) -> Result<()> {
    shared_kind(dir)?.map_or(Ok(()), |kind| Err(refuse(dir, kind)))
}

fn refuse(dir: &Path, kind: &str) -> Error {
    let message = format!("{} is on {kind}, where locks are not reliable: use a local disk", dir.display());
    Error::new(ErrorKind::Config, message).on(SCHEME)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn shared_kind(dir: &Path) -> Result<Option<&'static str>> {
    let stat =
        rustix::fs::statfs(dir).map_err(|error| os_at("read the type of the file system of", dir, error.into()))?;
    // The field is signed on some machines and wider on others; the numbers have 32 bits.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
    let magic = stat.f_type as u32;
    Ok(refused(magic))
}

/// On Apple systems file systems have names instead of numbers, and network file systems lack the flag "local".
#[cfg(target_vendor = "apple")]
pub(crate) fn shared_kind(dir: &Path) -> Result<Option<&'static str>> {
    /// `MNT_LOCAL` of statfs(2).
    const LOCAL: u32 = 0x1000;
    let stat =
        rustix::fs::statfs(dir).map_err(|error| os_at("read the type of the file system of", dir, error.into()))?;
    Ok((stat.f_flags & LOCAL == 0).then_some("a network file system"))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(crate) fn shared_kind(_: &Path) -> Result<Option<&'static str>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_refused_and_disks_are_not() {
        for magic in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400, 0x0bd0_0bd0] {
            assert!(refused(magic).is_some(), "{magic:x}");
        }
        // ext4, xfs, btrfs, tmpfs, overlayfs, zfs, f2fs
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0xf2f5_2010] {
            assert_eq!(refused(magic), None, "{magic:x}");
        }
    }

    #[test]
    fn a_shared_mount_is_an_error_that_names_it() {
        let error = refuse(Path::new("/mnt/team"), "NFS");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), "local: /mnt/team is on NFS, where locks are not reliable: use a local disk");
        assert!(check(&std::env::temp_dir()).is_ok());
    }
}
