//! A connection that fails or is silent does not affect the others.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Connection, Mailbox, Seen, Server, SessionLocks};
use oarlock_core::capabilities::WaiterView;
use oarlock_core::driver::{Attempt, Driver as _, End, Renewal, Renewed, SessionEnd};
use oarlock_core::error::Applied;
use oarlock_core::{Claim, ClaimId, Error, ResourceName, Result};

const TTL: Duration = Duration::from_secs(6);

/// An address behind which there are many servers: each connection is the first of its own, and every lock is free
/// there.
#[derive(Clone, Debug, Default)]
struct Servers(Arc<Mutex<Vec<Arc<Mood>>>>);

#[derive(Debug, Default)]
struct Mood {
    fails: AtomicBool,
    is_silent: AtomicBool,
}

impl Mood {
    async fn answer<T>(&self, answer: T) -> Result<T> {
        if self.is_silent.load(Ordering::Acquire) {
            pending::<()>().await;
        }
        if self.fails.load(Ordering::Acquire) { Err(Error::unreachable("it fails")) } else { Ok(answer) }
    }
}

#[derive(Debug)]
struct Flow {
    mood: Arc<Mood>,
    over: SessionEnd,
}

impl Server for Servers {
    type Key = String;
    type Connection = Flow;

    const SCHEME: &'static str = "fake";
    const WAITERS: WaiterView = WaiterView::Hidden;

    fn address(&self) -> String {
        "nowhere".into()
    }

    fn session_ttl(&self) -> Duration {
        TTL
    }

    fn key(&self, name: &ResourceName) -> Result<String> {
        Ok(name.to_string())
    }

    async fn open(self: Arc<Self>, _mailbox: Mailbox) -> Result<Flow> {
        let mood = Arc::new(Mood::default());
        self.0.lock().unwrap().push(mood.clone());
        Ok(Flow { mood, over: SessionEnd::new() })
    }
}

impl Connection for Flow {
    type Key = String;

    async fn take(&self, _key: &String) -> Result<Option<u64>> {
        self.mood.answer(Some(1)).await
    }

    async fn queue(&self, _key: &String) -> Result<bool> {
        self.mood.answer(true).await
    }

    async fn stop(&self) -> Result<()> {
        self.mood.answer(()).await
    }

    async fn release(&self, _key: &String) -> Result<bool> {
        self.mood.answer(true).await
    }

    async fn ping(&self) -> Result<u64> {
        self.mood.answer(1).await
    }

    async fn peek(&self, _key: &String) -> Result<Seen> {
        self.mood.answer(Seen::default()).await
    }

    fn number(&self) -> u64 {
        1
    }

    fn end(&self) {
        self.over.end();
    }

    fn over(&self) -> &SessionEnd {
        &self.over
    }
}

/// So many claims, each on a connection of its own: one connection does not take a name twice.
async fn hold(servers: &Servers, count: u128) -> (Arc<SessionLocks<Servers>>, Vec<Renewal>) {
    let locks = SessionLocks::connect(servers.clone()).await.unwrap();
    let mut batch = Vec::new();
    for bits in 1..=count {
        let claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("name").unwrap());
        assert!(matches!(locks.attempt(&claim).await.unwrap(), Attempt::Granted(_)));
        batch.push(Renewal::of(Arc::new(claim)));
    }
    assert_eq!(servers.0.lock().unwrap().len(), batch.len());
    (Arc::new(locks), batch)
}

fn assert_kept(answers: &[Result<Renewed>], expected: &[bool]) {
    assert_eq!(answers.len(), expected.len());
    for (answer, is_kept) in answers.iter().zip(expected) {
        match answer {
            Ok(Renewed::Alive { .. }) => assert!(is_kept, "kept, though its connection said nothing: {answers:?}"),
            Err(error) => assert_eq!((error.applied(), *is_kept), (Applied::Unknown, false), "{answers:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Two servers may have the same number for their connections.
#[tokio::test]
async fn no_connection_answers_for_another() {
    let servers = Servers::default();
    let (locks, batch) = hold(&servers, 3).await;
    servers.0.lock().unwrap()[1].fails.store(true, Ordering::Release);
    assert_kept(&locks.renew(&batch).await, &[true, false, true]);
}

/// One connection says nothing, and on another a claim is released and gets no answer.
#[tokio::test]
async fn silent_connections_hold_up_no_renewal_for_longer_than_its_lease_bears() {
    let servers = Servers::default();
    let (locks, batch) = hold(&servers, 4).await;
    for silent in [0, 2] {
        servers.0.lock().unwrap()[silent].is_silent.store(true, Ordering::Release);
    }
    let (leaving, claim) = (locks.clone(), batch[0].claim.clone());
    let leaving = tokio::spawn(async move { leaving.release(&claim.resource, claim.id, &End::Withdrawn).await });
    // There is one thread: it is in the middle of that when we are back.
    tokio::task::yield_now().await;
    let answers = tokio::time::timeout(TTL * 2 / 3, locks.renew(&batch)).await.unwrap();
    assert_kept(&answers, &[false, true, false, true]);
    assert!(!leaving.is_finished());
    leaving.abort();
}
