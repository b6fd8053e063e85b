//! Who waits for news on a connection, and the streams on which they get it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::ClaimId;
use oarlock_core::driver::{Hint, Watch};
use redis::{Msg, PushInfo, PushKind};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a watch listens for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// Word for this claim.
    Turn(ClaimId),
    /// Word for whichever claim has no watch of its own.
    Mailbox,
    /// A message on the channel of a resource.
    Channel(String),
}

/// Everyone who listens on one connection. It ends with the connection, and then all watches end.
#[derive(Debug)]
pub(crate) struct Hub {
    mail: String,
    /// `None` when the connection has ended.
    ears: Mutex<Option<Ears>>,
}

#[derive(Debug, Default)]
struct Ears {
    last_key: u64,
    by_topic: HashMap<Topic, Vec<(u64, UnboundedSender<Hint>)>>,
}

impl Hub {
    /// A hub for a connection on which claims get word through the channel `mail`.
    pub(crate) fn new(mail: String) -> Arc<Self> {
        Arc::new(Self { mail, ears: Mutex::new(Some(Ears::default())) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ears>> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.lock().is_none()
    }

    pub(crate) fn end(&self) {
        self.lock().take();
    }

    /// Whether anybody listens to this channel.
    pub(crate) fn hears(&self, channel: &str) -> bool {
        let topic = Topic::Channel(channel.to_owned());
        channel == self.mail || self.lock().as_ref().is_some_and(|ears| ears.by_topic.contains_key(&topic))
    }

    /// A watch; it has ended already if the connection has.
    pub(crate) fn listen(self: &Arc<Self>, topic: Topic) -> Watch {
        let (hints, heard) = unbounded_channel();
        let mut key = 0;
        if let Some(ears) = &mut *self.lock() {
            ears.last_key += 1;
            key = ears.last_key;
            ears.by_topic.entry(topic.clone()).or_default().push((key, hints));
        }
        Watch::new(Ear { key, topic, heard, hub: self.clone() })
    }

    /// Takes what the connection was told without asking.
    pub(crate) fn push(&self, push: PushInfo) {
        if push.kind == PushKind::Disconnection {
            self.end();
        } else if let Some(message) = Msg::from_push_info(push) {
            self.hear(message.get_channel_name(), message.get_payload_bytes());
        }
    }

    fn hear(&self, channel: &str, payload: &[u8]) {
        let ears = self.lock();
        let Some(ears) = &*ears else { return };
        let tell = |topic: &Topic, hint: Hint| {
            let listeners = ears.by_topic.get(topic);
            // Whoever dropped the watch wants to hear no more.
            for (_, hints) in listeners.into_iter().flatten() {
                let _ = hints.send(hint);
            }
            listeners.is_some()
        };
        if channel != self.mail {
            tell(&Topic::Channel(channel.to_owned()), Hint { claim: None });
            return;
        }
        let claim = std::str::from_utf8(payload).ok().and_then(|id| id.parse().ok());
        let hint = Hint { claim };
        if !claim.is_some_and(|id| tell(&Topic::Turn(id), hint)) {
            tell(&Topic::Mailbox, hint);
        }
    }
}

/// The stream of one watch; dropping it disarms the watch.
struct Ear {
    key: u64,
    topic: Topic,
    heard: UnboundedReceiver<Hint>,
    hub: Arc<Hub>,
}

impl Stream for Ear {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.heard.poll_recv(cx)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut ears = self.hub.lock();
        let Some(ears) = &mut *ears else { return };
        if let Some(listeners) = ears.by_topic.get_mut(&self.topic) {
            listeners.retain(|(key, _)| *key != self.key);
            if listeners.is_empty() {
                ears.by_topic.remove(&self.topic);
            }
        }
    }
}
