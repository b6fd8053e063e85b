//! A lock on a majority of three Redis servers, as the command line reaches it, while one of them dies.

use std::process::Command;

use oarlock_testbed::Redis;
use serde_json::Value;

use super::support::{Done, Running, TestContext, await_true, finish};

struct Three {
    context: TestContext,
    servers: Vec<Redis>,
    url: String,
}

impl Three {
    fn start() -> Option<Self> {
        let servers: Vec<_> = (0..3).map_while(|_| Redis::start_or_skip().unwrap()).collect();
        let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
        let url = format!("redlock://{}?connect_timeout=5s", hosts.join(","));
        (servers.len() == 3).then(|| Self { context: TestContext::new(), servers, url })
    }

    fn oarlock(&self, args: &[&str]) -> Command {
        let mut command = self.context.bare(args);
        command.env("OARLOCK_URL", &self.url);
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        finish(self.oarlock(args))
    }

    fn code(&self, args: &[&str]) -> Option<i32> {
        self.run(args).code
    }

    fn show(&self, name: &str) -> Value {
        let done = self.run(&["show", name, "-o", "json"]);
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Who holds it: its fence, as its process knows it.
    fn hold(&self, name: &str, script: &str) -> (Running, String) {
        let script = format!("echo $OARLOCK_FENCE; {script}");
        let mut holder = Running::start(self.oarlock(&["run", "--reason", "deploy 7", name, "-c", &script]));
        let fence = holder.line();
        (holder, fence)
    }
}

const ASKED: &str = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.02; done";

#[test]
fn a_command_runs_while_a_majority_is_there() {
    let Some(three) = Three::start() else { return };
    assert_eq!(three.code(&["run", "-n", "x", "--", "sh", "-c", "exit 7"]), Some(7), "its own exit code");
    let (holder, fence) = three.hold("x", ASKED);
    let check = || {
        // A vote that comes late has the fence with the next renewal.
        await_true("the fence, agreed by a majority", || three.show("x")["holders"][0]["fence"] == fence.as_str());
        let shown = three.show("x");
        assert!(shown.to_string().contains("deploy 7"), "{shown:#}");
        let busy = three.run(&["run", "-n", "x", "--", "true"]);
        assert_eq!(busy.code, Some(75), "{busy:?}");
        assert!(busy.err.contains("deploy 7"), "{busy:?}");
    };
    check();
    three.servers[1].kill().unwrap();
    check();
    assert_eq!(three.code(&["run", "-n", "y", "--", "true"]), Some(0), "another lock, on two of three");

    let wrong = three.run(&["break", "x", "--fence", "1", "--yes"]);
    assert_eq!(wrong.code, Some(75), "{wrong:?}");
    let done = three.run(&["break", "x", "--fence", &fence, "--grace", "20s", "--reason", "urgent", "--yes"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let holder = holder.finish();
    assert_eq!(holder.code, Some(76), "{holder:?}");
    assert!(holder.out.contains("asked") && holder.err.contains("urgent"), "{holder:?}");
    let (holder, later) = three.hold("x", "exit 0");
    assert!(later.parse::<u64>().unwrap() > fence.parse().unwrap(), "{later} after {fence}");
    assert_eq!(holder.finish().code, Some(0));
    let free = three.show("x");
    assert!(free["holders"].as_array().is_some_and(Vec::is_empty), "{free:#}");

    three.servers[2].kill().unwrap();
    let alone = three.run(&["run", "-n", "x", "--", "true"]);
    assert_eq!(alone.code, Some(69), "one of three is no majority: {alone:?}");
    assert_eq!(three.code(&["show", "x"]), Some(69));
}

#[test]
fn there_is_no_list_of_names_and_it_says_so() {
    let Some(three) = Three::start() else { return };
    let listed = three.run(&["ls"]);
    assert!(listed.code.is_some_and(|code| code != 0), "{listed:?}");
    assert!(listed.err.contains("index"), "{listed:?}");
}

#[test]
fn it_can_be_measured_beside_its_baseline() {
    let Some(three) = Three::start() else { return };
    three.servers[0].kill().unwrap();
    let flags =
        ["bench", "--duration", "400ms", "--tasks", "4", "--contenders", "3", "--processes", "2", "-q", "-o", "json"];
    let done = three.run(&flags);
    assert_eq!(done.code, Some(0), "{done:?}");
    let found: Value = serde_json::from_str(&done.out).unwrap();
    assert!(found["baseline"].as_str().is_some_and(|baseline| baseline.contains("majority")), "{found:#}");
    for load in found["loads"].as_array().unwrap() {
        let side = &load["oarlock"];
        let count = side["pairs"].as_u64().or(side["grants"].as_u64());
        assert!(count.is_some_and(|count| count > 0), "{load:#}");
    }
}
