//! Rounds for a name that others want, too.

use super::delayed::{Gates, behind_gates, delayed, quiet, three};
use super::*;

/// How many attempts each node has seen.
fn asked(gates: &[Arc<Gates>]) -> Vec<usize> {
    gates.iter().map(|gates| gates.attempts.load(Ordering::Acquire)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_contended_name_is_asked_for_on_one_node_first() {
    let nodes = three();
    let (quorum, gates) = behind_gates(&nodes);
    let holder = over(&nodes);
    let (mut mine, mut theirs) = (claim(1), claim(2));
    (mine.wait, theirs.wait) = (true, true);
    let attempt = async |claim: &Claim| {
        let answer = quorum.attempt(claim).await.unwrap();
        quiet().await;
        let granted = matches!(answer, Attempt::Granted(_));
        (granted, asked(&gates))
    };
    let Attempt::Granted(_) = holder.attempt(&theirs).await.unwrap() else { panic!("it is free") };
    quiet().await;
    assert_eq!(attempt(&mine).await, (false, vec![1, 1, 1]));
    let first = quorum.core.first(&mine.resource).unwrap();
    let one = |count: usize| [0, 1, 2].map(|at| count + usize::from(at == first));
    assert_eq!(attempt(&mine).await, (false, one(1).to_vec()), "the others were asked, too");
    // The same holder after a while: all are asked, because that one may be all there is.
    tokio::time::advance(Duration::from_millis(25)).await;
    let all = one(1).map(|count| count + 1).to_vec();
    assert_eq!(attempt(&mine).await, (false, all));
    holder.release(&theirs.resource, theirs.id, &End::Done { memo: None }).await.unwrap();
    quiet().await;
    assert!(attempt(&mine).await.0);
    quorum.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
    quiet().await;
    // What is left of a round that came to nothing blocks no claim: a claim that asks once is not refused by it, and a
    // claim that waits is so only for a moment.
    let (mut dead, mut once) = (claim(3), claim(4));
    (dead.ttl, once.ttl) = (Duration::from_secs(300), Duration::from_secs(300));
    Driver::attempt(&nodes[first], &dead).await.unwrap();
    assert!(attempt(&once).await.0, "it is free on a majority");
    quorum.release(&once.resource, once.id, &End::Done { memo: None }).await.unwrap();
    quiet().await;
    assert!(!attempt(&mine).await.0);
    tokio::time::advance(Duration::from_millis(25)).await;
    assert!(attempt(&mine).await.0, "it is free on a majority");
}

/// Other clients hear of a release by a notification: without a pause the client that released would be the first again.
#[tokio::test(start_paused = true)]
async fn who_released_a_contended_name_lets_others_ask_first() {
    let nodes = three();
    let quorum = over(&nodes);
    let (mut waits, once) = (claim(1), claim(2));
    waits.wait = true;
    let take = async |claim: &Claim| {
        let began = tokio::time::Instant::now();
        let answer = quorum.attempt(claim).await.unwrap();
        assert!(matches!(answer, Attempt::Granted(_)), "{answer:?}");
        let took = began.elapsed();
        quorum.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        took
    };
    assert_eq!((take(&waits).await, take(&waits).await), (Duration::ZERO, Duration::ZERO), "no other client wants it");
    quorum.core.crowd.lost(&waits.resource);
    assert_eq!(take(&waits).await, Duration::ZERO, "another client had it last");
    assert_eq!(take(&once).await, Duration::ZERO, "a claim that does not wait is answered at once");
    assert_eq!(take(&waits).await, Duration::from_millis(1));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(take(&waits).await, Duration::ZERO, "the others had their time");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_asked_first_and_does_not_answer_is_not_waited_for() {
    let nodes = three();
    let (quorum, gates) = behind_gates(&nodes);
    let mut mine = claim(1);
    mine.wait = true;
    quorum.core.crowd.lost(&mine.resource);
    gates[quorum.core.first(&mine.resource).unwrap()].attempt.close();
    let began = tokio::time::Instant::now();
    let answer = quorum.attempt(&mine).await.unwrap();
    assert!(matches!(answer, Attempt::Granted(_)), "{answer:?}");
    assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_node_is_asked_first_though_another_is_away() {
    let nodes = three();
    let gates: Vec<Arc<Gates>> = (0..2).map(|_| Arc::default()).collect();
    let members = vec![delayed(&nodes[0], &gates[0]), Arc::new(Absent), delayed(&nodes[1], &gates[1])];
    let quorum = Quorum::new(members).unwrap();
    for node in &nodes {
        Driver::attempt(node, &claim(2)).await.unwrap();
    }
    let mut mine = claim(1);
    mine.wait = true;
    for asked_before in 0..2 {
        assert_eq!(asked(&gates).iter().sum::<usize>(), 2 * asked_before);
        let answer = quorum.attempt(&mine).await.unwrap();
        assert!(matches!(answer, Attempt::Pending(_)), "{answer:?}");
        quiet().await;
    }
    assert_eq!(asked(&gates).iter().sum::<usize>(), 3, "both were asked again");
}
