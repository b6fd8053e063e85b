//! What the loads stand on: our locks, the driver without the engine, and the floor of the store.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock::driver::DEFAULT_WAIT;
use oarlock::floor::{Floor, Rival};
use oarlock::{Locks, Mutex};
use tokio::sync::mpsc;

use crate::bench::plan::Plan;
use crate::exit::{Code, Failure};
use crate::store::Store;

/// How long the store may take to hear that we are done.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Ground {
    locks: Locks,
    fair: bool,
    wait: Duration,
    pub(crate) bare: Option<Arc<dyn Floor>>,
    pub(crate) floor: Option<Arc<dyn Floor>>,
    stop: Stop,
    /// Every task has one; when all are gone, so is everything that they held.
    alive: mpsc::Sender<()>,
    gone: mpsc::Receiver<()>,
}

/// Tells all tasks to finish what they have begun, and no more: nothing is cut off between taking and giving back.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Ground {
    /// Our locks alone.
    pub(crate) async fn ours(plan: &Plan) -> Result<Self, Failure> {
        let mut label = oarlock::Label::of_this_process();
        label.reason = Some("bench".to_owned());
        let locks = oarlock::builder(plan.store.url.clone()).label(label).connect().await?;
        let (alive, gone) = mpsc::channel(1);
        // Whoever starves is to be shown, not to give up.
        let wait = plan.duration + DEFAULT_WAIT;
        Ok(Self { locks, fair: plan.fair, wait, bare: None, floor: None, stop: Stop::default(), alive, gone })
    }

    /// Our locks, and what they are compared with.
    pub(crate) async fn open(plan: &Plan) -> Result<Self, Failure> {
        let mut ground = Self::ours(plan).await?;
        let Store { url, words, .. } = &plan.store;
        // Without something to compare with, our own figures are still worth having.
        let missing = |error: oarlock::Error| words.warning(&format!("nothing to compare with: {error}"));
        ground.bare = oarlock::floor::bare_of(url.clone()).await.map_err(missing).ok();
        ground.floor = oarlock::floor::floor_of(url.clone()).await.map_err(missing).ok().flatten();
        Ok(ground)
    }

    /// The store, without secrets.
    pub(crate) fn info(&self) -> &oarlock::driver::Info {
        self.locks.info()
    }

    pub(crate) fn lock(&self, name: &str) -> Result<Mutex, Failure> {
        let lock = self.locks.mutex(name).wait(self.wait);
        Ok(if self.fair { lock.fair() } else { lock })
    }

    /// Those who pass `name` on without us, each on a connection of its own; none where the store has no plain way.
    pub(crate) async fn rivals(&self, name: &Arc<str>, count: u32) -> Result<Vec<Arc<dyn Rival>>, Failure> {
        let mut rivals = Vec::new();
        let Some(floor) = &self.floor else { return Ok(rivals) };
        for _ in 0..count {
            rivals.extend(floor.clone().rival(name.clone()).await?);
        }
        Ok(rivals)
    }

    /// How many requests the store has served so far, if it says.
    pub(crate) async fn calls(&self) -> Option<u64> {
        self.floor.clone()?.calls().await.ok().flatten()
    }

    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Runs all of this at once, to the end of each. Dropped, it leaves them to [`close`](Self::close).
    pub(crate) async fn all<T: Send + 'static>(
        &self,
        work: impl IntoIterator<Item = impl Future<Output = oarlock::Result<T>> + Send + 'static>,
    ) -> Result<Vec<T>, Failure> {
        let mut tasks = Vec::new();
        for one in work {
            let alive = self.alive.clone();
            tasks.push(tokio::spawn(async move {
                let done = one.await;
                drop(alive);
                done
            }));
        }
        let mut all = Vec::with_capacity(tasks.len());
        for task in tasks {
            all.push(task.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))??);
        }
        Ok(all)
    }

    /// Lets go of everything.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        let Self { locks, bare, floor, stop, alive, mut gone, .. } = self;
        let closing = async {
            stop.0.store(true, Ordering::Relaxed);
            drop(alive);
            // Nothing is ever sent: this is the end of the last task.
            let _ = gone.recv().await;
            locks.shutdown(PATIENCE).await?;
            for floor in bare.into_iter().chain(floor) {
                floor.close().await?;
            }
            Ok(())
        };
        let late = |_| Failure::new(Code::Unreachable, "the store did not let us go in time");
        tokio::time::timeout(PATIENCE * 3, closing).await.unwrap_or_else(|error| Err(late(error)))
    }
}
