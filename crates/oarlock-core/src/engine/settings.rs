//! What a client is told before it starts.

use std::sync::Arc;
use std::time::Duration;

use super::{
    DEFAULT_MAX_WAITERS, DEFAULT_OP_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT, Entropy, Home, MAX_OP_TIMEOUT, check_ttl,
};
use crate::claim::Label;
use crate::clock::{BootClock, Clock};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Observer;

pub(crate) struct Settings {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    pub(crate) entropy: Entropy,
    pub(crate) own_thread: bool,
    pub(crate) home: Option<Home>,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) max_waiters: usize,
    /// `None` = this process.
    pub(crate) label: Option<Label>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clock: Arc::new(BootClock),
            observers: Vec::new(),
            entropy: Entropy::default(),
            own_thread: false,
            home: None,
            ttl: DEFAULT_TTL,
            wait: DEFAULT_WAIT,
            op_timeout: DEFAULT_OP_TIMEOUT,
            max_waiters: DEFAULT_MAX_WAITERS,
            label: None,
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        check_op_timeout(self.op_timeout)?;
        if self.max_waiters == 0 {
            return Err(Error::new(ErrorKind::Config, "max_waiters is at least 1"));
        }
        self.label.as_ref().map_or(Ok(()), Label::check)
    }

    /// The runtime that was asked for; `None` = whichever there is.
    pub(crate) fn take_home(&mut self) -> Result<Option<Home>> {
        match self.home.take() {
            None if self.own_thread => Home::own_thread().map(Some),
            home => Ok(home),
        }
    }
}

fn check_op_timeout(op_timeout: Duration) -> Result<()> {
    if !op_timeout.is_zero() && op_timeout <= MAX_OP_TIMEOUT {
        return Ok(());
    }
    let days = MAX_OP_TIMEOUT.as_secs() / 86_400;
    let message = format!("op_timeout must be greater than 0 and at most {days} days, not {op_timeout:?}");
    Err(Error::new(ErrorKind::Config, message))
}
