//! Nodes that look like a claim's own: of another session, late, or more than one.

use oarlock_core::driver::{Driver, End, Released, Renewal, Renewed};
use oarlock_core::{Kind, ResourceName};

use super::*;
use crate::config::{Config, Layout};

/// Of each layout: where the claim's nodes are, and what they begin with.
const LAYOUTS: [(Layout, &str, &str); 3] = [
    (Layout::Native, "/oarlock/job", "00000000000000000000000000000007-a-n-"),
    (Layout::Curator, "/job", "_c_00000000-0000-0000-0000-000000000007-lock-"),
    (Layout::Kazoo, "/job", "00000000000000000000000000000007__lock__"),
];

fn claim() -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(7), ResourceName::new("job").unwrap());
    claim.kind = Kind::Mutex;
    claim
}

async fn open(server: &oarlock_testbed::ZooKeeper, layout: Layout) -> ZooKeeper {
    ZooKeeper::open(Config::new([server.addr().to_string()]).layout(layout)).await.unwrap()
}

async fn fence(store: &ZooKeeper, claim: &Claim) -> Fence {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => grant.fence,
        Attempt::Pending(pending) => panic!("in its own way: {pending:?}"),
    }
}

/// A node of this claim whose answer was lost, created by the session of `store`: the transaction.
async fn make(store: &ZooKeeper, folder: &str, prefix: &str) -> Fence {
    let session = store.route.session().await.unwrap();
    let container = session.options(zk::CreateMode::Container);
    session.client.mkdir(folder, &container).await.unwrap();
    let ephemeral = session.options(zk::CreateMode::EphemeralSequential);
    let made = session.client.create(&format!("{folder}/{prefix}"), b"", &ephemeral).await.unwrap();
    fence_of(made.0.czxid).unwrap()
}

async fn children(store: &ZooKeeper, folder: &str) -> Vec<String> {
    let session = store.route.session().await.unwrap();
    session.client.list_children(folder).await.unwrap()
}

/// After a lost answer a node is found by its id, and is only ours if our session made it: that of another, which this
/// process had before, ends with that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_session_is_not_taken_for_ours() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    for (layout, folder, prefix) in LAYOUTS {
        let (ours, before) = (open(&server, layout).await, open(&server, layout).await);
        let theirs = make(&before, folder, prefix).await;
        ours.route.note(claim().id, Known::Doubt);
        let granted = fence(&ours, &claim()).await;
        assert!(granted > theirs, "{layout:?}: granted by a node of another session");
        let left = children(&ours, folder).await;
        let session = ours.route.session().await.unwrap();
        let stat = session.client.check_stat(&format!("{folder}/{}", left[0])).await.unwrap().unwrap();
        assert_eq!((left.len(), stat.ephemeral_owner), (1, session.id), "{layout:?}: {left:?}");
        drop(session);
        // A node that our own session created is ours, although the answer was lost.
        ours.release(&claim().resource, claim().id, &End::Withdrawn).await.unwrap();
        let unheard = make(&ours, folder, prefix).await;
        ours.route.note(claim().id, Known::Doubt);
        assert_eq!(fence(&ours, &claim()).await, unheard, "{layout:?}: a second node");
        ours.close().await.unwrap();
        before.close().await.unwrap();
    }
}

/// A request whose answer was lost may still be under way when the next has found nothing. Its node goes with the
/// claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_late_goes_with_its_claim() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    for (layout, folder, prefix) in LAYOUTS {
        let store = open(&server, layout).await;
        store.route.note(claim().id, Known::Doubt);
        fence(&store, &claim()).await;
        make(&store, folder, prefix).await;
        assert_eq!(children(&store, folder).await.len(), 2, "nothing came late: nothing is tested");
        let released = store.release(&claim().resource, claim().id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(released.outcome, Released::Released);
        assert_eq!(children(&store, folder).await, Vec::<String>::new(), "{layout:?}: a node is left");
        store.close().await.unwrap();
    }
}

/// A claim that was made lighter has one more node, also when the client knows only its first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lighter_claim_leaves_nothing_behind() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    let store = open(&server, Layout::Native).await;
    let mut writer = claim();
    writer.capacity = Capacity::Fixed(Limit::Unlimited);
    let held = fence(&store, &writer).await;
    writer.weight = Weight::ONE;
    assert_eq!(fence(&store, &writer).await, held);
    assert_eq!(children(&store, "/oarlock/job").await.len(), 2, "it was not made lighter: nothing is tested");
    store.release(&writer.resource, writer.id, &End::Done { memo: None }).await.unwrap();
    assert_eq!(children(&store, "/oarlock/job").await, Vec::<String>::new());
}

/// Another client wrote into the node at the same moment: the value must not be reported as published.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_was_not_written_is_an_error() {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip().unwrap() else { return };
    for (layout, ..) in LAYOUTS {
        let store = open(&server, layout).await;
        fence(&store, &claim()).await;
        let session = store.route.session().await.unwrap();
        let known = store.route.known(claim().id);
        let Known::At(node) = known.clone() else { panic!("{known:?}") };
        let path = node.path(&session, &claim().resource);
        let seen = session.client.get_data(&path).await.unwrap();
        session.client.set_data(&path, &seen.0, None).await.unwrap();
        let mut publishing = claim();
        publishing.value = Some("here".into());
        let renewal = Renewal::of(publishing.into());
        let late = store.renew_one(&session, &renewal, &known, Some((node, path, Ok(seen)))).await;
        assert!(late.is_err_and(|error| error.retry() == oarlock_core::Retry::Now), "{layout:?}");
        let kept = store.renew(std::slice::from_ref(&renewal)).await.remove(0).unwrap();
        assert!(matches!(kept, Renewed::Alive { .. }), "{layout:?}: {kept:?}");
        drop(session);
        store.close().await.unwrap();
    }
}
