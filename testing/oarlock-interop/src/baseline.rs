//! The baseline of a store as a peer: the fewest raw requests, to compare locks with. Not a lock.

use std::sync::Arc;
use std::time::Duration;

use oarlock_bench::{Rival, open_baseline};

use crate::peer::{Client, Lock, Loss, Refusal};

/// The baseline of a store.
pub struct Baseline {
    baseline: Arc<dyn oarlock_bench::Baseline>,
}

impl Baseline {
    /// Connects to `url`.
    ///
    /// # Errors
    /// If the store has no baseline.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let baseline = open_baseline(&oarlock::url::parse(url)?).await?;
        Ok(Self { baseline: baseline.ok_or_else(|| anyhow::anyhow!("there is no baseline for {url}"))? })
    }
}

impl Client for Baseline {
    type Lock = Raw;

    fn version(&self) -> String {
        "this".to_owned()
    }

    async fn lock(&self, kind: &str, name: &str) -> Result<Raw, Refusal> {
        match kind {
            "pair" => Ok(Raw::Pair { baseline: self.baseline.clone(), name: name.into() }),
            "rival" => match self.baseline.clone().rival(name.into()).await? {
                Some(rival) => Ok(Raw::Rival(rival)),
                None => Err(Refusal::Cannot("this baseline has no hand-off".to_owned())),
            },
            other => Err(Refusal::Cannot(format!("a baseline has no {other} lock"))),
        }
    }
}

/// One contender of several that hand a token on, or one alone.
pub enum Raw {
    /// Acquire and release are one call; `release` does nothing.
    Pair {
        /// The baseline.
        baseline: Arc<dyn oarlock_bench::Baseline>,
        /// The name.
        name: Arc<str>,
    },
    /// Waits for the token, and passes it on.
    Rival(Arc<dyn Rival>),
}

impl Lock for Raw {
    async fn acquire(&mut self, _: Duration, _: Duration, _: bool) -> Result<bool, Refusal> {
        match self {
            Self::Pair { baseline, name } => baseline.clone().pair(name.clone()).await?,
            Self::Rival(rival) => rival.clone().take().await?,
        }
        Ok(true)
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        if let Self::Rival(rival) = self {
            rival.clone().give().await?;
        }
        Ok(None)
    }
}
