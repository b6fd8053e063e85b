//! The table in `docs/reliability.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cases::{Case, Expected, Fault};
use crate::deployments::ALL;
use crate::runs::Done;

/// What the checker calls two holders at once.
const OVERLAP: &str = "Overlap";

/// And two of which the first may have known that its lock was lost.
const PERHAPS: &str = "PerhapsOverlap";

const BEGIN: &str = "<!-- faults: written by cargo xtask faults -->";
const END: &str = "<!-- /faults -->";
const LIBRARIES_BEGIN: &str = "<!-- libraries: written by cargo xtask faults --only libraries -->";
const LIBRARIES_END: &str = "<!-- /libraries -->";
const LOAD_BEGIN: &str = "<!-- load: written by cargo xtask faults --only load -->";
const LOAD_END: &str = "<!-- /load -->";

/// A line of prose is no longer.
const COLUMNS: usize = 120;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reliability.md")
}

/// Writes the table of all runs into the page.
pub(crate) fn write(runs: &[Done]) -> anyhow::Result<()> {
    replace_between([BEGIN, END], &tables(runs))?;
    replace_between([LIBRARIES_BEGIN, LIBRARIES_END], &libraries(runs))
}

/// Writes the table of loads into the page.
pub(crate) fn write_loads(table: &str) -> anyhow::Result<()> {
    replace_between([LOAD_BEGIN, LOAD_END], table)
}

fn replace_between([begin, end]: [&str; 2], table: &str) -> anyhow::Result<()> {
    let page = page();
    let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let (before, rest) = text.split_once(begin).context("docs/reliability.md has no place for the table")?;
    let (_, after) = rest.split_once(end).context("the table in docs/reliability.md has no end")?;
    std::fs::write(&page, format!("{before}{begin}\n\n{}\n\n{end}{after}", table.trim_end()))?;
    Ok(())
}

/// The runs of one case, added up.
#[derive(Default)]
struct Row {
    runs: u64,
    seeds: BTreeSet<u64>,
    injected: u64,
    grants: u64,
    losses: u64,
    least_margin_ms: Option<f64>,
    risks: u64,
    found: u64,
    violations: u64,
    /// Violations of the fenced counters.
    lost_with_fence: u64,
    stuck: u64,
    untried: u64,
    lost_without_fence: u64,
    stale_refused: u64,
}

impl Row {
    fn add(&mut self, case: &Case, done: &Done) {
        self.runs += 1;
        self.seeds.insert(done.seed);
        self.injected += injected(case, done);
        self.grants += done.grants;
        self.losses += done.losses;
        self.least_margin_ms = match (self.least_margin_ms, done.least_margin_ms) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.risks += u64::from(!done.risks.is_empty());
        self.found += u64::from(done.is_found());
        self.violations += done.violations.len() as u64;
        let of_counters = |text: &&String| text.starts_with("LostUpdate") || text.starts_with("StaleAccepted");
        self.lost_with_fence += done.violations.iter().filter(of_counters).count() as u64;
        self.stuck += u64::from(!done.stuck.is_empty());
        self.untried += u64::from(!done.untried.is_empty());
        self.lost_without_fence += done.lost_without_fence;
        self.stale_refused += done.stale_refused;
    }
}

/// How often the fault of the case was injected; all faults where they are mixed.
pub(crate) fn injected(case: &Case, done: &Done) -> u64 {
    let of = |kind: &str| done.faults.get(kind).copied().unwrap_or(0);
    match case.fault {
        Fault::Client(name) => of(&name.replace('-', "_")),
        Fault::Server(_) if case.is_once() => of("command").min(1),
        Fault::Server(_) => of("command"),
        Fault::Mixed | Fault::TwoBuilds => done.faults.values().sum(),
    }
}

fn tables(runs: &[Done]) -> String {
    let known: Vec<_> = runs.iter().filter(|done| done.case().is_some_and(|case| !case.topology.library)).collect();
    let (ran, failed): (Vec<&Done>, Vec<&Done>) = known.into_iter().partition(|done| done.failed.is_none());
    let mut rows: BTreeMap<(usize, usize), (Case, Row)> = BTreeMap::new();
    for (place, topology) in ALL.iter().enumerate().filter(|(_, topology)| !topology.library) {
        for (number, case) in Case::of(topology).enumerate() {
            let is = |done: &&&Done| {
                (done.store.as_str(), done.topology.as_str(), done.fault.as_str())
                    == (topology.store, topology.name, case.name())
            };
            let mut row = Row::default();
            ran.iter().filter(is).for_each(|done| row.add(&case, done));
            rows.insert((place, number), (case, row));
        }
    }
    // What says nothing of its case proves nothing.
    let mut total = Row::default();
    for done in ran.iter().filter(|done| done.is_conclusive()) {
        done.case().iter().for_each(|case| total.add(case, done));
    }
    let seconds: BTreeSet<_> = ran.iter().map(|done| format!("{} s", done.seconds)).collect();
    let commits: BTreeSet<_> = ran.iter().map(|done| done.commit.as_str()).filter(|text| !text.is_empty()).collect();
    let mut text = wrapped(&format!(
        "{} runs of {}, {} faults, {} grants, {} losses told to holders, {} violations. Further runs that say nothing of \
         their case: {}. Built from: {}.",
        total.runs,
        seconds.into_iter().collect::<Vec<_>>().join(" or "),
        total.injected,
        total.grants,
        total.losses,
        total.violations,
        ran.len() as u64 - total.runs,
        commits.into_iter().collect::<Vec<_>>().join(", ")
    ));
    text.push('\n');
    text.push_str(&versions(&ran));
    text.push_str(&holds(&rows));
    text.push_str(&found(&rows));
    let mut missing: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (case, _) in rows.values().filter(|(_, row)| row.runs == 0) {
        missing.entry(case.topology.title()).or_default().push(case.name());
    }
    if !missing.is_empty() {
        text.push_str("Not run yet:\n\n");
        missing.iter().for_each(|(title, names)| text.push_str(&wrapped(&format!("- {title}: {}", names.join(", ")))));
        text.push('\n');
    }
    if !failed.is_empty() {
        text.push_str("Runs that did not come to their end:\n\n");
        for done in failed {
            let why = done.failed.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            text.push_str(&wrapped(&format!("- seed {}: {why}", done.seed)));
        }
    }
    text
}

fn versions(ran: &[&Done]) -> String {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for done in ran.iter().filter(|done| !done.version.is_empty()) {
        versions.entry(&done.store).or_default().insert(&done.version);
    }
    let shown: Vec<_> = versions
        .iter()
        .map(|(store, versions)| format!("{store} {}", versions.iter().copied().collect::<Vec<_>>().join(", ")))
        .collect();
    if shown.is_empty() { String::new() } else { wrapped(&format!("Versions: {}.", shown.join("; "))) + "\n" }
}

/// A paragraph, or an entry of a list, in lines of prose.
fn wrapped(text: &str) -> String {
    let next = if text.starts_with("- ") { "  " } else { "" };
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines += &line;
            lines.push('\n');
            line = format!("{next}{word}");
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
    }
    lines + &line + "\n"
}

/// Where every promise must hold.
fn holds(rows: &BTreeMap<(usize, usize), (Case, Row)>) -> String {
    let mut text = String::from(
        "| store | fault | runs | seeds | injected | grants | losses told | least margin | without effect | stuck | risk seen | violations |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (case, row) in rows.values().filter(|(case, row)| case.expected() != Expected::Found && row.runs > 0) {
        let risks = match (case.expected(), row.risks) {
            (Expected::MayOverlap, risks @ 1..) => format!("{risks} (documented)"),
            (_, risks) => risks.to_string(),
        };
        let margin = row.least_margin_ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} ms"));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {margin} | {} | {} | {risks} | {} |",
            case.topology.title(),
            case.name(),
            row.runs,
            seeds(&row.seeds),
            row.injected,
            row.grants,
            row.losses,
            row.untried,
            row.stuck,
            row.violations
        );
    }
    text.push('\n');
    text
}

/// Where two holders must be found, or a lost update.
fn found(rows: &BTreeMap<(usize, usize), (Case, Row)>) -> String {
    let mut text = String::from(
        "Where something must go wrong, and a run that does not see it has tried nothing:\n\n\
         | store | what | runs | seeds | injected | found in |\n|---|---|---|---|---|---|\n",
    );
    for (case, row) in rows.values().filter(|(case, row)| case.expected() == Expected::Found && row.runs > 0) {
        let _ = writeln!(
            text,
            "| {} | {}: {} | {} | {} | {} | {} of {} |",
            case.topology.title(),
            case.name(),
            if case.topology.store == "local" { "a slot runs twice" } else { "two holders at once" },
            row.runs,
            seeds(&row.seeds),
            row.injected,
            row.found,
            row.runs
        );
    }
    let paused = rows.values().filter(|(case, row)| case.name() == "pause" && row.runs > 0);
    let (mut runs, mut injected, mut lost, mut refused, mut lost_with_fence) = (0, 0, 0, 0, 0);
    for (_, row) in paused {
        runs += row.runs;
        injected += row.injected;
        lost += row.lost_without_fence;
        refused += row.stale_refused;
        lost_with_fence += row.lost_with_fence;
    }
    let _ = writeln!(
        text,
        "| all | holder stopped, data without a fence | {runs} | as above | {injected} | {lost} updates lost; with the \
         fence {lost_with_fence}, and {refused} stale writes refused |\n"
    );
    text
}

/// What other lock libraries did under the same faults.
fn libraries(runs: &[Done]) -> String {
    let mut text = String::new();
    for topology in ALL.iter().filter(|topology| topology.library) {
        let is = |done: &&Done| done.store == topology.store && done.topology == topology.name && done.failed.is_none();
        let ran: Vec<_> = runs.iter().filter(is).collect();
        if ran.is_empty() {
            continue;
        }
        let sum = |of: fn(&Done) -> u64| ran.iter().map(|done| of(done)).sum::<u64>();
        let seeds_of = |is: fn(&Done) -> bool| {
            let found: BTreeSet<_> = ran.iter().filter(|done| is(done)).map(|done| done.seed).collect();
            if found.is_empty() { "–".to_owned() } else { format!("seed {}", seeds(&found)) }
        };
        let stopped = seeds_of(|done| done.risks.iter().any(|risk| risk.starts_with(OVERLAP)));
        let running = seeds_of(|done| done.violations.iter().any(|what| what.starts_with(OVERLAP)));
        let perhaps = seeds_of(|done| done.risks.iter().any(|risk| risk.starts_with(PERHAPS)));
        let other = |done: &Done| done.violations.iter().any(|what| !what.starts_with(OVERLAP));
        let stuck = seeds_of(|done| !done.stuck.is_empty());
        let untried = seeds_of(|done| !done.untried.is_empty());
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} {} | {} | {} | {} | {stopped} | {running} | {perhaps} | {} | {stuck} | {untried} | {} |",
            topology.name,
            topology.store,
            ran.last().map_or("", |done| done.version.as_str()),
            ran.len(),
            sum(|done| done.faults.values().sum()),
            sum(|done| done.grants),
            seeds_of(other),
            sum(|done| done.lost_without_fence)
        );
    }
    if text.is_empty() {
        return "Not run yet.".to_owned();
    }
    let head = "| library | store | runs | faults | grants | two held, the first after a stop | two held, the first ran | \
                the first may have held | another fault | stuck | a fault without effect | updates lost without a fence |\n\
                |---|---|---|---|---|---|---|---|---|---|---|---|\n";
    head.to_owned() + &text
}

/// `1–4, 7`.
fn seeds(seeds: &BTreeSet<u64>) -> String {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for seed in seeds {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *seed => *last = *seed,
            _ => spans.push((*seed, *seed)),
        }
    }
    let shown =
        |(first, last): &(u64, u64)| if first == last { format!("{first}") } else { format!("{first}–{last}") };
    spans.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_spans() {
        assert_eq!(seeds(&[1, 2, 3, 7].into()), "1–3, 7");
        assert_eq!(seeds(&BTreeSet::new()), "");
    }

    #[test]
    fn prose_is_wrapped() {
        assert_eq!(wrapped("a b"), "a b\n");
        let text = wrapped(&format!("- redis: {}", vec!["cut-requests"; 30].join(", ")));
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(
            text.starts_with("- redis: cut-requests,") && text.lines().skip(1).all(|line| line.starts_with("  cut"))
        );
        assert_eq!(text.matches("cut-requests").count(), 30);
    }

    #[test]
    fn a_violation_is_counted_and_a_failed_run_is_not() {
        let case = Case::named("redis", "one server", "kill").expect("a case");
        let broken = Done { violations: vec!["Overlap: two".into()], grants: 7, ..Done::of(&case, 3, 15) };
        let untried = Done { untried: vec!["Unused: no request".into()], grants: 5, ..Done::of(&case, 5, 15) };
        let failed = Done::failed(&case, 4, 15, "no server".into());
        let text = tables(&[broken, failed, untried]);
        let head = "1 runs of 15 s, 0 faults, 7 grants, 0 losses told to holders, 1 violations.";
        assert!(text.starts_with(head), "{text}");
        assert!(text.replace('\n', " ").contains("Further runs that say nothing of their case: 1."), "{text}");
        assert!(text.contains("| redis one server | kill | 2 | 3, 5 | 0 | 12 | 0 | – | 1 | 0 | 0 | 1 |"), "{text}");
        assert!(text.contains("Not run yet:") && text.contains("- seed 4: no server"), "{text}");
    }

    #[test]
    fn what_another_library_does_is_shown_apart() {
        let case = Case::named("redis", "redsync", "mixed").expect("a case");
        let risk = Done { risks: vec!["Overlap: two".into()], grants: 5, ..Done::of(&case, 1, 15) };
        let perhaps = Done { risks: vec!["PerhapsOverlap: two".into()], ..Done::of(&case, 3, 15) };
        let broken = Done { violations: vec!["Overlap: two".into()], grants: 6, ..Done::of(&case, 2, 15) };
        assert_eq!((risk.complaint(), broken.complaint()), (None, None));
        let runs = [risk, broken, perhaps];
        let text = tables(&runs);
        assert!(text.starts_with("0 runs") && text.contains(" 0 violations."), "{text}");
        let text = libraries(&runs);
        assert!(
            text.contains("| redsync | redis  | 3 | 0 | 11 | seed 1 | seed 2 | seed 3 | – | – | – | 0 |"),
            "{text}"
        );
    }

    #[test]
    fn a_stopped_holder_that_lost_a_fenced_update_is_counted() {
        let case = Case::named("redis", "one server", "pause").expect("a case");
        let lost = Done { violations: vec!["LostUpdate: 1".into()], lost_without_fence: 2, ..Done::of(&case, 1, 15) };
        let text = tables(&[lost]);
        assert!(text.contains("2 updates lost; with the fence 1, and 0 stale writes refused"), "{text}");
    }

    #[test]
    fn the_page_has_a_place_for_the_table() {
        let text = std::fs::read_to_string(page()).expect("the page");
        assert!(
            [BEGIN, END, LIBRARIES_BEGIN, LIBRARIES_END, LOAD_BEGIN, LOAD_END].iter().all(|mark| text.contains(mark))
        );
    }
}
