//! What the engine tells while we do other things.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock::event::Step;
use oarlock::state::Ending;
use oarlock::state::{ClaimId, ResourceName};
use oarlock::{LockEvent, Observer};
use oarlock_core::text;
use tokio::sync::watch;

use crate::messages::Messages;

/// An events on every step. Cheap to clone; every clone is the same events.
#[derive(Clone, Debug)]
pub(crate) struct EngineEvents(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    messages: Messages,
    granted: AtomicBool,
    given_up: AtomicBool,
    renewals: AtomicU64,
    waiting: Mutex<Waiting>,
    ending: watch::Sender<Option<Ending>>,
}

#[derive(Debug, Default)]
struct Waiting {
    ids: HashMap<ResourceName, ClaimId>,
    last: Option<ResourceName>,
    trouble: Option<String>,
    /// Why the last renewal failed, if it did.
    renewal_error: Option<String>,
}

impl EngineEvents {
    pub(crate) fn new(messages: Messages) -> Self {
        let ending = watch::Sender::new(None);
        let (granted, given_up, renewals) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        Self(Arc::new(Inner { messages, granted, given_up, renewals, waiting: Mutex::default(), ending }))
    }

    /// Whether the store granted a lock to this process.
    pub(crate) fn has_granted(&self) -> bool {
        self.0.granted.load(Ordering::Acquire)
    }

    /// Whether the store failed to release what it had granted.
    pub(crate) fn has_given_up(&self) -> bool {
        self.0.given_up.load(Ordering::Acquire)
    }

    /// The store did not release what it had granted: waiting for it once more would only hold up the caller.
    pub(crate) fn give_up(&self) {
        self.0.given_up.store(true, Ordering::Release);
    }

    /// How often a lock was renewed.
    pub(crate) fn renewals(&self) -> u64 {
        self.0.renewals.load(Ordering::Relaxed)
    }

    /// Notified when another process asks for the end of a hold.
    pub(crate) fn endings(&self) -> watch::Receiver<Option<Ending>> {
        self.0.ending.subscribe()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What we wait for now, and as whom.
    pub(crate) fn waits_for(&self) -> Option<(ResourceName, ClaimId)> {
        let waiting = self.waiting();
        let name = waiting.last.clone()?;
        let id = *waiting.ids.get(&name)?;
        Some((name, id))
    }

    /// Why the store does not answer, if it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.waiting().trouble.clone()
    }
}

impl EngineEvents {
    /// Why the last renewal failed, if it did.
    pub(crate) fn renewal_error(&self) -> Option<String> {
        self.waiting().renewal_error.clone()
    }
}

impl Observer for EngineEvents {
    fn observe(&self, event: &LockEvent) {
        let LockEvent { resource, claim, step, .. } = event;
        match step {
            Step::Requested | Step::Waiting { .. } => {
                let mut waiting = self.waiting();
                waiting.ids.insert(resource.clone(), *claim);
                waiting.last = Some(resource.clone());
                waiting.trouble = None;
            }
            Step::Retrying { error, .. } => self.waiting().trouble = Some(error.to_string()),
            Step::Granted { .. } => self.0.granted.store(true, Ordering::Release),
            Step::Suspect { error, .. } => self.waiting().renewal_error = Some(error.to_string()),
            Step::Renewed | Step::Recovered => {
                self.waiting().renewal_error = None;
                self.0.renewals.fetch_add(1, Ordering::Relaxed);
            }
            Step::Ending { ending, .. } => {
                self.0.ending.send_replace(Some(ending.clone()));
            }
            _ => {}
        }
        self.0.messages.detail(&format!("{}: {}", text::quoted(resource.as_str()), tell(step)));
    }
}

fn tell(step: &Step) -> String {
    match step {
        Step::Requested => "asked for".to_owned(),
        Step::Waiting { ahead: Some(ahead), .. } => format!("waiting behind {ahead}"),
        Step::Waiting { ahead: None, .. } => "waiting".to_owned(),
        Step::Retrying { error, .. } => format!("trying again: {error}"),
        Step::Requeued => "lost its place and took a new one".to_owned(),
        Step::Granted { fence, waited, .. } => format!("granted after {}, fence {fence}", text::span(*waited)),
        Step::Withdrawn => "withdrawn".to_owned(),
        Step::Renewed => "renewed".to_owned(),
        Step::Late { by, .. } => format!("a renewal began {} late: this machine is busy", text::span(*by)),
        Step::Suspect { error, .. } => format!("a renewal failed: {error}"),
        Step::Recovered => "renewed again".to_owned(),
        Step::Ending { ending, left, .. } => {
            format!("asked to end by {} within {}", text::plain(&ending.by), text::span(*left))
        }
        Step::Lost { reason, .. } => format!("lost: {reason}"),
        Step::Released { held_for, .. } => format!("released after {}", text::span(*held_for)),
        Step::ReleaseFailed { error, .. } => format!("not released: {error}"),
        other => format!("{other:?}"),
    }
}
