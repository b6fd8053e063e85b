//! rslock, on one server or several.

use std::time::{Duration, Instant};

use crate::peer::{Client, Lock, Loss, Refusal};
use rslock::{LockError, LockManager};

/// The library's own: a pause is anything from nothing to this.
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub struct Rslock {
    manager: LockManager,
}

impl Rslock {
    pub fn connect(urls: &str) -> Self {
        Self { manager: LockManager::new(urls.split(',').collect::<Vec<_>>()) }
    }
}

impl Client for Rslock {
    type Lock = RslockLock;

    fn version(&self) -> String {
        "0.10.0".to_owned()
    }

    async fn lock(&self, kind: &str, name: &str) -> Result<RslockLock, Refusal> {
        if kind != "mutex" {
            return Err(Refusal::Cannot(format!("rslock has no {kind} lock")));
        }
        Ok(RslockLock { manager: self.manager.clone(), name: name.to_owned(), hold: None })
    }
}

pub struct RslockLock {
    manager: LockManager,
    name: String,
    hold: Option<(rslock::Lock, Instant)>,
}

impl Lock for RslockLock {
    async fn acquire(&mut self, lease: Duration, wait: Duration, _: bool) -> Result<bool, Refusal> {
        let tries = 1 + wait.as_millis() / (RETRY_DELAY / 2).as_millis();
        self.manager.set_retry(u32::try_from(tries)?, RETRY_DELAY);
        let start = Instant::now();
        match self.manager.lock(self.name.as_bytes(), lease).await {
            Ok(lock) => {
                self.hold = Some((lock, start + lease));
                Ok(true)
            }
            Err(LockError::Unavailable) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn loss(&mut self) -> Result<Option<Loss>, Refusal> {
        let over = self.hold.as_ref().is_none_or(|(_, end)| Instant::now() > *end);
        Ok(over.then(|| "its lease ran out".to_owned()))
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        if let Some((lock, _)) = self.hold.take() {
            self.manager.unlock(&lock).await;
        }
        Ok(None)
    }
}
