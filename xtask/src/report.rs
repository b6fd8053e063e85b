//! What became of each part, as a table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::workspace::Failure;

/// How a part ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// As it should.
    Passed,
    /// With a failure.
    Failed(Failure),
    /// It was not asked for.
    NotAsked,
    /// Something it needs had failed before.
    NotReached,
}

/// The rows so far, in order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    took: Duration,
    /// Whether it ran beside the tests: then its time is part of theirs.
    beside: bool,
    outcome: Outcome,
}

impl Report {
    /// Adds a row.
    pub(crate) fn add(&mut self, name: &'static str, took: Duration, outcome: Outcome) {
        self.rows.push(Row { name, took, beside: false, outcome });
    }

    /// Adds a row for what ran beside the tests.
    pub(crate) fn add_beside(&mut self, name: &'static str, took: Duration, outcome: Outcome) {
        self.rows.push(Row { name, took, beside: true, outcome });
    }

    /// The table, one line for each part and one for the sum.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("part        seconds  result\n");
        let mut total = Duration::ZERO;
        for Row { name, took, beside, outcome } in &self.rows {
            if !beside {
                total += *took;
            }
            let seconds = match outcome {
                Outcome::Passed | Outcome::Failed(_) => format!("{:.1}", took.as_secs_f64()),
                Outcome::NotAsked | Outcome::NotReached => "-".to_owned(),
            };
            let result = match outcome {
                Outcome::Passed if *beside => "ok, beside the tests".to_owned(),
                Outcome::Passed => "ok".to_owned(),
                Outcome::Failed(failure) => format!("FAILED, exit code {}", failure.code),
                Outcome::NotAsked => "not asked for".to_owned(),
                Outcome::NotReached => "not run".to_owned(),
            };
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name:<10} {seconds:>8}  {result}");
        }
        let _ = writeln!(text, "{:<10} {:>8.1}", "total", total.as_secs_f64());
        text
    }

    /// The whole run as one result: every failure is named, the first one gives the exit code.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let failures: Vec<_> = self
            .rows
            .iter()
            .filter_map(|Row { name, outcome, .. }| match outcome {
                Outcome::Failed(failure) => Some((name, failure)),
                _ => None,
            })
            .collect();
        let Some((_, first)) = failures.first() else {
            return Ok(());
        };
        let lines: Vec<_> = failures.iter().map(|(name, failure)| format!("{name} failed: {}", failure.why)).collect();
        Err(Failure { code: first.code, why: lines.join("\nxtask: ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u8, why: &str) -> Outcome {
        Outcome::Failed(Failure { code, why: why.to_owned() })
    }

    #[test]
    fn the_table_has_every_part() {
        let mut report = Report::default();
        report.add("format", Duration::from_millis(1240), Outcome::Passed);
        report.add("clippy", Duration::from_secs(60), failed(101, "warnings"));
        report.add("tests", Duration::ZERO, Outcome::NotAsked);
        report.add("docs", Duration::ZERO, Outcome::NotReached);
        report.add_beside("interop", Duration::from_secs(70), Outcome::Passed);
        assert_eq!(
            report.table(),
            "\
part        seconds  result
format          1.2  ok
clippy         60.0  FAILED, exit code 101
tests             -  not asked for
docs              -  not run
interop        70.0  ok, beside the tests
total          61.2
"
        );
    }

    #[test]
    fn the_first_failure_gives_the_code_and_all_are_named() {
        let mut report = Report::default();
        report.add("format", Duration::ZERO, Outcome::Passed);
        assert!(report.verdict().is_ok());
        report.add("clippy", Duration::ZERO, failed(101, "warnings"));
        report.add("docs", Duration::ZERO, failed(3, "a broken link"));
        let failure = report.verdict().expect_err("two parts failed");
        assert_eq!(failure.code, 101);
        assert!(failure.why.contains("clippy failed: warnings"));
        assert!(failure.why.contains("docs failed: a broken link"));
    }
}
