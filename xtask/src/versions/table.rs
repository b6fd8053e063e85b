//! What the suite said, and the page of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Suite;

/// The sum of what the runs of one program said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// How often each reason to skip a case was given.
    pub(super) skipped: BTreeMap<String, usize>,
}

impl Tally {
    pub(super) fn read(text: &str) -> Self {
        let mut tally = Self::default();
        for line in text.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                tally.passed += number_before(result, " passed");
                tally.failed += number_before(result, " failed");
            } else if let Some((_, why)) = line.split_once("... ignored (") {
                *tally.skipped.entry(why.trim_end_matches(')').to_owned()).or_default() += 1;
            } else if let Some(why) = line.strip_prefix("skipped: ") {
                *tally.skipped.entry(why.to_owned()).or_default() += 1;
            }
        }
        tally
    }
}

fn number_before(text: &str, word: &str) -> usize {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    before.rsplit([' ', ';']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// One server.
#[derive(Debug)]
pub(super) struct Row {
    server: &'static str,
    version: String,
    suite: &'static str,
    tally: Tally,
    result: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Missing(String),
}

impl Row {
    pub(super) fn new(server: &'static str, version: String, suite: &Suite, tally: Tally, passed: bool) -> Self {
        let result = match (passed, tally.passed) {
            // A program that skips everything ends well.
            (true, 0) => Outcome::Missing("not installed".to_owned()),
            (true, _) => Outcome::Passed,
            (false, _) => Outcome::Failed,
        };
        Self { server, version, suite: suite.program, tally, result }
    }

    pub(super) fn missing(server: &'static str, version: &str, suite: &Suite, why: &anyhow::Error) -> Self {
        let result = Outcome::Missing(format!("cannot be had here: {why:#}"));
        Self { server, version: version.to_owned(), suite: suite.program, tally: Tally::default(), result }
    }

    pub(super) fn failed(&self) -> bool {
        self.result == Outcome::Failed
    }

    pub(super) fn title(&self) -> String {
        format!("{} {}", self.server, self.version)
    }
}

const HEAD: &str = "# Which servers Oarlock is tested on

`cargo xtask test --only versions` writes this page: it runs the conformance suite of each store on the server that
Debian stable brings, and on newer ones that it unpacks beside it, or builds from Go modules and Maven artifacts.
`cargo xtask test --all` includes it. A row counts the cases of every deployment and layout that the suite of the store
has.

";

const UNTESTED: &str = "
## Not tested

| server | why |
|---|---|
| MySQL 8.4 and older | no package of it can be unpacked here; MySQL 9 runs in every test run |
| Redis 6 | not part of the run. Tried by hand on 6.0.16: all cases of one server pass but one, for which the test itself needs a command of Redis 7; a cluster needs Redis 7. The suite logs in with rights on channels, which Redis 6.0 does not know |
| etcd behind an HTTP/2 proxy, MySQL behind ProxySQL | no such proxy is at hand. A TCP proxy is in front of every server of the suite |
| managed services | they need an account. What they restrict is tested: [Redis](backends/redis.md#set-up), [PostgreSQL](backends/postgres.md#set-up), [MySQL](backends/mysql.md#set-up) |
";

/// The page.
pub(super) fn page(rows: &[Row], date: &str) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| server | version | result | cases passed | cases skipped | date |\n|---|---|---|---|---|---|\n");
    for row in rows {
        let result = match &row.result {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed => format!("**{} failed**", row.tally.failed),
            Outcome::Missing(why) => why.replace('|', "/").replace('\n', " "),
        };
        let (skipped, tally): (usize, _) = (row.tally.skipped.values().sum(), &row.tally);
        let _ =
            writeln!(page, "| {} | {} | {result} | {} | {skipped} | {date} |", row.server, row.version, tally.passed);
    }
    page.push_str(UNTESTED);
    page.push_str("\n## Skipped cases\n\nA case is skipped where the store cannot do what it is about.\n\n");
    page.push_str("| suite | reason | cases |\n|---|---|---|\n");
    let mut reasons = BTreeMap::new();
    for row in rows {
        for (why, count) in &row.tally.skipped {
            let most: &mut usize = reasons.entry((row.suite, why)).or_default();
            *most = (*most).max(*count);
        }
    }
    for ((suite, why), count) in reasons {
        let _ = writeln!(page, "| `{suite}` | {why} | {count} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::SUITES;

    const SAID: &str = "test a::b ... ok
test order::c                 ... ignored (this store has no queue)
test order::d                 ... ignored (this store has no queue)
test result: ok. 205 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 24.44s
test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    #[test]
    fn runs_are_added_up() {
        let tally = Tally::read(SAID);
        assert_eq!((tally.passed, tally.failed), (209, 1));
        assert_eq!(tally.skipped, BTreeMap::from([("this store has no queue".to_owned(), 2)]));
    }

    #[test]
    fn a_run_that_skips_everything_has_not_passed() {
        let row = |tally, passed| Row::new("Redis", "8.0".to_owned(), &SUITES[0], tally, passed);
        let rows = [row(Tally::default(), true), row(Tally::read(SAID), false), row(Tally::read(SAID), true)];
        assert_eq!(rows.iter().map(Row::failed).collect::<Vec<_>>(), [false, true, false]);
        let page = page(&rows, "2026-01-31");
        for line in [
            "| Redis | 8.0 | not installed | 0 | 0 | 2026-01-31 |",
            "| Redis | 8.0 | **1 failed** | 209 | 2 | 2026-01-31 |",
            "| Redis | 8.0 | passed | 209 | 2 | 2026-01-31 |",
            "| `oarlock-redis test conformance` | this store has no queue | 2 |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }
}
