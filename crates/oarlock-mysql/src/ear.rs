//! Hears when the server goes down. Nobody reads on an idle connection of this protocol, so there is one more on which an answer is
//! always awaited, and never comes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mysql_async::prelude::Queryable as _;
use oarlock_session::Mailbox;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::session::dial_patient;

/// The server looks every few seconds whether its client is still there.
const WAIT: &str = "DO SLEEP(31536000)";

/// Listens as long as this is kept, and anew whenever that is asked for.
#[derive(Debug)]
pub(crate) struct Ear {
    config: Config,
    mailbox: Mailbox,
    runtime: Handle,
    task: Mutex<Option<AbortHandle>>,
    /// The last try to listen failed.
    deaf: Arc<AtomicBool>,
}

impl Ear {
    pub(crate) fn new(config: Config, mailbox: Mailbox, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { config, mailbox, runtime, task: Mutex::default(), deaf: Arc::default() })
    }

    /// Where the connections live.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Listens, unless it does already.
    pub(crate) fn listen(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let hear = hear(self.config.clone(), self.mailbox.clone(), self.deaf.clone());
            *task = Some(self.runtime.spawn(hear).abort_handle());
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

async fn hear(config: Config, mailbox: Mailbox, deaf: Arc<AtomicBool>) {
    match tokio::time::timeout(config.connect_timeout, dial_patient(&config)).await {
        Ok(Ok(mut conn)) => {
            deaf.store(false, Ordering::Release);
            let _ = conn.query_drop(WAIT).await;
        }
        // The server may have gone before anybody listened. Where there is just no connection to be had, one look is enough: the
        // next renewal tries to listen again.
        _ if deaf.swap(true, Ordering::AcqRel) => return,
        _ => {}
    }
    mailbox.ring();
}
