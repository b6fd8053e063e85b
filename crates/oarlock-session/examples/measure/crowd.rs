//! One name and many contenders, beside others who do the same job, in turns in one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use oarlock_core::Locks;
use oarlock_core::floor::Rival;
use tokio::task::JoinSet;

const ROUNDS: usize = 3;
const SPAN: Duration = Duration::from_secs(2);

/// Who contends.
#[derive(Clone)]
pub(crate) enum Contender {
    Other(Arc<dyn Rival>),
    Fair(Locks),
    Oarlock(Locks),
}

/// Those who are measured together.
pub(crate) type Team = (&'static str, Vec<Contender>);

/// So many contenders, who share the clients.
pub(crate) fn members(crowd: usize, clients: &[Locks], who: fn(Locks) -> Contender) -> Vec<Contender> {
    clients.iter().cycle().take(crowd).cloned().map(who).collect()
}

/// Whose turn it was last, and how often it was another's before.
#[derive(Default)]
struct Turns {
    last: AtomicUsize,
    grants: AtomicU32,
    hand_offs: AtomicU32,
}

impl Turns {
    fn note(&self, who: usize) {
        let before = self.last.swap(who, Ordering::AcqRel);
        self.grants.fetch_add(1, Ordering::AcqRel);
        self.hand_offs.fetch_add(u32::from(before != who), Ordering::AcqRel);
    }
}

impl Contender {
    async fn turn(&self, who: usize, turns: &Turns) -> oarlock_core::Result<()> {
        let lock = match self {
            Self::Other(rival) => {
                rival.clone().take().await?;
                turns.note(who);
                return rival.clone().give().await;
            }
            Self::Fair(client) => client.mutex("contended").fair(),
            Self::Oarlock(client) => client.mutex("contended"),
        };
        let guard = lock.wait_forever().lock().await?;
        turns.note(who);
        guard.release().await.map(drop)
    }
}

/// Grants in a second, hand-offs in a second, and all grants.
async fn contend(contenders: &[Contender]) -> Result<[f64; 3]> {
    let (turns, start) = (Arc::new(Turns::default()), Instant::now());
    let mut crew: JoinSet<oarlock_core::Result<()>> = JoinSet::new();
    for (who, contender) in contenders.iter().cloned().enumerate() {
        let turns = turns.clone();
        crew.spawn(async move {
            while start.elapsed() < SPAN {
                contender.turn(who + 1, &turns).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = crew.join_next().await {
        done??;
    }
    let (took, count) = (start.elapsed().as_secs_f64(), |count: &AtomicU32| f64::from(count.load(Ordering::Acquire)));
    let grants = count(&turns.grants);
    Ok([grants / took, count(&turns.hand_offs) / took, grants])
}

/// All teams in turns; then each once more, to see what the server was asked, which `counted` says. The ratios are to the first team.
pub(crate) async fn measure(crowd: usize, teams: &[Team], counted: impl AsyncFn() -> Result<f64>) -> Result<()> {
    let mut figures = vec![Vec::new(); teams.len()];
    // The first round is there to warm up.
    for round in 0..=ROUNDS {
        for ((_, contenders), figures) in teams.iter().zip(&mut figures) {
            let figure = contend(contenders).await?;
            figures.extend((round > 0).then_some(figure));
        }
    }
    let (mut before, mut first) = (counted().await?, None);
    for ((name, contenders), figures) in teams.iter().zip(&mut figures) {
        figures.sort_by(|one, other| one[1].total_cmp(&other[1]));
        let [grants, hand_offs, _] = figures[ROUNDS / 2];
        let [_, _, asked_for] = contend(contenders).await?;
        let after = counted().await?;
        let (statements, least) = ((after - before) / asked_for, *first.get_or_insert(hand_offs));
        before = after;
        let ratio = hand_offs / least;
        println!("{crowd:10}  {hand_offs:11.0}  {ratio:5.2}  {grants:8.0}  {statements:10.1}  {name}");
    }
    Ok(())
}
