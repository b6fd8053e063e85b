//! One server, or the embedded store, on a disk of its own that is full or slow, loses power, or lies about its syncs.

use std::time::Duration;

use anyhow::bail;
use oarlock_testbed::server::{ChangedSyncs, Disk, Program, Server, Settings, Syncs};

use super::{Deployment, ServerFault, init, wait};
use crate::cases::{Case, Fault};
use crate::power;
use crate::runs::Done;

/// `InnoDB` writes through the kernel, so that a lie has something to lose, and repairs torn pages. MariaDB has written its
/// log past the kernel since 10.8.4, whatever the method; MySQL does not know this setting.
pub(super) const INNODB: Settings<'static> = &[
    ("innodb-flush-log-at-trx-commit", "1"),
    ("innodb-doublewrite", "1"),
    ("innodb-flush-method", "fsync"),
    ("loose-innodb-log-file-buffering", "1"),
];

/// In this order: the server ends before its disk.
struct OnDisk<P: Program> {
    syncs: Option<ChangedSyncs>,
    server: Server<P>,
    disk: Disk,
}

pub(super) fn start<P: Program + 'static>(settings: Settings<'_>) -> anyhow::Result<Box<dyn Deployment>> {
    let disk = Disk::mount()?;
    let server = Server::<P>::start_on(&disk, settings)?;
    init(&server.url())?;
    disk.sync()?;
    Ok(Box::new(OnDisk { syncs: None, server, disk }))
}

impl<P: Program> OnDisk<P> {
    /// From now on nothing that the server writes comes to the disk; what it has written before is there.
    fn lie(&mut self) -> anyhow::Result<()> {
        self.syncs = Some(ChangedSyncs::of(&self.server.pids()?, Syncs::Lie)?);
        self.disk.sync()
    }

    fn cut_power(&mut self) -> anyhow::Result<()> {
        // A machine without power answers nothing either.
        self.server.pause()?;
        self.disk.cut_power()?;
        self.server.kill()?;
        self.syncs = None;
        self.disk.power_up()
    }
}

impl<P: Program> Deployment for OnDisk<P> {
    fn url(&self) -> String {
        self.url_for(Duration::from_secs(2))
    }

    fn url_for(&self, lease: Duration) -> String {
        let url = self.server.url();
        if P::SCHEME == "zk" { format!("{url}?ttl={}s", lease.as_secs()) } else { url }
    }

    fn prepare(&mut self, fault: ServerFault) -> anyhow::Result<()> {
        self.syncs = None;
        if fault == ServerFault::LyingDisk { self.lie() } else { Ok(()) }
    }

    fn inject(&mut self, fault: ServerFault, lease: Duration, random: &mut fastrand::Rng) -> anyhow::Result<()> {
        match fault {
            ServerFault::PowerCut => {
                self.cut_power()?;
                wait(lease, 0.0, 0.2, random);
                self.server.restart()
            }
            // At once: who held must still believe.
            ServerFault::LyingDisk => {
                self.cut_power()?;
                self.server.restart()?;
                self.lie()
            }
            ServerFault::SlowDisk => {
                let delay = lease.mul_f64(0.05 + random.f64() * 0.15);
                let slow = ChangedSyncs::of(&self.server.pids()?, Syncs::Slow(delay))?;
                wait(lease, 1.0, 2.0, random);
                drop(slow);
                Ok(())
            }
            ServerFault::DiskFull => {
                let full = self.disk.fill()?;
                wait(lease, 0.3, 1.5, random);
                drop(full);
                // It may have ended, or it refuses to write until it is started again.
                self.server.restart()
            }
            other => bail!("{} is no fault of a disk", other.name()),
        }
    }
}

struct Local {
    disk: Disk,
}

pub(super) fn local() -> anyhow::Result<Box<dyn Deployment>> {
    Ok(Box::new(Local { disk: Disk::mount()? }))
}

impl Deployment for Local {
    fn url(&self) -> String {
        format!("local:{}/store", self.disk.root().display())
    }

    fn run(&mut self, case: &Case, seed: u64, seconds: u64) -> anyhow::Result<Option<Done>> {
        let lies = case.fault == Fault::Server(ServerFault::LyingDisk);
        power::run(case, &self.disk, &self.url(), lies, seed, seconds).map(Some)
    }

    fn inject(&mut self, fault: ServerFault, _: Duration, _: &mut fastrand::Rng) -> anyhow::Result<()> {
        bail!("{} is tried without `oarlock torture`", fault.name())
    }

    fn version(&self) -> String {
        super::local::kernel()
    }
}
