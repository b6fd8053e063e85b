//! A selection of the faults, in every test run: a store without servers, one server that is killed, and one whose network
//! is cut.

#[cfg(test)]
mod selection {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Output, Stdio};
    use std::time::{Duration, Instant};

    fn faults(flags: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_oarlock-faults"))
            .args(flags)
            .args(["--dry", "--seconds", "3"])
            .output()
            .expect("the program of this package")
    }

    #[test]
    fn a_killed_server_and_a_killed_holder_break_no_promise() {
        for (store, fault) in [("local", "kill"), ("redis/one server", "server-kill")] {
            let done = faults(&["--only", store, "--fault", fault]);
            let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            if err.contains("is not installed") && !is_required() {
                skip(&err);
                continue;
            }
            assert!(done.status.success(), "{store} / {fault}: {out}{err}");
            assert!(out.contains(&format!("/ {fault} seed 1: ok")), "{out}{err}");
        }
    }

    /// What passes is not shown, unless it is written past the test.
    fn skip(why: &str) {
        writeln!(std::io::stderr(), "skipped: {}", why.trim()).expect("standard error");
    }

    /// Whether what is missing here fails a test instead of skipping it.
    fn is_required() -> bool {
        ["CI", "OARLOCK_REQUIRE"].iter().any(|name| std::env::var_os(name).is_some())
    }

    /// Why there are no hosts with a network of their own here. Where everything must be installed, only a missing right
    /// counts.
    fn without_network<'a>(out: &'a str, err: &'a str) -> Option<&'a str> {
        let why = out.lines().find(|line| line.starts_with("redis own network: skipped: "));
        let has_no_right = |why: &&str| {
            ["which needs root", "permitted", "ermission"].iter().any(|words| why.contains(words)) || !is_required()
        };
        why.filter(has_no_right).or_else(|| (err.contains("is not installed") && !is_required()).then_some(err))
    }

    #[test]
    fn a_real_network_that_is_cut_costs_a_holder_its_lock_and_breaks_no_promise() {
        let done = faults(&["--only", "redis/own network", "--fault", "net-cut"]);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        if let Some(why) = without_network(&out, &err) {
            return skip(why);
        }
        assert!(done.status.success(), "{out}{err}");
        assert!(out.contains("/ net-cut seed 1: ok"), "{out}{err}");
    }

    /// The network namespace of a process.
    fn namespace(pid: u32) -> Option<String> {
        fs::read_link(format!("/proc/{pid}/ns/net")).ok().map(|link| link.display().to_string())
    }

    fn pids() -> Vec<u32> {
        let entries = fs::read_dir("/proc").expect("the processes").flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    fn parent(pid: u32) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    }

    /// The namespaces of a process and its children, without our own.
    fn namespaces(root: u32) -> BTreeSet<String> {
        let own = namespace(std::process::id());
        let family = pids().into_iter().filter(|pid| *pid == root || parent(*pid) == Some(root));
        family.filter_map(namespace).filter(|found| Some(found) != own.as_ref()).collect()
    }

    /// Its own network, and that of its server, end with their last process.
    #[test]
    fn no_network_stays_when_a_run_is_killed() {
        let mut faults = Command::new(env!("CARGO_BIN_EXE_oarlock-faults"));
        faults.args(["--only", "redis/own network", "--fault", "net-cut", "--dry", "--seconds", "60"]);
        let mut run = faults.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
        let late = Instant::now() + Duration::from_secs(30);
        // A server runs in a namespace that is neither ours nor that of the run.
        let root = run.id();
        let is_served = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("redis-server") && parent(*pid) == Some(root) && namespace(*pid) != namespace(root)
        };
        while !pids().iter().any(is_served) {
            if run.try_wait().expect("its state").is_some() {
                let done = run.wait_with_output().expect("what it said");
                let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
                return skip(without_network(&out, &err).unwrap_or_else(|| panic!("{out}{err}")));
            }
            assert!(Instant::now() < late, "no server was started");
            std::thread::sleep(Duration::from_millis(5));
        }
        let made = namespaces(root);
        assert!(made.len() >= 2, "{made:?}");
        run.kill().expect("killed");
        let status = run.wait().expect("its end");
        assert_eq!(status.signal(), Some(9), "it ended by itself, in good order");
        let late = Instant::now() + Duration::from_secs(10);
        let stay = || {
            let is_in = |pid: &u32| namespace(*pid).is_some_and(|found| made.contains(&found));
            pids().into_iter().filter(is_in).collect::<Vec<_>>()
        };
        while !stay().is_empty() && Instant::now() < late {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = stay();
        for pid in &left {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        assert!(left.is_empty(), "these are left in {made:?}: {left:?}");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let done = faults(&["--only", "oracle"]);
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && err.contains("zookeeper"), "{err}");
        assert_eq!(faults(&["--runs", "0"]).status.code(), Some(64));
    }

    /// The small file system as a process sees it.
    fn small_disks(mounts: &str) -> Vec<String> {
        let text = fs::read_to_string(mounts).unwrap_or_default();
        let small = text.lines().filter(|line| line.contains("size=4096k"));
        small.filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect()
    }

    /// Only a run that ends in good order unmounts by itself.
    #[test]
    fn nothing_stays_mounted_when_a_run_is_ended_by_a_signal() {
        let mut faults = Command::new(env!("CARGO_BIN_EXE_oarlock-faults"));
        faults.args(["--only", "local/small tmpfs", "--dry", "--seconds", "60"]);
        let mut run = faults.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program");
        let mounts = format!("/proc/{}/mounts", run.id());
        let others = small_disks("/proc/self/mounts");
        let late = Instant::now() + Duration::from_secs(30);
        let disk = loop {
            if let Some(disk) = small_disks(&mounts).into_iter().find(|disk| !others.contains(disk)) {
                break disk;
            }
            if run.try_wait().expect("its state").is_some() {
                let done = run.wait_with_output().expect("what it said");
                let err = String::from_utf8_lossy(&done.stderr);
                assert!(err.contains("permi") || err.contains("superuser"), "{err}");
                return skip(&err);
            }
            assert!(Instant::now() < late, "no disk was mounted");
            std::thread::sleep(Duration::from_millis(5));
        };
        let ended = Command::new("kill").args(["-TERM", &run.id().to_string()]).status().expect("kill");
        assert!(ended.success());
        let status = run.wait().expect("its end");
        assert_eq!(status.signal(), Some(15), "it ended by itself, in good order");
        assert!(!small_disks("/proc/self/mounts").contains(&disk), "{disk} stays mounted");
    }

    /// Every store and every fault, once: in the long tier alone, for it takes half an hour. Without two builds: this tree
    /// has one.
    #[test]
    fn every_store_keeps_its_promises() {
        if std::env::var_os("OARLOCK_LONG").is_none() {
            println!("only in the long tier (OARLOCK_LONG=1)");
            return;
        }
        let done = faults(&["--jobs", "3"]);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{out}{err}");
    }
}
