//! The storm: the strikes of the plan, several at a time.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::hook::Holder;
use super::{LEAST_STORM, Runner};
use crate::plan::{self, Strike};
use crate::proxy::{Direction, Held, Then};
use crate::record::FaultKind;
use crate::workers::Doing;

/// A fault that has not ended yet.
struct Active {
    id: u64,
    kind: FaultKind,
    slot: usize,
    w: u32,
    host: Option<usize>,
    ends: Instant,
    /// Replies that were lost before.
    lost: u64,
    held: Held,
}

impl Runner {
    pub(super) async fn storm(&mut self) -> io::Result<()> {
        let lease = self.lease();
        let duration = Duration::from_millis(self.header.duration_ms);
        // What the scenes left, and at least a fifth of the run.
        let left = duration.saturating_sub(Duration::from_nanos(self.shared.now()));
        let span = left.max(duration / LEAST_STORM);
        let end = self.shared.now().saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.shared.change(|status| status.storm_ends = Some(end));
        let hosts = u32::try_from(self.workers.servers().len()).unwrap_or(u32::MAX);
        let strikes = plan::storm(self.header.seed, &self.header.faults, self.header.workers, hosts, lease, span);
        let mut next = Instant::now();
        let mut active: Vec<Active> = Vec::new();
        let mut quiet_until = Instant::now();
        for strike in strikes {
            next += strike.after;
            self.end_until(&mut active, next).await?;
            tokio::time::sleep_until(next).await;
            if strike.kind == FaultKind::Command {
                // Servers get the time to recover.
                if Instant::now() >= quiet_until {
                    self.strike_servers().await;
                    quiet_until = Instant::now() + (lease * 3).max(Duration::from_secs(5));
                }
                continue;
            }
            if !active.iter().any(|fault| clashes(fault, &strike)) {
                active.extend(self.strike(&strike, lease).await?);
            }
        }
        let end = active.iter().map(|fault| fault.ends).max().unwrap_or(next);
        self.end_until(&mut active, end).await
    }

    /// Ends what is due until `until`, each in time.
    async fn end_until(&mut self, active: &mut Vec<Active>, until: Instant) -> io::Result<()> {
        loop {
            active.sort_by_key(|fault| std::cmp::Reverse(fault.ends));
            let Some(fault) = active.pop_if(|fault| fault.ends <= until) else { return Ok(()) };
            tokio::time::sleep_until(fault.ends).await;
            self.end_one(&fault)?;
        }
    }

    fn end_one(&mut self, fault: &Active) -> io::Result<()> {
        let mut effect = None;
        match fault.kind {
            FaultKind::Pause => self.shared.signal(fault.w, Signal::CONT),
            FaultKind::LostReply => effect = i64::try_from(self.replies_lost(fault.slot) - fault.lost).ok(),
            _ => {}
        }
        if FaultKind::OF_NETWORKS.contains(&fault.kind) {
            return self.healed(fault.id, effect, (fault.slot, fault.host), fault.held);
        }
        self.ended(fault.id, effect);
        Ok(())
    }

    async fn strike_servers(&mut self) {
        let Some(mut hook) = self.hook.take() else { return };
        let id = self.fault(FaultKind::Command, None, None);
        let code = hook.call(self.occasion(Holder::Any)).await;
        self.hook = Some(hook);
        self.ended(id, Some(code));
    }

    async fn strike(&mut self, strike: &Strike, lease: Duration) -> io::Result<Option<Active>> {
        let (slot, host) = (strike.slot as usize, strike.host.map(|host| host as usize));
        let w = self.workers.worker(slot);
        let lost = self.replies_lost(slot);
        match strike.kind {
            FaultKind::Kill => {
                let id = self.fault(strike.kind, Some(w), None);
                self.workers.replace(slot, strike.kind.words()).await?;
                self.ended(id, None);
                return Ok(None);
            }
            FaultKind::KillWaiter => {
                let waits = |w: &u32| self.shared.look(|status| matches!(status.doing(*w), Doing::Asks { .. }));
                let slots = (0..self.workers.size()).map(|shift| (slot + shift) % self.workers.size());
                let Some(slot) = slots.into_iter().find(|slot| waits(&self.workers.worker(*slot))) else {
                    return Ok(None);
                };
                let id = self.fault(strike.kind, Some(self.workers.worker(slot)), None);
                self.workers.replace(slot, strike.kind.words()).await?;
                self.ended(id, None);
                return Ok(None);
            }
            FaultKind::Reconnect => {
                self.reconnect()?;
                return Ok(None);
            }
            _ => {}
        }
        let id = self.fault(strike.kind, Some(w), host);
        let slow = lease.mul_f64(strike.leases / 8.0);
        let then = if strike.leases < 1.0 { Then::Close } else { Then::Silence };
        let chosen = self.workers.proxies(slot).iter().enumerate();
        for (_, proxy) in chosen.filter(|(number, _)| host.is_none_or(|host| host == *number)) {
            match strike.kind {
                FaultKind::Cut => proxy.cut(),
                FaultKind::CutRequests => proxy.cut_one_way(Direction::ToServer),
                FaultKind::CutReplies => proxy.cut_one_way(Direction::ToClient),
                FaultKind::LostReply => drop(proxy.drop_next_reply(then)),
                FaultKind::Delay => {
                    proxy.delay(Direction::ToServer, slow);
                    proxy.delay(Direction::ToClient, slow);
                }
                FaultKind::Refuse => proxy.refuse(),
                FaultKind::Strand => proxy.strand(),
                _ => {}
            }
        }
        if strike.kind == FaultKind::Pause {
            self.shared.signal(w, Signal::STOP);
        }
        let ends = Instant::now() + lease.mul_f64(strike.leases);
        let held = if strike.kind.resets() && strike.leases.fract() >= 0.5 { Held::Reset } else { Held::Deliver };
        Ok(Some(Active { id, kind: strike.kind, slot, w, host, ends, lost, held }))
    }
}

/// Whether a strike would end with a fault that has begun, or the other way round.
fn clashes(fault: &Active, strike: &Strike) -> bool {
    let networks = [fault.kind, strike.kind].map(|kind| FaultKind::OF_NETWORKS.contains(&kind));
    match (fault.kind, strike.kind) {
        (_, FaultKind::Reconnect) => networks[0],
        _ if fault.slot != strike.slot as usize => false,
        (FaultKind::Pause, other) => matches!(other, FaultKind::Pause | FaultKind::Kill),
        _ => networks == [true, true],
    }
}
