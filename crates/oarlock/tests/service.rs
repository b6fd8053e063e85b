//! Tests a service with the memory store: the service must stop when it loses its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock::testing::Memory;
use oarlock::testing::TokioClock;
use oarlock::{ErrorKind, Locks, Result};

/// The service: sends what is in the outbox, on one machine of many at a time.
struct Outbox {
    locks: Locks,
    sent: Arc<AtomicU32>,
}

impl Outbox {
    /// On the store's clock, which is tokio's here: a test can let time pass without waiting.
    fn on(line: Memory) -> Result<Self> {
        let clock = line.kit().clock();
        Ok(Self { locks: Locks::builder(line).clock(clock).build()?, sent: Arc::default() })
    }

    /// Sends until it is told to stop (by dropping the future) or loses its lock.
    async fn run(&self) -> Result<()> {
        let guard = self.locks.mutex("outbox").wait_forever().lock().await?;
        let send = async {
            loop {
                self.sent.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        guard.with(|_held| send).await
    }
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_its_lock_is_taken_away() -> Result<()> {
    let store = Memory::on(Arc::new(TokioClock::new()));
    let service = Outbox::on(store.connect())?;
    let sent = service.sent.clone();
    let running = tokio::spawn(async move { service.run().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(sent.load(Ordering::SeqCst) > 0, "it never started");

    store.kit().lose("outbox")?;

    let ended = tokio::time::timeout(Duration::from_secs(30), running).await;
    let ended = ended.ok().and_then(std::result::Result::ok);
    assert_eq!(ended.map(|ended| ended.map_err(|error| error.kind())), Some(Err(ErrorKind::Lost)));
    let at_the_end = sent.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sent.load(Ordering::SeqCst), at_the_end, "it went on without its lock");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_has_stopped_before_another_can_start_when_the_store_is_out_of_reach() -> Result<()> {
    let store = Memory::on(Arc::new(TokioClock::new()));
    let line = store.connect();
    let kit = line.kit();
    let service = Outbox::on(line)?;
    let sent = service.sent.clone();
    let running = tokio::spawn(async move { service.run().await });
    tokio::time::sleep(Duration::from_millis(100)).await;

    kit.cut();

    // Another machine: the moment it is granted the lock, the first must have stopped.
    let rival = Outbox::on(store.connect())?;
    let lock = rival.locks.mutex("outbox").wait_forever().lock().await?;
    let when_granted = sent.load(Ordering::SeqCst);
    assert!(running.is_finished(), "two at once");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sent.load(Ordering::SeqCst), when_granted, "it went on without its lock");
    lock.release().await?;
    Ok(())
}
