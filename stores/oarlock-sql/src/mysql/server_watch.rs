//! Notices when the server goes down. A MySQL client does not notice that an idle connection was closed, so one more
//! connection always waits for a reply that never comes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::session::Mailbox;
use mysql_async::prelude::Queryable as _;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::mysql::config::Config;
use crate::mysql::session::dial_patient;
use crate::route::Host;

/// The server looks every few seconds whether its client is still there.
const WAIT: &str = "DO SLEEP(31536000)";

/// How long the first pause is before a connection is tried again, and how long a pause becomes. After each try holders
/// ask the server.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Watches as long as this is kept, and again whenever `listen` is called.
#[derive(Debug)]
pub(crate) struct ServerWatch {
    config: Config,
    mailbox: Mailbox,
    runtime: Handle,
    task: Mutex<Option<AbortHandle>>,
}

impl ServerWatch {
    pub(crate) fn new(config: Config, mailbox: Mailbox, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { config, mailbox, runtime, task: Mutex::default() })
    }

    /// Whether it watches this server.
    pub(crate) fn is_of(&self, host: &Host) -> bool {
        self.config.route().current() == host
    }

    /// Where the connections live.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Starts to watch, unless it does already.
    pub(crate) fn listen(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let listening = listen(self.config.clone(), self.mailbox.clone());
            *task = Some(self.runtime.spawn(listening).abort_handle());
        }
    }
}

impl Drop for ServerWatch {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

async fn listen(config: Config, mailbox: Mailbox) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Ok(Ok(mut conn)) = tokio::time::timeout(config.connect_timeout, dial_patient(&config)).await {
            // The server may have restarted before this connection was open: holders ask once.
            mailbox.notify();
            let _ = conn.query_drop(WAIT).await;
            mailbox.notify();
            return;
        }
        // A server that goes down refuses new connections before it ends the others: a holder that asks in between is
        // answered. So one notification is not enough.
        mailbox.notify();
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
