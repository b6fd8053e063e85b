//! What a store cannot do is refused before it is asked, and changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Ending, MAX_MEMO_BYTES, Page, Query};
use oarlock_core::{
    Capabilities, Claim, ClaimId, DynDriver, ErrorKind, Lifetime, LockTicket, Locks, Memory, Released, ResourceName,
    Result,
};

/// A store in memory that says it can do less.
struct Limited(Arc<Memory>, fn(&mut Capabilities));

impl DynDriver for Limited {
    fn info(&self) -> Info {
        let mut info = DynDriver::info(&*self.0);
        (self.1)(&mut info.capabilities);
        info
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        DynDriver::attempt(self.0.clone(), claim)
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        DynDriver::renew(self.0.clone(), batch)
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        DynDriver::release(self.0.clone(), resource, id, end)
    }

    fn watch(self: Arc<Self>, interest: Interest) -> BoxFuture<Result<Watch>> {
        DynDriver::watch(self.0.clone(), interest)
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        DynDriver::inspect(self.0.clone(), query)
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        DynDriver::close(self.0.clone())
    }
}

fn limited(limit: fn(&mut Capabilities)) -> Locks {
    Locks::builder_over(Arc::new(Limited(Arc::new(Memory::new()), limit))).build().unwrap()
}

#[tokio::test]
async fn a_memo_is_refused_where_the_store_keeps_none_and_the_lock_stays() -> Result<()> {
    let locks = limited(|can| can.memo = false);
    let mut guard = locks.mutex("a").lock().await?;
    assert_eq!(guard.leave_memo("slot 7").unwrap_err().kind(), ErrorKind::Unsupported);
    guard.check()?;
    assert_eq!(guard.release().await?, Released::Released);
    let refused = locks.mutex("a").lock().await?.release_leaving("slot 7").await.unwrap_err();
    assert_eq!((refused.kind(), refused.resource().map(ResourceName::as_str)), (ErrorKind::Unsupported, Some("a")));
    // The guard was dropped: the lock is released, and nothing was left.
    assert_eq!(locks.mutex("a").lock().await?.memo(), None);
    Ok(())
}

#[tokio::test]
async fn a_memo_has_a_limit() -> Result<()> {
    let locks = Locks::over(Memory::new())?;
    let mut guard = locks.mutex("a").lock().await?;
    assert_eq!(guard.leave_memo([7; MAX_MEMO_BYTES + 1]).unwrap_err().kind(), ErrorKind::InvalidClaim);
    guard.check()?;
    guard.leave_memo([7; MAX_MEMO_BYTES])?;
    assert_eq!(guard.release().await?, Released::Released);
    let guard = locks.mutex("a").lock().await?;
    assert_eq!(guard.memo(), Some(&[7; MAX_MEMO_BYTES][..]));
    let refused = guard.release_leaving(vec![8; MAX_MEMO_BYTES + 1]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidClaim);
    assert_eq!(locks.mutex("a").lock().await?.memo(), Some(&[7; MAX_MEMO_BYTES][..]), "it changed nothing");
    Ok(())
}

#[tokio::test]
async fn a_memo_is_left_by_a_drop_too() -> Result<()> {
    let locks = Locks::over(Memory::new())?;
    let mut guard = locks.mutex("a").lock().await?;
    guard.leave_memo("one")?;
    guard.leave_memo("two")?;
    drop(guard);
    assert_eq!(locks.mutex("a").lock().await?.memo(), Some(&b"two"[..]));
    Ok(())
}

#[tokio::test]
async fn a_store_that_records_no_claims_has_no_leader_to_show() -> Result<()> {
    let locks = limited(|can| can.records = false);
    let election = locks.election("a");
    assert_eq!(election.campaign("me").await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(election.leader().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(election.observe().changed().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let unnamed = Locks::over(Memory::new())?.election("");
    assert_eq!(unnamed.leader().await.unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(unnamed.observe().changed().await.unwrap_err().kind(), ErrorKind::InvalidName);
    Ok(())
}

#[tokio::test]
async fn a_client_that_was_shut_down_breaks_nothing() -> Result<()> {
    let store = Memory::new();
    let (locks, other) = (Locks::over(store.connect())?, Locks::over(store)?);
    let guard = other.mutex("a").lock().await?;
    locks.shutdown(Duration::from_secs(1)).await?;
    let broken = locks.break_claim("a", guard.id(), Ending::new("ops", ""), Duration::ZERO).await;
    assert_eq!(broken.unwrap_err().to_string(), "mem: this client was shut down");
    guard.check()?;
    Ok(())
}

#[tokio::test]
async fn a_ticket_with_a_value_that_no_leader_could_publish_is_refused() -> Result<()> {
    let locks = Locks::over(Memory::new())?;
    let leadership = locks.election("a").lifetime(Lifetime::Lease).campaign("me").await?;
    let ticket = serde_json::to_string(&leadership.into_guard().hand_over()?).unwrap();
    let long: LockTicket =
        serde_json::from_str(&ticket.replace("\"me\"", &format!("\"{}\"", "x".repeat(1025)))).unwrap();
    assert_eq!(locks.adopt(&long).await.unwrap_err().kind(), ErrorKind::Config);
    locks.adopt(&serde_json::from_str(&ticket).unwrap()).await?.release().await?;
    Ok(())
}

#[tokio::test]
async fn a_ticket_does_not_lose_a_memo_silently() -> Result<()> {
    let locks = Locks::over(Memory::new())?;
    let mut guard = locks.mutex("a").lifetime(Lifetime::Lease).lock().await?;
    guard.leave_memo("slot 7")?;
    assert_eq!(guard.hand_over().unwrap_err().kind(), ErrorKind::InvalidClaim);
    let guard = locks.mutex("a").lock().await?;
    assert!(guard.memo().is_some(), "the refused guard was released with its memo");
    Ok(())
}

/// Tickets of other versions are read: the words in them are a format.
#[tokio::test]
async fn the_capacity_in_a_ticket_keeps_its_word() -> Result<()> {
    let locks = Locks::over(Memory::new())?;
    let guard = locks.semaphore("a", 3).use_stored_permits().lifetime(Lifetime::Lease).acquire(1).await?;
    let ticket: LockTicket = guard.hand_over()?;
    let json = serde_json::to_value(&ticket).unwrap();
    assert_eq!(json["capacity"], serde_json::json!({ "adopt": { "units": 3 } }), "{json}");
    Ok(())
}
