//! A store that was restored from a backup: what the runbook says about fences, tried.

use std::fs;
use std::io;
use std::path::Path;

use oarlock_testbed::{Etcd, ZooKeeperEnsemble};

use super::support::{TestContext, finish};

/// The fence of a run.
fn fence(context: &TestContext, url: &str) -> u64 {
    let mut command = context.bare(["run", "-w", "30", "restored", "-c", "echo $OARLOCK_FENCE"]);
    command.env("OARLOCK_URL", url);
    let done = finish(command);
    done.out.trim().parse().unwrap_or_else(|_| panic!("{done:?}"))
}

/// The last of several, so that more is forgotten than a restart takes.
fn later_fence(context: &TestContext, url: &str) -> u64 {
    (0..8).map(|_| fence(context, url)).max().unwrap()
}

/// Whether `doctor` finds that this fence, which was seen before the restore, can be given again.
fn repeats(context: &TestContext, url: &str, seen: u64) -> bool {
    let mut command = context.bare(["doctor", "-o", "name", "--seen-fence", &seen.to_string()]);
    command.env("OARLOCK_URL", url);
    let done = finish(command);
    let repeats = done.out.lines().any(|id| id == "fences-repeat");
    assert!(!repeats || done.code == Some(2), "a promise is void: {done:?}");
    assert!(!done.out.contains("unreachable"), "{done:?}");
    repeats
}

/// Fences are revisions. A snapshot brings old ones back, until keys were written past the largest fence.
#[test]
fn etcd() {
    let context = TestContext::new();
    let Some(server) = Etcd::start_or_skip().unwrap() else { return };
    let (snapshot, restored) = (context.path("backup.db"), context.path("restored"));
    let early = fence(&context, &server.url());
    server.ctl(&["snapshot", "save", &snapshot]).unwrap();
    let late = later_fence(&context, &server.url());
    assert!(late > early);
    assert!(!repeats(&context, &server.url(), late), "before the restore");

    let peer = "http://127.0.0.1:0";
    let cluster = format!("--initial-cluster=alone={peer}");
    let (own, data) = (format!("--initial-advertise-peer-urls={peer}"), format!("--data-dir={restored}"));
    server.ctl(&["snapshot", "restore", &snapshot, "--name=alone", &cluster, &own, &data]).unwrap();
    server.restart_with(&[("data-dir", &restored)]).unwrap();
    assert!(repeats(&context, &server.url(), late), "doctor sees the restore by the largest fence before it");
    let again = fence(&context, &server.url());
    assert!(again <= late, "fences repeat after a restore: {again} after {late}");

    // "Write keys until the revision is past the largest fence."
    let mut revision = 0;
    for _ in 0..10_000 {
        let told = server.ctl(&["put", "raise-fences", "", "-w", "json"]).unwrap();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        revision = told["header"]["revision"].as_u64().unwrap();
        if revision > late {
            break;
        }
    }
    assert!(revision > late, "{revision} is not past {late}");
    assert!(!repeats(&context, &server.url(), late), "they are raised");
    let raised = fence(&context, &server.url());
    assert!(raised > late, "{raised} after {late}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Fences are transactions, whose upper half is the epoch. Old data brings an old epoch back, until it is raised.
#[test]
fn zookeeper() {
    let context = TestContext::new();
    let Some(ensemble) = ZooKeeperEnsemble::start_or_skip().unwrap() else { return };
    let backup = |number: usize| context.dir.path().join(format!("backup-{number}"));
    let url = ensemble.url();
    let early = fence(&context, &url);
    let save = |number: usize, data: &Path| -> io::Result<()> {
        copy(data, &backup(number));
        Ok(())
    };
    ensemble.restart_after(save).unwrap();
    let late = later_fence(&context, &url);
    assert!(late > early);
    assert!(!repeats(&context, &url, late), "before the restore");

    let restore = |number: usize, data: &Path| -> io::Result<()> {
        fs::remove_dir_all(data)?;
        copy(&backup(number), data);
        Ok(())
    };
    ensemble.restart_after(restore).unwrap();
    let again = fence(&context, &url);
    assert!(again <= late, "fences repeat after a restore: {again} after {late}");
    assert!(repeats(&context, &url, late), "doctor sees the restore by the largest fence before it");

    // "Edit currentEpoch and acceptedEpoch of all servers, while they are down, to the same larger number."
    let epoch = (late >> 32) + 1;
    let raise = |_: usize, data: &Path| -> io::Result<()> {
        for file in ["currentEpoch", "acceptedEpoch"] {
            fs::write(data.join(file), epoch.to_string())?;
        }
        Ok(())
    };
    ensemble.restart_after(raise).unwrap();
    let raised = fence(&context, &url);
    assert!(raised > late, "{raised} after {late}");
    assert!(!repeats(&context, &url, late), "they are raised");
}
