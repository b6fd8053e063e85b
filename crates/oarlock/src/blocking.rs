//! Locks for code that blocks; see [`oarlock_core::blocking`].
//!
//! ```
//! # fn main() -> oarlock::Result<()> {
//! let locks = oarlock::blocking::Locks::connect("mem:")?;
//! let guard = locks.mutex("deploy/prod")?.lock()?;
//! assert!(guard.is_held());
//! # Ok(()) }
//! ```

use std::ops::Deref;

pub use oarlock_core::blocking::*;

use crate::locks::Connect;
use crate::url::Url;
use crate::{Home, Result};

/// Locks on the store behind a URL: a [`Client`], and where it came from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Locks {
    client: Client,
    url: Url,
}

impl Locks {
    /// Connects to the store behind `url`, with defaults.
    ///
    /// # Errors
    /// As [`Locks::connect`](crate::Locks::connect).
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::open(crate::Locks::builder(url)?)
    }

    /// Connects with choices; where the background work runs is not one of them.
    ///
    /// # Errors
    /// As [`Locks::connect`](crate::Locks::connect).
    pub fn open(choices: Connect) -> Result<Self> {
        let home = Home::own_thread()?;
        let locks = home.block_on(choices.home(home.clone()).connect())??;
        Ok(Self { client: Client::of(Clone::clone(&*locks))?, url: locks.url().clone() })
    }

    /// Where these locks are.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }
}

impl Deref for Locks {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}
