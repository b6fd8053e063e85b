//! A disk of its own that can lose power, be slow, and lie.
//!
//! The disk is an ext4 in a file behind a loop device. A power cut takes the file system down without writing anything
//! (`EXT4_IOC_SHUTDOWN`), and mounts it again, so that its journal is replayed as after a crash of the machine: what was
//! synced is there, and what the kernel had only in memory is gone. `strace` makes the calls with which a process syncs
//! slow, or lets them return without doing anything. Both need root.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The program that takes the file system down.
const POWER: &str = include_str!("power.c");

/// Its size. The file behind it is sparse.
const BYTES: u64 = 1 << 30;

/// No block of the file system is smaller.
const SMALLEST: u64 = 1 << 10;

/// The kernel writes metadata by itself only after so many seconds, and data after half a minute: a run of seconds loses
/// what was not synced.
const OPTIONS: &str = "loop,noatime,commit=300";

/// A file system that is in use right after its last process has died is free after this.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(10);

/// The calls with which a process makes what it has written last.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,msync,sync,syncfs";

/// `strace` may need a while to attach to all threads of a Java machine.
const ATTACH_WITHIN: Duration = Duration::from_secs(20);

/// It waits for the calls that it makes slow.
const DETACH_WITHIN: Duration = Duration::from_secs(20);

/// A file system of its own. Dropped, it is unmounted.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// Makes it, and mounts it.
    ///
    /// # Errors
    /// Without the right to mount, or without `mkfs.ext4` and `cc`.
    pub fn mount() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("oarlock-disk-").tempdir()?;
        // The users of servers pass through.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
        fs::write(folder.path().join("power.c"), POWER)?;
        done(Command::new("cc").args(["-O1", "-o", "power", "power.c"]).current_dir(folder.path()))?;
        File::create(folder.path().join("image"))?.set_len(BYTES)?;
        let lazy = "lazy_itable_init=1,lazy_journal_init=1";
        done(Command::new("/sbin/mkfs.ext4").args(["-q", "-F", "-E", lazy]).arg(folder.path().join("image")))?;
        fs::create_dir(folder.path().join("root"))?;
        let disk = Self { folder };
        disk.attach()?;
        fs::set_permissions(disk.root(), fs::Permissions::from_mode(0o711))?;
        Ok(disk)
    }

    /// Its uppermost folder.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Everything that was written so far is on the disk.
    ///
    /// # Errors
    /// When it is not.
    pub fn sync(&self) -> anyhow::Result<()> {
        done(Command::new("sync").arg("--file-system").arg(self.root()))
    }

    /// Takes it down at once: what was not synced is lost. From now on every call on its files fails.
    ///
    /// # Errors
    /// When the kernel does not know how.
    pub fn cut_power(&self) -> anyhow::Result<()> {
        done(Command::new(self.folder.path().join("power")).arg(self.root()))
    }

    /// Brings it back after [`cut_power`](Self::cut_power). No process may have files open there.
    ///
    /// # Errors
    /// When it is still in use, or cannot be mounted.
    pub fn power_up(&self) -> anyhow::Result<()> {
        self.detach()?;
        self.attach()
    }

    /// Leaves no room on it, until what this gives is dropped.
    ///
    /// # Errors
    /// When that fails.
    pub fn fill(&self) -> anyhow::Result<FullDisk> {
        let path = self.root().join("filler");
        let filler = File::create(&path)?;
        let full = FullDisk { path };
        let (mut size, mut block) = (0, BYTES);
        // Reserved and not written: at once.
        while block >= SMALLEST {
            match fallocate(&filler, FallocateFlags::empty(), size, block) {
                Ok(()) => size += block,
                Err(Errno::NOSPC) => block /= 2,
                Err(error) => return Err(error).context("the file that fills the disk"),
            }
        }
        Ok(full)
    }

    fn attach(&self) -> anyhow::Result<()> {
        done(Command::new("mount").args(["-o", OPTIONS]).arg(self.folder.path().join("image")).arg(self.root()))
    }

    fn detach(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + UNMOUNT_WITHIN;
        loop {
            match done(Command::new("umount").arg(self.root())) {
                Err(error) if Instant::now() > give_up => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
                Ok(()) => return Ok(()),
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = done(Command::new("umount").arg("--lazy").arg(self.root()));
        if let Err(error) = unmounted {
            eprintln!("{} stays mounted: {error}", self.root().display());
        }
    }
}

/// A disk without room. Dropped, there is room again.
#[derive(Debug)]
pub struct FullDisk {
    path: PathBuf,
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}

/// Runs a command that says nothing.
fn done(command: &mut Command) -> anyhow::Result<()> {
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

/// What becomes of the calls with which processes sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// Each takes so much longer.
    Slow(Duration),
    /// Each says that it is done, and does nothing.
    Lie,
}

/// Processes whose syncs are slow or a lie, until this is dropped.
#[derive(Debug)]
pub struct ChangedSyncs {
    strace: Child,
}

impl ChangedSyncs {
    /// Attaches to these processes, with all their threads and everything that they start.
    ///
    /// # Errors
    /// Without `strace`, or without the right to use it on them.
    pub fn of(pids: &[u32], syncs: Syncs) -> anyhow::Result<Self> {
        let how = match syncs {
            Syncs::Slow(delay) => format!("delay_enter={}", delay.as_micros()),
            Syncs::Lie => "retval=0".to_owned(),
        };
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", &format!("trace={SYNCS}"), "-e", &format!("inject={SYNCS}:{how}"), "-o", "/dev/null"]);
        for pid in pids {
            strace.args(["-p", &pid.to_string()]);
        }
        let strace = strace
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start strace")?;
        // From here on it is ended when this fails.
        let mut changed = Self { strace };
        attached(&mut changed.strace, pids.len(), ATTACH_WITHIN)?;
        Ok(changed)
    }
}

impl Drop for ChangedSyncs {
    fn drop(&mut self) {
        // It lets go of the processes before it ends; killed, it might not. It may have ended with them.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::TERM);
        let give_up = Instant::now() + DETACH_WITHIN;
        while matches!(self.strace.try_wait(), Ok(None)) {
            if Instant::now() > give_up {
                let _ = self.strace.kill();
                let _ = self.strace.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Waits until `strace` has said of so many processes that it is attached.
fn attached(strace: &mut Child, count: usize, within: Duration) -> anyhow::Result<()> {
    let reports = lines(strace.stderr.take().context("strace has no output")?);
    let (give_up, mut said) = (Instant::now() + within, String::new());
    // One line for each process, whatever its threads.
    while said.lines().filter(|line| line.contains(" attached")).count() < count {
        match reports.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
            Ok(line) => said += &line,
            Err(RecvTimeoutError::Disconnected) => bail!("strace cannot be used: {}", said.trim()),
            Err(RecvTimeoutError::Timeout) => bail!("strace did not attach within {within:?}: {}", said.trim()),
        }
    }
    Ok(())
}

/// The lines that a process says, read to its end: it would end when its output is closed.
fn lines(output: ChildStderr) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|count| count > 0) {
            // Later ones are read and not used.
            let _ = sender.send(std::mem::take(&mut line));
        }
    });
    lines
}

/// The folder for a server on `disk`, or among the temporary files.
pub(super) fn folder(name: &str, disk: Option<&Path>) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(name);
    Ok(match disk {
        Some(disk) => builder.tempdir_in(disk)?,
        None => builder.tempdir()?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn disk() -> Option<Disk> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can mount");
            return None;
        }
        match Disk::mount() {
            // Root of a container without the right to mount.
            Err(error) if format!("{error:#}").to_lowercase().contains("permi") => {
                println!("skipped: {error:#}");
                None
            }
            mounted => Some(mounted.expect("a disk")),
        }
    }

    #[test]
    fn a_power_cut_takes_what_was_not_synced_and_nothing_else() {
        let Some(disk) = disk() else { return };
        let (kept, lost) = (disk.root().join("kept"), disk.root().join("lost"));
        let mut file = File::create(&kept).expect("a file");
        file.write_all(b"synced").expect("written");
        file.sync_all().expect("synced");
        File::open(disk.root()).and_then(|folder| folder.sync_all()).expect("the folder is synced");
        fs::write(&lost, "not synced").expect("written");
        file.write_all(b" and not").expect("written");
        disk.cut_power().expect("cut");
        assert!(file.write_all(b"x").is_err(), "there is no disk");
        drop(file);
        disk.power_up().expect("back");
        assert_eq!(fs::read_to_string(&kept).expect("kept"), "synced");
        assert!(!lost.exists());
        fs::write(&lost, "x").expect("it can be used again");
    }

    #[test]
    fn a_full_disk_takes_nothing_until_there_is_room_again() {
        let Some(disk) = disk() else { return };
        let written = |name: &str| fs::write(disk.root().join(name), [1; 1 << 16]);
        written("before").expect("there is room");
        let full = disk.fill().expect("filled");
        let error = written("meanwhile").expect_err("there is no room");
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        drop(full);
        written("after").expect("there is room again");
    }

    #[test]
    fn a_tracer_that_says_nothing_is_not_waited_for() {
        let silent = |seconds| {
            let mut sleep = Command::new("sleep");
            sleep.arg(seconds).stderr(Stdio::piped()).spawn().expect("a process that says nothing")
        };
        let start = Instant::now();
        let mut tracer = silent("60");
        let why = attached(&mut tracer, 1, Duration::from_millis(50)).expect_err("it is not attached").to_string();
        assert!(why.contains("did not attach"), "{why}");
        drop(ChangedSyncs { strace: tracer });
        let mut tracer = silent("0");
        let why = attached(&mut tracer, 1, Duration::from_secs(60)).expect_err("it has ended").to_string();
        assert!(why.contains("cannot be used"), "{why}");
        tracer.wait().expect("its end");
        assert!(start.elapsed() < Duration::from_secs(50), "it was waited for: {:?}", start.elapsed());
    }

    /// A shell that appends a line and syncs it, for every line that it is told.
    #[test]
    fn a_lie_loses_what_was_synced_and_a_slow_sync_takes_its_time() {
        let Some(disk) = disk() else { return };
        let path = disk.root().join("lines");
        fs::write(&path, "").expect("written");
        disk.sync().expect("synced");
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"while read -r line; do echo "$line" >> "$0"; sync "$0"; echo done; done"#]).arg(&path);
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut input = shell.stdin.take().expect("its input");
        let mut answers = BufReader::new(shell.stdout.take().expect("its output"));
        let mut tell = |line: &str| {
            writeln!(input, "{line}").expect("told");
            let (start, mut answer) = (Instant::now(), String::new());
            answers.read_line(&mut answer).expect("an answer");
            assert_eq!(answer, "done\n");
            start.elapsed()
        };
        tell("true");
        let delay = Duration::from_millis(300);
        let slow = ChangedSyncs::of(&[shell.id()], Syncs::Slow(delay)).expect("strace");
        assert!(tell("slow") >= delay);
        drop(slow);
        let lie = ChangedSyncs::of(&[shell.id()], Syncs::Lie).expect("strace");
        tell("a lie");
        drop(lie);
        disk.cut_power().expect("cut");
        drop((input, answers));
        shell.wait().expect("its end");
        disk.power_up().expect("back");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "true\nslow\n");
    }
}
