//! A selection of the faults, in every test run: a store without servers, and one server that is killed.

#[cfg(test)]
mod selection {
    use std::process::{Command, Output};

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
