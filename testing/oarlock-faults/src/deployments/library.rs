//! Another lock library on one server: a program of `interop/` takes its locks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use oarlock_testbed::{Etcd, Redis, ZooKeeper};

use super::{Deployment, ServerFault, single};

struct Library {
    server: Box<dyn Deployment>,
    with: String,
}

type Started = anyhow::Result<Box<dyn Deployment>>;

pub(super) fn on_redis(name: &str) -> Started {
    start(name, "redis://", || single::start(Redis::start_with, &[]))
}

pub(super) fn on_etcd(name: &str) -> Started {
    start(name, "etcd://", || single::start(Etcd::start_with, &[]))
}

pub(super) fn on_zookeeper(name: &str) -> Started {
    start(name, "", || single::start(ZooKeeper::start_with, &[]))
}

/// `scheme` is what the library itself writes before the address.
fn start(name: &str, scheme: &str, server: impl Fn() -> Started) -> Started {
    // The shell of the worker puts in the address of its proxy.
    let with = format!("{} \"{scheme}$OARLOCK_TORTURE_HOSTS\"", command(name)?);
    Ok(Box::new(Library { server: server()?, with }))
}

/// How its program is started, by the one that also runs it beside Oarlock.
fn command(name: &str) -> anyhow::Result<String> {
    let here = std::env::current_exe()?;
    let interop = here.with_file_name("interop");
    let out = here.ancestors().nth(2).context("the folder of builds")?.join("interop");
    ensure!(interop.is_file() && out.is_dir(), "the program of {name} is not built: cargo xtask interop builds it");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mut command = Command::new(interop);
    command.args(["--commands", "--only", name, "--root"]).arg(root).arg("--out").arg(out);
    let said = command.output()?;
    ensure!(said.status.success(), "interop: {}", String::from_utf8_lossy(&said.stderr).trim());
    // Its other rows have the same program.
    Ok(String::from_utf8(said.stdout)?.lines().next().context("no command")?.to_owned())
}

impl Deployment for Library {
    fn url(&self) -> String {
        self.server.url()
    }

    fn flags(&self) -> Vec<String> {
        vec!["--with".to_owned(), self.with.clone()]
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        self.server.inject(fault, lease, random)
    }
}
