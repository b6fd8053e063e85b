//! Who waits for news, and the streams on which they get it.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use oarlock_core::ClaimId;
use oarlock_core::driver::{Handed, Hint, HintSender, Watch};

use crate::turn::Word;
use redis::{Msg, PushInfo, PushKind, Value};

/// What a watch listens for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// Word for this claim.
    Turn(ClaimId),
    /// Word for whichever claim has no watch of its own.
    Mailbox,
    /// A message on this channel.
    Channel(String),
    /// A message on this channel that says that a lock was given back.
    Freed(String),
}

/// What is said of a plain lock that was given back.
const FREE: &[u8] = b"free";

/// One of the connections on which news come.
pub(crate) type Source = u64;

/// Everyone of a client who listens, on whichever connection. Watches end with the connection they depend on.
#[derive(Debug)]
pub(crate) struct Hub {
    /// What the channels begin with on which claims get word.
    mail: String,
    ears: Mutex<Ears>,
}

#[derive(Debug, Default)]
struct Ears {
    last_key: u64,
    last_source: Source,
    /// The connections that are open, and the channels that are heard on each.
    sources: HashMap<Source, HashSet<Arc<str>>>,
    by_topic: HashMap<Topic, Vec<Listener>>,
    /// Claims that wait, from before they were sent: word for them is kept until somebody asks.
    expected: HashMap<ClaimId, Expected>,
}

#[derive(Debug)]
struct Expected {
    source: Source,
    mailbox: Arc<str>,
    /// Word came that nobody has heard yet.
    called: bool,
    handed: Option<Handed>,
}

#[derive(Debug)]
struct Listener {
    key: u64,
    source: Source,
    /// The channel that it depends on.
    channel: Arc<str>,
    hints: HintSender,
}

impl Hub {
    /// A hub for a client whose claims get word through channels that begin with `mail`.
    pub(crate) fn new(mail: String) -> Arc<Self> {
        Arc::new(Self { mail, ears: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Ears> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection.
    pub(crate) fn begin(&self) -> Source {
        let mut ears = self.lock();
        ears.last_source += 1;
        let source = ears.last_source;
        ears.sources.insert(source, HashSet::new());
        source
    }

    pub(crate) fn is_ended(&self, source: Source) -> bool {
        !self.lock().sources.contains_key(&source)
    }

    /// A connection is no more: whoever depends on it has to arm anew, and the mailbox depends on all.
    pub(crate) fn end(&self, source: Source) {
        let mut ears = self.lock();
        if ears.sources.remove(&source).is_none() {
            return;
        }
        ears.by_topic.retain(|topic, listeners| {
            listeners.retain(|listener| *topic != Topic::Mailbox && listener.source != source);
            !listeners.is_empty()
        });
        ears.expected.retain(|_, expected| expected.source != source || expected.handed.is_some());
    }

    /// This channel is heard on this connection from now on.
    fn attended(&self, channel: &str, source: Source) {
        if let Some(channels) = self.lock().sources.get_mut(&source)
            && !channels.contains(channel)
        {
            channels.insert(channel.into());
        }
    }

    /// This channel is not heard on this connection any more: its slot is served by another node. Whoever depends on it has
    /// to arm anew, and to look at what may have been said meanwhile.
    fn unattended(&self, channel: &str, source: Source) {
        let mut ears = self.lock();
        if !ears.sources.get_mut(&source).is_some_and(|channels| channels.remove(channel)) {
            return;
        }
        ears.by_topic.retain(|_, listeners| {
            listeners.retain(|listener| listener.source != source || *listener.channel != *channel);
            !listeners.is_empty()
        });
        let depends = |expected: &Expected| expected.source == source && *expected.mailbox == *channel;
        ears.expected.retain(|_, expected| !depends(expected) || expected.handed.is_some());
    }

    /// Whether this channel is heard on this connection.
    pub(crate) fn attends(&self, channel: &str, source: Source) -> bool {
        self.lock().sources.get(&source).is_some_and(|channels| channels.contains(channel))
    }

    /// Whether this channel is heard on any connection.
    pub(crate) fn is_attended(&self, channel: &str) -> bool {
        self.lock().sources.values().any(|channels| channels.contains(channel))
    }

    /// The channels that are heard on this connection though nobody listens; they count as unheard from now on.
    pub(crate) fn unheard(&self, source: Source) -> Vec<Arc<str>> {
        let mut ears = self.lock();
        let Ears { sources, by_topic, .. } = &mut *ears;
        let heard = |channel: &str| {
            let topics = [Topic::Channel(channel.to_owned()), Topic::Freed(channel.to_owned())];
            channel.starts_with(&self.mail) || topics.iter().any(|topic| by_topic.contains_key(topic))
        };
        sources.get_mut(&source).map_or_else(Vec::new, |it| it.extract_if(|channel| !heard(channel)).collect())
    }

    /// Keeps word for a claim that is about to wait, if it would be heard: through this mailbox, on this connection.
    pub(crate) fn expect(&self, claim: ClaimId, mailbox: &str, source: Source) -> bool {
        let mut ears = self.lock();
        let Some(mailbox) = ears.sources.get(&source).and_then(|channels| channels.get(mailbox)).cloned() else {
            return false;
        };
        let new = Expected { source, mailbox: mailbox.clone(), called: false, handed: None };
        let expected = ears.expected.entry(claim).or_insert(new);
        (expected.source, expected.mailbox) = (source, mailbox);
        true
    }

    /// Whether word for this claim is kept.
    pub(crate) fn expects(&self, claim: ClaimId) -> bool {
        self.lock().expected.contains_key(&claim)
    }

    /// How many claims word is kept for.
    #[cfg(test)]
    pub(crate) fn expected(&self) -> usize {
        self.lock().expected.len()
    }

    /// What was handed to this claim; only once, since whoever asks again wants to know what the store says.
    pub(crate) fn handed(&self, claim: ClaimId) -> Option<Handed> {
        self.lock().expected.get_mut(&claim)?.handed.take()
    }

    /// Word for this claim is of no use any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        self.lock().expected.remove(&claim);
    }

    /// A watch; it has ended already if the connection has.
    pub(crate) fn listen(self: &Arc<Self>, topic: Topic, channel: &str, source: Source) -> Watch {
        let (hints, heard) = Watch::channel();
        let mut ears = self.lock();
        ears.last_key += 1;
        let key = ears.last_key;
        if ears.sources.contains_key(&source) {
            let unheard = match &topic {
                Topic::Turn(id) => {
                    ears.expected.get_mut(id).is_some_and(|expected| std::mem::take(&mut expected.called))
                }
                Topic::Mailbox | Topic::Channel(_) | Topic::Freed(_) => false,
            };
            if unheard {
                hints.send(Hint::ANY);
            }
            ears.by_topic.entry(topic.clone()).or_default().push(Listener {
                key,
                source,
                channel: channel.into(),
                hints,
            });
        }
        drop(ears);
        Watch::new(Ear { key, topic, heard, hub: self.clone() })
    }

    /// Takes what a connection was told without asking.
    pub(crate) fn push(&self, source: Source, push: PushInfo) {
        let channel = match push.data.first() {
            Some(Value::BulkString(channel)) => std::str::from_utf8(channel).unwrap_or_default(),
            _ => "",
        };
        match push.kind {
            PushKind::Disconnection => self.end(source),
            PushKind::Subscribe | PushKind::SSubscribe => self.attended(channel, source),
            // Nobody may have asked for it. What was asked for does not count as heard any more.
            PushKind::SUnsubscribe => self.unattended(channel, source),
            _ => {
                if let Some(message) = Msg::from_push_info(push) {
                    self.hear(message.get_channel_name(), message.get_payload_bytes());
                }
            }
        }
    }

    fn hear(&self, channel: &str, payload: &[u8]) {
        let mut ears = self.lock();
        let word = channel.starts_with(&self.mail).then(|| Word::read(payload));
        let kept = word.as_ref().and_then(|word| ears.expected.get_mut(&word.claim?));
        if let (Some(kept), Some(word)) = (kept, &word) {
            // Of several words the last one counts: a turn may have been taken away again.
            kept.handed.clone_from(&word.handed);
            kept.called = true;
        }
        let tell = |topic: &Topic, hint: Hint| {
            let listeners = ears.by_topic.get(topic);
            // Whoever dropped the watch wants to hear no more.
            for listener in listeners.into_iter().flatten() {
                listener.hints.send(hint);
            }
            listeners.is_some()
        };
        let Some(Word { claim, .. }) = word else {
            tell(&Topic::Channel(channel.to_owned()), Hint { claim: None });
            if payload == FREE {
                tell(&Topic::Freed(channel.to_owned()), Hint { claim: None });
            }
            return;
        };
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
    heard: Watch,
    hub: Arc<Hub>,
}

impl Stream for Ear {
    type Item = Hint;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Hint>> {
        self.heard.poll_changed(cx)
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut ears = self.hub.lock();
        if let Some(listeners) = ears.by_topic.get_mut(&self.topic) {
            listeners.retain(|listener| listener.key != self.key);
            if listeners.is_empty() {
                ears.by_topic.remove(&self.topic);
            }
        }
    }
}
