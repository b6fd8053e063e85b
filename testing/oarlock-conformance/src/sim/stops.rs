//! A process that is stopped alone, and what it believes when it goes on.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use oarlock_core::Held;
use oarlock_core::clock::{Clock, Moment, TokioClock};
use oarlock_core::engine::StopSwitch;

use super::connection::lock;

/// When one process was stopped, and the holds that it has.
pub(super) struct Stops {
    pub(super) switch: StopSwitch,
    clock: TokioClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    since: Option<Moment>,
    /// From then to then.
    spans: Vec<(Moment, Moment)>,
    holds: Vec<Weak<Belief>>,
}

/// What a process believes of one hold.
struct Belief {
    held: Held,
    /// When it ended, if the process noticed only when it went on.
    ended: Mutex<Option<Moment>>,
}

impl Belief {
    /// A stopped process believes nothing. If it does not believe when it goes on, belief has ended with the stop.
    fn ask(&self, stopped: Moment) {
        if !self.held.is_held() {
            lock(&self.ended).get_or_insert(stopped);
        }
    }
}

/// One hold, until it is written down.
#[derive(Clone)]
pub(super) struct Believed {
    belief: Arc<Belief>,
    stops: Arc<Stops>,
}

impl Believed {
    /// When belief ended, if that was while the process was stopped.
    pub(super) fn ended(&self) -> Option<Moment> {
        // A task of another process may hold what this one has adopted.
        if let Some(since) = lock(&self.stops.state).since {
            self.belief.ask(since);
        }
        *lock(&self.belief.ended)
    }
}

impl Stops {
    pub(super) fn new(clock: TokioClock) -> Self {
        Self { switch: StopSwitch::default(), clock, state: Mutex::default() }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).since = Some(self.clock.now());
        self.switch.stop();
    }

    /// Before anything of it runs, every hold is asked whether it is still believed in: that is all that a program can do
    /// which was stopped between two of its steps.
    pub(super) fn go_on(&self) {
        {
            let mut state = lock(&self.state);
            let Some(since) = state.since.take() else { return };
            state.holds.retain(|hold| hold.upgrade().inspect(|belief| belief.ask(since)).is_some());
            state.spans.push((since, self.clock.now()));
        }
        self.switch.go_on();
    }

    pub(super) fn watch(self: &Arc<Self>, held: &Held) -> Believed {
        let belief = Arc::new(Belief { held: held.clone(), ended: Mutex::new(None) });
        lock(&self.state).holds.push(Arc::downgrade(&belief));
        Believed { belief, stops: self.clone() }
    }

    /// As [`watch`](Self::watch), where a task of another process has the hold, which may be stopped when this one notices
    /// the loss.
    pub(super) fn watch_for_another(self: &Arc<Self>, held: &Held) -> Believed {
        let believed = self.watch(held);
        let (belief, clock, held) = (Arc::downgrade(&believed.belief), self.clock, held.clone());
        tokio::spawn(async move {
            held.lost().await;
            if let Some(belief) = belief.upgrade() {
                lock(&belief.ended).get_or_insert(clock.now());
            }
        });
        believed
    }

    /// For how long it was stopped between two moments.
    pub(super) fn stopped(&self, from: Moment, to: Moment) -> Duration {
        lock(&self.state).spans.iter().map(|(begun, ended)| (*ended).min(to).since((*begun).max(from))).sum()
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::{Locks, Memory, Runtime};

    use super::*;

    const TTL: Duration = Duration::from_secs(4);

    /// A process, and its clock.
    fn process() -> (Locks, Arc<Stops>, TokioClock) {
        let clock = TokioClock::new();
        let stops = Arc::new(Stops::new(clock));
        let client = Locks::builder_over(Arc::new(Memory::new()))
            .clock(Arc::new(clock))
            .ttl(TTL)
            .runtime(Runtime::here().unwrap().stoppable(stops.switch.clone()))
            .build()
            .unwrap();
        (client, stops, clock)
    }

    /// The belief of a stopped process: over with the stop if its lease ended meanwhile, and not otherwise.
    #[tokio::test(start_paused = true)]
    async fn belief_ends_with_the_stop_only_if_it_is_over_when_the_process_goes_on() {
        let (client, stops, clock) = process();
        let guard = client.mutex("r").lock().await.unwrap();
        let believed = stops.watch(&guard.held());
        stops.stop();
        tokio::time::sleep(TTL / 4).await;
        stops.go_on();
        assert_eq!(believed.ended(), None);
        let since = clock.now();
        stops.stop();
        tokio::time::sleep(TTL * 2).await;
        assert_eq!(believed.ended(), Some(since), "also while it is stopped, where another one asks");
        stops.go_on();
        assert_eq!(believed.ended(), Some(since));
        assert_eq!(stops.stopped(Moment::ZERO, clock.now()), TTL / 4 + TTL * 2);
    }

    /// The task that writes a belief down may be of a process that is stopped: it asks late.
    #[tokio::test(start_paused = true)]
    async fn belief_in_a_hold_that_was_adopted_ends_when_the_adopting_process_loses_it() {
        let (client, stops, clock) = process();
        let guard = client.mutex("r").no_renewal().lock().await.unwrap();
        let granted = clock.now();
        let (own, adopted) = (stops.watch(&guard.held()), stops.watch_for_another(&guard.held()));
        assert_eq!(adopted.ended(), None);
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(own.ended(), None, "its own task notices by itself");
        let ended = adopted.ended().expect("it was lost");
        assert!(ended <= granted + TTL, "{:?} after the grant", ended.since(granted));
    }
}
