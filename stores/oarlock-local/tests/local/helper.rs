//! This test program, started as another process that can be killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use oarlock_core::Label;
use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_local::{Config, Local};

use crate::{claim, forked, granted, hint, release, take_turn, turn, waiting};

const ROLE: &str = "OARLOCK_LOCAL_TEST_ROLE";
const DIR: &str = "OARLOCK_LOCAL_TEST_DIR";

/// A helper process; killed when dropped.
pub(crate) struct Helper {
    child: Child,
    /// Kept until the end of the test: a helper that waits for input, or a process that it started, ends then at the
    /// latest.
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Helper {
    pub(crate) fn start(role: &str, dir: &Path) -> Self {
        Self::start_with(role, dir, Stdio::piped())
    }

    /// As another user and group, from a copy of this program.
    pub(crate) fn start_as(program: &Path, user: u32, group: u32, role: &str, dir: &Path) -> Self {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
        command.arg(program).current_dir("/");
        Self::spawn(command, role, dir, Stdio::piped())
    }

    /// Lets it read a line.
    pub(crate) fn go_on(&mut self) {
        self.input.as_mut().expect("an input").write_all(b"\n").unwrap();
    }

    fn start_with(role: &str, dir: &Path, input: Stdio) -> Self {
        Self::spawn(Command::new(std::env::current_exe().unwrap()), role, dir, input)
    }

    fn spawn(mut command: Command, role: &str, dir: &Path, input: Stdio) -> Self {
        command.args(["--exact", "helper::play", "--ignored", "--nocapture"]).env(ROLE, role).env(DIR, dir);
        let mut child = command.stdin(input).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next message of the helper. Lines of the test harness are skipped.
    pub(crate) fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the helper ended");
            if let Some((_, message)) = line.trim().split_once("helper: ") {
                return message.to_owned();
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn say(message: &str) {
    println!("helper: {message}");
    std::io::stdout().flush().unwrap();
}

#[test]
#[ignore = "not a test: what a helper process runs"]
fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let (role, rest) = role.split_once(' ').unwrap_or((&role, ""));
    match role {
        // A fork inside a runtime would leave its child without the threads of that runtime.
        "fork-and-drop" => return forked::hold_and_fork(&dir, false),
        "fork-and-use" => return forked::hold_and_fork(&dir, true),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play_role(role, &dir, rest));
}

async fn play_role(role: &str, dir: &Path, rest: &str) {
    match role {
        "hold" => hold(dir, rest, false).await,
        "hold-and-start" => hold(dir, rest, true).await,
        "wait" => wait(dir, rest).await,
        "turn" => its_turn(dir, rest).await,
        "update" => update(dir, rest).await,
        "count" => count(dir, rest).await,
        "share" => share(dir, rest).await,
        "sleep" => sleep(),
        other => panic!("{other}"),
    }
}

fn sleep() {
    say("sleeping");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Holds a name until it is killed; with `start`, a process of its own inherits its session.
async fn hold(dir: &Path, name: &str, start: bool) {
    let mut config = Config::new(dir);
    config.inherit = start;
    let store = Local::open(config).await.unwrap();
    let held = claim(name);
    granted(&store, &held).await;
    let mut heir = start.then(|| Helper::start_with("sleep", dir, Stdio::inherit()));
    if let Some(heir) = &mut heir {
        assert_eq!(heir.says(), "sleeping");
        say(&heir.pid().to_string());
    } else {
        say("held");
    }
    sleep();
}

/// Takes a name in a directory for a group when its turn comes, and releases it on a line of input.
async fn share(dir: &Path, name: &str) {
    let mut config = Config::new(dir);
    config.group = true;
    let store = Local::open(config).await.unwrap();
    let claim = waiting(name);
    if let Attempt::Pending(pending) = store.attempt(&claim).await.unwrap() {
        let mut watch = turn(&store, &claim, pending.cursor).await;
        assert!(matches!(store.attempt(&claim).await.unwrap(), Attempt::Pending(_)));
        say("waiting");
        hint(&mut watch).await;
        granted(&store, &claim).await;
    }
    say("held");
    let _ = std::io::stdin().read_line(&mut String::new());
    release(&store, &claim).await;
    say("released");
}

/// Queues for a name without taking its turn, until it is killed.
async fn wait(dir: &Path, name: &str) {
    let store = Local::open(Config::new(dir)).await.unwrap();
    let claim = waiting(name);
    assert!(matches!(store.attempt(&claim).await.unwrap(), Attempt::Pending(_)));
    say("queued");
    sleep();
}

/// Queues for a name. On a line of input it attempts and says whether it holds.
async fn its_turn(dir: &Path, name: &str) {
    let store = Local::open(Config::new(dir)).await.unwrap();
    let claim = waiting(name);
    let Attempt::Pending(pending) = store.attempt(&claim).await.unwrap() else { panic!("granted at once") };
    let mut watch = turn(&store, &claim, pending.cursor).await;
    assert!(matches!(store.attempt(&claim).await.unwrap(), Attempt::Pending(_)));
    say("waiting");
    hint(&mut watch).await;
    match store.attempt(&claim).await.unwrap() {
        Attempt::Granted(grant) => say(&format!("held {}", grant.fence)),
        Attempt::Pending(_) => say("pending"),
    }
    sleep();
}

/// Takes and releases as fast as it can, and writes down each fence.
///
/// Long labels make records that span pages, so that some are torn; the state of the second name outgrows its slots
/// with every grant and shrinks with every release.
async fn update(dir: &Path, rest: &str) {
    let store = Local::open(Config::new(dir)).await.unwrap();
    let acknowledged = std::fs::File::create(dir.join("acknowledged")).unwrap();
    let names: Vec<_> = rest.split(' ').zip([500, 1000]).collect();
    say("updating");
    loop {
        for (at, (name, bytes)) in (0..).zip(&names) {
            let mut label = Label::default();
            for tag in 0..30 {
                label = label.tag(format!("{tag}{}", "x".repeat(*bytes)), "y".repeat(*bytes));
            }
            let mut claim = claim(name);
            claim.label = label.into();
            let fence = granted(&store, &claim).await.fence.get().to_le_bytes();
            acknowledged.write_all_at(&fence, 8 * at).unwrap();
            release(&store, &claim).await;
        }
    }
}

/// Counts up in a file that only the lock protects.
async fn count(dir: &Path, rest: &str) {
    let (rounds, name) = rest.split_once(' ').unwrap();
    let rounds: u32 = rounds.parse().unwrap();
    let store = Local::open(Config::new(dir.join("store"))).await.unwrap();
    let counter = dir.join("counter");
    for _ in 0..rounds {
        let claim = waiting(name);
        take_turn(&store, &claim).await;
        let value: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
        // Give the other process time to interfere.
        std::thread::yield_now();
        std::fs::write(&counter, (value + 1).to_string()).unwrap();
        release(&store, &claim).await;
    }
    store.close().await.unwrap();
    say("counted");
}
