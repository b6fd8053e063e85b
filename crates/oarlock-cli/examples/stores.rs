//! Runs `oarlock bench` on every store that is installed here, one after the other, and puts the figures side by side.
//!
//! `cargo xtask bench [FLAG]…`: flags of `oarlock bench`. The program is expected where a release build puts it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Redis, ZooKeeper};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

/// What is shown of a load, by its name in JSON.
const LOADS: [(&str, &str); 4] =
    [("pair", "1 task"), ("names", "own names"), ("tasks", "1 name, tasks"), ("processes", "1 name, processes")];

/// What MariaDB and MySQL do by default, and the servers of the tests do not.
const SYNC: (&str, &str) = ("innodb-flush-log-at-trx-commit", "1");

fn main() -> Result<(), Failure> {
    let flags: Vec<String> = std::env::args().skip(1).collect();
    let dir = tempfile::tempdir()?;
    let bench = |url: &str| bench(url, &flags);
    let mut all = Vec::new();
    // The memory of one process is no store for several.
    let only: Vec<_> = flags.windows(2).filter(|pair| pair[0] == "--only").map(|pair| pair[1].as_str()).collect();
    if only.is_empty() || only.iter().any(|load| *load != "processes") {
        all.push(bench("mem:")?);
    }
    all.push(bench(&format!("local:{}", dir.path().join("store").display()))?);
    // One server at a time, so that none is in the way of another.
    if let Some(server) = Redis::start_or_skip()? {
        all.push(bench(&server.url())?);
        let masters = [server, Redis::start()?, Redis::start()?];
        let hosts: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
        all.push(bench(&format!("redlock://{}", hosts.join(",")))?);
    }
    if let Some(server) = Etcd::start_or_skip()? {
        all.push(bench(&server.url())?);
    }
    if let Some(server) = ZooKeeper::start_or_skip()? {
        all.push(bench(&server.url())?);
    }
    if let Some(server) = Postgres::start_with_or_skip(&[("fsync", "on")])? {
        all.push(bench(&server.url())?);
    }
    if let Some(server) = MariaDb::start_with_or_skip(&[SYNC])? {
        let mut found = bench(&server.url())?;
        found["store"] = "mariadb".into();
        all.push(found);
    }
    if let Some(server) = MySql::start_with_or_skip(&[SYNC])? {
        all.push(bench(&server.url())?);
    }
    print!("{}", table(&all));
    Ok(())
}

fn bench(url: &str, flags: &[String]) -> Result<Value, Failure> {
    let scheme = url.split(':').next().unwrap_or_default();
    eprintln!("{scheme} …");
    let done = Command::new(program()?)
        .args(["bench", "-o", "json", "-u", url])
        .args(flags)
        .stderr(Stdio::inherit())
        .output()?;
    if !done.status.success() {
        return Err(format!("{scheme}: {}", done.status).into());
    }
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// `oarlock`, beside the folder of this example.
fn program() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe()?;
    let folder = here.parent().and_then(Path::parent).ok_or("nowhere")?;
    Ok(folder.join("oarlock"))
}

fn table(all: &[Value]) -> String {
    let head =
        ["STORE", "LOAD", "A SECOND", "P50", "P99", "LONGEST WAIT", "SHARES", "P50 ÷ BASELINE", "RATE ÷ BASELINE"];
    let mut rows = vec![head.map(str::to_owned)];
    for found in all {
        let loads = found["loads"].as_array().into_iter().flatten();
        for load in loads {
            let ours = &load["oarlock"];
            let name = LOADS.iter().find(|(name, _)| load["load"] == *name).map_or("?", |(_, shown)| shown);
            let rate = ours.get("hand_offs_per_second").unwrap_or(&ours["per_second"]);
            rows.push([
                found["store"].as_str().unwrap_or("?").to_owned(),
                name.to_owned(),
                number(rate, 0),
                micros(&ours["p50_us"]),
                micros(&ours["p99_us"]),
                micros(&ours["longest_wait_us"]),
                shares(&ours["shares"]),
                number(&load["ratio"]["p50"], 2),
                number(&load["ratio"]["per_second"], 2),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
}

fn micros(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(micros) if micros < 1000.0 => format!("{micros:.1} µs"),
        Some(micros) => format!("{:.1} ms", micros / 1000.0),
    }
}

/// The largest by the smallest.
fn shares(value: &Value) -> String {
    let shares: Vec<f64> = value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let (most, least) = shares.iter().fold((0.0_f64, f64::MAX), |(most, least), &one| (most.max(one), least.min(one)));
    if shares.is_empty() { "-".to_owned() } else { format!("{:.2}", most / least) }
}
