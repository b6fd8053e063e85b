//! Rounds over nodes in memory, some of which misbehave.

mod contended;
mod delayed;
mod model;

use std::sync::Arc;

use super::*;
use oarlock_core::capabilities::Capabilities;
use oarlock_core::claim::Fence;
use oarlock_core::driver::{Gone, Released};
use oarlock_core::memory::Memory;

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

/// A node that cannot be reached.
struct Absent;

fn absent<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unreachable, "down"))
}

impl Driver for Absent {
    fn info(&self) -> Info {
        Info::new("absent", "", Capabilities::of_the_model())
    }

    async fn attempt(&self, _: &Claim) -> Result<Attempt> {
        absent()
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        batch.iter().map(|_| absent()).collect()
    }

    async fn release(&self, _: &ResourceName, _: ClaimId, _: &End) -> Result<Release> {
        absent()
    }

    async fn watch(&self, _: &Interest) -> Result<Watch> {
        absent()
    }

    async fn inspect(&self, _: &Query) -> Result<Page> {
        absent()
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
        renewal.fences = oarlock_core::driver::Fences::AtLeast(Fence::new(ahead));
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
async fn nodes_that_are_proposed_a_fence_agree_on_it() {
    let nodes: Vec<_> = (0..5).map(|_| Memory::default()).collect();
    // Whatever their clocks say, within a minute.
    for (number, node) in nodes.iter().enumerate() {
        node.kit().step_clock(Duration::from_secs(10 * number as u64));
    }
    let (one, other) = (over(&nodes), over(&nodes));
    let mut last = Fence::new(0);
    for number in 0..50 {
        let quorum = if number % 2 == 0 { &one } else { &other };
        let mine = claim(number + 1);
        let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
        assert!(grant.fence > last, "{:?} after {last:?}", grant.fence);
        last = grant.fence;
        quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
    }
    assert_eq!((one.rounds().written_back, other.rounds().written_back), (0, 0));
}

#[tokio::test]
async fn a_client_whose_clock_is_wrong_does_not_decide_the_fences() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    let quorum = over(&nodes);
    let (day, minute) = (86_400_000_000, 60_000_000);
    for (id, behind, ahead) in [(1, 0, 2 * day), (2, 2 * day, 0)] {
        let before = oarlock_core::clock::wall_micros();
        let mut mine = claim(id);
        mine.resource = ResourceName::new(format!("x{id}")).unwrap();
        mine.least_fence = Some(Fence::new(before - behind + ahead));
        let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
        let (least, most) = (before - minute, oarlock_core::clock::wall_micros() + minute);
        assert!((least..=most).contains(&grant.fence.get()), "{:?}, not {least} to {most}", grant.fence);
    }
}

/// One node, and what is left of the others when it is not asked.
fn two_of(nodes: &[Memory], without: usize) -> Quorum {
    let node = |at: usize| match at == without {
        true => Arc::new(Absent) as Arc<dyn DynDriver>,
        false => Arc::new(nodes[at].connect()),
    };
    Quorum::new((0..nodes.len()).map(node).collect()).unwrap()
}

/// One vote and a silent node may be a majority, and may be a vote that came late and outlives its round: a client that
/// adopts such a lock must not count on the lease of that vote.
#[tokio::test]
async fn a_minority_shows_no_lease() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    let mine = claim(1);
    let Attempt::Granted(_) = over(&nodes).attempt(&mine).await.unwrap() else { panic!("it is free") };
    let asked = Query::name(mine.resource.clone());
    let left = async |quorum: Quorum| {
        let page = quorum.inspect(&asked).await.unwrap();
        page.resources[0].holders.first().map(|holder| (holder.id, holder.lease_left > std::time::Duration::ZERO))
    };
    assert_eq!(left(two_of(&nodes, 1)).await, Some((mine.id, true)));
    let votes = Driver::inspect(&nodes[2], &asked).await.unwrap();
    let vote = &votes.resources[0].holders[0];
    Driver::release(&nodes[2], &mine.resource, vote.id, &End::Withdrawn).await.unwrap();
    assert_eq!(left(two_of(&nodes, 1)).await, Some((mine.id, false)));
}

async fn left_by(quorum: &Quorum, id: u128, memo: Option<&str>) -> Option<String> {
    let mine = claim(id);
    let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    let text = |memo: oarlock_core::state::Memo| String::from_utf8(memo.to_vec()).unwrap();
    let again = quorum.attempt(&mine).await.unwrap();
    assert!(
        matches!(again, Attempt::Granted(again) if again.memo == grant.memo),
        "asked again, it was told something else"
    );
    let page = quorum.inspect(&Query::name(mine.resource.clone())).await.unwrap();
    assert_eq!(page.resources[0].memo, grant.memo);
    let memo = memo.map(|memo| memo.as_bytes().into());
    quorum.release(&mine.resource, mine.id, &End::Done { memo }).await.unwrap();
    quorum.close().await.unwrap();
    grant.memo.map(text)
}

#[tokio::test]
async fn the_newest_memo_is_found_whichever_majority_is_asked() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    let mut last = None;
    for round in 0..9 {
        let text = format!("memo {round}");
        let found = left_by(&two_of(&nodes, round % 3), round as u128 + 1, Some(&text)).await;
        assert_eq!(found, last, "round {round}");
        last = Some(text);
    }
}

/// A slot of a month must not be forgotten because two nodes lost their data, one after the other.
#[tokio::test]
async fn a_memo_that_was_written_back_is_kept_for_longer_than_a_day() {
    let mut nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    left_by(&over(&nodes), 1, Some("slot")).await;
    nodes[0] = Memory::default();
    assert_eq!(left_by(&two_of(&nodes, 1), 2, None).await.as_deref(), Some("slot"));
    nodes[0].kit().step_clock(std::time::Duration::from_secs(40 * 24 * 3600));
    nodes[1] = Memory::default();
    assert_eq!(left_by(&two_of(&nodes, 2), 3, None).await.as_deref(), Some("slot"));
}

#[tokio::test]
async fn a_memo_that_only_one_node_has_is_not_forgotten_once_it_was_seen() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    left_by(&over(&nodes), 1, Some("first")).await;
    // A release that reaches one node alone: its caller does not know whether it took effect.
    let (mine, writer) = (claim(2), over(&nodes));
    let Attempt::Granted(_) = writer.attempt(&mine).await.unwrap() else { panic!("it is free") };
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let hold = writer.core.registry.hold(mine.id).unwrap();
    let end = End::Done { memo: Some(hold.stamp(&b"second".as_slice().into()).raw) };
    Driver::release(&nodes[0], &mine.resource, mine.id, &end).await.unwrap();
    for node in &nodes[1..] {
        Driver::release(node, &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    }
    assert_eq!(left_by(&two_of(&nodes, 0), 3, None).await.as_deref(), Some("first"), "it is not on a majority");
    assert_eq!(left_by(&two_of(&nodes, 1), 4, None).await.as_deref(), Some("second"));
    assert_eq!(left_by(&two_of(&nodes, 0), 5, None).await.as_deref(), Some("second"), "it was seen before");
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
        renewal.fences = oarlock_core::driver::Fences::Reserve(10);
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
    // The first node loses the vote and is won back. It keeps the lock alive, but two of three no longer confirm its
    // fences.
    Driver::release(&nodes[0], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    assert_eq!(reserve().await, grant.fence.get() + 10, "fences without a majority that confirms them");
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(shown(&nodes).await.iter().all(Option::is_some), "it was not won back");
    assert_eq!(reserve().await, grant.fence.get() + 10, "fences of a node that was won back");
    let released = quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
}

/// Nodes that fell back to a state in which our claim waits behind another keep it alive, and vote for that other.
#[tokio::test]
async fn a_vote_that_waits_is_no_vote() {
    let nodes: Vec<_> = (0..3).map(|_| Memory::default()).collect();
    let quorum = over(&nodes);
    let mine = Arc::new(claim(1));
    let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    for _ in 0..1000 {
        // The last vote comes in the background.
        tokio::task::yield_now().await;
    }
    let renew = async || quorum.renew(&[Renewal::of(mine.clone())]).await.pop().unwrap().unwrap();
    assert!(matches!(renew().await, Renewed::Alive { fence: Some(fence), .. } if fence == grant.fence));
    for node in &nodes[..2] {
        Driver::release(node, &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
        assert!(matches!(Driver::attempt(node, &claim(2)).await.unwrap(), Attempt::Granted(_)));
        let mut waits = claim(1);
        waits.wait = true;
        assert!(matches!(Driver::attempt(node, &waits).await.unwrap(), Attempt::Pending(_)));
    }
    assert_eq!(renew().await, Renewed::Gone(Gone::Unknown));
}

#[test]
fn fewer_than_three_nodes_are_refused() {
    let two = (0..2).map(|_| Arc::new(Memory::default()) as Arc<dyn DynDriver>).collect();
    assert_eq!(Quorum::new(two).unwrap_err().kind(), ErrorKind::Config);
}
