//! `cargo xtask test` as a whole, with fake programs for cargo and apt: what it runs, in which order, and what a
//! failure does.

// The configured exception for tests does not reach the functions they share.
#![allow(clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
#[path = "../src/packages.rs"]
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Programs that write down what they are asked. They lie in the repository: one written by a test could be refused as
/// busy, when another test forks while it is still open.
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand-in");

/// A repository with a README, and stand-ins for the programs that are started in it.
struct Scene {
    folder: PathBuf,
    script: &'static str,
}

impl Scene {
    /// `script` is what the stand-ins do after they have written down the call; `$name` is who they are.
    fn new(name: &str, script: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What an earlier run left behind.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("xtask")).expect("a folder for the scene");
        fs::create_dir_all(folder.join("installed")).expect("a folder for programs");
        fs::write(
            folder.join("README.md"),
            "```sh\ncargo run -- echo \"one at a time\"\ncargo xtask test\n```\n\n```text\none at a time\n```\n",
        )
        .expect("a README");
        // A package added to the table is there, and changes nothing here.
        for package in packages::PACKAGES {
            if package.name != "procps" {
                fs::write(folder.join("installed").join(package.proof), "").expect("a program");
            }
        }
        Self { folder, script }
    }

    /// Runs xtask on a machine that has all it needs.
    fn run(&self, args: &[&str]) -> Output {
        let installed = self.folder.join("installed");
        fs::write(installed.join("ps"), "").expect("the last program");
        let path = std::env::var("PATH").unwrap_or_default();
        self.run_with_path(args, &format!("{STAND_IN}:{}:{path}", installed.display()))
    }

    /// Runs xtask on a machine that lacks procps, and everything that is not a stand-in.
    fn run_without_procps(&self, args: &[&str]) -> Output {
        let installed = self.folder.join("installed");
        self.run_with_path(args, &format!("{STAND_IN}:{}", installed.display()))
    }

    fn run_with_path(&self, args: &[&str], path: &str) -> Output {
        self.command(args, path).output().expect("xtask starts")
    }

    fn command(&self, args: &[&str], path: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .args(args)
            .env("CARGO_MANIFEST_DIR", self.folder.join("xtask"))
            .env("CARGO", format!("{STAND_IN}/cargo"))
            .env("PATH", path)
            .env("STAND_IN", self.script)
            .env("STAND_IN_LOG", self.folder.join("log"))
            .env("INSTALLED", self.folder.join("installed"))
            .env("OARLOCK_URL", "mem:")
            .env("OARLOCK_LONG", "1")
            .env_remove("RUSTDOCFLAGS")
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CI");
        command
    }

    /// How `program` was called, in order.
    fn calls(&self, program: &str) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix(program)?.strip_prefix(' ')).map(String::from).collect()
    }
}

/// Cargo, and a program of tests that it built; the name of the latter is what it is called by.
const HEALTHY: &str = r#"case "$name $1" in
    "cargo tree") echo 'oarlock v0.1.0';;
    "cargo run") echo 'one at a time';;
    "cargo test") case "$*" in *--no-run*) built;; esac;;
esac"#;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn row<'a>(text: &'a str, part: &str) -> &'a str {
    let (_, table) = text.rsplit_once("result\n").expect("a table at the end");
    table.lines().find(|line| line.starts_with(part)).unwrap_or_else(|| panic!("no row for {part} in\n{table}"))
}

#[test]
fn every_part_runs_in_order() {
    let scene = Scene::new("every_part", HEALTHY);
    let output = scene.run(&["test"]);
    assert!(output.status.success(), "{}", stdout(&output));
    let text = stdout(&output);
    for part in ["setup", "format", "readme", "features", "tests", "examples"] {
        assert!(row(&text, part).ends_with("ok"), "{text}");
    }
    assert!(row(&text, "interop").ends_with("ok, beside the tests"), "{text}");
    let log = scene.calls("cargo");
    let first_words: Vec<_> = log.iter().filter_map(|line| line.split(' ').next()).collect();
    let (parts, examples) = first_words.split_at(7);
    assert_eq!(parts, ["fmt", "run", "tree", "check", "test", "test", "test"]);
    assert!(!examples.is_empty() && examples.iter().all(|word| *word == "run"), "{examples:?}");
    assert!(log[1].ends_with("long= url= doc="), "{}", log[1]);
    assert!(log[6].starts_with("test --workspace --locked --doc "), "{}", log[6]);
    assert!(log[6].ends_with("long= url= doc="), "{}", log[6]);
    // A scene has no programs of other languages.
    let interop = scene.calls("interop").concat();
    assert!(interop.contains("--without python --without node --without go --without java long="), "{interop}");
    assert!(interop.ends_with("url= doc="), "{interop}");
    assert_eq!(scene.calls("program"), [" long= url= doc="]);
}

/// The build of the tests builds this program, too.
#[test]
fn a_program_that_was_replaced_meanwhile_still_meets_other_languages() {
    let scene = Scene::new(
        "replaced",
        r#"case "$name $1" in
            "cargo tree") echo 'oarlock v0.1.0';;
            "cargo run") echo 'one at a time';;
            "cargo test") case "$*" in *--no-run*) built; rm -f "$INSTALLED/own";; esac;;
        esac"#,
    );
    let own = scene.folder.join("installed/own");
    fs::hard_link(env!("CARGO_BIN_EXE_xtask"), &own).expect("the same program under another name");
    let path = format!("{STAND_IN}:{}", std::env::var("PATH").unwrap_or_default());
    let installed = format!("{}:{path}", scene.folder.join("installed").display());
    fs::write(scene.folder.join("installed/ps"), "").expect("the last program");
    let command = scene.command(&["test"], &installed);
    let mut replaced = Command::new(&own);
    replaced.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => replaced.env(name, value),
            None => replaced.env_remove(name),
        };
    }
    let output = replaced.output().expect("xtask starts");
    assert!(!own.exists(), "it was not replaced");
    assert!(row(&stdout(&output), "interop").ends_with("ok, beside the tests"), "{}", stdout(&output));
}

#[test]
fn a_failing_part_fails_the_run_and_hides_no_other() {
    let scene = Scene::new(
        "failing_part",
        r#"case "$name $1" in
            "cargo clippy") exit 101;;
            "cargo doc") exit 3;;
            "cargo tree") echo 'oarlock v0.1.0';;
            "cargo run") echo 'one at a time';;
            "cargo test") case "$*" in *--no-run*) built;; esac;;
        esac"#,
    );
    let output = scene.run(&["test", "--only", "format", "--only", "clippy", "--only", "docs", "--only", "features"]);
    assert_eq!(output.status.code(), Some(101));
    let text = stdout(&output);
    assert!(row(&text, "clippy").ends_with("FAILED, exit code 101"), "{text}");
    assert!(row(&text, "docs").ends_with("FAILED, exit code 3"), "{text}");
    for part in ["format", "features"] {
        assert!(row(&text, part).ends_with("ok"), "{text}");
    }
    let documented =
        scene.calls("cargo").into_iter().find(|call| call.starts_with("doc ")).expect("a call of cargo doc");
    assert!(documented.ends_with("doc=-D warnings"), "{documented}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("clippy failed"), "{stderr}");
    assert!(stderr.contains("docs failed"), "{stderr}");
}

#[test]
fn a_planted_client_fails_the_features_part() {
    let scene = Scene::new("planted_client", "case \"$1\" in tree) echo 'oarlock v0.1.0'; echo 'redis v1.0.0';; esac");
    let output = scene.run(&["test", "--only", "features"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(row(&stdout(&output), "features").contains("FAILED"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pulls in redis"));
}

#[test]
fn the_readme_must_tell_the_truth() {
    for (name, cargo) in [
        ("says_more", "echo 'one at a time'; echo 'and more'"),
        ("says_nothing", "exit 0"),
        ("says_and_fails", "echo 'one at a time'; exit 76"),
    ] {
        let output = Scene::new(name, cargo).run(&["test", "--only", "readme"]);
        assert!(!output.status.success(), "{name}");
        assert!(row(&stdout(&output), "readme").contains("FAILED"), "{name}");
    }
}

#[test]
fn only_and_all_are_obeyed() {
    let scene = Scene::new("only_and_all", HEALTHY);
    let output = scene.run(&["test", "--all", "--only", "tests", "--only", "format"]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(row(&stdout(&output), "docs").ends_with("not asked for"));
    let log = scene.calls("cargo");
    assert_eq!(log.len(), 4, "{log:?}");
    assert!(log[0].starts_with("fmt --all --check "), "{log:?}");
    assert!(log[3].contains(" long=1 "), "{log:?}");
    assert_eq!(scene.calls("program"), [" long=1 url= doc="]);
}

#[test]
fn a_failing_test_fails_the_part_and_hides_no_other() {
    let scene = Scene::new(
        "failing_test",
        r#"case "$name $*" in *--no-run*) built; built; built;; program*) echo 'it broke'; exit 7;; esac"#,
    );
    let output = scene.run(&["test", "--only", "tests"]);
    assert_eq!(output.status.code(), Some(7));
    let text = stdout(&output);
    assert_eq!(text.matches("it broke").count(), 3, "{text}");
    assert!(row(&text, "tests").ends_with("FAILED, exit code 7"), "{text}");
    assert!(scene.calls("cargo")[2].contains(" --doc "), "the examples of the documentation run, too");
}

#[test]
fn what_is_built_later_runs_once_and_a_build_that_fails_later_is_a_failure() {
    let scene = Scene::new(
        "built_later",
        r#"case "$name $*" in *--lib*) built; built | sed 's,/program,/id,';; *--no-run*) built;; esac"#,
    );
    let output = scene.run(&["test", "--only", "tests"]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert_eq!(scene.calls("program").len(), 1);
    assert_eq!(scene.calls("id").iter().filter(|call| call.starts_with(" long=")).count(), 1);
    let scene = Scene::new("fails_later", r#"case "$name $*" in *--lib*) exit 101;; *--no-run*) built;; esac"#);
    let output = scene.run(&["test", "--only", "tests"]);
    assert_eq!(output.status.code(), Some(101), "{}", stdout(&output));
    assert_eq!(scene.calls("program").len(), 1);
}

#[test]
fn programs_of_tests_run_at_once() {
    let scene = Scene::new(
        "two_at_once",
        r#"case "$name $*" in
            *--no-run*) built; built;;
            program*) for wait in 1 2 3 4 5 6 7 8 9 10; do
                test "$(grep -c ^program "$STAND_IN_LOG")" = 2 && exit 0
                sleep 0.5
            done; echo 'no program came'; exit 7;;
        esac"#,
    );
    let output = scene.run(&["test", "--only", "tests"]);
    assert!(output.status.success(), "{}", stdout(&output));
}

#[test]
fn a_build_without_a_test_is_a_failure() {
    let output = Scene::new("no_test", "exit 0").run(&["test", "--only", "tests"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("built no test"));
}

#[test]
fn bad_usage_runs_nothing() {
    let scene = Scene::new("bad_usage", HEALTHY);
    let output = scene.run(&["test", "--only", "fromat"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(scene.calls("cargo").is_empty());
}

#[test]
fn root_gets_installed_what_is_missing_and_nothing_else() {
    let scene = Scene::new(
        "root_installs",
        "case \"$name\" in id) echo 0;; apt-get) case \"$*\" in *install*) : >\"$INSTALLED/ps\";; esac;; esac",
    );
    let output = scene.run_without_procps(&["setup"]);
    assert!(output.status.success(), "{}", stdout(&output));
    // Where MySQL could be had from is only asked: nothing of it is installed.
    let is_question = |call: &String| call.starts_with("indextargets ");
    let asked: Vec<_> = scene.calls("apt-get").into_iter().filter(|call| !is_question(call)).collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].starts_with("update "), "{asked:?}");
    assert!(asked[1].contains(" install -y --no-install-recommends procps long="), "{asked:?}");
}

#[test]
fn an_install_that_brings_nothing_is_a_failure() {
    let scene = Scene::new("brings_nothing", "case \"$name\" in id) echo 0;; esac");
    let output = scene.run_without_procps(&["setup"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not there"));
}

#[test]
fn without_root_the_command_is_printed_and_no_part_runs() {
    let scene = Scene::new("without_root", "case \"$name\" in id) echo 1000;; esac");
    let output = scene.run_without_procps(&["test", "--only", "tests"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(row(&stdout(&output), "tests").ends_with("not run"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("apt-get install -y --no-install-recommends procps'"), "{stderr}");
    assert!(scene.calls("apt-get").is_empty());
    assert!(scene.calls("cargo").is_empty());
}

#[test]
fn a_package_without_its_program_is_not_installed_again() {
    let scene =
        Scene::new("without_program", "case \"$name\" in id) echo 0;; dpkg-query) echo 'procps installed';; esac");
    let output = scene.run_without_procps(&["setup"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--reinstall procps"));
}

#[test]
fn a_skipped_language_is_named_and_fails_in_ci() {
    let scene = Scene::new("skipped_language", HEALTHY);
    let output = scene.run(&["test", "--only", "interop"]);
    assert!(output.status.success(), "{}", stdout(&output));
    assert!(stdout(&output).contains("java: skipped: "), "{}", stdout(&output));

    let installed = scene.folder.join("installed");
    let path = format!("{STAND_IN}:{}:{}", installed.display(), std::env::var("PATH").unwrap_or_default());
    let output = scene.command(&["test", "--only", "interop"], &path).env("CI", "1").output().expect("xtask starts");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("interop failed: skipped") && stderr.contains("python, node, go, java"), "{stderr}");
}

/// A scene with one crate that is published, and one commit.
fn release_scene(name: &str, script: &'static str) -> Scene {
    let scene = Scene::new(name, script);
    let folder = &scene.folder;
    for (file, text) in [
        ("CHANGELOG.md", "# Changelog\n\n## [0.2.0] - 2026-12-01\n\n- A lock.\n"),
        ("python/Cargo.toml", "[package]\nversion = \"0.2.0\"\n"),
        ("one/LICENSE-MIT", &"A licence. ".repeat(50)),
        ("one/LICENSE-APACHE", &"A licence. ".repeat(50)),
        // What the stand-ins write is no change.
        (".gitignore", "/log\n/installed\n/target\n"),
    ] {
        fs::create_dir_all(folder.join(file).parent().expect("a folder")).expect("a folder");
        fs::write(folder.join(file), text).expect("a file");
    }
    // As `cargo metadata` prints it.
    let metadata = r#"{"packages": [{"name": "one", "version": "0.2.0", "dependencies": [], "publish": null,
        "manifest_path": "HERE/one/Cargo.toml", "description": "x", "license": "x", "repository": "x", "readme": "x",
        "rust_version": "1.89", "keywords": ["x"], "categories": ["x"], "metadata": {"docs": {"rs": {}}}}]}"#;
    let metadata = metadata.replace("HERE", &folder.display().to_string());
    fs::write(folder.join("installed/metadata.json"), metadata).expect("a file");
    let who = ["-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"];
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "--message", "first"]] {
        let status = Command::new("git").args(who).args(arguments).current_dir(folder).status();
        assert!(status.expect("git starts").success(), "git {arguments:?}");
    }
    scene
}

/// Packing succeeds, and building does not.
const RELEASE: &str = r#"case "$name $1" in
    "cargo metadata") cat "$INSTALLED/metadata.json";;
    "cargo build") exit 3;;
esac"#;

#[test]
fn a_release_packs_then_builds_and_publishes_nothing() {
    let scene = release_scene("release", RELEASE);
    let output = scene.run(&["release"]);
    let text = stdout(&output);
    assert!(text.contains("release: 0.2.0, after none") && text.contains("no release is tagged yet"), "{text}");
    assert_eq!(output.status.code(), Some(3), "the build failed: {text}");
    assert!(!text.contains("cargo publish"), "{text}");
    let log = scene.calls("cargo");
    let first_words: Vec<_> = log.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(first_words, ["metadata", "metadata", "package", "build"]);
}

#[test]
fn a_commit_that_is_not_ready_is_not_packed() {
    let scene = release_scene("release-not-ready", RELEASE);
    fs::write(scene.folder.join("README.md"), "changed").expect("a file");
    fs::write(scene.folder.join("python/Cargo.toml"), "[package]\nversion = \"0.1.0\"\n").expect("a file");
    let output = scene.run(&["release"]);
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("README.md") && why.contains("python/Cargo.toml has the version `0.1.0`"), "{why}");
    assert!(scene.calls("cargo").iter().all(|call| call.starts_with("metadata")), "{:?}", scene.calls("cargo"));
}
