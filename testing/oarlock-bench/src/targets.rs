//! What the loads run on: locks, the raw driver and the baseline of one store.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock::driver::{DEFAULT_WAIT, Info};
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Locks, Mutex, Result};
use tokio::sync::mpsc;

use crate::baseline::{Baseline, Rival, open_baseline};
use crate::pairs::Who;
use crate::raw_driver::RawDriver;

/// How long the store may take to close a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks, and what they are compared with.
pub struct Targets {
    url: Url,
    locks: Locks,
    fair: bool,
    wait: Duration,
    /// The requests of the driver alone, once [`compare`](Self::compare) has opened it.
    pub raw_driver: Option<Arc<dyn Baseline>>,
    /// The fewest requests to the store.
    pub baseline: Option<Arc<dyn Baseline>>,
    /// Locks over HTTP; none unless they are put here.
    pub http: Option<Arc<dyn Baseline>>,
    stop: Stop,
    /// Every task has one; when all are gone, so is everything that they held.
    alive: mpsc::Sender<()>,
    gone: mpsc::Receiver<()>,
}

/// Tells all tasks to finish what they have begun, and no more: nothing is cut off between taking and giving back.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether to finish.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Targets {
    /// Connects locks, and nothing to compare them with. No load runs for longer than `duration`.
    ///
    /// # Errors
    /// As [`oarlock::connect`].
    pub async fn connect(url: Url, duration: Duration, fair: bool) -> Result<Self> {
        let mut label = oarlock::Label::of_this_process();
        label.reason = Some("bench".to_owned());
        let locks = oarlock::builder(url.clone()).label(label).connect().await?;
        let (alive, gone) = mpsc::channel(1);
        // A contender that starves is to be shown, not to give up.
        let wait = duration + DEFAULT_WAIT;
        Ok(Self {
            url,
            locks,
            fair,
            wait,
            raw_driver: None,
            baseline: None,
            http: None,
            stop: Stop::default(),
            alive,
            gone,
        })
    }

    /// Opens the raw driver and the baseline. What cannot be opened is left out: the figures of locks are worth having
    /// without it.
    pub async fn compare(&mut self, missing: impl Fn(Error)) {
        self.raw_driver = RawDriver::open(self.url.clone()).await.map_err(&missing).ok();
        self.baseline = open_baseline(&self.url).await.map_err(&missing).ok().flatten();
    }

    /// Opens the baseline, unless it is open.
    ///
    /// # Errors
    /// As [`open_baseline`].
    pub async fn need_baseline(&mut self) -> Result<()> {
        if self.baseline.is_none() {
            self.baseline = open_baseline(&self.url).await?;
        }
        Ok(())
    }

    /// What locks are compared with, as far as it is open, in the order in which it is shown.
    pub fn others(&self) -> impl Iterator<Item = (Who, &Arc<dyn Baseline>)> {
        let all = [(Who::Driver, &self.raw_driver), (Who::Baseline, &self.baseline), (Who::Http, &self.http)];
        all.into_iter().filter_map(|(who, other)| Some((who, other.as_ref()?)))
    }

    /// The store, without secrets.
    #[must_use]
    pub fn info(&self) -> &Info {
        self.locks.info()
    }

    /// The lock called `name`.
    pub fn lock(&self, name: &str) -> Mutex {
        let lock = self.locks.mutex(name).wait(self.wait);
        if self.fair { lock.fair() } else { lock }
    }

    /// Rivals that pass `name` on, each on a connection of its own; none where the store has no plain way.
    ///
    /// # Errors
    /// When a connection cannot be opened.
    pub async fn rivals(&self, name: &Arc<str>, count: u32) -> Result<Vec<Arc<dyn Rival>>> {
        let mut rivals = Vec::new();
        let Some(baseline) = &self.baseline else { return Ok(rivals) };
        for _ in 0..count {
            rivals.extend(baseline.clone().rival(name.clone()).await?);
        }
        Ok(rivals)
    }

    /// How many requests the store has served so far, if it counts them.
    pub async fn calls(&self) -> Option<u64> {
        self.baseline.clone()?.calls().await.ok().flatten()
    }

    /// What tells the tasks of a load to finish.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Runs all of this at once, to the end of each.
    ///
    /// # Errors
    /// The first that one of them returns.
    ///
    /// # Cancel safety
    /// Dropped, it leaves them to [`close`](Self::close).
    pub async fn all<T: Send + 'static>(
        &self,
        work: impl IntoIterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
    ) -> Result<Vec<T>> {
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
            all.push(task.await.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))??);
        }
        Ok(all)
    }

    /// Stops all tasks, and closes all connections.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the store does not answer in time; any error that it returns.
    pub async fn close(self) -> Result<()> {
        let Self { locks, raw_driver, baseline, http, stop, alive, mut gone, .. } = self;
        let closing = async {
            stop.0.store(true, Ordering::Relaxed);
            drop(alive);
            // Nothing is ever sent: this is the end of the last task.
            let _ = gone.recv().await;
            locks.shutdown(PATIENCE).await?;
            for other in raw_driver.into_iter().chain(baseline).chain(http) {
                other.close().await?;
            }
            Ok(())
        };
        let late = |_| Error::unreachable("the connections could not be closed in time");
        tokio::time::timeout(PATIENCE * 3, closing).await.unwrap_or_else(|error| Err(late(error)))
    }
}
