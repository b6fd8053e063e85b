//! Rounds over nodes in memory whose requests take their time.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use tokio::sync::watch::Sender;

use super::*;
use crate::rounds::Round;
use oarlock_core::claim::Lifetime;
use oarlock_core::driver::Fences;
use oarlock_core::error::Applied;
use oarlock_core::state::Memo;

/// What requests of one verb must pass before they reach the node.
pub(super) struct Gate(Sender<bool>);

impl Gate {
    async fn pass(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }

    fn open(&self) {
        self.0.send_replace(true);
    }

    pub(super) fn close(&self) {
        self.0.send_replace(false);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self(Sender::new(true))
    }
}

#[derive(Default)]
pub(super) struct Gates {
    pub(super) attempt: Gate,
    renew: Gate,
    release: Gate,
    /// Whether the answers to renewals are lost.
    renewals_lost: AtomicBool,
    /// Whether the next release finds no hold.
    down: AtomicBool,
    /// Whether the next renewal takes a way of its own, and what it must pass there.
    astray: AtomicBool,
    way: Gate,
    /// How many attempts and releases have come this far.
    pub(super) attempts: AtomicUsize,
    releases: AtomicUsize,
}

struct Delayed {
    node: Memory,
    gates: Arc<Gates>,
}

impl Driver for Delayed {
    fn info(&self) -> Info {
        Driver::info(&self.node)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.gates.attempts.fetch_add(1, Ordering::AcqRel);
        self.gates.attempt.pass().await;
        Driver::attempt(&self.node, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.gates.astray.swap(false, Ordering::AcqRel) {
            true => self.gates.way.pass().await,
            false => self.gates.renew.pass().await,
        }
        if self.gates.renewals_lost.load(Ordering::Acquire) {
            return batch.iter().map(|_| Err(Error::unreachable("no answer"))).collect();
        }
        Driver::renew(&self.node, batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.gates.releases.fetch_add(1, Ordering::AcqRel);
        self.gates.release.pass().await;
        if self.gates.down.swap(false, Ordering::AcqRel) {
            return absent();
        }
        Driver::release(&self.node, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.node, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.node, query).await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

pub(super) fn delayed(node: &Memory, gates: &Arc<Gates>) -> Arc<dyn DynDriver> {
    Arc::new(Delayed { node: node.connect(), gates: gates.clone() })
}

/// A quorum of these nodes, and what each of its requests must pass.
pub(super) fn behind_gates(nodes: &[Memory]) -> (Quorum, Vec<Arc<Gates>>) {
    let gates: Vec<Arc<Gates>> = nodes.iter().map(|_| Arc::default()).collect();
    let quorum = Quorum::new(nodes.iter().zip(&gates).map(|(node, gates)| delayed(node, gates)).collect()).unwrap();
    (quorum.node_timeout(Duration::from_millis(50)), gates)
}

pub(super) fn three() -> Vec<Memory> {
    (0..3).map(|_| Memory::default()).collect()
}

/// Lets what goes on in the background come as far as it can.
pub(super) async fn quiet() {
    yields().await;
    // Late answers are handled together, after a pause.
    tokio::time::sleep(crate::late_answers::PAUSE + Duration::from_millis(1)).await;
    yields().await;
}

async fn yields() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Whichever of the two a node gets first, and whatever it answers: no vote of a round that is over is left.
#[tokio::test(start_paused = true)]
async fn a_late_vote_and_its_release_leave_nothing_in_any_order() {
    for (vote_first, found) in [(true, true), (true, false), (false, false)] {
        let nodes = three();
        let (quorum, gates) = behind_gates(&nodes);
        let mine = claim(1);
        gates[0].attempt.close();
        gates[0].release.close();
        let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
        assert_eq!(
            quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap().outcome,
            Released::Released
        );
        // A release that finds no hold, though the vote is there: as if it had been on another way.
        gates[0].down.store(vote_first && !found, Ordering::Release);
        let open =
            if vote_first { [&gates[0].attempt, &gates[0].release] } else { [&gates[0].release, &gates[0].attempt] };
        for gate in open {
            gate.open();
            quiet().await;
        }
        assert_eq!(shown(&nodes).await, [None, None, None], "the vote first: {vote_first}, found: {found}");
        assert_eq!(gates[0].releases.load(Ordering::Acquire), if found { 1 } else { 2 }, "requests to release it");
    }
}

fn memo(text: &str) -> Option<Memo> {
    Some(text.as_bytes().into())
}

#[tokio::test(start_paused = true)]
async fn a_lost_round_is_not_adopted_while_its_votes_are_given_back() {
    let nodes = three();
    let (quorum, gates) = behind_gates(&nodes);
    let mut mine = claim(1);
    mine.lifetime = Lifetime::Lease;
    // Its caller goes away before the votes are there; they come, agree, and are about to be given back.
    gates.iter().for_each(|gates| gates.attempt.close());
    gates.iter().for_each(|gates| gates.release.close());
    tokio::select! {
        biased;
        answer = quorum.attempt(&mine) => panic!("{answer:?}"),
        () = quiet() => {}
    }
    gates.iter().for_each(|gates| gates.attempt.open());
    quiet().await;
    let votes = shown(&nodes).await;
    assert!(votes[0].is_some() && votes.iter().all(|vote| *vote == votes[0]), "{votes:?}");
    let again = quorum.attempt(&mine).await.unwrap();
    gates.iter().for_each(|gates| gates.release.open());
    quiet().await;
    let kept = shown(&nodes).await.iter().flatten().count();
    assert!(matches!(again, Attempt::Pending(_)), "{again:?}, which {kept} nodes keep");
    assert_eq!(kept, 0);
    assert!(matches!(quorum.attempt(&mine).await.unwrap(), Attempt::Granted(_)));
}

#[tokio::test(start_paused = true)]
async fn a_memo_is_left_on_a_majority_or_its_release_fails() {
    for left in [memo("left"), None] {
        let nodes = three();
        let (quorum, gates) = behind_gates(&nodes);
        let mine = claim(1);
        let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
        quiet().await;
        // One node has lost its vote, and another does not answer.
        Driver::release(&nodes[0], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
        gates[1].release.close();
        let answer = quorum.release(&mine.resource, mine.id, &End::Done { memo: left.clone() }).await;
        match left {
            Some(_) => assert_eq!(answer.unwrap_err().applied(), Applied::Unknown),
            None => assert_eq!(answer.unwrap().outcome, Released::Released),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_is_not_used_again_while_a_memo_may_be_on_its_way() {
    let nodes = three();
    left_by(&two_of(&nodes, 2), 1, Some("first")).await;
    let (quorum, gates) = behind_gates(&nodes);
    let mut mine = claim(2);
    mine.ttl = Duration::from_millis(400);
    let id_of_next = || Round::begin(&quorum.core.registry, &mine).unwrap().claim.id;
    // The votes of the last two nodes count, and the memo is handed to the last: that is, it would be.
    for lost in [false, true] {
        gates[0].attempt.close();
        gates[2].renew.close();
        gates[2].renewals_lost.store(lost, Ordering::Release);
        let answer = quorum.attempt(&mine).await.unwrap();
        assert!(matches!(answer, Attempt::Pending(_)), "{answer:?}");
        gates[0].attempt.open();
        quiet().await;
        assert_eq!(shown(&nodes).await, [None, None, None]);
        assert_ne!(id_of_next(), mine.id, "its memo is on its way");
        gates[2].renew.open();
        quiet().await;
        assert_eq!(id_of_next() != mine.id, lost, "whether its memo may still be on its way");
    }
    tokio::time::sleep(mine.ttl * 2).await;
    assert_eq!(id_of_next(), mine.id);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_loses_a_vote_meanwhile_does_not_count_for_more_fences() {
    let nodes = uneven(3).await;
    let (quorum, gates) = behind_gates(&nodes);
    let mine = Arc::new(claim(1));
    let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    quiet().await;
    let hold = quorum.core.registry.hold(mine.id).unwrap();
    assert_eq!(hold.confirmed().len(), 2);
    let mut renewal = Renewal::of(mine.clone());
    renewal.fences = Fences::Reserve(10);
    gates[0].renew.close();
    let batch = [renewal];
    let mut renewed = std::pin::pin!(quorum.renew(&batch));
    tokio::select! {
        biased;
        answer = &mut renewed => panic!("{answer:?}"),
        () = quiet() => {}
    }
    // The answer to an earlier renewal comes late, and the node is won back.
    hold.lost_on(0);
    gates[0].renew.open();
    let answer = renewed.await.pop().unwrap().unwrap();
    let Renewed::Alive { fence, .. } = answer else { panic!("{answer:?}") };
    assert_eq!(fence, Some(grant.fence), "fences without a majority that confirms them");
}

/// The memo that each node has, in the words of its writer.
async fn memos(nodes: &[Memory]) -> Vec<Option<String>> {
    let mut memos = Vec::new();
    for node in nodes {
        let page = Driver::inspect(node, &Query::name(claim(1).resource)).await.unwrap();
        let memo = page.resources.first().and_then(|state| state.memo.clone());
        let text = |memo: Memo| String::from_utf8(memo[25..].to_vec()).unwrap();
        memos.push(memo.map(text));
    }
    memos
}

/// Leaves a memo by a renewal.
async fn leave(quorum: &Quorum, claim: &Arc<Claim>, text: &str) {
    let mut renewal = Renewal::of(claim.clone());
    renewal.memo = memo(text);
    let answer = quorum.renew(&[renewal]).await.pop().unwrap().unwrap();
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_memo_that_was_held_up_on_its_way_does_not_replace_a_newer_one() {
    let nodes = three();
    let (quorum, gates) = behind_gates(&nodes);
    let mine = Arc::new(claim(1));
    let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    quiet().await;
    gates[0].way.close();
    gates[0].astray.store(true, Ordering::Release);
    leave(&quorum, &mine, "first").await;
    leave(&quorum, &mine, "second").await;
    quiet().await;
    let second = Some("second".to_owned());
    assert_eq!(memos(&nodes).await, [second.clone(), second.clone(), second.clone()]);
    gates[0].way.open();
    quiet().await;
    assert_eq!(memos(&nodes).await, [second.clone(), second.clone(), second]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_votes_late_is_given_the_memo() {
    let nodes = three();
    let (quorum, gates) = behind_gates(&nodes);
    let mine = Arc::new(claim(1));
    gates[0].attempt.close();
    let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    leave(&quorum, &mine, "left").await;
    assert_eq!(memos(&nodes).await[0], None);
    gates[0].attempt.open();
    quiet().await;
    let left = Some("left".to_owned());
    assert_eq!(memos(&nodes).await, [left.clone(), left.clone(), left]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_won_back_can_be_adopted_with_its_own_fence() {
    let nodes = three();
    let quorum = over(&nodes);
    let mut mine = claim(1);
    mine.lifetime = Lifetime::Lease;
    let mine = Arc::new(mine);
    let Attempt::Granted(grant) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    quiet().await;
    let adopted = async |without: usize| {
        let other = two_of(&nodes, without);
        match other.renew(&[Renewal::of(mine.clone())]).await.pop().unwrap().unwrap() {
            Renewed::Alive { fence, .. } => fence,
            Renewed::Gone(gone) => panic!("{gone:?}"),
        }
    };
    // Each of them loses the vote, and gives another number when it is asked again.
    for node in 0..3 {
        Driver::release(&nodes[node], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
        quorum.renew(&[Renewal::of(mine.clone())]).await.pop().unwrap().unwrap();
        quiet().await;
        let votes = shown(&nodes).await;
        assert!(votes.iter().all(Option::is_some) && votes[node] > Some(grant.fence), "{votes:?}");
        for without in 0..3 {
            assert_eq!(adopted(without).await, Some(grant.fence), "{votes:?} without {without}");
        }
        let other = over(&nodes);
        let again = other.attempt(&mine).await.unwrap();
        assert!(matches!(&again, Attempt::Granted(again) if again.fence == grant.fence), "{again:?}, {votes:?}");
        let page = other.inspect(&Query::name(mine.resource.clone())).await.unwrap();
        let holder = &page.resources[0].holders[0];
        assert_eq!((holder.fence, holder.label.tags.len()), (Some(grant.fence), 0));
    }
}

/// A hold of two nodes, of which the first does not answer any more; the third, which has lost its vote, is back.
async fn two_left(nodes: &[Memory]) -> (Quorum, Vec<Arc<Gates>>, Arc<Claim>) {
    let (quorum, gates) = behind_gates(nodes);
    let mine = Arc::new(claim(1));
    let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
    quiet().await;
    Driver::release(&nodes[2], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    gates[0].renewals_lost.store(true, Ordering::Release);
    (quorum, gates, mine)
}

async fn renewed(quorum: &Quorum, claim: &Arc<Claim>) -> Result<Renewed> {
    let answer = quorum.renew(&[Renewal::of(claim.clone())]).await.pop().unwrap();
    quiet().await;
    answer
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_back_is_won_back_though_another_has_gone_down_meanwhile() {
    let nodes = three();
    let (quorum, gates, mine) = two_left(&nodes).await;
    renewed(&quorum, &mine).await.expect_err("one of three keeps it, and one does not say");
    assert!(shown(&nodes).await[2].is_some(), "it was not won back");
    let answer = renewed(&quorum, &mine).await.unwrap();
    assert!(matches!(answer, Renewed::Alive { .. }), "two of three keep it: {answer:?}");
    // By then its vote has ended with its lease, which is no loss.
    for _ in 0..4 {
        tokio::time::sleep(mine.ttl / 3).await;
        let answer = renewed(&quorum, &mine).await.unwrap();
        assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    }
    Driver::release(&nodes[0], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    gates[0].renewals_lost.store(false, Ordering::Release);
    let answer = renewed(&quorum, &mine).await.unwrap();
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    assert!(shown(&nodes).await.iter().all(Option::is_some), "it was not won back");
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_forgot_is_a_loss_whatever_was_won_back_meanwhile() {
    let nodes = three();
    let (quorum, gates, mine) = two_left(&nodes).await;
    renewed(&quorum, &mine).await.expect_err("one of three keeps it, and one does not say");
    assert!(shown(&nodes).await[2].is_some(), "it was not won back");
    renewed(&quorum, &mine).await.unwrap();
    // It was restarted without its data, perhaps before the other voted again: another client may have had both.
    Driver::release(&nodes[0], &mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    gates[0].renewals_lost.store(false, Ordering::Release);
    let answer = renewed(&quorum, &mine).await.unwrap();
    assert!(matches!(answer, Renewed::Gone(_)), "it was taken back silently: {answer:?}");
    assert_eq!(shown(&nodes).await, [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_won_back_after_the_lease() {
    for sent_before in [true, false] {
        let nodes = three();
        let (quorum, gates, mine) = two_left(&nodes).await;
        let hold = quorum.core.registry.hold(mine.id).unwrap();
        gates[2].attempt.close();
        if sent_before {
            renewed(&quorum, &mine).await.expect_err("one of three keeps it, and one does not say");
        }
        hold.extend(tokio::time::Instant::now(), Duration::ZERO);
        if !sent_before {
            renewed(&quorum, &mine).await.expect_err("one of three keeps it, and one does not say");
        }
        gates[2].attempt.open();
        quiet().await;
        assert_eq!(shown(&nodes).await[2], None, "another may have had it, with a larger fence");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_leaves_no_vote_on_a_node_that_is_up() {
    // It rests because it could not be reached a moment ago; the request fails; it fails after the others have
    // answered.
    for case in 0..3 {
        let nodes = three();
        let (quorum, gates) = behind_gates(&nodes);
        let mine = claim(1);
        let Attempt::Granted(_) = quorum.attempt(&mine).await.unwrap() else { panic!("it is free") };
        quiet().await;
        match case {
            0 => quorum.core.nodes[0].note_answer(&absent::<()>()),
            _ => gates[0].down.store(true, Ordering::Release),
        }
        if case == 2 {
            gates[0].release.close();
        }
        let released = quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(released.outcome, Released::Released);
        gates[0].release.open();
        quiet().await;
        assert_eq!(shown(&nodes).await, [None, None, None], "case {case}");
    }
}
