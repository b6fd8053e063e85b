//! The page and the pictures of a whole run.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::plot::{Bar, Panel, svg};
use super::{Figures, hand_offs, table};
use crate::cases::span;

const INTRO: &str = "\
How fast Oarlock is beside the lock libraries that people use, on the same servers, in one run. `cargo xtask bench
--peers` measures it again on your machine and writes this page; `--only STORE` or `--only LIBRARY` prints a part of it.

The libraries take turns, so all of them meet the same noise: compare figures of one store, as ratios. Every contended
run is checked for two holders at once. [Benchmarks of your own store](bench.md) explains the loads.

- **Pair**: one task acquires and releases one name. With many tasks, each has a name of its own.
- **Hand-off**: many contend for one name and release it as soon as it is granted. A grant counts as a hand-off only if it
  went to another contender than the grant before. A library that acquires its own lock again has many grants and few
  hand-offs, and the longest wait shows it.
- The **baseline** is the fewest raw requests that could do the same, without a fence, a queue or renewal.
- Libraries differ in what they do: most have no fence and no queue, and some do not renew. zookeeper-client does not wait
  for the end of its release.
- **oarlock** is `locks.mutex(name).lock()`. *fair* gives every task a position of its own in the store's queue, *cohort*
  lets the lock go round the tasks of a process 64 times or for 20 ms, *re-entrant* lets its owner enter it again, as the
  locks of Redisson do.
- Each library has half a second to warm up. Those on the JVM get faster over minutes; the figures are those of a young
  process.
";

/// Writes `docs/benchmarks.md` and its pictures.
pub(super) fn write(root: &Path, all: &[Figures]) -> Result<()> {
    let mut page = format!("# Benchmarks\n\n{INTRO}\n{}\n", machine()?);
    for figures in all {
        let arena = figures.arena;
        let file = format!("img/bench-{}.svg", arena.name);
        let path = root.join("docs").join(&file);
        std::fs::write(&path, svg(arena.title, &panels(figures))).with_context(|| path.display().to_string())?;
        // Writing to a `String` cannot fail.
        let _ = write!(page, "\n## {}\n\n{} {}\n\n", arena.title, arena.note, versions(figures));
        let _ = write!(page, "![{}: latency, throughput, hand-offs and longest wait]({file})\n\n", arena.title);
        let _ = write!(page, "{}\n{}", table::pairs(&figures.pairs), table::loads(&figures.loads));
    }
    let path = root.join("docs/benchmarks.md");
    std::fs::write(&path, page).with_context(|| path.display().to_string())
}

/// What each picture shows: the first load of pairs, the last one, and the last contention.
fn panels(figures: &Figures) -> Vec<Panel> {
    let mut panels = Vec::new();
    if let Some((tasks, rows)) = figures.pairs.first() {
        let bars = rows.iter().filter_map(|(name, row)| {
            let p50 = row.as_ref().ok()?.p50;
            Some(Bar { name, value: super::rate(p50, 1.0), label: span(std::time::Duration::from_nanos(p50)) })
        });
        let title = format!("Latency of a pair, {tasks} task (p50)");
        panels.push(Panel { title, hint: "less is better", bars: bars.collect() });
    }
    if let Some((tasks, rows)) = figures.pairs.last() {
        let bars = rows.iter().filter_map(|(name, row)| {
            let rate = row.as_ref().ok()?.rate;
            Some(Bar { name, value: rate, label: format!("{rate:.0}/s") })
        });
        let title = format!("Pairs a second, {tasks} name{}", if *tasks == 1 { "" } else { "s" });
        panels.push(Panel { title, hint: "more is better", bars: bars.collect() });
    }
    if let Some(((contenders, processes), rows)) = figures.loads.last() {
        let of = format!("{contenders} contenders in {processes} processes");
        let rates = rows.iter().filter_map(|(name, row)| {
            let rate = hand_offs(row.as_ref().ok()?);
            Some(Bar { name, value: rate, label: format!("{rate:.0}/s") })
        });
        let waits = rows.iter().filter_map(|(name, row)| {
            let wait = row.as_ref().ok()?.longest_wait;
            Some(Bar { name, value: wait.as_secs_f64(), label: span(wait) })
        });
        panels.push(Panel { title: format!("Hand-offs, {of}"), hint: "more is better", bars: rates.collect() });
        panels.push(Panel { title: format!("Longest wait, {of}"), hint: "less is better", bars: waits.collect() });
    }
    panels
}

fn versions(figures: &Figures) -> String {
    let named: Vec<_> = figures.versions.iter().map(|(shown, version)| format!("{shown} {version}")).collect();
    if named.is_empty() { String::new() } else { format!("Libraries: {}.", named.join(", ")) }
}

/// What it was measured on, and when.
fn machine() -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("?", |(_, it)| it);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Without what a distribution adds to the name of a kernel.
    let kernel = said("uname", &["-sr"])?.split('-').next().unwrap_or_default().to_owned();
    let (date, commit) = (said("date", &["-u", "+%F"])?, said("git", &["describe", "--always", "--dirty"])?);
    let lines = [
        ("redis-server", &["--version"][..]),
        ("etcd", &["--version"]),
        ("mariadbd", &["--version"]),
        ("dpkg-query", &["-W", "-f", "PostgreSQL ${Version}", "postgresql-15"]),
        ("dpkg-query", &["-W", "-f", "ZooKeeper ${Version}", "libzookeeper-java"]),
    ];
    let servers = lines.iter().filter_map(|(program, args)| said(program, args).ok());
    let servers: Vec<_> = servers.filter_map(|said| said.lines().next().map(|line| format!("`{line}`"))).collect();
    Ok(format!(
        "Measured on {date} at {commit} by `cargo xtask bench --peers`: {cores} cores ({model}), {kernel}, servers and \
         clients on the same machine.\nServers: {}.\n",
        servers.join(", ")
    ))
}

fn said(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| format!("cannot start {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
