//! `oarlock doctor`: is this deployment safe, and why not?

use std::time::Duration;

use oarlock::doctor::{Fact, Finding, Limits, Report, Severity, examine, guarantees_of, longest};
use oarlock_core::text::{self, plain};
use serde_json::{Value, json};

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::progress;
use crate::store::{Store, block_on};

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
    /// How long a connection of a client may ask for nothing before it is reported
    #[arg(long, value_name = "DUR", default_value = "1h", value_parser = span)]
    pub(crate) max_idle: Duration,
    /// The largest fence that was given before a restore: report a store that could give it again
    #[arg(long, value_name = "N")]
    pub(crate) seen_fence: Option<u64>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock doctor -u redis+sentinel://s1,s2,s3/mymaster", "Is this store safe for locks, and why not?"),
    ("oarlock doctor -o json", "The same, for a program."),
];

pub(crate) fn main(args: &DoctorArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let mut limits = Limits::default();
    (limits.waiters, limits.max_hold) = (args.max_waiters, args.max_hold);
    (limits.max_idle, limits.seen_fence) = (args.max_idle, args.seen_fence);
    let most = text::span(longest(&store.url)?);
    let what = format!("asking the servers of {}, for {most} at most", store.url);
    let report = block_on(async { Ok(progress::during(store.messages, &what, examine(&store.url, limits)).await?) })?;
    let exit = exit(&report);
    let links = Links(report.guarantees.or(guarantees_of(&store.url)?.map(|row| row.anchor)));
    match store.messages.format {
        Format::Table => output::print(&table(&report, &store.url.to_string(), &links, store.messages.verbose))?,
        Format::Json => output::print_json(&document(&report, &store.url.to_string(), &links, exit))?,
        Format::Jsonl => {
            for finding in &report.findings {
                output::print_line(&finding_json(finding, &links).to_string())?;
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
        None | Some(Severity::Note) => Code::Success.into(),
        Some(Severity::Void) => Exit(2),
        Some(_) => Exit(1),
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Void => "VOID",
        Severity::Warning => "WARNING",
        Severity::Note => "NOTE",
        _ => "UNKNOWN",
    }
}

/// The row of this store in the tables of guarantees.
struct Links(Option<&'static str>);

impl Links {
    /// How this store keeps the promise, where stores differ.
    fn store(&self, finding: &Finding) -> Option<String> {
        finding.store_guarantee(self.0?)
    }
}

fn document(report: &Report, url: &str, links: &Links, exit: Exit) -> Value {
    json!({
        "url": url,
        "safe": exit == Exit(0),
        "findings": report.findings.iter().map(|finding| finding_json(finding, links)).collect::<Vec<_>>(),
        "facts": report.facts,
    })
}

fn finding_json(finding: &Finding, links: &Links) -> Value {
    let mut shown = json!(finding);
    shown["store_guarantee"] = json!(links.store(finding));
    shown
}

fn table(report: &Report, url: &str, links: &Links, verbose: bool) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        let check = finding.check;
        let server = finding.server.as_deref().map(plain).unwrap_or_default();
        lines.push(format!("{:8} {}  {server}", word(check.severity), check.id).trim_end().to_owned());
        lines.push(format!("         {}", plain(&finding.reason)));
        lines.push(format!("         promise  {} {}", check.promise.title(), finding.guarantee()));
        lines.extend(links.store(finding).map(|link| format!("         store    {link}")));
        lines.push(format!("         fix      {}", check.fix));
        lines.push(format!("         more     {}", finding.runbook()));
        lines.push(String::new());
    }
    if verbose {
        lines.extend(report.facts.iter().map(fact));
    }
    lines.push(match report.worst() {
        None => format!("{url} is safe for locks: nothing was found"),
        Some(Severity::Note) => format!("{url} is safe for locks, with notes"),
        Some(Severity::Void) => format!("{url} is NOT safe for locks: a promise is void"),
        Some(_) => format!("{url} has warnings"),
    });
    lines.join("\n") + "\n"
}

fn fact(fact: &Fact) -> String {
    format!("{}: {} {}", fact.server.as_deref().map(plain).unwrap_or_default(), fact.what, plain(&fact.value))
}
