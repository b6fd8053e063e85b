//! The settings of a client.

use std::sync::Arc;
use std::time::Duration;

use super::{
    DEFAULT_MAX_WAITERS, DEFAULT_OP_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT, Entropy, MAX_OP_TIMEOUT, Runtime, check_ttl,
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
    pub(crate) runtime: Option<Runtime>,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) op_timeout: Duration,
    pub(crate) max_waiters: usize,
    /// Whether lock names are labels of metrics.
    pub(crate) names_in_metrics: bool,
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
            runtime: None,
            ttl: DEFAULT_TTL,
            wait: DEFAULT_WAIT,
            op_timeout: DEFAULT_OP_TIMEOUT,
            max_waiters: DEFAULT_MAX_WAITERS,
            names_in_metrics: false,
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

    /// The requested runtime; `None` = the caller's, if there is one.
    pub(crate) fn take_runtime(&mut self) -> Result<Option<Runtime>> {
        match self.runtime.take() {
            None if self.own_thread => Runtime::own_thread().map(Some),
            runtime => Ok(runtime),
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
