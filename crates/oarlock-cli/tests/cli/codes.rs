//! Every exit code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;

use oarlock_testbed::plain;
use rustix::process::Signal;

use super::support::{Running, TestContext, finish};

/// "The exact code is wanted" (consul 947, 3526, cronsul 5, cronlocker 10).
#[test]
fn the_childs_code_is_ours() {
    let context = TestContext::new();
    for code in [0, 3, 75, 255] {
        assert_eq!(context.code(&["run", "x", "--", "sh", "-c", &format!("exit {code}")]), code);
    }
    assert_eq!(context.code(&["run", "x", "--", "sh", "-c", "kill -KILL $$"]), 128 + 9);
    assert_eq!(context.code(&["run", "x", "--", "sh", "-c", "kill -TERM $$"]), 128 + 15);
}

/// "Try, and fail with a code of its own" (consul 780); "600 is silently made 88" (util-linux 1180).
#[test]
fn busy_is_75_or_what_was_asked_for() {
    let context = TestContext::new();
    let _holder = context.hold(&["x"]);
    let marker = context.path("ran");
    let touch = ["x", "--", "touch", &marker];
    let cases: [(&[&str], i32); 9] = [
        (&["-n"], 75),
        (&["--no-wait"], 75),
        (&["-w", "0"], 75),
        (&["--wait", "50ms"], 75),
        (&["-n", "-E", "9"], 9),
        (&["-n", "--conflict-exit-code", "0"], 0),
        (&["--on-busy", "fail"], 75),
        (&["--on-busy", "skip"], 0),
        (&["-w", "50ms", "--on-busy", "wait"], 75),
    ];
    for (flags, code) in cases {
        let args: Vec<&str> = ["run"].iter().chain(flags).chain(&touch).copied().collect();
        assert_eq!(context.code(&args), code, "{flags:?}");
        assert!(!std::fs::exists(&marker).unwrap(), "{flags:?}");
    }
}

#[test]
fn bad_usage_is_64() {
    let context = TestContext::new();
    let long = "a".repeat(1025);
    let cases: [&[&str]; 29] = [
        &[],
        &["nonsense"],
        &["run"],
        &["run", "x"],
        &["run", "--", "true"],
        &["run", "x", "x", "--", "true"],
        &["run", "", "--", "true"],
        &["run", &long, "--", "true"],
        &["run", "--nonsense", "x", "--", "true"],
        &["run", "-n", "-w", "1", "x", "--", "true"],
        &["run", "-w", "soon", "x", "--", "true"],
        &["run", "-w", "-1", "x", "--", "true"],
        &["run", "-s", "-x", "x", "--", "true"],
        &["run", "-s", "-j", "2", "x", "--", "true"],
        &["run", "-j", "0", "x", "--", "true"],
        &["run", "-j", "2", "--take", "3", "x", "--", "true"],
        &["run", "--take", "1", "x", "--", "true"],
        &["run", "-E", "256", "x", "--", "true"],
        &["run", "--on-busy", "dance", "x", "--", "true"],
        &["run", "-n", "--on-busy", "wait", "x", "--", "true"],
        &["run", "--on-lost", "dance", "x", "--", "true"],
        &["run", "-t", "10s", "-k", "6s", "x", "--", "true"],
        &["run", "-t", "1ms", "x", "--", "true"],
        &["run", "--max-hold", "0", "x", "--", "true"],
        &["run", "-m", "novalue", "x", "--", "true"],
        &["run", "-c", "true", "x", "--", "true"],
        &["run", "-q", "-v", "x", "--", "true"],
        &["break", "x", "--yes"],
        &["man", "nonsense"],
    ];
    for args in cases {
        let done = context.run(args);
        assert_eq!(done.code, Some(64), "{args:?}: {done:?}");
        assert!(done.out.is_empty() && !done.err.is_empty(), "{args:?}: {done:?}");
    }
    let raw = OsString::from_vec(vec![b'a', 0xff]);
    let mut command = context.oarlock(["run"]);
    command.arg(raw).args(["--", "true"]);
    assert_eq!(finish(command).code, Some(64));
}

#[test]
fn help_and_version_are_no_failure() {
    let context = TestContext::new();
    for args in [&["--help"][..], &["-h"], &["run", "--help"], &["--version"], &["help", "break"]] {
        let done = context.run(args);
        assert_eq!(done.code, Some(0), "{args:?}");
        assert!(!done.out.is_empty());
    }
}

#[test]
fn a_bad_url_or_configuration_is_78() {
    let context = TestContext::new();
    let urls = ["nonsense", "rediz://h", "local:relative", "mem:?tll=1", "mysql://localhost", "redlock://a,b"];
    for url in urls {
        assert_eq!(context.code(&["run", "-u", url, "x", "--", "true"]), 78, "{url}");
    }
    assert_eq!(context.code(&["run", "--url-file", "/nonexistent", "x", "--", "true"]), 78);
    let mut homeless = context.bare(["run", "x", "--", "true"]);
    homeless.env_remove("HOME");
    assert_eq!(finish(homeless).code, Some(78));
    // Two who disagree on the number of permits.
    let _holder = context.hold(&["-j", "2", "x"]);
    assert_eq!(context.code(&["run", "-n", "-j", "3", "x", "--", "true"]), 78);
}

#[test]
fn a_store_out_of_reach_is_69_and_who_waits_for_ever_is_told() {
    let context = TestContext::new();
    // No server listens on port 1.
    let url = "redis://127.0.0.1:1";
    for args in
        [&["run", "-n", "x", "--", "true"][..], &["run", "-w", "0.3", "x", "--", "true"], &["ls"], &["show", "x"]]
    {
        let mut command = context.bare(args);
        command.env("OARLOCK_URL", url);
        let done = finish(command);
        assert_eq!(done.code, Some(69), "{args:?}: {done:?}");
    }
    let mut shell = plain("sh");
    shell.args(["-c", r#"exec "$0" "$@" 2>&1"#, env!("CARGO_BIN_EXE_oarlock"), "run", "-u", url, "x", "--", "true"]);
    let mut waiting = Running::start(shell);
    let said = waiting.line();
    assert!(said.contains("still trying") && said.contains("127.0.0.1:1"), "{said}");
    assert!(waiting.is_running());
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.wait().code(), Some(128 + 15));
}

#[test]
fn a_store_that_cannot_be_created_is_73() {
    let context = TestContext::new();
    std::fs::write(context.path("file"), "").unwrap();
    let url = format!("local:{}/store", context.path("file"));
    let done = context.run(&["run", "-u", &url, "x", "--", "true"]);
    assert_eq!(done.code, Some(73), "{done:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_71_and_nothing_runs() {
    let context = TestContext::new();
    let marker = context.path("ran");
    assert_eq!(context.code(&["run", "--report", "/nonexistent/report", "x", "--", "touch", &marker]), 71);
    assert!(!std::fs::exists(marker).unwrap());
}

#[test]
fn a_command_that_cannot_run_is_126_or_127() {
    let context = TestContext::new();
    let plain = context.path("plain");
    std::fs::write(&plain, "").unwrap();
    assert_eq!(context.code(&["run", "x", "--", &plain]), 126);
    let done = context.run(&["run", "x", "--", "no-such-command"]);
    assert_eq!(done.code, Some(127));
    assert!(done.err.contains("no-such-command"));
    assert_eq!(context.show("x")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn a_closed_output_is_no_failure() {
    let context = TestContext::new();
    let _holder = context.hold(&["x"]);
    for args in [&["ls"][..], &["show", "x"], &["man"], &["completions", "bash"]] {
        let mut command = context.oarlock(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        assert_eq!(done.status.code(), Some(0), "{args:?}: {err}");
    }
}
