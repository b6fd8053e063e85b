//! Measures every goal of speed on its store, several rounds of each, and prints the table of
//! `docs/measurements/bench.md`.
//!
//! `cargo xtask bench --goals [ROUNDS]`. The program is expected where a release build puts it.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use oarlock_testbed::{Etcd, MariaDb, MySql, Postgres, Redis, ZooKeeper};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 5;

/// Files here are in memory.
const IN_MEMORY: &str = "/dev/shm";

/// One run of `oarlock bench`, and what is wanted of it.
struct Load {
    flags: &'static str,
    /// Behind the URL of the server.
    query: &'static str,
    goals: &'static [Goal],
}

struct Goal {
    what: &'static str,
    wanted: Wanted,
    /// When the goals were set.
    before: &'static str,
    figure: fn(&Value) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

impl Wanted {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::AtLeast(least) => write!(f, "≥ {least}"),
        }
    }
}

use Wanted::{AtLeast, AtMost};

const REDIS: &[Load] = &[
    Load {
        flags: "--only pair --only names --only tasks --contenders 16 --duration 2s",
        query: "",
        goals: &[
            Goal { what: "pair, p50 by the baseline", wanted: AtMost(1.15), before: "1.25–1.63", figure: pair },
            Goal {
                what: "64 names, pairs/s by the baseline",
                wanted: AtLeast(0.6),
                before: "0.33–0.37",
                figure: names,
            },
            Goal {
                what: "16 tasks of one process, hand-offs/s by the baseline",
                wanted: AtLeast(0.85),
                before: "0.58",
                figure: tasks,
            },
            Goal {
                what: "16 tasks, requests for each grant",
                wanted: AtMost(1.05),
                before: "2",
                figure: |found| load(found, "tasks")?["oarlock"]["calls_per_grant"].as_f64(),
            },
        ],
    },
    Load {
        flags: "--only processes --processes 2 --per-process 1 --duration 1s",
        query: "",
        goals: &[
            Goal {
                what: "2 processes × 1 task, hand-offs/s by the baseline",
                wanted: AtLeast(0.7),
                before: "0.08",
                figure: processes,
            },
            Goal { what: "2 × 1, most grants by the fewest", wanted: AtMost(1.1), before: "", figure: shares },
        ],
    },
    Load {
        flags: "--only processes --processes 2 --per-process 8 --duration 1s",
        query: "",
        goals: &[
            Goal {
                what: "2 × 8, hand-offs/s by the baseline",
                wanted: AtLeast(0.6),
                before: "0.08",
                figure: processes,
            },
            Goal { what: "2 × 8, most grants by the fewest", wanted: AtMost(1.1), before: "", figure: shares },
        ],
    },
    Load {
        flags: "--only processes --processes 8 --per-process 16 --duration 1s",
        query: "",
        goals: &[
            Goal {
                what: "8 × 16, hand-offs/s by the baseline",
                wanted: AtLeast(0.6),
                before: "0.12",
                figure: processes,
            },
            Goal { what: "8 × 16, most grants by the fewest", wanted: AtMost(1.1), before: "", figure: shares },
        ],
    },
    Load {
        flags: "--only processes --processes 4 --per-process 1 --duration 1s",
        query: "",
        goals: &[
            Goal {
                what: "4 × 1, hand-offs/s by the baseline",
                wanted: AtLeast(0.6),
                before: "0.04",
                figure: processes,
            },
            Goal { what: "4 × 1, most grants by the fewest", wanted: AtMost(1.1), before: "", figure: shares },
        ],
    },
    Load {
        flags: "--only processes --processes 8 --per-process 16 --duration 1s",
        query: "?layout=plain",
        goals: &[
            Goal {
                what: "`layout=plain`, 8 × 16, requests for each grant",
                wanted: AtMost(3.0),
                before: "8.5",
                figure: |found| load(found, "processes")?["oarlock"]["calls_per_grant"].as_f64(),
            },
            Goal {
                what: "`layout=plain`, 8 × 16, longest wait in ms",
                wanted: AtMost(200.0),
                before: "1200",
                figure: longest_wait,
            },
        ],
    },
];

const REDLOCK: &[Load] = &[Load {
    flags: "--only pair --only names --only processes --processes 4 --duration 1500ms",
    query: "",
    goals: &[
        Goal { what: "pair, p50 by the baseline", wanted: AtMost(1.15), before: "1.43", figure: pair },
        Goal { what: "64 names, pairs/s by the baseline", wanted: AtLeast(0.6), before: "0.42", figure: names },
        Goal {
            what: "4 processes, hand-offs/s",
            wanted: AtLeast(1690.0),
            before: "1125",
            figure: |found| load(found, "processes")?["oarlock"]["hand_offs_per_second"].as_f64(),
        },
    ],
}];

const ETCD: &[Load] = &[
    Load {
        flags: "--fair --only names --duration 3s",
        query: "",
        goals: &[Goal {
            what: "64 names, pairs/s by the baseline",
            wanted: AtLeast(0.85),
            before: "0.71",
            figure: names,
        }],
    },
    Load { flags: QUEUE_OF_128, query: "", goals: &[queue_of_128("0.72–0.75")] },
];

const ZOOKEEPER: &[Load] = &[Load { flags: QUEUE_OF_128, query: "", goals: &[queue_of_128("0.83")] }];

const QUEUE_OF_128: &str = "--fair --only processes --processes 8 --per-process 16 --duration 4s";

const fn queue_of_128(before: &'static str) -> Goal {
    Goal { what: "128 contenders, hand-offs/s by the baseline", wanted: AtLeast(0.95), before, figure: processes }
}

const POSTGRES: &[Load] = &[Load {
    flags: "--only pair --only names --only processes --processes 4 --duration 3s",
    query: "",
    goals: &[
        Goal { what: "pair, p50 by the baseline", wanted: AtMost(1.2), before: "1.68", figure: pair },
        Goal { what: "64 names, pairs/s by the baseline", wanted: AtLeast(0.75), before: "0.15", figure: names },
        Goal {
            what: "4 processes, p50 of a hand-off by one commit (half a pair of the baseline)",
            wanted: AtMost(2.2),
            before: "3.0 ms",
            figure: |found| {
                let commit = load(found, "pair")?["baseline"]["p50_us"].as_f64()? / 2.0;
                Some(load(found, "processes")?["oarlock"]["p50_us"].as_f64()? / commit)
            },
        },
    ],
}];

const MYSQL: &[Load] = &[Load {
    flags: "--only pair --only processes --processes 4 --duration 3s",
    query: "",
    goals: &[
        Goal { what: "pair, p50 by the baseline", wanted: AtMost(2.0), before: "3.06", figure: pair },
        Goal { what: "4 processes, longest wait in ms", wanted: AtMost(100.0), before: "1200", figure: longest_wait },
        Goal { what: "4 processes, most grants by the fewest", wanted: AtMost(1.2), before: "4.65", figure: shares },
    ],
}];

const LOCAL: &[Load] = &[
    Load {
        flags: "--only pair --duration 2s",
        query: "",
        goals: &[
            Goal { what: "pair, p50 by `flock`", wanted: AtMost(13.0), before: "", figure: pair },
            Goal {
                what: "pair, p50 in µs",
                wanted: AtMost(7.0),
                before: "11",
                figure: |found| load(found, "pair")?["oarlock"]["p50_us"].as_f64(),
            },
        ],
    },
    Load {
        flags: "--only processes --processes 2 --duration 2s",
        query: "",
        goals: &[Goal {
            what: "2 processes, p50 of a hand-off by a token",
            wanted: AtMost(2.5),
            before: "",
            figure: hand_off,
        }],
    },
    Load {
        flags: "--only processes --processes 4 --duration 2s",
        query: "",
        goals: &[Goal {
            what: "4 processes, p50 of a hand-off by a token",
            wanted: AtMost(2.5),
            before: "",
            figure: hand_off,
        }],
    },
];

const MEMORY: &[Load] = &[Load {
    flags: "--only pair --duration 3s",
    query: "",
    goals: &[Goal {
        what: "pair above its driver, p50 in µs",
        wanted: AtMost(0.8),
        before: "1.4",
        figure: |found| {
            let pair = load(found, "pair")?;
            Some(pair["oarlock"]["p50_us"].as_f64()? - pair["driver"]["p50_us"].as_f64()?)
        },
    }],
}];

fn load<'a>(found: &'a Value, name: &str) -> Option<&'a Value> {
    found["loads"].as_array()?.iter().find(|load| load["load"] == name)
}

fn ratio(found: &Value, name: &str, key: &str) -> Option<f64> {
    load(found, name)?["ratio"][key].as_f64()
}

fn pair(found: &Value) -> Option<f64> {
    ratio(found, "pair", "p50")
}

fn names(found: &Value) -> Option<f64> {
    ratio(found, "names", "per_second")
}

fn tasks(found: &Value) -> Option<f64> {
    ratio(found, "tasks", "per_second")
}

fn processes(found: &Value) -> Option<f64> {
    ratio(found, "processes", "per_second")
}

fn hand_off(found: &Value) -> Option<f64> {
    ratio(found, "processes", "p50")
}

fn longest_wait(found: &Value) -> Option<f64> {
    Some(load(found, "processes")?["oarlock"]["longest_wait_us"].as_f64()? / 1000.0)
}

/// Infinite where a contender was never served.
fn shares(found: &Value) -> Option<f64> {
    let shares = load(found, "processes")?["oarlock"]["shares"].as_array()?;
    let shares: Vec<f64> = shares.iter().filter_map(Value::as_f64).collect();
    let most = shares.iter().copied().reduce(f64::max)?;
    Some(most / shares.iter().copied().reduce(f64::min)?)
}

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let dir = tempfile::tempdir()?;
    println!(
        "| store | load | goal | before | median | least, most | met | command |\n|---|---|---|---|---|---|---|---|"
    );
    measure("mem:", "engine", MEMORY, rounds)?;
    measure(&format!("local:{}", dir.path().join("store").display()), "embedded", LOCAL, rounds)?;
    // One server at a time, so that none is in the way of another.
    if let Some(server) = Redis::start_or_skip()? {
        measure(&server.url(), "Redis", REDIS, rounds)?;
        let others = (1..5).map(|_| Redis::start()).collect::<Result<Vec<_>, _>>()?;
        let hosts: Vec<_> = std::iter::once(&server).chain(&others).map(|one| one.addr().to_string()).collect();
        measure(&format!("redlock://{}", hosts.join(",")), "Redlock, 5", REDLOCK, rounds)?;
    }
    let memory = tempfile::tempdir_in(IN_MEMORY)?;
    if let Some(server) = Etcd::start_with_or_skip(&[("data-dir", &memory.path().display().to_string())])? {
        measure(&server.url(), "etcd, in memory", ETCD, rounds)?;
    }
    if let Some(server) = ZooKeeper::start_or_skip()? {
        measure(&server.url(), "ZooKeeper", ZOOKEEPER, rounds)?;
    }
    if let Some(server) = Postgres::start_with_or_skip(&[("fsync", "on")])? {
        measure(&server.url(), "PostgreSQL, fsync", POSTGRES, rounds)?;
    }
    let sync = [("innodb-flush-log-at-trx-commit", "1")];
    if let Some(server) = MariaDb::start_with_or_skip(&sync)? {
        measure(&server.url(), "MariaDB", MYSQL, rounds)?;
    }
    if let Some(server) = MySql::start_with_or_skip(&sync)? {
        measure(&server.url(), "MySQL", MYSQL, rounds)?;
    }
    Ok(())
}

/// Prints a row for each goal. Loads take turns, so that a disturbance meets all of them.
fn measure(url: &str, store: &str, loads: &[Load], rounds: usize) -> Result<(), Failure> {
    let mut found = vec![Vec::with_capacity(rounds); loads.len()];
    for round in 1..=rounds {
        eprintln!("{store}, round {round} of {rounds} …");
        for (load, found) in loads.iter().zip(&mut found) {
            found.push(bench(&format!("{url}{}", load.query), load.flags)?);
        }
    }
    for (load, found) in loads.iter().zip(&found) {
        for goal in load.goals {
            let figures: Option<Vec<f64>> = found.iter().map(goal.figure).collect();
            let mut figures = figures.ok_or_else(|| format!("{store}: nothing was measured for: {}", goal.what))?;
            figures.sort_by(f64::total_cmp);
            let (least, median, most) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
            let Goal { what, wanted, before, .. } = goal;
            let met = if wanted.is_met(median) { "yes" } else { "no" };
            let (least, median, most) = (shown(least), shown(median), shown(most));
            println!(
                "| {store} | {what} | {wanted} | {before} | {median} | {least}, {most} | {met} | `{}{}` |",
                load.flags,
                if load.query.is_empty() { String::new() } else { format!(" -u …{}", load.query) }
            );
        }
    }
    Ok(())
}

fn bench(url: &str, flags: &str) -> Result<Value, Failure> {
    let command = Command::new(program()?)
        .args(["bench", "-o", "json", "-u", url])
        .args(flags.split(' '))
        .stderr(Stdio::inherit())
        .output()?;
    if !command.status.success() {
        return Err(format!("oarlock bench {flags}: {}", command.status).into());
    }
    Ok(serde_json::from_slice(&command.stdout)?)
}

/// `oarlock`, beside the folder of this example.
fn program() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe()?;
    Ok(here.ancestors().nth(2).ok_or("nowhere")?.join("oarlock"))
}

/// Three digits.
fn shown(figure: f64) -> String {
    let digits = if figure < 10.0 { 2 } else { usize::from(figure < 100.0) };
    format!("{figure:.digits$}")
}
