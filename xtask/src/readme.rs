//! Checks that the first two commands in `README.md` do what the page says.
//!
//! They are read from the page, so that the page and the check cannot differ.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::args::{self, Invocation, TestOptions};
use crate::workspace::{Failure, Workspace, succeeded};

/// How long the first command may take, a cold build included, in seconds. The goal is for a quiet machine with two
/// cores; the limit allows for one that is half as fast, and for a download.
const TIME_LIMIT: &str = "240";
const GOAL: u64 = 90;

/// What `timeout` exits with when the time is over.
const TIMED_OUT: u8 = 124;

/// What the top of the page promises.
#[derive(Debug, PartialEq, Eq)]
struct Quickstart {
    /// The command that takes a lock.
    try_it: String,
    /// What it prints on stdout, whole lines.
    prints: String,
    /// The command that runs the tests.
    test: String,
}

/// Runs the first command as it is written and compares its output; checks that the second is the one now running.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let path = workspace.root().join("README.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let quickstart = quickstart(&page).map_err(|why| Failure::new(format!("README.md: {why}")))?;
    check_test_command(&quickstart.test).map_err(Failure::new)?;
    println!("$ {}", quickstart.try_it);
    let mut command = Command::new("timeout");
    // In the foreground a terminal stays usable for the child, as it is for a user who types the command.
    command
        .args(["--foreground", "--kill-after=10", TIME_LIMIT, "sh", "-c"])
        .arg(&quickstart.try_it)
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    for (name, _) in std::env::vars_os() {
        // A new user has no OARLOCK_ variables set.
        if name.to_string_lossy().starts_with("OARLOCK_") {
            command.env_remove(name);
        }
    }
    let begun = Instant::now();
    let output = command.output().context("cannot start `timeout`")?;
    let took = begun.elapsed().as_secs();
    let stdout = String::from_utf8_lossy(&output.stdout);
    print!("{stdout}");
    succeeded(output.status, &quickstart.try_it).map_err(|failure| match failure.code {
        TIMED_OUT => Failure { why: format!("`{}` took more than {TIME_LIMIT} s", quickstart.try_it), ..failure },
        _ => failure,
    })?;
    println!("it took {took} s; the goal is {GOAL} s, the limit {TIME_LIMIT} s");
    if stdout == quickstart.prints {
        Ok(())
    } else {
        Err(Failure::new(format!(
            "README.md promises {:?} on stdout, the command printed {stdout:?}",
            quickstart.prints
        )))
    }
}

/// The first `sh` block holds the two commands, the first `text` block after it what the first of them prints.
fn quickstart(page: &str) -> Result<Quickstart, String> {
    let mut blocks = blocks(page).into_iter();
    let commands = blocks.find(|block| block.language == "sh").ok_or("there is no `sh` block")?;
    let prints = blocks
        .find(|block| block.language == "text")
        .ok_or("no `text` block follows the commands to show what they print")?;
    let commands: Vec<_> = commands
        .lines
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let [try_it, test] = commands[..] else {
        return Err(format!("the first `sh` block must hold two commands, it holds {}", commands.len()));
    };
    if prints.lines.iter().all(|line| line.trim().is_empty()) {
        return Err("the `text` block after the commands is empty".to_owned());
    }
    Ok(Quickstart { try_it: try_it.to_owned(), prints: prints.lines.join("\n") + "\n", test: test.to_owned() })
}

struct Block<'a> {
    language: &'a str,
    lines: Vec<&'a str>,
}

/// The fenced blocks of a page; one that is never closed does not count.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut closed = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => closed.push(block),
            (Some(language), None) => {
                open = Some(Block { language: language.trim(), lines: Vec::new() });
            }
            (None, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    closed
}

/// The page must send people to the whole test run, under the name we answer to.
fn check_test_command(line: &str) -> Result<(), String> {
    let asked = line.strip_prefix("cargo xtask ").map(|args| args::parse(args.split_whitespace().map(String::from)));
    match asked {
        Some(Ok(Invocation::Test(options))) if options == TestOptions::default() => Ok(()),
        _ => Err(format!("README.md: `{line}` is not the command that runs the tests")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title

```sh
# a comment
cargo run -- echo \"one at a time\"

cargo xtask test
```

The first prints

```text
one at a time
```

```sh
something else
```
";

    #[test]
    fn the_commands_come_from_the_page() {
        assert_eq!(
            quickstart(PAGE),
            Ok(Quickstart {
                try_it: "cargo run -- echo \"one at a time\"".to_owned(),
                prints: "one at a time\n".to_owned(),
                test: "cargo xtask test".to_owned(),
            })
        );
    }

    #[test]
    fn a_page_that_promises_less_is_refused() {
        for (cut, word) in [
            ("cargo xtask test\n", "two commands"),
            ("one at a time\n```\n", "empty"),
            ("```text\none at a time\n```\n", "text"),
        ] {
            let page = PAGE.replacen(cut, "", 1);
            let why = quickstart(&page).expect_err(cut);
            assert!(why.contains(word), "{why}");
        }
        assert!(quickstart("").is_err());
    }

    #[test]
    fn an_open_block_does_not_count() {
        assert!(quickstart("```sh\ncargo run\ncargo xtask test\n").is_err());
    }

    #[test]
    fn the_test_command_is_the_whole_run() {
        assert_eq!(check_test_command("cargo xtask test"), Ok(()));
        for line in ["cargo test", "cargo xtask help", "cargo xtask test --only format", "cargo xtask tset"] {
            assert!(check_test_command(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_real_page_can_be_read() {
        let page = include_str!("../../README.md");
        let quickstart = quickstart(page).expect("the top of README.md");
        assert_eq!(check_test_command(&quickstart.test), Ok(()));
    }
}
