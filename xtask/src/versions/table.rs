//! What the suite said, and the page of it.

use std::collections::BTreeMap;

use super::SUITES;
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
    suite: String,
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
        Self { server, version, suite: suite.title(), tally, result }
    }

    pub(super) fn missing(server: &'static str, version: &str, suite: &Suite, why: &anyhow::Error) -> Self {
        let result = Outcome::Missing(format!("cannot be had here: {why:#}"));
        Self { server, version: version.to_owned(), suite: suite.title(), tally: Tally::default(), result }
    }

    pub(super) fn failed(&self) -> bool {
        self.result == Outcome::Failed
    }

    pub(super) fn title(&self) -> String {
        format!("{} {}", self.server, self.version)
    }

    /// Its line of the table.
    fn line(&self, date: &str) -> String {
        let result = match &self.result {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed => format!("**{} failed**", self.tally.failed),
            Outcome::Missing(why) => why.replace('|', "/").replace('\n', " "),
        };
        let skipped: usize = self.tally.skipped.values().sum();
        format!("| {} | {} | {result} | {} | {skipped} | {date} |", self.server, self.version, self.tally.passed)
    }
}

const HEAD: &str = "# Which servers Oarlock is tested on

`cargo xtask test --only versions` writes this page: it runs the conformance suite of each store on the server that
Debian 12 brings, and on older and newer ones that it unpacks beside it, or builds from Go modules and Maven artifacts.
`cargo xtask test --all` includes it, and `--only versions=etcd` runs the rows of one server. A row counts the cases of
every deployment and layout that the suite of the store has.

*Passed* is about the locks, not about bugs of the server: etcd before 3.4.31 and 3.5.13 passes, and can
[free a lock too early](backends/etcd.md#limits).

";

const UNTESTED: &str = "
## Not tested

| server | why |
|---|---|
| MySQL 8.4 and older | no package of it can be unpacked here; MySQL 9 runs in every test run |
| MySQL behind ProxySQL | Debian has no package of it. A TCP proxy is in front of every server of the suite; `oarlock-etcd` has tests of an HTTP/2 proxy |
| a cluster of Redis 6 | it lacks sharded channels. A client that connects is refused, with the version that it needs |
| managed services | they need an account. What they restrict is tested: [Redis](backends/redis.md#set-up), [PostgreSQL](backends/postgres.md#set-up), [MySQL](backends/mysql.md#set-up); so are names that lead to another address, on every store, and [proxies](backends/etcd.md#behind-a-proxy) |
";

/// Which test shows what, for each store. The name of a store leads to the file of its tests.
const ENCRYPTION: &str = "
## Encryption

Each cell is a test, with certificates that are made on the spot: the client accepts the server in the first column, and
refuses it in the next four. In the last one the server accepts a client for its certificate, and no other.

| store | right | wrong authority | expired | another host | plain server | certificate of the client |
|---|---|---|---|---|---|---|
| [Redis, Valkey](../stores/oarlock-redis/tests/failures/tls.rs) | `only_a_trusted_server_is_accepted` | `only_a_trusted_server_is_accepted` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_server_that_does_not_encrypt_is_refused` | `a_server_may_ask_for_a_certificate` |
| [Redis with Sentinel](../stores/oarlock-redis/tests/failures/tls.rs) | `only_a_trusted_sentinel_and_master_are_accepted` | `only_a_trusted_sentinel_and_master_are_accepted` | `only_a_trusted_sentinel_and_master_are_accepted` | `only_a_trusted_sentinel_and_master_are_accepted` | `only_a_trusted_sentinel_and_master_are_accepted` | as with one server |
| [Redis Cluster](../stores/oarlock-redis/tests/failures/tls.rs) | `only_trusted_nodes_of_a_cluster_are_accepted` | `only_trusted_nodes_of_a_cluster_are_accepted` | `only_trusted_nodes_of_a_cluster_are_accepted` | `only_trusted_nodes_of_a_cluster_are_accepted` | `only_trusted_nodes_of_a_cluster_are_accepted` | as with one server |
| [etcd](../stores/oarlock-etcd/tests/rights.rs) | `certificates_are_shown_and_checked` | `certificates_are_shown_and_checked` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `certificates_are_shown_and_checked` |
| [ZooKeeper](../stores/oarlock-zookeeper/tests/tls.rs) | `only_a_trusted_server_is_accepted` | `only_a_trusted_server_is_accepted` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_server_that_does_not_encrypt_is_refused` | `a_server_may_require_a_certificate` |
| [PostgreSQL](../stores/oarlock-sql/tests/postgres/tls.rs) | `locks_are_taken_over_encrypted_connections` | `a_server_that_cannot_prove_itself_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_server_that_cannot_encrypt_is_refused_where_it_must` | `a_server_may_require_a_certificate` |
| [MariaDB, MySQL](../stores/oarlock-sql/tests/mysql/tls.rs) | `locks_are_taken_over_encrypted_connections` | `a_server_that_cannot_prove_itself_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_certificate_that_is_over_or_of_another_host_is_refused` | `a_server_that_cannot_encrypt_is_refused_where_it_must` | `a_user_may_require_a_certificate` |

Redlock connects to each of its servers as to one server, and has no tests of encryption of its own.

### What these tests cost

Encryption and rights, in a debug build on 2 cores that were busy with other work, each test program alone. In
`cargo xtask test` they run beside others. The suites on other versions run with `--all` only. A suite that runs as a
user with the least rights takes no longer than as an administrator.

| tests | seconds | of that CPU time, with the servers |
|---|---|---|
| Redis: `failures tls::` | 12 | 2.4 |
| Redis: rights, in `protocol` | 1.3 | |
| PostgreSQL: `postgres_protocol tls:: no_right few_rights` | 24 | 9.7 |
| MariaDB and MySQL: `mysql_protocol tls:: no_right few_rights` | 49 | 17.4 |

The tests of etcd (`rights`) were not measured.
";

/// The page: the rows of this run, and from the page before it those of suites that did not run.
pub(super) fn page(rows: &[Row], date: &str, before: &str) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| server | version | result | cases passed | cases skipped | date |\n|---|---|---|---|---|---|\n");
    for suite in SUITES {
        for name in suite.names() {
            let mut lines: Vec<_> =
                of(rows, suite).filter(|row| row.server == name).map(|row| row.line(date)).collect();
            if lines.is_empty() {
                let begin = format!("| {name} |");
                lines.extend(before.lines().filter(|line| line.starts_with(&begin)).map(str::to_owned));
            }
            page.extend(lines.into_iter().map(|line| line + "\n"));
        }
    }
    page.push_str(ENCRYPTION);
    page.push_str(UNTESTED);
    page.push_str("\n## Skipped cases\n\nA case is skipped where the store cannot do what it is about.\n\n");
    page.push_str("| suite | reason | cases |\n|---|---|---|\n");
    for suite in SUITES {
        let begin = format!("| `{}` |", suite.title());
        // A server that shares the suite of another has no reasons of its own.
        let lines: Vec<_> = if of(rows, suite).any(|row| row.server == suite.store) {
            reasons(of(rows, suite)).map(|(why, count)| format!("{begin} {why} | {count} |")).collect()
        } else {
            before.lines().filter(|line| line.starts_with(&begin)).map(str::to_owned).collect()
        };
        page.extend(lines.into_iter().map(|line| line + "\n"));
    }
    page
}

fn of<'a>(rows: &'a [Row], suite: &Suite) -> impl Iterator<Item = &'a Row> {
    let title = suite.title();
    rows.iter().filter(move |row| row.suite == title)
}

/// Why cases were skipped, and how many at most on one server.
fn reasons<'a>(rows: impl Iterator<Item = &'a Row>) -> impl Iterator<Item = (&'a String, usize)> {
    let mut reasons = BTreeMap::new();
    for (why, count) in rows.flat_map(|row| &row.tally.skipped) {
        let most: &mut usize = reasons.entry(why).or_default();
        *most = (*most).max(*count);
    }
    reasons.into_iter()
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
    fn every_cell_of_the_table_of_encryption_is_a_test() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut cells = 0;
        for line in ENCRYPTION.lines().filter(|line| line.starts_with("| [")) {
            let (_, file) = line.split_once("](../").expect("a link");
            let (file, rest) = file.split_once(')').expect("its end");
            let source = std::fs::read_to_string(root.join(file)).expect(file);
            for test in rest.split('`').skip(1).step_by(2) {
                assert!(source.contains(&format!("async fn {test}(")), "{file} has no test {test}");
                cells += 1;
            }
        }
        assert_eq!(cells, 7 * 6 - 2);
    }

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
        let page = page(&rows, "2026-01-31", "");
        for line in [
            "| Redis | 8.0 | not installed | 0 | 0 | 2026-01-31 |",
            "| Redis | 8.0 | **1 failed** | 209 | 2 | 2026-01-31 |",
            "| Redis | 8.0 | passed | 209 | 2 | 2026-01-31 |",
            "| `oarlock-redis test conformance` | this store has no queue | 2 |",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn rows_of_servers_that_did_not_run_stay() {
        let row = |at: usize, version: &str| {
            Row::new(SUITES[at].store, version.to_owned(), &SUITES[at], Tally::read(SAID), true)
        };
        let before = page(&[row(0, "7.0"), row(1, "3.4")], "2026-01-31", "");
        let after = page(&[row(1, "3.5")], "2026-02-28", &before);
        let lines: Vec<_> = after.lines().filter(|line| line.contains(" passed | 209 ")).collect();
        assert_eq!(
            lines,
            ["| Redis | 7.0 | passed | 209 | 2 | 2026-01-31 |", "| etcd | 3.5 | passed | 209 | 2 | 2026-02-28 |"]
        );
        let reasons: Vec<_> = after.lines().filter(|line| line.contains("this store has no queue")).collect();
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        assert_eq!(page(&[], "2026-03-31", &after), after, "nothing ran");
        let valkey = Row::new("Valkey", "9.1".to_owned(), &SUITES[0], Tally::read(SAID), true);
        let with_valkey = page(&[valkey], "2026-03-31", &after);
        assert!(with_valkey.contains("| Redis | 7.0 |") && with_valkey.contains("| Valkey | 9.1 |"), "{with_valkey}");
        assert_eq!(with_valkey.lines().count(), after.lines().count() + 1, "{with_valkey}");
    }
}
