//! One task of one process, which acquires and holds.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::{Ending, Error, ErrorKind, Held, Result, Slot, Weight};

use super::connection::{Arrivals, lock};
use super::coverage::Faults;
use super::log::{Log, Recorded, Upset};
use super::plan::Plan;
use super::request::{Holding, Request};
use super::world::Process;
use crate::history::Hold;

pub(super) struct Contender {
    pub(super) plan: Plan,
    pub(super) processes: Vec<Process>,
    /// Its own among them.
    pub(super) at: usize,
    pub(super) clock: TokioClock,
    pub(super) log: Arc<Mutex<Log>>,
    pub(super) faults: Arc<Faults>,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) number: u64,
    pub(super) rng: fastrand::Rng,
}

/// The process of this task is dead.
struct Dead;

impl Contender {
    pub(super) async fn work(mut self) {
        for _ in 0..self.plan.rounds {
            let pause = self.span(0.5);
            tokio::time::sleep(pause).await;
            let request = Request::draw(&self.plan, &mut self.rng);
            let name = self.rng.u64(..self.plan.names);
            self.disturb(&format!("r{name}")).await;
            let done = if request == Request::Once {
                self.run_slot(name).await
            } else {
                self.acquire_and_hold(request, name).await
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn process(&self) -> &Process {
        &self.processes[self.at]
    }

    /// A random time, at most so many leases; none where all is brisk.
    fn span(&mut self, most: f64) -> Duration {
        let span = self.plan.ttl.mul_f64(self.rng.f64() * most);
        if self.plan.brisk { Duration::ZERO } else { span }
    }

    fn happens(&mut self, chance: f64, fault: &'static str) -> bool {
        self.rng.f64() < chance && self.faults.may(fault)
    }

    /// Something may happen to the process, or to the lock that it is about to ask for.
    async fn disturb(&mut self, name: &str) {
        let (chances, ttl) = (self.plan.chances.clone(), self.plan.ttl);
        if self.happens(chances.outage, "outage") {
            let span = ttl.mul_f64(self.rng.f64() * 4.0);
            self.process().control.cut(span);
        }
        if self.happens(chances.kill, "killed") {
            self.process().control.kill();
        }
        if self.rng.f64() < chances.broken {
            let grace = if self.rng.bool() { Duration::ZERO } else { ttl.mul_f64(self.rng.f64()) };
            self.break_hold(name, grace).await;
        }
    }

    async fn break_hold(&mut self, name: &str, grace: Duration) {
        let locks = self.process().client.clone();
        let Ok(state) = locks.inspect(name).await else { return };
        let Some((fence, claim)) = state.holders.first().and_then(|holder| Some((holder.fence?, holder.id))) else {
            return;
        };
        if !self.faults.may(if grace.is_zero() { "broken by force" } else { "asked to end" }) {
            return;
        }
        let from = self.clock.now();
        let broken = locks.break_hold(name, fence, Ending::new("operator", "simulated"), grace).await;
        // A request whose answer was given up may still be on its way, for as long as one can be late.
        let late = if broken.is_ok() { Duration::ZERO } else { self.plan.ttl * 4 };
        let until = self.clock.now() + grace + late;
        let claim = Some((name.to_owned(), claim));
        let upset = Upset { claim, ..Upset::of_all(from, until) };
        let mut log = lock(&self.log);
        if self.plan.chances.twice > 0.0 {
            // One that comes again ends what this claim was granted meanwhile, if it had not heard of the first grant.
            let until = until + self.plan.ttl * 2;
            log.upsets.push(Upset { granted_after: from, until, ..upset.clone() });
        }
        log.upsets.push(upset);
    }

    /// Whether the task goes on after this error.
    fn failed(&self, request: Request, error: &Error) -> Result<(), Dead> {
        match error.kind() {
            ErrorKind::Busy => self.faults.note(request.name(), "busy"),
            ErrorKind::Unreachable => self.faults.note(request.name(), "failed"),
            ErrorKind::Lost => self.faults.note(request.name(), "lost"),
            ErrorKind::Closed => return Err(Dead),
            _ => lock(&self.log).complaints.push(format!("an error that should not be: {error}")),
        }
        Ok(())
    }

    /// Finishes, or is dropped at some await.
    async fn cancelled_or<T>(&mut self, acquiring: impl Future<Output = T>) -> Option<T> {
        let cancelled = self.rng.f64() < self.plan.chances.cancel && self.faults.is_left();
        let polls_left = if cancelled { self.rng.u32(..12) } else { u32::MAX };
        let done = DropAt { future: Box::pin(acquiring), polls_left }.await;
        if done.is_none() {
            self.faults.may("dropped at an await");
        }
        done
    }

    async fn acquire_and_hold(&mut self, request: Request, name: u64) -> Result<(), Dead> {
        let asked = self.clock.now();
        let wait = self.plan.ttl.mul_f64(self.rng.f64() * 4.0);
        let bound = self.plan.ttl.mul_f64(0.2 + self.rng.f64());
        let others = if request == Request::Several { self.plan.names } else { 1 };
        let names = (0..others).map(|other| format!("r{}", (name + other) % self.plan.names)).collect();
        let taking = request.take(self.process().client.clone(), names, wait, bound);
        match self.cancelled_or(taking).await {
            Some(Ok(Some(holding))) => self.hold(request, asked, bound, holding).await,
            Some(Ok(None)) => self.faults.note(request.name(), "busy"),
            Some(Err(error)) => return self.failed(request, &error),
            None => {}
        }
        Ok(())
    }

    async fn hold(&mut self, request: Request, asked: Moment, bound: Duration, mut holding: Holding) {
        self.faults.note(request.name(), "granted");
        let helds = holding.helds();
        {
            let mut log = lock(&self.log);
            for held in &helds {
                if !log.held.insert(held.id()) && request == Request::Cohort {
                    self.faults.note(request.name(), "handed on");
                }
                if request == Request::Lease {
                    log.ends_by_itself.insert(held.id());
                }
            }
        }
        let granted = self.clock.now();
        let mut records: Vec<_> = still_believed(&helds).map(|held| self.recorder(request, asked)(held)).collect();
        if self.stay(request, &holding).await {
            let slept = lock(&self.log).suspended(granted, self.clock.now());
            let slept = slept + self.process().stops.stopped(granted, self.clock.now());
            // Timers have milliseconds, and a suspension may begin just before one fires.
            let most = bound.mul_f64(1.02) + Duration::from_millis(2);
            if request == Request::Bounded && self.clock.now() > granted + most + slept {
                lock(&self.log).complaints.push("a hold was believed in for longer than its bound".to_owned());
            }
            return;
        }
        match (request, holding) {
            (Request::Leader, Holding::Leader(mut leader)) => {
                // Its answer may be lost; whether it is there is another test's.
                let _ = while_held(&helds[0], &mut records, leader.proclaim("two")).await;
                holding = Holding::Leader(leader);
            }
            (Request::Downgrade, Holding::Write(guard)) => {
                records = self.continue_as(&mut records, Weight::ONE, &helds[0]);
                let downgrading = guard.downgrade();
                let Ok(guard) = while_held(&helds[0], &mut records, downgrading).await else { return };
                holding = Holding::Guard(guard);
            }
            (Request::HandOver, Holding::Guard(guard)) => {
                let handed = guard.hand_over();
                let holds: Vec<_> = records.drain(..).map(|record| record.hold.clone()).collect();
                let Ok(ticket) = handed else { return };
                let other = self.rng.usize(..self.processes.len());
                let Ok(guard) = self.processes[other].client.adopt(&ticket).await else {
                    self.faults.note(request.name(), "not adopted");
                    return;
                };
                self.faults.note(request.name(), "adopted");
                let adopted = guard.held();
                let believed = || self.processes[other].stops.watch_for_another(&adopted);
                records = holds
                    .into_iter()
                    .map(|hold| Recorded::continues(&self.log, self.clock, hold, believed()))
                    .collect();
                holding = Holding::Guard(guard);
            }
            (_, other) => holding = other,
        }
        self.stay(request, &holding).await;
        records.clear();
        if self.rng.bool() {
            drop(holding);
        } else {
            holding.release().await;
        }
    }

    /// Ends these holds and begins others of this weight, with the same fences.
    fn continue_as(&self, records: &mut Vec<Recorded>, weight: Weight, held: &Held) -> Vec<Recorded> {
        let holds: Vec<_> = records.drain(..).map(|record| Hold { weight, ..record.hold.clone() }).collect();
        let believed = || self.process().stops.watch(held);
        holds.into_iter().map(|hold| Recorded::continues(&self.log, self.clock, hold, believed())).collect()
    }

    /// Holds for a while; whether the lock was lost.
    async fn stay(&mut self, request: Request, holding: &Holding) -> bool {
        let stay = self.span(1.5);
        let lost = tokio::select! {
            biased;
            () = holding.lost() => true,
            () = tokio::time::sleep(stay) => false,
        };
        if lost {
            self.faults.note(request.name(), "lost");
        }
        lost
    }

    /// Runs the next slot of a name, which other tasks run as well.
    async fn run_slot(&mut self, name: u64) -> Result<(), Dead> {
        let asked = self.clock.now();
        let wait = self.plan.ttl.mul_f64(self.rng.f64() * 4.0);
        let stay = self.span(1.0);
        let name = format!("r{name}");
        // A slot of every lease: several tasks come with the same one.
        let slot = asked.as_nanos() / u64::try_from(self.plan.ttl.as_nanos()).unwrap_or(u64::MAX);
        let once = self.process().client.once(&name).wait(wait);
        let (log, faults) = (self.log.clone(), self.faults.clone());
        let record = self.recorder(Request::Once, asked);
        let running = async move {
            let number = slot.to_string();
            let work = |held: Held| async move {
                faults.note(Request::Once.name(), "granted");
                *lock(&log).ran.entry((name, slot)).or_default() += 1;
                let _record = record(&held);
                tokio::time::sleep(stay).await;
                Ok::<(), Error>(())
            };
            once.run(&number, work).await
        };
        match self.cancelled_or(running).await {
            Some(Ok(Slot::AlreadyDone { .. })) => self.faults.note(Request::Once.name(), "already done"),
            Some(Err(error)) => return self.failed(Request::Once, &error),
            _ => {}
        }
        Ok(())
    }

    /// Writes down a hold from now on.
    fn recorder(&self, request: Request, asked: Moment) -> impl FnOnce(&Held) -> Recorded + use<> {
        let (log, clock, owner, arrivals) = (self.log.clone(), self.clock, self.number, self.arrivals.clone());
        let stops = self.process().stops.clone();
        // The tasks of a cohort hand one claim on.
        let ordered = self.plan.is_orderly() && request != Request::Cohort;
        move |held| {
            let (resource, fence, granted) = (held.resource().as_str().to_owned(), held.fence(), clock.now());
            let (weight, capacity) = (request.weight(), request.capacity());
            lock(&log).claim_of.insert((resource.clone(), fence), held.id());
            let queued = arrivals.number(held.id()).filter(|_| ordered);
            let hold = Hold { resource, owner, weight, capacity, fence, asked, granted, ended: granted, queued };
            Recorded { log, clock, hold, belief: stops.watch(held) }
        }
    }
}

/// What the task believes in that was granted these. Its process may have been stopped between the grants and the task, for
/// longer than a lease.
fn still_believed(granted: &[Held]) -> impl Iterator<Item = &Held> {
    granted.iter().filter(|held| held.is_held())
}

/// Waits for `work`. The holds end when the lock is lost meanwhile.
async fn while_held<T>(held: &Held, records: &mut Vec<Recorded>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        _ = held.lost() => records.clear(),
        done = &mut work => return done,
    }
    work.await
}

/// Drops a future when it has been pending so many times: a cancellation at any await.
struct DropAt<F> {
    future: Pin<Box<F>>,
    polls_left: u32,
}

impl<F: Future> Future for DropAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if let Poll::Ready(done) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if self.polls_left == 0 {
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::{Locks, Memory};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_was_lost_before_its_task_ran_is_no_belief() {
        let ttl = Duration::from_secs(4);
        let builder = Locks::builder_over(Arc::new(Memory::new())).clock(Arc::new(TokioClock::new())).ttl(ttl);
        let client = builder.build().unwrap();
        let (short, long) = (client.mutex("a").no_renewal(), client.mutex("b").ttl(ttl * 9).no_renewal());
        let guards = [short.lock().await.unwrap(), long.lock().await.unwrap()];
        let granted = guards.each_ref().map(oarlock_core::Guard::held);
        assert_eq!(still_believed(&granted).count(), 2);
        tokio::time::sleep(ttl * 2).await;
        assert_eq!(still_believed(&granted).map(Held::id).collect::<Vec<_>>(), [granted[1].id()]);
    }
}
