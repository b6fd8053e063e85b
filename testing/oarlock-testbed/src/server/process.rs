//! A child process and everything it has started, by descriptors that can never mean another process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a signal that cannot be refused may take to show.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A process, ours or not.
#[derive(Debug)]
struct Process {
    pid: Pid,
    fd: OwnedFd,
}

impl Process {
    /// The process, or nothing when it is gone.
    fn open(pid: Pid) -> io::Result<Option<Self>> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self { pid, fd })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end. Says whether it came in time.
    fn ends_within(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&left)) {
                Ok(count) => return Ok(count > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether none of its threads runs any more.
    fn is_still(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return true;
        };
        tasks.flatten().all(|task| match fs::read_to_string(task.path().join("stat")) {
            Ok(stat) => matches!(state_and_parent(&stat), Some(('T' | 't' | 'Z' | 'X', _))),
            Err(_) => true,
        })
    }
}

/// A child process and all its descendants.
#[derive(Debug)]
pub(super) struct Tree {
    child: Child,
    root: Process,
}

impl Tree {
    /// Starts `command` in a process group of its own, so that Ctrl-C reaches the test first.
    pub(super) fn spawn(command: Command) -> io::Result<Self> {
        let mut child = spawn_for_good(command)?;
        let opened = i32::try_from(child.id()).ok().and_then(Pid::from_raw).map(Process::open);
        match opened {
            Some(Ok(Some(root))) => Ok(Self { child, root }),
            other => {
                child.kill()?;
                child.wait()?;
                other.transpose()?;
                Err(io::Error::other("a child without a process number"))
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All its processes, the root first.
    pub(super) fn pids(&self) -> io::Result<Vec<u32>> {
        let below = self.descendants(&BTreeSet::new())?;
        Ok(std::iter::once(self.pid()).chain(below.iter().map(|one| one.pid.as_raw_pid().unsigned_abs())).collect())
    }

    /// Waits for the end of the child itself. Says whether it came in time.
    pub(super) fn ends_within(&self, timeout: Duration) -> io::Result<bool> {
        self.root.ends_within(timeout)
    }

    /// Stops every process of the tree where it is. When this returns, none of them runs.
    pub(super) fn freeze(&self) -> io::Result<()> {
        self.freeze_all().map(drop)
    }

    /// Lets every process of the tree run on, the root last.
    pub(super) fn thaw(&self) -> io::Result<()> {
        for process in self.descendants(&BTreeSet::new())? {
            process.signal(Signal::CONT)?;
        }
        self.root.signal(Signal::CONT)
    }

    /// Asks the child to end, waits, and kills what is left after `grace`.
    pub(super) fn stop(self, signal: Signal, grace: Duration) -> io::Result<()> {
        self.thaw()?;
        // They must be known before the root is gone: nothing connects them with it afterwards.
        let descendants = self.descendants(&BTreeSet::new())?;
        self.root.signal(signal)?;
        self.root.ends_within(grace)?;
        for process in descendants {
            process.signal(Signal::KILL)?;
        }
        self.kill()
    }

    /// Kills every process of the tree at once, with no chance to tidy up, and waits for their end.
    pub(super) fn kill(mut self) -> io::Result<()> {
        // Only a stopped tree can be listed without missing a branch; and once the root is dead, its
        // descendants are no longer known as such.
        let descendants = self.freeze_all()?;
        let all = || std::iter::once(&self.root).chain(&descendants);
        for process in all() {
            process.signal(Signal::KILL)?;
        }
        for process in all() {
            if !process.ends_within(SIGNAL_TIMEOUT)? {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("process {} cannot be killed", process.pid),
                ));
            }
        }
        self.child.wait().map(drop)
    }

    fn freeze_all(&self) -> io::Result<Vec<Process>> {
        halt(&self.root)?;
        let mut frozen = Vec::new();
        let mut seen = BTreeSet::new();
        loop {
            let found = self.descendants(&seen)?;
            if found.is_empty() {
                return Ok(frozen);
            }
            for process in found {
                halt(&process)?;
                seen.insert(process.pid.as_raw_pid());
                frozen.push(process);
            }
        }
    }

    /// The living descendants that are not among `seen`.
    fn descendants(&self, seen: &BTreeSet<i32>) -> io::Result<Vec<Process>> {
        let mut pairs = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // It may have ended since it was listed.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if let Some((state, parent)) = state_and_parent(&stat)
                && !matches!(state, 'Z' | 'X')
            {
                pairs.push((pid, parent));
            }
        }
        let mut tree = BTreeSet::from([self.root.pid.as_raw_pid()]);
        loop {
            let before = tree.len();
            tree.extend(
                pairs.iter().filter(|(_, parent)| tree.contains(parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
            );
            if tree.len() == before {
                break;
            }
        }
        tree.remove(&self.root.pid.as_raw_pid());
        let mut processes = Vec::new();
        for pid in tree.difference(seen).copied().filter_map(Pid::from_raw) {
            processes.extend(Process::open(pid)?);
        }
        Ok(processes)
    }
}

fn halt(process: &Process) -> io::Result<()> {
    process.signal(Signal::STOP)?;
    let deadline = Instant::now() + SIGNAL_TIMEOUT;
    // The kernel announces this to the parent alone, and the parent is not always us.
    while !process.is_still() {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {} does not stop", process.pid)));
        }
        thread::yield_now();
    }
    Ok(())
}

/// The state and the parent in `/proc/PID/stat`. The name before them may contain anything.
fn state_and_parent(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

type Request = (Command, Sender<io::Result<Child>>);

/// Starts a child from a thread that lives as long as this process.
///
/// A child that asks to be killed with its parent is killed when the *thread* that started it ends, and the thread of
/// one test ends before the next test that uses the same server.
fn spawn_for_good(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            for (mut command, answer) in requests {
                // It fails only if the caller has panicked.
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_a_parent() {
        assert_eq!(state_and_parent("12 (redis-server) S 7 12 12"), Some(('S', 7)));
        assert_eq!(state_and_parent("12 (a) T 99 (b) R 7 12 12"), Some(('R', 7)));
        assert_eq!(state_and_parent("12 (half"), None);
    }

    /// A shell that starts another one, in a session of its own, that starts a sleeper.
    fn nested() -> (Tree, Vec<u32>) {
        let mut command = Command::new("sh");
        command.args(["-c", "setsid sh -c 'sleep 600 & wait' & wait"]);
        let tree = Tree::spawn(command).expect("sh");
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let below = tree.descendants(&BTreeSet::new()).expect("the tree");
            let names: Vec<_> = below
                .iter()
                .map(|process| fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default())
                .collect();
            if below.len() == 2 && names.iter().any(|name| name == "sleep\n") {
                let pids = below.iter().map(|process| process.pid.as_raw_pid().unsigned_abs()).collect();
                return (tree, pids);
            }
            assert!(Instant::now() < deadline, "{names:?}");
            thread::yield_now();
        }
    }

    fn state(pid: u32) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        state_and_parent(&stat).map(|(state, _)| state)
    }

    #[test]
    fn a_kill_reaches_every_descendant() {
        let (tree, below) = nested();
        let root = tree.pid();
        tree.kill().expect("killed");
        assert_eq!(state(root), None);
        // The process that inherits them may take its time to reap them.
        assert!(below.iter().all(|pid| matches!(state(*pid), None | Some('Z'))), "{below:?}");
    }

    #[test]
    fn a_frozen_tree_stands_still_and_can_be_stopped() {
        let (tree, below) = nested();
        tree.freeze().expect("frozen");
        for pid in below.iter().chain([&tree.pid()]) {
            assert_eq!(state(*pid), Some('T'));
        }
        tree.thaw().expect("thawed");
        tree.freeze().expect("frozen again");
        let root = tree.pid();
        let watched = tree.descendants(&BTreeSet::new()).expect("the tree");
        tree.stop(Signal::TERM, Duration::from_secs(10)).expect("stopped");
        assert_eq!(state(root), None);
        assert!(watched.iter().all(|process| process.ends_within(SIGNAL_TIMEOUT).expect("a poll")));
    }
}
