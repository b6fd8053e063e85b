//! The peer in Rust speaks the protocol of `interop/README.md`. Cargo builds the programs of this crate for it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// Sends these commands to a peer on the embedded store, and returns its answers with `ready`.
fn answers(store: &str, commands: &[&str]) -> std::io::Result<Vec<String>> {
    let mut peer = Command::new(env!("CARGO_BIN_EXE_interop-peer"))
        .args(["oarlock", &format!("local:{store}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut input, output) = (peer.stdin.take().unwrap(), peer.stdout.take().unwrap());
    let mut output = BufReader::new(output).lines();
    let mut answers = vec![output.next().unwrap()?];
    for command in commands {
        writeln!(input, "{command}")?;
        answers.push(output.next().unwrap()?);
    }
    drop(input);
    assert!(peer.wait()?.success());
    Ok(answers)
}

#[test]
fn a_lock_is_held_busy_for_others_and_freed() -> std::io::Result<()> {
    let store = tempfile::tempdir()?;
    let commands = [
        "lock a mutex job 5000 0",
        "lock b mutex job 5000 0",
        "held a",
        "unlock a",
        "held a",
        "lock b mutex job 5000 1000",
        "lock c nonsense job 5000 0",
    ];
    let answers = answers(store.path().to_str().unwrap(), &commands)?;
    let words: Vec<Vec<_>> = answers.iter().map(|answer| answer.split(' ').collect()).collect();
    assert_eq!(words[0][..2], ["ready", "oarlock"]);
    assert_eq!(words[1][..2], ["held", "a"]);
    assert_eq!(words[2], ["busy", "b"]);
    assert_eq!(words[3], ["yes", "a"]);
    assert_eq!(words[4][..2], ["freed", "a"]);
    assert_eq!(words[5][..2], ["error", "a"], "nothing is held");
    assert_eq!(words[6][..2], ["held", "b"]);
    let fence = |answer: &[&str]| answer[3].parse::<u64>().unwrap();
    assert!(fence(&words[6]) > fence(&words[1]), "{answers:?}");
    assert_eq!(words[7][..2], ["cannot", "c"]);
    Ok(())
}
