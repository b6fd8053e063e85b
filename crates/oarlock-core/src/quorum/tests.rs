//! Rounds over nodes in memory, some of which misbehave.

use std::sync::Arc;

use super::*;
use crate::claim::Fence;
use crate::driver::{Gone, Released};
use crate::memory::Memory;

/// A node that votes, and has lost the vote when it is asked again.
struct Forgetful(Memory);

impl Driver for Forgetful {
    fn info(&self) -> Info {
        Driver::info(&self.0)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        Driver::attempt(&self.0, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        batch.iter().map(|_| Ok(Renewed::Gone(Gone::Unknown))).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        Driver::release(&self.0, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.0, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.0, query).await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

fn claim(id: u128) -> Claim {
    Claim::new(ClaimId::from_bits(id), ResourceName::new("x").unwrap())
}

/// The fence that each node shows of the holder.
async fn shown(nodes: &[Memory]) -> Vec<Option<Fence>> {
    let mut shown = Vec::new();
    for node in nodes {
        let page = Driver::inspect(node, &Query::name(claim(1).resource)).await.unwrap();
        shown.push(page.resources.first().and_then(|state| state.holders.first()?.fence));
    }
    shown
}

/// Nodes whose counters are far apart, as after different histories.
async fn uneven(count: usize) -> Vec<Memory> {
    let nodes: Vec<_> = (0..count).map(|_| Memory::default()).collect();
    for (number, node) in nodes.iter().enumerate() {
        let old = Arc::new(claim(1000));
        let Attempt::Granted(grant) = Driver::attempt(node, &old).await.unwrap() else { panic!("it is free") };
        let mut renewal = Renewal::of(old.clone());
        let ahead = grant.fence.get() + 1_000_000_000 * (number as u64 + 1);
        renewal.fences = crate::driver::Fences::AtLeast(Fence::new(ahead));
        Driver::renew(node, &[renewal]).await.pop().unwrap().unwrap();
        Driver::release(node, &old.resource, old.id, &End::Done { memo: None }).await.unwrap();
    }
    nodes
}

fn over(nodes: &[Memory]) -> Quorum {
    Quorum::new(nodes.iter().map(|node| Arc::new(node.connect()) as Arc<dyn DynDriver>).collect()).unwrap()
}

#[tokio::test]
async fn a_grant_has_its_fence_on_a_majority() {
    for count in 3..=6 {
        let nodes = uneven(count).await;
        let quorum = over(&nodes);
        let Attempt::Granted(grant) = quorum.attempt(&claim(1)).await.unwrap() else { panic!("it is free") };
        let shown = shown(&nodes).await;
        let agree = shown.iter().filter(|fence| **fence == Some(grant.fence)).count();
        assert!(agree > count / 2, "{count} nodes: {:?} was granted, {shown:?} are there", grant.fence);
        let rounds = quorum.rounds();
        assert_eq!((rounds.won, rounds.lost, rounds.written_back), (1, 0, 1));
    }
}

#[tokio::test]
async fn a_vote_that_is_gone_when_the_fence_is_written_does_not_count() {
    let nodes = uneven(3).await;
    let forgetful = |node: &Memory| Arc::new(Forgetful(node.connect())) as Arc<dyn DynDriver>;
    let members = vec![forgetful(&nodes[0]), Arc::new(nodes[1].connect()), forgetful(&nodes[2])];
    // Memory answers at once, so the first two vote, and the first of them has the smaller fence.
    let quorum = Quorum::new(members).unwrap();
    let answer = quorum.attempt(&claim(1)).await.unwrap();
    assert!(matches!(answer, Attempt::Pending(_)), "granted without a majority: {answer:?}");
    quorum.close().await.unwrap();
    assert_eq!(shown(&nodes).await, [None, None, None], "a lost round left votes behind");
}

#[tokio::test]
async fn only_confirmed_nodes_count_for_more_fences() {
    let nodes = uneven(3).await;
    let quorum = over(&nodes);
    let mine = Arc::new(claim(1));
    let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    let reserve = async || {
        let mut renewal = Renewal::of(mine.clone());
        renewal.fences = crate::driver::Fences::Reserve(10);
        match quorum.renew(&[renewal]).await.pop().unwrap().unwrap() {
            Renewed::Alive { fence, .. } => fence.unwrap().get(),
            Renewed::Gone(gone) => panic!("{gone:?}"),
        }
    };
    assert_eq!(reserve().await, grant.fence.get() + 10);
    for _ in 0..1000 {
        // The last vote comes in the background.
        tokio::task::yield_now().await;
    }
    assert!(shown(&nodes).await.iter().all(Option::is_some));
    // The first node loses the vote and is won back. It keeps the lock alive, but two of three no longer confirm its fences.
    Driver::release(&nodes[0], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    assert_eq!(reserve().await, grant.fence.get() + 10, "fences without a majority that confirms them");
    let released = quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
}

#[test]
fn fewer_than_three_nodes_are_refused() {
    let two = (0..2).map(|_| Arc::new(Memory::default()) as Arc<dyn DynDriver>).collect();
    assert_eq!(Quorum::new(two).unwrap_err().kind(), ErrorKind::Config);
}
