//! The way to the server. A URL may name several, of which one takes writes: a client passes over those that are
//! unreachable or read-only, and stays with the one that served it last.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::url::Url;
use oarlock_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::error::Store;

/// A server's name or address, or the path of its socket; and its port.
pub(crate) type Host = (String, u16);

/// Which server served last.
pub(crate) type Last = Arc<Mutex<Option<Host>>>;

/// The servers, in the order of the URL. Clones know which of them served last.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    hosts: Vec<Host>,
    last: Last,
}

/// Why a server gave no connection.
#[derive(Debug)]
pub(crate) enum Miss {
    /// It is unreachable or read-only: another one may be the primary.
    Next(Error),
    /// It answered, and may be the primary. What is wrong, another server would hide; and a replica that takes writes
    /// would grant what the primary has granted.
    Stop(Error),
}

impl Miss {
    /// `next`: whether another server is to be asked, if it is an outage at all.
    pub(crate) fn new(error: Error, next: bool) -> Self {
        if next && error.kind() == ErrorKind::Unreachable { Self::Next(error) } else { Self::Stop(error) }
    }

    fn into_error(self) -> Error {
        match self {
            Self::Next(error) | Self::Stop(error) => error,
        }
    }
}

impl Route {
    pub(crate) fn new(first: Host, others: &[Host], last: Last) -> Self {
        let hosts = std::iter::once(first).chain(others.iter().cloned()).collect();
        Self { hosts, last }
    }

    /// The way to the other servers, if there are any.
    pub(crate) fn without(mut self, host: &Host) -> Option<Self> {
        self.hosts.retain(|other| other != host);
        (!self.hosts.is_empty()).then_some(self)
    }

    /// Whether there is another server to ask.
    pub(crate) fn has_choice(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Every server but the one that served last.
    pub(crate) fn others(&self) -> impl Iterator<Item = &Host> {
        let current = self.current();
        self.hosts.iter().filter(move |host| *host != current)
    }

    /// The position of the server that served last, or of the first.
    fn position(&self) -> usize {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.hosts.iter().position(|host| Some(host) == last.as_ref()).unwrap_or(0)
    }

    /// The server that served last, or the first.
    pub(crate) fn current(&self) -> &Host {
        &self.hosts[self.position()]
    }

    /// Opens a connection to the first server that gives one, beginning with the one that did so last. Each server has
    /// an equal share of the time that is left of `limit`.
    pub(crate) async fn open<T, F>(&self, store: Store, limit: Duration, open: impl Fn(Host) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Miss>>,
    {
        let (count, first, deadline) = (self.hosts.len(), self.position(), Instant::now() + limit);
        if count == 1 {
            return open(self.current().clone()).await.map_err(Miss::into_error);
        }
        let mut why = Vec::new();
        for step in 0..count {
            let host = &self.hosts[(first + step) % count];
            let share = deadline.saturating_duration_since(Instant::now()) / u32::try_from(count - step).unwrap_or(1);
            let opened = tokio::time::timeout(share, open(host.clone())).await;
            match opened.unwrap_or_else(|_| Err(Miss::Next(store.no_answer()))) {
                Ok(opened) => {
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(host.clone());
                    return Ok(opened);
                }
                Err(Miss::Stop(error)) => return Err(error),
                Err(Miss::Next(error)) => why.push(format!("{}: {error}", Shown(host))),
            }
        }
        let message = format!("none of {count} servers gave a connection for writing: {}", why.join("; "));
        Err(store.error(ErrorKind::Unreachable, message).retry_later())
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { "," }, Shown(host))?;
        }
        Ok(())
    }
}

/// A server as addresses and messages show it.
pub(crate) struct Shown<'a>(pub(crate) &'a Host);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = self.0;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// The warning for a URL with several servers.
pub(crate) fn several(url: &Url) -> Vec<String> {
    if url.hosts().len() < 2 {
        return Vec::new();
    }
    let warning = "the first server that takes writes is used: keep every replica read-only (MySQL and MariaDB do not by \
                   default), replicate synchronously, and stop a primary or make it read-only before another is \
                   promoted, or both grant the same lock; with mode=session wait for one lease between the two";
    vec![warning.to_owned()]
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use oarlock_core::Error;

    use super::*;

    const STORE: Store = Store("test");

    fn route(count: u16) -> Route {
        let host = |port| ("db".to_owned(), port);
        Route::new(host(1), &(2..=count).map(host).collect::<Vec<_>>(), Arc::default())
    }

    /// Opens through `route` where only `writable` takes writes; answers which ports were asked.
    async fn asked(route: &Route, writable: u16) -> (Result<u16>, Vec<u16>) {
        let asked = Mutex::new(Vec::new());
        let opened = route.open(STORE, Duration::from_secs(6), async |(_, port)| {
            asked.lock().unwrap().push(port);
            if port == writable { Ok(port) } else { Err(Miss::Next(STORE.error(ErrorKind::Unreachable, "read-only"))) }
        });
        let opened = opened.await;
        (opened, asked.into_inner().unwrap())
    }

    #[tokio::test]
    async fn a_client_stays_with_the_server_that_served_it() {
        let route = route(3);
        for (writable, ports) in [(2, vec![1, 2]), (2, vec![2]), (1, vec![2, 3, 1]), (1, vec![1])] {
            let (opened, asked) = asked(&route.clone(), writable).await;
            assert_eq!((opened.unwrap(), asked), (writable, ports));
        }
    }

    #[tokio::test]
    async fn why_none_serves_is_told_of_each() {
        let (opened, ports) = asked(&route(2), 9).await;
        let error = opened.unwrap_err();
        assert_eq!((error.kind(), ports), (ErrorKind::Unreachable, vec![1, 2]));
        let told = error.to_string();
        assert!(told.contains("none of 2 servers") && told.contains("db:1: ") && told.contains("db:2: "), "{told}");
        // A single one speaks for itself.
        let error = asked(&route(1), 9).await.0.unwrap_err();
        assert!(!error.to_string().contains("none of"), "{error}");
    }

    #[tokio::test]
    async fn a_refusal_is_not_hidden_by_another_server() {
        for kind in [ErrorKind::Denied, ErrorKind::Config] {
            let refused = |_| async move { Err::<(), _>(Miss::new(Error::new(kind, "wrong"), true)) };
            let error = route(2).open(STORE, Duration::from_secs(6), refused).await.unwrap_err();
            assert_eq!(error.kind(), kind);
        }
        // The primary has no connection to spare, and says so.
        let busy = |_| async { Err::<(), _>(Miss::new(Error::new(ErrorKind::Unreachable, "not now"), false)) };
        let error = route(2).open(STORE, Duration::from_secs(6), busy).await.unwrap_err();
        assert!(!error.to_string().contains("none of"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_leaves_time_for_the_next() {
        let (route, start) = (route(2), tokio::time::Instant::now());
        let opened = route.open(STORE, Duration::from_secs(6), async |(_, port)| {
            if port == 1 {
                std::future::pending::<()>().await;
            }
            Ok(port)
        });
        assert_eq!((opened.await.unwrap(), start.elapsed()), (2, Duration::from_secs(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_quick_refusal_leaves_is_given_to_the_next() {
        let route = route(2);
        let opened = route.open(STORE, Duration::from_secs(6), async |(_, port)| {
            if port == 1 {
                return Err(Miss::Next(STORE.no_answer()));
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(port)
        });
        assert_eq!(opened.await.unwrap(), 2);
    }

    #[test]
    fn another_list_begins_with_its_own_first() {
        let one = route(3);
        *one.last.lock().unwrap() = Some(("db".to_owned(), 3));
        assert_eq!(one.current().1, 3);
        assert_eq!(Route::new(("other".to_owned(), 7), &[("db".to_owned(), 8)], one.last.clone()).current().1, 7);
    }
}
