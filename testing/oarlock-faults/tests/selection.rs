//! A selection of the faults, in every test run: a store without servers, and one server that is killed.

#[cfg(test)]
mod selection {
    use std::fs;
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
            let required = ["CI", "OARLOCK_REQUIRE"].iter().any(|name| std::env::var_os(name).is_some());
            if err.contains("is not installed") && !required {
                println!("skipped: {err}");
                continue;
            }
            assert!(done.status.success(), "{store} / {fault}: {out}{err}");
            assert!(out.contains(&format!("/ {fault} seed 1: ok")), "{out}{err}");
        }
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
                println!("skipped: {err}");
                return;
            }
            assert!(Instant::now() < late, "no disk was mounted");
            std::thread::sleep(Duration::from_millis(5));
        };
        let ended = Command::new("kill").args(["-TERM", &run.id().to_string()]).status().expect("kill");
        assert!(ended.success());
        run.wait().expect("its end");
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
