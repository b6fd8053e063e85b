//! What the flags of `run` do.

use super::support::{Running, TestContext, finish};

/// A command that says `up` and goes on until its input ends.
const UNTIL_EOF: &str = "echo up; cat >/dev/null";

fn running(context: &TestContext, flags: &[&str]) -> Running {
    let mut command = context.oarlock(["run"]);
    command.args(flags).args(["--", "sh", "-c", UNTIL_EOF]).stdin(std::process::Stdio::piped());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "up");
    running
}

#[test]
fn shared_holders_go_together_and_exclusive_ones_alone() {
    let context = TestContext::new();
    let one = running(&context, &["-s", "x"]);
    let two = running(&context, &["--shared", "x"]);
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    assert_eq!(context.code(&["run", "-n", "-x", "x", "--", "true"]), 75);
    assert_eq!((one.finish().code, two.finish().code), (Some(0), Some(0)));
    let _alone = running(&context, &["--exclusive", "x"]);
    assert_eq!(context.code(&["run", "-n", "-s", "x", "--", "true"]), 75);
}

#[test]
fn permits_bound_how_many() {
    let context = TestContext::new();
    let _one = running(&context, &["-j", "3", "x"]);
    let two = running(&context, &["--permits", "3", "--take", "2", "x"]);
    assert_eq!(context.code(&["run", "-n", "-j", "3", "x", "--", "true"]), 75);
    assert_eq!(two.finish().code, Some(0));
    assert_eq!(context.code(&["run", "-n", "-j", "3", "--take", "2", "x", "--", "true"]), 0);
    assert_eq!(context.code(&["run", "-n", "-j", "3", "--take", "3", "x", "--", "true"]), 75);
}

#[test]
fn another_number_of_permits_is_refused_with_a_hint_that_can_be_followed() {
    let context = TestContext::new();
    let _holder = running(&context, &["-j", "2", "x"]);
    let done = context.run(&["run", "-n", "-j", "3", "x", "--", "true"]);
    assert_eq!(done.code, Some(78), "{done:?}");
    assert!(done.err.contains("oarlock show") && !done.err.contains("()"), "{done:?}");
}

/// "The wrapper removes its own variables from the environment of the child" (etcd 10840).
#[test]
fn variables_are_always_set_and_the_environment_passes() {
    let context = TestContext::new();
    let script = r#"echo "$OARLOCK_NAME|$OARLOCK_FENCE|$OARLOCK_HOLDER|$OARLOCK_KIND|$OARLOCK_TTL_MS|$OARLOCK_WAITED_MS|$OARLOCK_BACKEND|$MINE"; echo "$OARLOCK_LOCKS""#;
    let mut command = context.oarlock(["run", "-t", "7s", "b", "a", "-c", script]);
    command.env("MINE", "kept");
    let done = finish(command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let (first, second) = done.out.trim_end().split_once('\n').unwrap();
    let fields: Vec<_> = first.split('|').collect();
    assert_eq!((fields[0], fields[3], fields[4], fields[6], fields[7]), ("b", "mutex", "7000", "local", "kept"));
    assert!(fields[1].parse::<u64>().unwrap() > 0);
    assert!(fields[2].contains(':') && fields[5].parse::<u64>().is_ok());
    let locks: serde_json::Value = serde_json::from_str(second).unwrap();
    assert_eq!((&locks[0]["name"], &locks[1]["name"]), (&"b".into(), &"a".into()));
    assert_eq!(locks[0]["fence"], fields[1]);
    let keys: Vec<_> = locks[0].as_object().unwrap().keys().collect();
    assert!(keys.iter().all(|key| ["name", "fence", "store"].contains(&key.as_str())));
}

#[test]
fn kinds_are_named() {
    let context = TestContext::new();
    for (flags, kind) in [(&["-x"][..], "mutex"), (&["-s"], "read"), (&["-j", "2"], "semaphore"), (&["--spin"], "spin")]
    {
        let args: Vec<&str> = ["run"].iter().chain(flags).chain(&["x", "-c", "echo $OARLOCK_KIND"]).copied().collect();
        assert_eq!(context.run(&args).out.trim_end(), kind);
    }
}

#[test]
fn the_lease_comes_from_the_flag_else_the_url_else_30s() {
    let context = TestContext::new();
    let url = format!("{}?ttl=9s", context.url());
    let ttl = |flags: &[&str]| {
        let args: Vec<&str> =
            ["run"].iter().chain(flags).chain(&["x", "-c", "echo $OARLOCK_TTL_MS"]).copied().collect();
        context.run(&args).out.trim_end().to_owned()
    };
    assert_eq!(ttl(&[]), "30000");
    assert_eq!(ttl(&["-u", &url]), "9000");
    assert_eq!(ttl(&["-u", &url, "--ttl", "8"]), "8000");
}

#[test]
fn a_label_is_for_others_to_see() {
    let context = TestContext::new();
    let _one = running(&context, &["-m", "job=7", "-m", "why=a=b", "--reason", "release 2.3", "x"]);
    let label = &context.show("x")["holders"][0]["label"];
    assert_eq!(label["reason"], "release 2.3");
    assert_eq!((&label["tags"]["job"], &label["tags"]["why"]), (&"7".into(), &"a=b".into()));
}

/// Arguments may hold secrets: only the name of the program is told, and a tag of the user's own stays.
#[test]
fn others_see_which_program_runs_and_not_its_arguments() {
    let context = TestContext::new();
    let _one = running(&context, &["x"]);
    assert_eq!(context.show("x")["holders"][0]["label"]["tags"], serde_json::json!({ "command": "sh" }));
    let shown = context.run(&["show", "x"]).out;
    assert!(shown.contains("\n      command=sh\n") && !shown.contains("-c"), "{shown}");
    let _two = running(&context, &["-m", "command=mine", "y"]);
    assert_eq!(context.show("y")["holders"][0]["label"]["tags"]["command"], "mine");
    let tags: Vec<String> = (0..32).map(|number| format!("-mtag{number}=1")).collect();
    let _full = running(&context, &tags.iter().map(String::as_str).chain(["z"]).collect::<Vec<_>>());
    assert_eq!(context.show("z")["holders"][0]["label"]["tags"].as_object().unwrap().len(), 32, "no more fit");
    let mut command = context.oarlock(["run", "w", "--", "/bin/sh", "-c", UNTIL_EOF]);
    command.stdin(std::process::Stdio::piped());
    let mut path = Running::start(command);
    assert_eq!(path.line(), "up");
    assert_eq!(context.show("w")["holders"][0]["label"]["tags"]["command"], "sh", "of a path its last part");
}

#[test]
fn several_names_are_one_lock() {
    let context = TestContext::new();
    let holder = context.hold(&["b"]);
    assert_eq!(context.code(&["run", "-n", "a", "b", "c", "--", "true"]), 75);
    for name in ["a", "c"] {
        assert_eq!(context.show(name)["holders"].as_array().unwrap().len(), 0, "all or none");
    }
    drop(holder);
    let _all = running(&context, &["c", "a", "b"]);
    for name in ["a", "b", "c"] {
        assert_eq!(context.code(&["run", "-n", name, "--", "true"]), 75);
    }
}

#[test]
fn names_in_any_order_do_not_deadlock() {
    let context = TestContext::new();
    let orders = [["a", "b"], ["b", "a"]];
    let start = |round: usize| {
        let [one, two] = orders[round % 2];
        Running::start(context.oarlock(["run", "-w", "25", one, two, "--", "true"]))
    };
    let all: Vec<Running> = (0..8).map(start).collect();
    for one in all {
        assert_eq!(one.finish().code, Some(0));
    }
}

#[test]
fn a_nested_run_of_the_same_name_answers_at_once() {
    let context = TestContext::new();
    let this = env!("CARGO_BIN_EXE_oarlock");
    let done = context.run(&["run", "x", "--", this, "run", "x", "--", "true"]);
    assert_eq!(done.code, Some(75), "{done:?}");
    assert!(done.err.contains("it would wait for itself"), "{done:?}");
    let done = context.run(&["run", "x", "--", this, "run", "y", "--", this, "run", "-w", "9", "x", "--", "true"]);
    assert_eq!(done.code, Some(75), "a grandchild too: {done:?}");
    assert_eq!(context.code(&["run", "x", "--", this, "run", "y", "--", "true"]), 0);
    let apart = format!("{}-apart", context.url());
    assert_eq!(context.code(&["run", "x", "--", this, "run", "-u", &apart, "x", "--", "true"]), 0);
}

#[test]
fn a_nested_run_knows_its_store_by_another_way() {
    let context = TestContext::new();
    let this = env!("CARGO_BIN_EXE_oarlock");
    let dir = context.dir.path();
    std::fs::create_dir(dir.join("side")).unwrap();
    std::os::unix::fs::symlink(dir.join("store"), dir.join("link")).unwrap();
    for way in ["side/../store", "link", "./store/", "side/../link/."] {
        let way = format!("local:{}/{way}", dir.display());
        for (outer, inner) in [(context.url(), way.clone()), (way, context.url())] {
            let args = ["run", "-u", &outer, "x", "--", this, "run", "-w", "9", "-u", &inner, "x", "--", "true"];
            let done = context.run(&args);
            assert_eq!(done.code, Some(75), "{inner}: {done:?}");
            assert!(done.err.contains("it would wait for itself"), "{inner}: {done:?}");
        }
    }
}

#[test]
fn a_stale_variable_of_an_ancestor_is_no_lock() {
    let context = TestContext::new();
    let seen = context.run(&["run", "x", "-c", "echo \"$OARLOCK_LOCKS\""]);
    let mut later = context.oarlock(["run", "x", "--", "true"]);
    later.env("OARLOCK_LOCKS", seen.out.trim_end());
    assert_eq!(finish(later).code, Some(0));
    let mut nonsense = context.oarlock(["run", "x", "--", "true"]);
    nonsense.env("OARLOCK_LOCKS", "nonsense");
    assert_eq!(finish(nonsense).code, Some(0));
}

#[test]
fn min_hold_keeps_the_lock_after_the_command() {
    let context = TestContext::new();
    let mut keeper = Running::start(context.oarlock(["run", "--min-hold", "20s", "x", "--", "sh", "-c", "echo $$"]));
    let pid = keeper.line();
    super::support::await_death(&pid);
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    // A stop ends it early, and the command's code stands.
    keeper.signal(rustix::process::Signal::TERM);
    assert_eq!(keeper.finish().code, Some(0));
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 0);
}

#[test]
fn fair_grants_in_order_of_arrival() {
    let context = TestContext::new();
    let holder = context.hold(&["--fair", "x"]);
    let log = context.path("log");
    let mut waiters = Vec::new();
    for number in 1..=4 {
        let script = format!("echo {number} >> {log}");
        waiters.push(Running::start(context.oarlock(["run", "--fair", "x", "--", "sh", "-c", &script])));
        context.await_waiters("x", number);
    }
    assert_eq!(holder.finish().code, Some(0));
    for waiter in waiters {
        assert_eq!(waiter.finish().code, Some(0));
    }
    assert_eq!(std::fs::read_to_string(log).unwrap(), "1\n2\n3\n4\n");
}

#[test]
fn spin_waits_too() {
    let context = TestContext::new();
    let holder = context.hold(&["x"]);
    let waiter = Running::start(context.oarlock(["run", "--spin", "x", "--", "true"]));
    context.await_waiters("x", 1);
    assert_eq!(holder.finish().code, Some(0));
    assert_eq!(waiter.finish().code, Some(0));
}

/// "Options of the child are eaten by the wrapper" (consul 1063).
#[test]
fn options_of_the_command_are_its_own() {
    let context = TestContext::new();
    let done = context.run(&["run", "-n", "x", "--", "echo", "-v", "--ttl", "-n", "--help", "--"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "-v --ttl -n --help --\n"), "{done:?}");
}

#[test]
fn the_input_and_output_are_the_commands() {
    let context = TestContext::new();
    let mut command = context.oarlock(["run", "x", "--", "cat"]);
    command.stdin(std::process::Stdio::piped());
    let mut cat = Running::start(command);
    cat.say("through\n");
    assert_eq!(cat.line(), "through");
    let done = cat.finish();
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
}
