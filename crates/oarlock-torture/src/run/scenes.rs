//! The canonical scenes, one at a time: each is a fault that real deployments have, injected where it hurts most.

use std::io;
use std::time::Duration;

use rustix::process::Signal;

use super::Runner;
use super::hook::{Holder, Occasion};
use crate::plan::SCENES;
use crate::proxy::{Direction, Held, Then};
use crate::record::{FaultKind, LockKind};
use crate::worker::Order;
use crate::workers::Doing;

/// So many times a scene is played that does not come about.
const TRIES: u32 = 4;

/// A holder that stays, and another worker that waits for the same lock.
pub(super) struct Participants {
    pub(super) lock: String,
    pub(super) slot: usize,
    pub(super) holder: u32,
    pub(super) waiter: u32,
}

impl Runner {
    pub(super) async fn scenes(&mut self) -> io::Result<()> {
        for kind in SCENES {
            if self.header.faults.contains(&kind) {
                // Again if it did not come about, as on a slow machine.
                for _ in 0..TRIES {
                    if self.scene(kind).await? {
                        break;
                    }
                }
                tokio::time::sleep(self.lease() / 5).await;
            }
        }
        Ok(())
    }

    /// Plays one scene, and says whether it did what it should.
    async fn scene(&mut self, kind: FaultKind) -> io::Result<bool> {
        let lease = self.lease();
        match kind {
            FaultKind::Pause => return Ok(self.pause().await),
            FaultKind::Kill | FaultKind::KillWaiter => return self.kill(kind).await,
            FaultKind::Cut | FaultKind::CutReplies | FaultKind::CutRequests => return self.cut(kind).await,
            FaultKind::LostReply => self.lose_replies().await?,
            FaultKind::Delay => {
                let slow = lease / 12;
                self.on_one(kind, lease, |runner, slot| {
                    for proxy in runner.workers.proxies(slot) {
                        proxy.delay(Direction::ToServer, slow);
                        proxy.delay(Direction::ToClient, slow);
                    }
                })
                .await?;
            }
            FaultKind::Refuse => {
                self.on_one(kind, lease.mul_f64(0.7), |runner, slot| {
                    runner.workers.proxies(slot).iter().for_each(crate::proxy::Proxy::refuse);
                })
                .await?;
            }
            FaultKind::Strand => {
                self.on_one(kind, lease.mul_f64(0.7), |runner, slot| {
                    runner.workers.proxies(slot).iter().for_each(crate::proxy::Proxy::strand);
                })
                .await?;
            }
            FaultKind::Reconnect => self.reconnect()?,
            FaultKind::Command => {
                // A holder that is stopped cannot learn that the server forgot it, one that runs can.
                self.command(true).await;
                self.command(false).await;
            }
            FaultKind::Cancel => return Ok(self.cancel().await),
            FaultKind::Repeat => {}
        }
        Ok(true)
    }

    /// Lets a worker take a lock and stay, and another one wait for it. `None` if that does not come about in time.
    pub(super) async fn participants(&mut self, stay: Duration) -> Option<Participants> {
        let mutexes: Vec<_> = self.header.locks.iter().filter(|lock| lock.kind == LockKind::Mutex).collect();
        let lock = mutexes.get(self.random.usize(0..mutexes.len().max(1)))?.name.clone();
        let slot = self.random.usize(0..self.workers.size());
        let (holder, waiter) = (self.workers.worker(slot), self.workers.worker((slot + 1) % self.workers.size()));
        let bound = self.takeover() + self.lease() * 4;
        let ms = crate::workers::millis(stay);
        self.shared.order(holder, Order::Stay { lock: lock.clone(), ms });
        self.shared.until(bound, |status| status.holds(holder, &lock).then_some(())).await?;
        self.shared.order(waiter, Order::Stay { lock: lock.clone(), ms: 5 });
        let waits =
            |status: &crate::workers::Status| status.waiter(&lock, holder).filter(|_| status.holds(holder, &lock));
        let waiter = self.shared.until(bound, waits).await?;
        Some(Participants { lock, slot, holder, waiter })
    }

    /// Kleppmann's picture: a holder has checked its lock and read, is stopped for longer than its lease, and writes
    /// when the next holder has written.
    async fn pause(&mut self) -> bool {
        let Some(lock) = self.header.locks.iter().find(|lock| lock.kind == LockKind::Mutex) else { return true };
        let lock = lock.name.clone();
        // Fences are compared with those of the same library.
        let slots = self.slots_with_fences();
        let chosen = self.random.usize(0..slots.len());
        let worker = |chosen: usize| self.workers.worker(slots[chosen % slots.len()]);
        let (holder, rival) = (worker(chosen), worker(chosen + 1));
        let bound = self.takeover() + self.lease() * 4;
        self.shared.change(|status| (status.stop_at_read, status.stopped_at_read) = (Some(holder), None));
        self.shared.order(holder, Order::Stay { lock: lock.clone(), ms: 0 });
        let stopped_at_read =
            self.shared.until(bound, |status| (status.stopped_at_read == Some(holder)).then_some(())).await;
        self.shared.change(|status| status.stop_at_read = None);
        let mut overtaken = false;
        if stopped_at_read.is_some() {
            let lock = self.shared.look(|status| match status.doing(holder) {
                Doing::Holds { lock, .. } => lock.clone(),
                _ => lock.clone(),
            });
            let id = self.fault(FaultKind::Pause, Some(holder), None);
            let before = self.shared.look(|status| status.writes.get(&lock).copied().unwrap_or_default().1);
            self.shared.order(rival, Order::Stay { lock: lock.clone(), ms: 5 });
            let written = |status: &crate::workers::Status| {
                status.writes.get(&lock).filter(|(_, count)| *count > before).map(drop)
            };
            overtaken = self.shared.until(bound, written).await.is_some();
            self.shared.signal(holder, Signal::CONT);
            self.shared.until(bound, |status| (!status.holds(holder, &lock)).then_some(())).await;
            self.ended(id, None);
        }
        self.shared.signal(holder, Signal::CONT);
        overtaken
    }

    /// Those of Oarlock, or all where no worker is of Oarlock.
    fn slots_with_fences(&self) -> Vec<usize> {
        let all = 0..self.workers.size();
        let slots: Vec<_> = all.clone().filter(|slot| !self.is_library(*slot)).collect();
        if slots.is_empty() { all.collect() } else { slots }
    }

    fn is_library(&self, slot: usize) -> bool {
        u32::try_from(slot).is_ok_and(|slot| self.header.is_library(slot))
    }

    async fn kill(&mut self, kind: FaultKind) -> io::Result<bool> {
        let stay = self.lease() * 2;
        let Some(participants) = self.participants(stay).await else { return Ok(false) };
        let victim = if kind == FaultKind::Kill { participants.holder } else { participants.waiter };
        let Some(slot) = self.workers.slot_of(victim) else { return Ok(false) };
        let id = self.fault(kind, Some(victim), None);
        self.workers.replace(slot, kind.words()).await?;
        let next = |status: &crate::workers::Status| status.other_holder(&participants.lock, participants.holder);
        let followed = self.shared.until(self.takeover(), next).await.is_some();
        self.ended(id, None);
        Ok(followed)
    }

    /// A caller gives up while another worker holds.
    async fn cancel(&mut self) -> bool {
        let lease = self.lease();
        let Some(participants) = self.participants(lease).await else { return false };
        // Another library cannot be told to forget a call.
        let mut others = (2..self.workers.size() + 2).map(|shift| (participants.slot + shift) % self.workers.size());
        let Some(slot) = others.find(|slot| !self.is_library(*slot)) else { return false };
        let w = self.workers.worker(slot);
        self.shared.order(w, Order::Cancel { lock: participants.lock.clone(), ms: 10 });
        let asks = |status: &crate::workers::Status| {
            (status.holds(participants.holder, &participants.lock) && matches!(status.doing(w), Doing::Asks { .. }))
                .then_some(())
        };
        self.shared.until(lease, asks).await.is_some()
    }

    /// A holder is cut off for longer than its lease: its belief must end, and another one gets the lock. Its effect is
    /// 1 if that came about.
    async fn cut(&mut self, kind: FaultKind) -> io::Result<bool> {
        let lease = self.lease();
        let Some(participants) = self.participants(lease * 6).await else { return Ok(false) };
        let lost = |status: &crate::workers::Status| status.lost.get(&participants.holder).copied().unwrap_or(0);
        let before = self.shared.look(lost);
        let id = self.fault(kind, Some(participants.holder), None);
        for proxy in self.workers.proxies(participants.slot) {
            match kind {
                FaultKind::CutRequests => proxy.cut_one_way(Direction::ToServer),
                FaultKind::CutReplies => proxy.cut_one_way(Direction::ToClient),
                _ => proxy.cut(),
            }
        }
        let passed = |status: &crate::workers::Status| {
            let over = !status.holds(participants.holder, &participants.lock);
            (over && status.other_holder(&participants.lock, participants.holder).is_some()).then_some(())
        };
        let passed_on = self.shared.until(lease * 2 + self.takeover() / 2, passed).await.is_some();
        // A hold that ended because its time was over shows that the cut did not reach it.
        let effective = passed_on && self.shared.look(lost) > before;
        // What was held up arrives late: the hardest of the ways in which a cut can end.
        self.healed(id, Some(i64::from(effective)), (participants.slot, None), Held::Deliver)?;
        Ok(effective)
    }

    async fn lose_replies(&mut self) -> io::Result<()> {
        for round in 0..6 {
            let slot = round % self.workers.size();
            let id = self.fault(FaultKind::LostReply, Some(self.workers.worker(slot)), None);
            let before = self.replies_lost(slot);
            let then = if round % 2 == 0 { Then::Silence } else { Then::Close };
            for proxy in self.workers.proxies(slot) {
                drop(proxy.drop_next_reply(then));
            }
            let lease = self.lease();
            tokio::time::sleep((lease / 4).max(Duration::from_millis(50))).await;
            let lost = self.replies_lost(slot) - before;
            self.healed(id, i64::try_from(lost).ok(), (slot, None), Held::Reset)?;
        }
        Ok(())
    }

    pub(super) fn replies_lost(&self, slot: usize) -> u64 {
        self.workers.proxies(slot).iter().map(|proxy| proxy.seen().replies_dropped).sum()
    }

    /// A fault of the connections of one holder, for a while.
    async fn on_one(&mut self, kind: FaultKind, span: Duration, begin: impl Fn(&Self, usize)) -> io::Result<()> {
        let Some(participants) = self.participants(span).await else { return Ok(()) };
        let id = self.fault(kind, Some(participants.holder), None);
        begin(self, participants.slot);
        tokio::time::sleep(span).await;
        self.healed(id, None, (participants.slot, None), Held::Deliver)
    }

    /// Resets the connections of all workers at once, so that all connect again.
    pub(super) fn reconnect(&mut self) -> io::Result<()> {
        let id = self.fault(FaultKind::Reconnect, None, None);
        for slot in 0..self.workers.size() {
            for proxy in self.workers.proxies(slot) {
                proxy.refuse();
                proxy.heal(Held::Deliver)?;
            }
        }
        self.ended(id, None);
        Ok(())
    }

    /// Runs the user's command while a worker holds, and sees whether the lock outlives it. A holder that is `stopped`
    /// meanwhile believes until its lease ends, and cannot renew: a server that forgot it is found for certain, if the
    /// command takes less than the lease.
    async fn command(&mut self, stopped: bool) {
        let lease = self.lease();
        self.rest().await;
        let participants = self.participants(lease * 4).await;
        let Some(mut hook) = self.hook.take() else { return };
        let pause = participants.as_ref().filter(|_| stopped).map(|participants| {
            self.shared.signal(participants.holder, Signal::STOP);
            self.fault(FaultKind::Pause, Some(participants.holder), None)
        });
        let id = self.fault(FaultKind::Command, None, None);
        let holder = match (&participants, &pause) {
            (None, _) => Holder::None,
            (Some(_), Some(_)) => Holder::Stopped,
            (Some(_), None) => Holder::Runs,
        };
        let code = hook.call(self.occasion(holder)).await;
        self.hook = Some(hook);
        self.ended(id, Some(code));
        let (holder, waiter, lock) = participants.map_or((None, None, None), |participants| {
            (Some(participants.holder), Some(participants.waiter), Some(participants.lock))
        });
        // A server that forgot the holder grants the next request. A worker that waits already would look again only
        // when its turn comes.
        for slot in 0..self.workers.size() {
            let w = self.workers.worker(slot);
            if Some(w) != holder && (Some(w) != waiter || self.workers.size() == 2) {
                let lock = lock.clone().unwrap_or_else(|| self.header.locks[0].name.clone());
                self.shared.order(w, Order::Stay { lock, ms: 20 });
            }
        }
        let (Some(holder), Some(lock)) = (holder, lock) else { return };
        let next = |status: &crate::workers::Status| status.other_holder(&lock, holder);
        let bound = if pause.is_some() { lease + lease / 2 } else { lease * 2 + self.takeover() };
        self.shared.until(bound, next).await;
        if let Some(pause) = pause {
            self.shared.signal(holder, Signal::CONT);
            self.ended(pause, None);
        }
    }

    /// When the user's command is called.
    pub(super) fn occasion(&self, holder: Holder) -> Occasion {
        let elapsed = Duration::from_nanos(self.shared.now());
        Occasion { elapsed, phase: self.shared.look(|status| status.phase), holder }
    }

    /// Lets every worker end what it does and ask for nothing more, until it is ordered to.
    async fn rest(&self) {
        let workers: Vec<u32> = (0..self.workers.size()).map(|slot| self.workers.worker(slot)).collect();
        for w in &workers {
            self.shared.order(*w, Order::Rest);
        }
        let idle =
            |status: &crate::workers::Status| workers.iter().all(|w| *status.doing(*w) == Doing::Nothing).then_some(());
        self.shared.until(self.takeover() + self.lease() * 4, idle).await;
    }

    /// Ends the faults between a worker and a server, or all servers.
    pub(super) fn heal(&self, slot: usize, host: Option<usize>, held: Held) -> io::Result<()> {
        let proxies = self.workers.proxies(slot).iter().enumerate();
        let mut healed = proxies.filter(|(number, _)| host.is_none_or(|host| host == *number));
        healed.try_for_each(|(_, proxy)| proxy.heal(held))
    }
}
