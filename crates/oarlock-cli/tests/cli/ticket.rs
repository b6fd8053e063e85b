//! `acquire`, `renew` and `release`: a lock that a script passes on.

use std::process::Stdio;
use std::time::Duration;

use super::support::{Running, TestContext};

#[test]
fn a_lock_is_passed_on_by_its_ticket() {
    let context = TestContext::new();
    let acquired = context.run(&["acquire", "deploy", "--reason", "release 2.3"]);
    assert_eq!(acquired.code, Some(0), "{acquired:?}");
    let ticket = acquired.out.trim();
    assert_eq!(acquired.out.lines().count(), 1, "one word on one line: {acquired:?}");
    assert!(ticket.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)), "a word for any shell: {ticket}");
    assert_eq!(context.show("deploy")["holders"][0]["label"]["reason"], "release 2.3");
    assert_eq!(context.code(&["run", "-n", "deploy", "--", "true"]), 75, "it outlives its process");

    assert_eq!(context.code(&["renew", ticket]), 0);
    std::fs::write(context.path("ticket"), ticket).unwrap();
    assert_eq!(context.code(&["renew", "--ticket-file", &context.path("ticket")]), 0);
    let mut by_variable = context.oarlock(["renew"]);
    by_variable.env("OARLOCK_TICKET", ticket);
    assert_eq!(super::support::finish(by_variable).code, Some(0));

    let mut by_input = context.oarlock(["release", "-"]);
    by_input.stdin(Stdio::piped());
    let mut release = Running::start(by_input);
    release.say(ticket);
    assert_eq!(release.finish().code, Some(0));
    assert_eq!(context.code(&["run", "-n", "deploy", "--", "true"]), 0, "it is free");
    let late = context.run(&["release", ticket]);
    assert_eq!(late.code, Some(76), "{late:?}");
    assert!(late.err.contains("lost"), "{late:?}");
    assert_eq!(context.code(&["renew", ticket]), 76);
}

#[test]
fn a_renewal_is_a_whole_lease() {
    let context = TestContext::new();
    let ticket = context.run(&["acquire", "x", "-t", "4s"]).out;
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(context.code(&["renew", ticket.trim()]), 0, "renewed in time");
    }
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0, "it ends with its lease");
    assert_eq!(context.code(&["renew", ticket.trim()]), 76);
}

#[test]
fn a_ticket_in_json_is_a_ticket() {
    let context = TestContext::new();
    let acquired = context.run(&["acquire", "x", "-j", "3", "--take", "2", "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&acquired.out).unwrap();
    assert_eq!(answer["name"], "x");
    assert_eq!(context.code(&["run", "-n", "-j", "3", "--take", "2", "x", "--", "true"]), 75, "one of three is left");
    assert_eq!(context.code(&["renew", &answer["ticket"].to_string()]), 0, "the ticket");
    assert_eq!(context.code(&["release", acquired.out.trim()]), 0, "the whole answer");
    assert_eq!(context.code(&["run", "-n", "-j", "3", "--take", "3", "x", "--", "true"]), 0);
}

#[test]
fn what_is_no_ticket_is_bad_usage() {
    let context = TestContext::new();
    for words in [&["renew", "deploy"][..], &["release", "oarlock1.AAAA"], &["release", "{}"], &["renew"]] {
        let done = context.run(words);
        assert_eq!(done.code, Some(64), "{words:?}: {done:?}");
        assert!(done.err.contains("ticket"), "{done:?}");
    }
    let fixed = context.run(&["acquire", "x", "--no-renew", "-t", "20s"]).out;
    let done = context.run(&["renew", fixed.trim()]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("--no-renew"), "{done:?}");
    assert_eq!(context.code(&["release", fixed.trim()]), 0);
    assert_eq!(context.code(&["acquire", "x", "--max-hold", "5s"]), 64);
}

#[test]
fn a_lock_that_is_held_is_not_acquired() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let busy = context.run(&["acquire", "-n", "x"]);
    assert_eq!((busy.code, busy.out.as_str()), (Some(75), ""), "{busy:?}");
    assert!(busy.err.contains("is held by"), "{busy:?}");
    assert_eq!(context.code(&["acquire", "--on-busy", "skip", "x"]), 0);
    let nested = context.run(&["run", "y", "--", env!("CARGO_BIN_EXE_oarlock"), "acquire", "y"]);
    assert_eq!(nested.code, Some(75), "it would wait for itself: {nested:?}");
    drop(holder);
}

/// A full disk: without its ticket no process could release the lock.
#[test]
fn a_lock_whose_ticket_cannot_be_printed_is_released() {
    let context = TestContext::new();
    let program = env!("CARGO_BIN_EXE_oarlock");
    let done = super::support::finish(context.shell(&format!("{program} acquire x > /dev/full; echo $?")));
    assert_eq!(done.out, "71\n", "{done:?}");
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
}
