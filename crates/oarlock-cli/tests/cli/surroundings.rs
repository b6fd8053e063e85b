//! Whatever starts the tests: a script with `nohup` and `&`, a CI runner, a strange locale.

use oarlock_testbed::plain;

/// Tests that rely on signals, on a terminal, on the modes of files and on a home directory.
const TESTS: &[&str] = &[
    "signals::signals_are_passed_on_to_the_group",
    "signals::a_stop_while_waiting_leaves_nothing_behind",
    "job::interrupts_reach_the_command_and_the_terminal_comes_back",
    "flags::",
];

/// Runs this program again, for a few of its tests, where signals are ignored, new files are for their owner alone, the
/// locale has an `ı` for an `i`, and there is neither a terminal nor a home directory.
#[test]
fn nothing_of_them_matters() {
    let script = r#"trap '' HUP INT QUIT; umask 077; unset HOME XDG_STATE_HOME; export LC_ALL=tr_TR.UTF-8; exec "$@""#;
    let this = std::env::current_exe().unwrap();
    let mut command = plain("setsid");
    command.args(["sh", "-c", script, "sh"]).arg(this).args(TESTS).stdin(std::process::Stdio::null());
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(!said.contains(" 0 passed"), "{said}");
}
