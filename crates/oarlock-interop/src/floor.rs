//! The floor of a store as a peer: the fewest raw requests, to measure locks against. Not a lock.

use std::sync::Arc;
use std::time::Duration;

use oarlock::floor::{Floor, Rival};
use oarlock::url::Url;

use crate::peer::{Client, Lock, Loss, Refusal};

/// The floor beneath a URL.
pub struct Ground {
    floor: Arc<dyn Floor>,
}

impl Ground {
    /// Connects to `url`.
    ///
    /// # Errors
    /// Where the store has no floor.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let floor = oarlock::floor::floor_of(Url::parse(url)?).await?;
        Ok(Self { floor: floor.ok_or_else(|| anyhow::anyhow!("there is nothing beneath {url}"))? })
    }
}

impl Client for Ground {
    type Lock = Raw;

    fn version(&self) -> String {
        "this".to_owned()
    }

    async fn lock(&self, kind: &str, name: &str) -> Result<Raw, Refusal> {
        match kind {
            "pair" => Ok(Raw::Pair { floor: self.floor.clone(), name: name.into() }),
            "rival" => match self.floor.clone().rival(name.into()).await? {
                Some(rival) => Ok(Raw::Rival(rival)),
                None => Err(Refusal::Cannot("this store passes nothing on".to_owned())),
            },
            other => Err(Refusal::Cannot(format!("a floor has no {other} lock"))),
        }
    }

    async fn force_unlock(&self, _: &str) -> Result<bool, Refusal> {
        Err(Refusal::Cannot("a floor locks nothing".to_owned()))
    }
}

/// One of several who pass something on, or somebody alone.
pub enum Raw {
    /// Acquire and release are one call; the release is then nothing.
    Pair {
        /// Where.
        floor: Arc<dyn Floor>,
        /// What.
        name: Arc<str>,
    },
    /// Waits for the token, and passes it on.
    Rival(Arc<dyn Rival>),
}

impl Lock for Raw {
    async fn acquire(&mut self, _: Duration, _: Duration, _: bool) -> Result<bool, Refusal> {
        match self {
            Self::Pair { floor, name } => floor.clone().pair(name.clone()).await?,
            Self::Rival(rival) => rival.clone().take().await?,
        }
        Ok(true)
    }

    fn fence(&self) -> Option<u64> {
        None
    }

    async fn again(&mut self) -> Result<bool, Refusal> {
        Err(Refusal::Cannot("a floor has no owners".to_owned()))
    }

    async fn loss(&mut self) -> Result<Option<Loss>, Refusal> {
        Ok(None)
    }

    async fn release(&mut self) -> Result<Option<Loss>, Refusal> {
        if let Self::Rival(rival) = self {
            rival.clone().give().await?;
        }
        Ok(None)
    }
}
