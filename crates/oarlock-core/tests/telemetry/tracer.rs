//! A subscriber that keeps every span and event as a line.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// One span.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) fields: String,
    /// The number of its parent.
    pub(crate) parent: Option<u64>,
    pub(crate) events: Vec<String>,
    pub(crate) handles: usize,
}

/// Everything that was traced; span *n* is number *n* + 1. Events outside of spans are those of the span 0.
#[derive(Clone)]
pub(crate) struct Tracer(Arc<Mutex<(Vec<Seen>, Vec<u64>)>>);

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Tracer {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new((vec![Seen::default()], Vec::new()))))
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Seen>, Vec<u64>)> {
        self.0.lock().unwrap()
    }

    /// The spans with this name.
    pub(crate) fn spans(&self, name: &str) -> Vec<Seen> {
        self.lock().0.iter().filter(|span| span.name == name).cloned().collect()
    }

    pub(crate) fn span(&self, number: u64) -> Seen {
        self.lock().0[usize::try_from(number).unwrap()].clone()
    }
}

impl Subscriber for Tracer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "oarlock" || metadata.target() == "test"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut inner = self.lock();
        let current = inner.1.last().copied().filter(|_| span.is_contextual());
        let parent = span.parent().map(Id::into_u64).or(current);
        let mut seen = Seen { name: span.metadata().name().to_owned(), parent, handles: 1, ..Seen::default() };
        span.record(&mut Fields(&mut seen.fields));
        inner.0.push(seen);
        Id::from_u64(u64::try_from(inner.0.len() - 1).unwrap())
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let at = usize::try_from(span.into_u64()).unwrap();
        values.record(&mut Fields(&mut self.lock().0[at].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Fields(&mut line));
        let mut inner = self.lock();
        let current = inner.1.last().copied().filter(|_| event.is_contextual());
        let at = event.parent().map(Id::into_u64).or(current).unwrap_or_default();
        inner.0[usize::try_from(at).unwrap()].events.push(line);
    }

    fn enter(&self, span: &Id) {
        self.lock().1.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut inner = self.lock();
        if let Some(at) = inner.1.iter().rposition(|entered| *entered == span.into_u64()) {
            inner.1.remove(at);
        }
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.lock().0[usize::try_from(span.into_u64()).unwrap()].handles += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let seen = &mut self.lock().0[usize::try_from(span.into_u64()).unwrap()];
        seen.handles -= 1;
        seen.handles == 0
    }
}
