//! From a URL to locks.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::registry::{self, Opening};
use crate::url::Url;
use crate::{Client, Error, Home, Label, Observer, Result};

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
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that makes no sense or a driver that this build does
    /// not have; what the store says.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder(url)?.connect().await
    }

    /// Connects to the store behind `url`, with choices.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a URL that makes no sense.
    pub fn builder(url: impl AsRef<str>) -> Result<Connect> {
        Ok(Connect::to(Url::parse(url.as_ref())?))
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

/// Choices for [`Locks`]. What is said here goes before what the URL says.
#[must_use = "call connect()"]
pub struct Connect {
    url: Url,
    own_thread: bool,
    home: Option<Home>,
    label: Option<Label>,
    observers: Vec<Box<dyn Observer>>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    op_timeout: Option<Duration>,
    max_waiters: Option<usize>,
    opening: Opening,
}

impl Connect {
    /// A connection to this URL.
    pub fn to(url: Url) -> Self {
        Self {
            url,
            own_thread: false,
            home: None,
            label: None,
            observers: Vec::new(),
            ttl: None,
            wait: None,
            op_timeout: None,
            max_waiters: None,
            opening: Opening::default(),
        }
    }

    /// Renews on a thread of its own, which a busy runtime cannot hold up.
    pub fn own_thread(mut self, own_thread: bool) -> Self {
        self.own_thread = own_thread;
        self
    }

    /// Where connections live and renewal runs; goes before [`own_thread`](Self::own_thread).
    pub fn home(mut self, home: Home) -> Self {
        self.home = Some(home);
        self
    }

    /// Who asks, for the eyes of others; this process, unless said otherwise.
    pub fn label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Somebody to be told of every step.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// The lease of locks that do not say their own.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The bound on waiting of locks that do not say their own.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// How long one request to the store may take.
    pub fn op_timeout(mut self, op_timeout: Duration) -> Self {
        self.op_timeout = Some(op_timeout);
        self
    }

    /// How many claims of this client may stand in the store's queue for one name; 10,000 unless said otherwise.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.max_waiters = Some(max_waiters);
        self
    }

    /// Whether child processes keep the session of the embedded store alive: a lock then outlives this process for as
    /// long as a child runs, up to its lease.
    pub fn inherit_session(mut self, inherit: bool) -> Self {
        self.opening.inherit_session = inherit;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`Locks::connect`].
    pub async fn connect(self) -> Result<Locks> {
        let home = match self.home {
            None if self.own_thread => Some(Home::own_thread()?),
            home => home,
        };
        let opening = tokio::time::timeout(self.url.connect_timeout(), {
            let (url, opening) = (self.url.clone(), self.opening);
            let home = home.clone();
            async move {
                match home {
                    // Connections belong to the runtime that made them.
                    Some(home) => home.run(registry::open(url, opening)).await?,
                    None => registry::open(url, opening).await,
                }
            }
        });
        let late = || Error::unreachable(format!("no connection to {} in time", self.url)).during("connect");
        let driver = opening.await.unwrap_or_else(|_| Err(late()))?;

        let mut builder = Client::builder_over(driver);
        if let Some(home) = home {
            builder = builder.home(home);
        }
        if let Some(label) = self.label {
            builder = builder.label(label);
        }
        if let Some(ttl) = self.ttl.or(self.url.ttl()) {
            builder = builder.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(wait);
        }
        if let Some(op_timeout) = self.op_timeout.or(self.url.op_timeout()) {
            builder = builder.op_timeout(op_timeout);
        }
        if let Some(max_waiters) = self.max_waiters.or(self.url.max_waiters()) {
            builder = builder.max_waiters(max_waiters);
        }
        for observer in self.observers {
            builder = builder.observer(move |event: &crate::LockEvent| observer.observe(event));
        }
        Ok(Locks { client: builder.build()?, url: self.url })
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect").field("url", &self.url).finish_non_exhaustive()
    }
}
