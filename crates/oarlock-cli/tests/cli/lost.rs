//! Locks that are lost while a command runs.

use std::time::{Duration, Instant};

use oarlock_testbed::proxy::Held;
use oarlock_testbed::{Proxy, Redis};
use rustix::process::Signal;

use super::support::{Running, TestContext, await_death, finish, is_alive};

/// A holder that sleeps past its lease: the rival gets the lock, and the sleeper notices when it wakes.
#[test]
fn a_paused_holder_ends_when_it_wakes() {
    let context = TestContext::new();
    let script = "echo $$; echo $OARLOCK_FENCE; exec sleep 100";
    let mut sleeper = Running::start(context.oarlock(["run", "-t", "3s", "x", "-c", script]));
    let (pid, fence) = (sleeper.line(), sleeper.line().parse::<u64>().unwrap());
    let mut rival = Running::start(context.oarlock(["run", "x", "-c", "echo $OARLOCK_FENCE; exec sleep 100"]));
    context.await_waiters("x", 1);
    sleeper.signal(Signal::STOP);
    let stopped = Instant::now();
    let later = rival.line().parse::<u64>().unwrap();
    assert!(stopped.elapsed() > Duration::from_millis(300), "not before the lease");
    assert!(later > fence);
    let woken = Instant::now();
    sleeper.signal(Signal::CONT);
    let done = sleeper.finish();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("lost: \"x\""), "{done:?}");
    assert!(woken.elapsed() < Duration::from_secs(5), "at once");
    assert!(!is_alive(&pid));
    assert_eq!(context.show("x")["holders"][0]["fence"], later.to_string(), "the rival was not disturbed");
    rival.signal(Signal::TERM);
    assert_eq!(rival.finish().code, Some(143));
}

/// "Can anything be run when the lock is lost?" (etcd 7983): the command has a trap, and time for it.
///
/// Without renewal the lease is the end: TERM comes early enough that KILL comes before it. The next holder is the
/// witness: when it runs, the first command is gone.
#[test]
fn the_command_is_dead_before_the_lease_ends() {
    let context = TestContext::new();
    let script = "trap 'echo term' TERM; echo $$; while :; do sleep 0.02; done";
    let args = ["run", "--no-renew", "-t", "5s", "-k", "2s", "x", "-c", script];
    let mut stubborn = Running::start(context.oarlock(args));
    let pid = stubborn.line();
    let witness = format!("kill -0 {pid} 2>&- && echo alive; echo looked");
    let mut next = Running::start(context.oarlock(["run", "x", "-c", &witness]));
    assert_eq!(stubborn.line(), "term");
    let termed = Instant::now();
    await_death(&pid);
    let spared = termed.elapsed();
    assert!(spared > Duration::from_millis(1200), "it had its time: {spared:?}");
    assert_eq!(next.line(), "looked", "the command outlived its lock");
    assert_eq!(stubborn.finish().code, Some(76));
}

#[test]
fn on_lost_kill_gives_no_time() {
    let context = TestContext::new();
    let script = "trap 'echo term' TERM; echo up; while :; do sleep 0.02; done";
    let args = ["run", "--no-renew", "-t", "1s", "--on-lost", "kill", "--lost-exit-code", "7", "x", "-c", script];
    let done = context.run(&args);
    assert_eq!((done.code, done.out.as_str()), (Some(7), "up\n"), "{done:?}");
    assert!(done.err.contains("lost: \"x\": its lease is over, and --no-renew was given"), "{done:?}");
}

#[test]
fn on_lost_warn_lets_it_go_on() {
    let context = TestContext::new();
    let mut command = context.oarlock(["run", "--no-renew", "-t", "300ms", "--on-lost", "warn", "x", "--", "cat"]);
    command.stdin(std::process::Stdio::piped());
    let mut cat = Running::start(command);
    cat.say("up\n");
    assert_eq!(cat.line(), "up");
    // Granted only when the lease of the first is over.
    assert_eq!(context.code(&["run", "-w", "20", "x", "--", "true"]), 0);
    cat.say("still here\n");
    assert_eq!(cat.line(), "still here");
    let done = cat.finish();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("continues without the lock"), "{done:?}");
}

#[test]
fn max_hold_bounds_renewal() {
    let context = TestContext::new();
    let started = Instant::now();
    let done = context.run(&["run", "-t", "3s", "--max-hold", "6s", "x", "--", "sleep", "100"]);
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.err.contains("lost: \"x\": it was held for as long as --max-hold allows"), "{done:?}");
    let held = started.elapsed();
    assert!(held > Duration::from_millis(3600), "longer than a lease: {held:?}");
}

#[test]
fn a_short_max_hold_leaves_time_to_work() {
    let context = TestContext::new();
    let done = context.run(&["run", "--max-hold", "3s", "x", "--", "sleep", "1"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    let started = Instant::now();
    let done = context.run(&["run", "--max-hold", "1s", "x", "--", "sleep", "10"]);
    let held = started.elapsed();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(held > Duration::from_millis(500) && held < Duration::from_secs(8), "{held:?}");
    let done = context.run(&["run", "--max-hold", "3s", "-k", "2s", "x", "--", "true"]);
    assert_eq!(done.code, Some(64), "{done:?}");
    assert!(done.err.contains("more than half of --max-hold 3s"), "{done:?}");
    assert_eq!(context.code(&["run", "--max-hold", "3s", "-k", "1500ms", "x", "--", "true"]), 0);
}

/// "A brief outage killed the child, although retries were set" (consul 5437): while the lease lasts, it is ridden out.
#[test]
fn an_outage_that_is_shorter_than_the_lease_ends_nothing() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut command = context.bare(["run", "-t", "12s", "-k", "500ms", "x", "--", "cat"]);
    command.env("OARLOCK_URL", proxy.url(&server.url(), server.addr())).stdin(std::process::Stdio::piped());
    let mut cat = Running::start(command);
    cat.say("up\n");
    assert_eq!(cat.line(), "up");
    // Longer than from one renewal to the next.
    proxy.cut();
    std::thread::sleep(Duration::from_secs(5));
    proxy.heal(Held::Reset).unwrap();
    let wait = |span| {
        let mut rival = context.bare(["run", "-w", span, "x", "--", "true"]);
        rival.env("OARLOCK_URL", server.url());
        finish(rival).code
    };
    assert_eq!(wait("13s"), Some(75), "it was renewed again");
    cat.say("still\n");
    assert_eq!(cat.line(), "still");
    let done = cat.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(wait("0"), Some(0));
}

/// "The default of 60 s is too long after kill -9" (etcd 8365): it is 30 s, and what `-t` says.
#[test]
fn a_killed_holder_blocks_for_its_lease_at_most() {
    let context = TestContext::new();
    let Some(server) = Redis::start_or_skip().unwrap() else { return };
    let on = |args: &[&str]| {
        let mut command = context.bare(args);
        command.env("OARLOCK_URL", server.url());
        command
    };
    let told = finish(on(&["run", "x", "-c", "echo $OARLOCK_TTL_MS"]));
    assert_eq!(told.out, "30000\n", "{told:?}");
    let mut killed = Running::start(on(&["run", "-t", "3s", "x", "-c", "echo up; exec sleep 100"]));
    assert_eq!(killed.line(), "up");
    killed.signal(Signal::KILL);
    let begun = Instant::now();
    assert_eq!(finish(on(&["run", "-w", "20", "x", "--", "true"])).code, Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "a third of the default, on a busy machine: {:?}",
        begun.elapsed()
    );
}

/// "One minute breaks long jobs" (cronlock 11, django-icekit 135).
#[test]
fn renewal_goes_on_while_the_command_is_busy() {
    let context = TestContext::new();
    let mut command = context.oarlock(["run", "-t", "2s", "x", "--", "cat"]);
    command.stdin(std::process::Stdio::piped());
    let mut cat = Running::start(command);
    cat.say("up\n");
    cat.line();
    assert_eq!(context.code(&["run", "-w", "5", "x", "--", "true"]), 75, "two leases long and more");
    assert_eq!(cat.finish().code, Some(0));
}
