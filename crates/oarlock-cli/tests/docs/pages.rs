//! Pages that are generated from the code, or must keep up with it. `OARLOCK_WRITE_DOCS=1` writes them anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use oarlock::doctor::{Promise, checks, guarantees};
use oarlock::driver::{DEFAULT_OP_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT, MAX_TTL, MIN_TTL};
use oarlock_core::belief::drift_margin;
use oarlock_core::claim::MAX_NAME_BYTES;
use oarlock_core::engine::DEFAULT_MAX_WAITERS;
use oarlock_core::model::TURN_TTL;
use oarlock_core::state::{MAX_MEMO_BYTES, MAX_VALUE_BYTES};
use oarlock_core::{Claim, span};

const BEGIN: &str = "<!-- guarantees: written by `OARLOCK_WRITE_DOCS=1 cargo test -p oarlock-cli --test docs` -->\n";
const END: &str = "<!-- end of guarantees -->\n";

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../docs", name].iter().collect()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

#[test]
fn the_page_of_guarantees_says_what_the_code_says() {
    let old = page("guarantees.md");
    let (before, rest) = old.split_once(BEGIN).expect("the page has lost the mark of its tables");
    let (_, after) = rest.split_once(END).expect("the page has lost the end of its tables");
    let new = format!("{before}{BEGIN}{}{END}{after}", tables());
    if std::env::var_os("OARLOCK_WRITE_DOCS").is_some() {
        std::fs::write(path("guarantees.md"), new).unwrap();
    } else {
        assert!(old == new, "docs/guarantees.md is not what the code says: run this test with OARLOCK_WRITE_DOCS=1");
    }
}

#[test]
fn every_promise_has_its_anchor_and_every_anchor_is_there_once() {
    let page = page("guarantees.md");
    for promise in Promise::ALL {
        let line = format!("<a id=\"{}\"></a>**{}", promise.anchor(), promise.title());
        assert!(page.contains(&line), "docs/guarantees.md lacks {line}");
    }
    let anchors: Vec<_> = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let different: BTreeSet<_> = anchors.iter().collect();
    assert_eq!(anchors.len(), different.len(), "an anchor is there twice: {anchors:?}");
    assert!(different.contains(&"redis-fencing") && different.contains(&"bound-ttl"), "{different:?}");
}

#[test]
fn every_finding_has_its_section_in_the_runbook_and_every_section_is_a_finding() {
    let page = page("runbook.md");
    let sections: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let (found, known): (BTreeSet<_>, BTreeSet<_>) =
        (sections.iter().copied().collect(), checks().map(|check| check.id).collect());
    assert_eq!(found, known);
    assert_eq!(sections.len(), found.len(), "a section is there twice: {sections:?}");
    assert_eq!(checks().count(), known.len(), "two checks have one id");
}

fn tables() -> String {
    let mut text = words();
    text.push_str(
        "\nWhat each driver can do. `oarlock::driver::Capabilities` has the same as data, and explains each column. \
         Where it\ndepends on the server, the least is shown; `oarlock doctor` examines a server.\n\n",
    );
    text.push_str(&capabilities());
    text.push_str("\n## Bounds\n\n");
    text.push_str(&bounds());
    text
}

/// The table in words: who decides, and how a grant can be forgotten.
fn words() -> String {
    let head = ["who decides", "a dead holder is noticed", "a hung one", "fences", "can forget a grant"];
    let rows = guarantees().map(|store| (store.anchor, store.urls, store.words().to_vec()));
    table(&head, rows)
}

fn capabilities() -> String {
    let rows: Vec<_> =
        guarantees().map(|store| (store.anchor, store.urls, (store.capabilities)().words().to_vec())).collect();
    let head: Vec<_> = rows.first().into_iter().flat_map(|(_, _, cells)| cells.iter().map(|(key, _)| *key)).collect();
    table(&head, rows.into_iter())
}

type Cells = Vec<(&'static str, &'static str)>;

/// A table of stores; each cell has an anchor.
fn table(head: &[&str], rows: impl Iterator<Item = (&'static str, &'static str, Cells)>) -> String {
    let mut text = format!("| store | {} |\n|---|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for (anchor, urls, cells) in rows {
        let cells = cells.iter().map(|(key, value)| format!("<a id=\"{anchor}-{key}\"></a>{value}"));
        writeln!(text, "| {urls} | {} |", cells.collect::<Vec<_>>().join(" | ")).unwrap();
    }
    text
}

fn bounds() -> String {
    let bytes = |count: usize| format!("{count} bytes");
    let rows: &[(&str, &str, String)] = &[
        ("ttl", "lease, by default", span::write(DEFAULT_TTL)),
        ("min-ttl", "shortest lease", span::write(MIN_TTL)),
        ("max-ttl", "longest lease", span::write(MAX_TTL)),
        ("margin", "belief ends before a lease of 30 s does, by", span::write(drift_margin(Duration::from_secs(30)))),
        ("min-margin", "the least such margin", span::write(drift_margin(MIN_TTL))),
        ("wait", "wait, by default", span::write(DEFAULT_WAIT)),
        ("request", "request (`op_timeout`), by default", span::write(DEFAULT_OP_TIMEOUT)),
        ("turn", "time of a waiter to take its turn", span::write(TURN_TTL)),
        ("silence", "a silent waiter is dropped after its lease, and at most", span::write(Claim::MAX_WAITER_TTL)),
        ("waiters", "waiting claims of one client for one name, by default", DEFAULT_MAX_WAITERS.to_string()),
        ("name", "name", bytes(MAX_NAME_BYTES)),
        ("memo", "memo", bytes(MAX_MEMO_BYTES)),
        ("value", "published value", bytes(MAX_VALUE_BYTES)),
    ];
    let mut text = String::from("| bound | value |\n|---|---|\n");
    for (anchor, what, value) in rows {
        writeln!(text, "| <a id=\"bound-{anchor}\"></a>{what} | {value} |").unwrap();
    }
    text
}
