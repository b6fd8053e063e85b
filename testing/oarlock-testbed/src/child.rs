//! Child processes that start as from a fresh shell.

use std::ffi::OsStr;
use std::process::Command;

/// `program` with the default action for every signal, whatever started the tests.
///
/// `nohup`, and `&` in a script, leave signals ignored, and so do some CI runners. That is handed down to every child,
/// and a shell cannot trap a signal that it found ignored: a test that sends one would wait in vain.
///
/// The process that is started is that of `program`, with the same number.
#[must_use]
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", "--"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ignored_is_not() {
        let script = r#"trap '' INT; exec "$@""#;
        let ignored = |command: &mut Command| {
            let output = command.output().expect("a shell");
            let status = String::from_utf8_lossy(&output.stdout).into_owned();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("the signals it ignores");
            u64::from_str_radix(mask.trim(), 16).expect("a mask") >> 1 & 1 == 1
        };
        let look = ["grep", "SigIgn", "/proc/self/status"];
        assert!(ignored(Command::new("sh").args(["-c", script, "sh"]).args(look)), "the test cannot tell");
        let plain = plain(look[0]);
        let words = plain.get_args();
        let mut inner = Command::new("sh");
        inner.args(["-c", script, "sh"]).arg(plain.get_program()).args(words).args(&look[1..]);
        assert!(!ignored(&mut inner));
    }
}
