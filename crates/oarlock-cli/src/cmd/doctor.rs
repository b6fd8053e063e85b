//! `oarlock doctor`: is this deployment safe, and why not?

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;

use oarlock::doctor::{Fact, Finding, Limits, Report, Severity, examine};
use oarlock_core::text::plain;
use serde_json::{Value, json};

use crate::args::{StoreArgs, span};
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::store::{Store, block_on};

/// Where the pages are.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs");

/// Examine the store: is it safe for locks, and why not? Exit code 0 if it is, 1 with warnings, 2 if a promise is void
#[derive(Debug, clap::Args)]
#[command(after_help = "Nothing is changed, and nothing is created. docs/runbook.md has a section for each finding.")]
pub(crate) struct DoctorArgs {
    /// How many may wait for one lock before it is reported
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_waiters: usize,
    /// How old a hold may be before it is reported
    #[arg(long, value_name = "DUR", default_value = "24h", value_parser = span)]
    pub(crate) max_hold: Duration,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) fn main(args: &DoctorArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let mut limits = Limits::default();
    (limits.waiters, limits.max_hold) = (args.max_waiters, args.max_hold);
    let report = block_on(async {
        let mut examination = pin!(examine(&store.url, limits));
        // Servers that do not answer take their time: on a terminal that is said.
        if let Ok(report) = tokio::time::timeout(Duration::from_secs(1), &mut examination).await {
            return Ok(report?);
        }
        if std::io::stderr().is_terminal() {
            store.messages.note(&format!("still asking the servers of {} …", store.url));
        }
        Ok(examination.await?)
    })?;
    let exit = exit(&report);
    match store.messages.format {
        Format::Table => output::print(&text(&report, &store.url.to_string(), store.messages.verbose))?,
        Format::Json => output::print_json(&document(&report, &store.url.to_string(), exit))?,
        Format::Jsonl => {
            for finding in &report.findings {
                output::print_line(&finding_json(finding).to_string())?;
            }
        }
        Format::Name => {
            for finding in &report.findings {
                output::print_line(finding.check.id)?;
            }
        }
    }
    Ok(exit)
}

fn exit(report: &Report) -> Exit {
    match report.worst() {
        None => Code::Success.into(),
        Some(Severity::Void) => Exit(2),
        Some(_) => Exit(1),
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Void => "VOID",
        Severity::Warning => "WARNING",
        _ => "UNKNOWN",
    }
}

fn guarantee(finding: &Finding) -> String {
    format!("{DOCS}/guarantees.md#{}", finding.check.promise.anchor())
}

fn runbook(finding: &Finding) -> String {
    format!("{DOCS}/runbook.md#{}", finding.check.id)
}

fn document(report: &Report, url: &str, exit: Exit) -> Value {
    json!({
        "url": url,
        "safe": exit == Exit(0),
        "findings": report.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "facts": report.facts,
    })
}

fn finding_json(finding: &Finding) -> Value {
    let check = finding.check;
    json!({
        "id": check.id,
        "severity": check.severity,
        "server": finding.server,
        "reason": finding.reason,
        "promise": check.promise.title(),
        "guarantee": guarantee(finding),
        "fix": check.fix,
        "runbook": runbook(finding),
    })
}

fn text(report: &Report, url: &str, verbose: bool) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        let check = finding.check;
        let server = finding.server.as_deref().map(plain).unwrap_or_default();
        lines.push(format!("{:8} {}  {server}", word(check.severity), check.id).trim_end().to_owned());
        lines.push(format!("         {}", plain(&finding.reason)));
        lines.push(format!("         promise  {} {}", check.promise.title(), guarantee(finding)));
        lines.push(format!("         fix      {}", check.fix));
        lines.push(format!("         more     {}", runbook(finding)));
        lines.push(String::new());
    }
    if verbose {
        lines.extend(report.facts.iter().map(fact));
    }
    lines.push(match report.worst() {
        None => format!("{url} is safe for locks: nothing was found"),
        Some(Severity::Void) => format!("{url} is NOT safe for locks: a promise is void"),
        Some(_) => format!("{url} has warnings"),
    });
    lines.join("\n") + "\n"
}

fn fact(fact: &Fact) -> String {
    format!("{}: {} {}", fact.server.as_deref().map(plain).unwrap_or_default(), fact.what, plain(&fact.value))
}
