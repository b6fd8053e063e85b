//! The notifications of a session, and the watches that they reach.

use oarlock_core::driver::Waiters;

use crate::postgres::notification::{Notification, WaiterData};

/// The watches of one session, which end with it, and the grants that were handed to its claims.
pub(crate) type Hub = Waiters<WaiterData>;

/// Passes on what the server sent: news of a claim, or `r` and a name in hexadecimal.
pub(crate) fn tell(hub: &Hub, news: &str) {
    if let Some(name) = news.strip_prefix('r') {
        // The server tells once.
        hub.changed_last(name);
    } else if let Some(Notification { id, grant }) = Notification::read(news) {
        hub.notify(id, |kept| kept.receive(grant));
    }
}

/// The session is over: every claim of its may be gone.
pub(crate) fn end(hub: &Hub) {
    hub.check_all();
    hub.end();
}
