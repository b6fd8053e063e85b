//! Every command in the README and in `docs/` is run as it is written there.
//!
//! A `sh` block runs in a directory of its own, on the embedded store; what it calls as `./program` is there, and must
//! have been started. A `console` block is typed into one shell, and what it prints is compared with the page: a word may
//! have other digits or another unit of time, and what came instead is put into the commands after it. Comments right
//! before a block change that:
//!
//! | comment | |
//! |---|---|
//! | `<!-- not run: REASON -->` | it cannot be run here |
//! | `<!-- run by FILE -->` | that test runs it |
//! | `<!-- first: COMMAND -->` | what is run before it, in the same shell |

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_testbed::Redis;
use rustix::process::{Pid, Signal};

use super::support::{PATIENCE, Running, TestContext, finish, subcommands};

/// Folders whose pages are records, not instructions.
const RECORDS: &[&str] = &["docs/adr", "docs/internals", "docs/measurements"];

fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../.."].iter().collect()
}

struct Block {
    page: String,
    line: usize,
    console: bool,
    /// The comments before it: what each begins with, and the rest.
    marks: BTreeMap<String, String>,
    text: String,
}

impl Block {
    fn mark(&self, name: &str) -> Option<&str> {
        self.marks.get(name).map(String::as_str)
    }

    fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// The pages whose commands people type, by their path in the repository.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![root().join("docs")];
    let mut add = |path: &Path| {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        pages.insert(name, std::fs::read_to_string(path).unwrap());
    };
    ["README.md", "README.zh.md"].iter().for_each(|name| add(&root().join(name)));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap();
            if path.is_dir() && !RECORDS.iter().any(|folder| name.starts_with(folder)) {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                add(&path);
            }
        }
    }
    pages
}

/// The blocks of a page that have commands.
fn blocks(page: &str, text: &str) -> Vec<Block> {
    let (mut found, mut open, mut marks) = (Vec::new(), None::<(bool, Block)>, BTreeMap::new());
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        match (bare.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take().filter(|(wanted, _)| *wanted).map(|(_, block)| block)),
            (Some(language), None) => {
                let console = language == "console";
                let marks = std::mem::take(&mut marks);
                let block = Block { page: page.to_owned(), line: number + 1, console, marks, text: String::new() };
                open = Some((console || language == "sh", block));
            }
            (None, Some((_, block))) => {
                let line = if line.len() > bare.len() && !block.console { bare } else { line };
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => match bare.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
                Some(comment) => {
                    let (name, rest) =
                        comment.split_once(": ").unwrap_or_else(|| match comment.strip_prefix("run by ") {
                            Some(file) => ("run by", file),
                            None => (comment, ""),
                        });
                    marks.insert(name.to_owned(), rest.to_owned());
                }
                None if bare.is_empty() => {}
                None => marks.clear(),
            },
        }
    }
    found
}

/// The blocks of all pages whose path this accepts.
fn of_pages(wanted: impl Fn(&str) -> bool) -> Vec<Block> {
    let pages = pages().into_iter().filter(|(page, _)| wanted(page));
    pages.flat_map(|(page, text)| blocks(&page, &text)).collect()
}

/// `text` with the URL of a server of this test instead of that of an example; nothing where Redis is not installed.
fn on_servers(text: &str, redis: &mut Option<Redis>) -> Option<String> {
    let mut text = text.to_owned();
    for example in ["redis://localhost", "redis://redis-1:6379", "redis://redis-1"] {
        if text.contains(example) {
            if redis.is_none() {
                *redis = Redis::start_with_or_skip(&[("appendonly", "no"), ("save", "")]).unwrap();
            }
            text = text.replace(example, &redis.as_ref()?.url());
        }
    }
    Some(text)
}

/// All processes that a shell of a test has started. They end with it.
struct Session(Pid);

impl Session {
    /// Those that are still there.
    fn processes(&self) -> Vec<Pid> {
        let there = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let of_session = there.filter(|pid| {
            // After the name of the program, in parentheses: state, parent, process group, session.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<_> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
            fields.first() != Some(&"Z") && fields.get(3) == Some(&self.0.to_string().as_str())
        });
        of_session.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// What was started has ended, or ends by itself.
    fn await_end(&self, place: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !self.processes().is_empty() {
            assert!(Instant::now() < give_up, "{place} leaves processes behind: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// A shell in the directory of the context, with `oarlock` in its path.
fn shell(context: &TestContext) -> Command {
    let mut command = context.session("sh");
    let program = Path::new(env!("CARGO_BIN_EXE_oarlock"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("OARLOCK_URL", context.url()).env("TMPDIR", context.dir.path());
    command.current_dir(context.dir.path());
    command
}

/// Makes the programs that `text` calls as `./program`, and returns their names. Each notes that it was started.
fn programs(context: &TestContext, text: &str) -> BTreeSet<String> {
    let word_end = |c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let calls = text.split("./").skip(1).filter_map(|rest| rest.split(word_end).next());
    let names: BTreeSet<_> = calls.map(str::to_owned).collect();
    for name in &names {
        let path = context.dir.path().join(name);
        std::fs::write(&path, "#!/bin/sh\nbasename \"$0\" >> \"$HOME/started\"\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    names
}

/// Runs a block; not if it needs a server that is not installed.
fn run(block: &Block, redis: &mut Option<Redis>) -> bool {
    let context = TestContext::new();
    let Some(text) = on_servers(&block.text, redis) else {
        println!("skipped: {}", block.place());
        return false;
    };
    let names = programs(&context, &text);
    if block.console {
        type_in(&context, block, &text);
        return true;
    }
    let first = block.mark("first").map(|first| format!("{first}\n")).unwrap_or_default();
    let mut command = shell(&context);
    command.args(["-euc", &format!("{first}{text}")]);
    let shell = Running::start(command);
    let session = Session(shell.pid());
    let done = shell.finish();
    assert_eq!(done.code, Some(0), "{}: {done:?}", block.place());
    session.await_end(&block.place());
    let started = std::fs::read_to_string(context.path("started")).unwrap_or_default();
    let started: BTreeSet<_> = started.lines().map(str::to_owned).collect();
    assert_eq!(started, names, "the programs that were started by {}: {done:?}", block.place());
    true
}

/// Types the commands of a `console` block into one shell, and compares what it prints.
fn type_in(context: &TestContext, block: &Block, text: &str) {
    const END: &str = "\u{1}";
    let mut command = shell(context);
    command.stdin(Stdio::piped());
    let mut shell = Running::start(command);
    let session = Session(shell.pid());
    shell.say("exec 2>&1\n");
    let mut answer = |command: &str| {
        // The status of the command is that of the line, for an `echo $?` after it.
        shell.say(&format!("{command}\nstatus=$?; echo '{END}'; (exit $status)\n"));
        let lines = std::iter::from_fn(|| Some(shell.line()).filter(|line| line != END));
        lines.filter(|line| !line.trim().is_empty()).collect::<Vec<_>>()
    };
    if let Some(first) = block.mark("first") {
        answer(first);
    }
    let mut instead: BTreeMap<String, String> = BTreeMap::new();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).peekable();
    while let Some(line) = lines.next() {
        let typed = line.strip_prefix("$ ").unwrap_or_else(|| panic!("{}: no command: {line}", block.place()));
        let words = typed.split(' ').map(|word| instead.get(word).map_or(word, String::as_str));
        let printed = answer(&words.collect::<Vec<_>>().join(" "));
        let shown: Vec<_> = std::iter::from_fn(|| lines.next_if(|line| !line.starts_with("$ "))).collect();
        let what = format!("{}: `{typed}` printed\n{}", block.place(), printed.join("\n"));
        assert_eq!(printed.len(), shown.len(), "{what}");
        for (printed, shown) in printed.iter().zip(shown) {
            let words = (printed.split_whitespace().collect::<Vec<_>>(), shown.split_whitespace().collect::<Vec<_>>());
            assert_eq!(words.0.len(), words.1.len(), "{what}\ninstead of {shown}");
            for (printed, shown) in words.0.into_iter().zip(words.1) {
                assert!(alike(printed, shown), "{what}\n{printed} instead of {shown}");
                instead.insert(shown.to_owned(), printed.to_owned());
            }
        }
    }
    assert_eq!(shell.finish().code, Some(0), "{}", block.place());
    session.await_end(&block.place());
}

/// Whether a word may be printed where the page shows another: with other numbers, or the name of another host.
fn alike(printed: &str, shown: &str) -> bool {
    let plain = |word: &str| {
        let numbers = word.replace(|c: char| c.is_ascii_digit() || c == '.', "0");
        numbers.split('0').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let unit = |word: &str| matches!(word.trim_end_matches(','), "ms" | "s" | "min" | "h");
    let host = shown.contains("ci-7") || shown.contains("redis-1");
    printed == shown || host || (unit(printed) && unit(shown)) || plain(printed) == plain(shown)
}

/// Runs the blocks that can be run, and returns how many those are.
fn run_all(blocks: &[Block]) -> usize {
    let mut redis = None;
    let here = blocks.iter().filter(|block| block.mark("not run").is_none() && block.mark("run by").is_none());
    here.map(|block| run(block, &mut redis)).filter(|ran| *ran).count()
}

#[test]
fn of_the_command_line() {
    assert!(run_all(&of_pages(|page| page == "docs/cli.md")) > 8);
}

#[test]
fn of_the_guide() {
    assert!(run_all(&of_pages(|page| page.starts_with("docs/guide") || page.starts_with("README"))) > 3);
}

#[test]
fn of_the_other_pages() {
    let other = |page: &str| page != "docs/cli.md" && !page.starts_with("docs/guide") && !page.starts_with("README");
    assert!(run_all(&of_pages(other)) > 5);
}

/// Those in the manifests of Kubernetes and of CI, with `true` for the program of the container.
#[test]
fn of_the_manifests() {
    let mut ran = 0;
    for (page, text) in pages() {
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| line.starts_with("- run: ") || line.starts_with("command: [")) {
            let context = TestContext::new();
            let mut command = shell(&context);
            command.env("POD", "billing-worker-1").env("GITHUB_RUN_ID", "4711");
            if let Some(step) = line.strip_prefix("- run: ") {
                programs(&context, step);
                command.args(["-euc", step]);
            } else {
                let words: Vec<String> = serde_json::from_str(line.strip_prefix("command: ").unwrap()).unwrap();
                let words = words.iter().map(|word| match word.as_str() {
                    "/report" => "true".to_owned(),
                    word => word.replace("-- /worker", "-- true"),
                });
                command.args(["-euc", "exec \"$@\"", "sh"]).args(words);
            }
            let done = finish(command);
            assert_eq!(done.code, Some(0), "{page}: {line}: {done:?}");
            ran += 1;
        }
    }
    assert!(ran >= 3, "only {ran} commands of manifests were found");
}

/// What is not run here is run elsewhere, or is one of few, with a reason.
#[test]
fn few_are_left_out() {
    let blocks = of_pages(|_| true);
    for block in &blocks {
        if let Some(file) = block.mark("run by") {
            let test = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            // The URL is in the environment in tests.
            let words = calls(&block.text).into_iter().flat_map(|call| {
                let flags = call.iter().filter(|word| word.starts_with('-') && **word != "-u");
                flags.chain(call.first()).map(|word| format!("\"{word}\"")).collect::<Vec<_>>()
            });
            let words: Vec<_> = words.collect();
            let has_all = !words.is_empty() && words.iter().all(|word| test.contains(word));
            let page = Path::new(&block.page).file_name().unwrap().to_str().unwrap();
            // Another test compares the README in Chinese with the other one.
            let is_named = test.contains(page) || test.contains(&page.replace(".zh.", "."));
            assert!(is_named || has_all, "{file} has not all of {words:?} of {}", block.place());
        }
    }
    let reasons: Vec<_> = blocks.iter().filter_map(|block| block.mark("not run")).collect();
    assert!(reasons.iter().all(|reason| reason.len() > 10), "a reason for each: {reasons:?}");
    let guide = |block: &&Block| !block.page.starts_with("docs/") || block.page.starts_with("docs/guide");
    let guide = blocks.iter().filter(guide).filter(|block| block.mark("not run").is_some()).count();
    assert!(guide == 0 && reasons.len() <= 9, "too many commands are not run: {reasons:?}");
}

/// The arguments of each `oarlock` command in a text, up to what it starts itself.
fn calls(text: &str) -> Vec<Vec<&str>> {
    let text = text.split_inclusive('\n').map(|line| line.split(" #").next().unwrap());
    let parts = text.flat_map(|line| line.split(['|', ';', '&', '(', ')']));
    let calls = parts.filter_map(|part| part.trim().strip_prefix("oarlock "));
    calls.map(|call| call.split_whitespace().take_while(|word| *word != "--").collect()).collect()
}

/// Commands in the text of a page are not run. Their subcommand and their flags exist.
#[test]
fn in_the_text_are_known() {
    let context = TestContext::new();
    let help = |path: &[&str]| finish(context.bare([&["help"], path].concat())).out;
    let flags_of = |help: &str| -> BTreeSet<String> {
        let words = help.split(|c: char| c.is_whitespace() || matches!(c, ',' | '=' | '[' | '"' | '.'));
        words.filter(|word| word.starts_with('-')).map(str::to_owned).collect()
    };
    let mut known = BTreeMap::new();
    for (name, _) in subcommands(&finish(context.bare(["--help"])).out) {
        let own = help(&[&name]);
        let mut flags = flags_of(&own);
        for (below, _) in subcommands(&own) {
            flags.extend(flags_of(&help(&[&name, &below])));
        }
        known.insert(name, flags);
    }
    assert!(known.len() > 15 && known["run"].contains("--reason") && known["run"].contains("-w"), "{known:?}");
    let mut checked = 0;
    for (page, text) in pages() {
        let blocks: Vec<_> = blocks(&page, &text).into_iter().map(|block| block.text.replace("\\\n", " ")).collect();
        let prose: Vec<_> = text.lines().filter(|line| !line.starts_with("```")).collect();
        let prose = prose.join(" ");
        let inline = prose.split('`').skip(1).step_by(2);
        for call in inline.chain(blocks.iter().map(String::as_str)).flat_map(calls) {
            let Some(name) = call.iter().find(|word| !word.starts_with('-')) else { continue };
            if name.chars().any(char::is_uppercase) || matches!(*name, "help" | "man" | "completions") {
                continue;
            }
            let flags = known.get(*name).unwrap_or_else(|| panic!("{page}: there is no `oarlock {name}`: {call:?}"));
            let used = call.iter().filter(|word| word.len() > 1 && word.starts_with('-'));
            for flag in used.map(|word| word.split('=').next().unwrap()) {
                assert!(flags.contains(flag), "{page}: `oarlock {name}` has no {flag}: {call:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} commands were found");
}

/// The picture at the top of the README shows what two shells print today.
#[test]
fn of_the_picture_print_what_it_shows() {
    let script = root().join("docs/img/turns.py");
    let check = Command::new("python3").arg(script).args(["--check", env!("CARGO_BIN_EXE_oarlock")]).output();
    let check = match check {
        Ok(check) => check,
        Err(error) if std::env::var_os("CI").is_none() => return println!("skipped: no python3: {error}"),
        Err(error) => panic!("python3 types into two shells, and cannot be started: {error}"),
    };
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
