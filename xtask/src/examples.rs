//! Runs the examples of the library: programs that fail if what they show is not so.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::workspace::{Failure, Workspace, stream};

/// Those that run without a server.
const EXAMPLES: &[&str] = &[
    "cache_rebuild",
    "cron_once",
    "fence_sqlite",
    "leader_worker",
    "migration",
    "paused_holder",
    "queue_worker",
    "rate_limited_api",
    "redlock_flaws",
    "stop_on_loss",
    "web_service",
];

/// Those that are run on Redis as well: one with several clients, one with several processes, one
/// whose lock an operator breaks.
const ON_REDIS: &[&str] = &["cron_once", "paused_holder", "stop_on_loss"];

/// The sale of `docs/guide/flash-sale.zh.md` with fewer orders: units, requests, processes, takers, segments.
const SALE: [&str; 5] = ["100", "960", "8", "4", "16"];

/// Longer than a server takes to start on a busy machine.
const START: Duration = Duration::from_secs(30);

/// Runs them.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    EXAMPLES.iter().try_for_each(|example| stream(&mut command(workspace, example)))?;
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let file = folder.path().join("sale.db");
    stream(command(workspace, "sale").arg("--").arg(file).args(SALE))?;
    let Some(server) = Server::start(folder.path())? else { return Ok(()) };
    let done = ON_REDIS.iter().try_for_each(|example| {
        let url = format!("redis+unix://{}", folder.path().join("redis.sock").display());
        stream(command(workspace, example).args(["--", "--url", &url]))
    });
    drop(server);
    done
}

/// Not by package: other features would build half of the workspace again.
fn command(workspace: &Workspace, example: &str) -> Command {
    workspace.cargo(["run", "--quiet", "--locked", "--example", example])
}

/// A Redis server without a port, which ends with this value.
struct Server(Child);

impl Server {
    /// Starts it in this folder; `None` where Redis is not installed.
    fn start(folder: &Path) -> Result<Option<Self>, Failure> {
        let mut program = Command::new("redis-server");
        program.args(["--port", "0", "--save", "", "--unixsocket", "redis.sock"]).current_dir(folder);
        let mut server = match program.stdout(Stdio::null()).spawn() {
            Ok(child) => Self(child),
            Err(error) if std::env::var_os("CI").is_none() => {
                println!("skipped: the examples on Redis: redis-server: {error}");
                return Ok(None);
            }
            Err(error) => return Err(Failure::new(format!("redis-server: {error}"))),
        };
        let give_up = Instant::now() + START;
        while !folder.join("redis.sock").exists() {
            if let Some(status) = server.0.try_wait().context("redis-server")? {
                return Err(Failure::new(format!("redis-server ended: {status}")));
            }
            if Instant::now() > give_up {
                return Err(Failure::new(format!("redis-server did not start within {} s", START.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(server))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `cargo run … --example` commands of the guide: the package, the features, the example, its arguments.
    #[test]
    fn every_command_of_the_guide_names_what_is_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
        let mut found = 0;
        let pages = ["cookbook.md", "fences.md", "flash-sale.zh.md", "questions.md", "../testing.md"];
        for text in pages.map(|page| read(&format!("docs/guide/{page}"))) {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let commands = text.split("cargo run ").skip(1).filter_map(|rest| rest.split('`').next());
            for command in commands.filter(|command| command.contains("--example ")) {
                let words: Vec<_> = command.split(' ').collect();
                let after = |flag| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
                let (package, example) = (after("-p").expect("-p"), *after("--example").expect("--example"));
                let manifest = read(&format!("crates/{package}/Cargo.toml"));
                let feature = after("--features").map(|name| format!("\n{name} = ["));
                assert!(feature.is_none_or(|line| manifest.contains(&line)), "there is no such feature: {command}");
                assert!(root.join(format!("crates/{package}/examples/{example}.rs")).exists(), "{command}");
                if example == "sale" {
                    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
                    let run = SALE.map(|number| number.parse::<u64>().expect("a number"));
                    assert_eq!((numbers.len(), &numbers[2..]), (run.len(), &run[2..]), "{command}");
                } else {
                    assert!(EXAMPLES.contains(&example), "no part of the tests runs {command}");
                    assert!(after("--url").is_none() || ON_REDIS.contains(&example), "not run on Redis: {command}");
                }
                found += 1;
            }
        }
        assert!(found > 12, "only {found} commands");
    }

    #[test]
    fn every_example_of_the_library_runs_or_only_measures() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/oarlock/examples");
        for entry in std::fs::read_dir(folder).expect("the examples") {
            let path = entry.expect("an example").path();
            let name = path.file_stem().and_then(std::ffi::OsStr::to_str).expect("a name");
            let known = path.is_dir() || name == "cohort" || EXAMPLES.contains(&name);
            assert!(known, "no part of the tests runs the example {name}");
            let source = if path.is_dir() { String::new() } else { std::fs::read_to_string(&path).expect("its text") };
            assert!(source.is_empty() || source.contains("--url URL"), "the example {name} takes no `--url`");
        }
    }
}
