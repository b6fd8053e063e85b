//! Hostile text for what the command line reads: slots and cron expressions, the configuration file, tickets.

use std::path::Path;

use oarlock_fuzz::{Seen, fuzz};

use crate::config::ConfigFile;
use crate::exit::Failure;
use crate::slot::Slots;
use crate::ticket;

fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

fn failed(failure: &Failure) -> Seen {
    Seen::text(failure.message().unwrap_or_default())
}

/// A slot has a name that fits where it is written down, whatever the expression.
#[test]
fn fuzz_slot() {
    let words =
        ["*", "/", "-", ",", "@hourly", "@daily", "MON", "FRI", "JAN", "Europe/Berlin", "UTC", "L", "#5", "30s", "1h"];
    let times = ["2026-03-29T00:30:00Z", "1970-01-01T00:00:00Z", "9999-12-30T22:00:00Z"];
    let times = times.map(|time| time.parse().unwrap());
    fuzz("slot", &corpus("slot"), &[], &words, |input| match Slots::parse(&String::from_utf8_lossy(input)) {
        Ok(slots) => {
            let outcomes = times.map(|now| match slots.at(now) {
                Ok(current) => {
                    assert!((1..=256).contains(&current.slot.len()), "{}", current.slot);
                    (current.remember.as_secs().checked_ilog2(), current.next_in.is_some())
                }
                Err(_) => (None, false),
            });
            Seen::of(outcomes)
        }
        Err(failure) => failed(&failure),
    });
}

#[test]
fn fuzz_configuration() {
    let words =
        ["profile = ", "[profiles.a]", "url = ", "url_file = ", "password_file = ", "\"", "\n", "'''", "[[", "]]"];
    fuzz("configuration", &corpus("configuration"), &[], &words, |input| {
        match ConfigFile::parse("/config.toml".into(), &String::from_utf8_lossy(input)) {
            Ok(file) => Seen::of(file.profile("a").is_ok()),
            Err(failure) => {
                let message = failure.message().unwrap_or_default();
                assert!(!message.contains("s3cr3t") && message.len() < 300, "{message}");
                Seen::text(message)
            }
        }
    });
}

#[test]
fn fuzz_written_ticket() {
    let words = ["oarlock1.", "eyJmb3JtYXQiOjF9", "\"ticket\":", "{"];
    fuzz("written ticket", &corpus("ticket"), &[], &words, |input| {
        match ticket::parse(&String::from_utf8_lossy(input)) {
            Ok(ticket) => Seen::of((ticket.is_renewed(), ticket.resource().as_str().len().min(32))),
            Err(failure) => failed(&failure),
        }
    });
}
