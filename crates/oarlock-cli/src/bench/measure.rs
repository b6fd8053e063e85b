//! The loads, one after the other, each in turns with what it is compared with.

use std::time::Duration;

use oarlock_bench::Targets;
use oarlock_bench::contend::{Contender, contend, now};
use oarlock_bench::grants::{Contention, Grant, Violation, Window, check};
use oarlock_bench::pairs::{self, Pairs, Who};

use crate::bench::plan::{Load, Plan};
use crate::bench::workers::Workers;
use crate::exit::Failure;

/// Turns of each in a load without contention.
const TURNS: u32 = 10;

/// In one with contention they are longer: a wait cannot be longer than its turn.
const CONTENDED_TURNS: u32 = 2;

/// Time for all processes to hear when to start.
const NOTICE: Duration = Duration::from_millis(20);

/// No more than this many violations are kept; one is too many.
const KEPT: usize = 20;

/// What came of one load.
pub(crate) enum Finding {
    Pairs {
        tasks: u32,
        all: Vec<(Who, Pairs)>,
    },
    Contended {
        load: Load,
        processes: Option<u32>,
        contenders: u32,
        ours: Contention,
        baseline: Option<(&'static str, Contention)>,
    },
}

/// What came of all of them.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) loads: Vec<Finding>,
    /// How many grants were checked.
    pub(crate) checked: u64,
    pub(crate) violations: Vec<Violation>,
}

/// Told what runs now, and when a part of it is done.
pub(crate) trait Progress {
    fn load(&self, load: Load);
    fn step(&self);
}

/// How many steps [`all`] makes at most.
pub(crate) fn steps(plan: &Plan, targets: &Targets) -> u32 {
    let steps = |load: &Load| match load {
        Load::Pair | Load::Names => (TURNS + 1) * sides(targets),
        Load::Tasks | Load::Processes => (CONTENDED_TURNS + 1) * 2,
    };
    plan.loads.iter().map(steps).sum()
}

/// How many take turns in a load without contention.
fn sides(targets: &Targets) -> u32 {
    1 + targets.others().map(|_| 1).sum::<u32>()
}

pub(crate) async fn all(
    plan: &Plan,
    targets: &Targets,
    workers: &mut Workers,
    progress: &impl Progress,
) -> Result<Findings, Failure> {
    let mut findings = Findings::default();
    for load in &plan.loads {
        progress.load(*load);
        let finding = match load {
            Load::Pair => uncontended(plan, targets, 1, progress).await?,
            Load::Names => uncontended(plan, targets, plan.tasks, progress).await?,
            Load::Tasks => contended(plan, targets, None, &mut findings, progress).await?,
            Load::Processes => {
                workers.start(plan.processes).await?;
                let finding = contended(plan, targets, Some(&mut *workers), &mut findings, progress).await?;
                workers.end().await?;
                finding
            }
        };
        findings.loads.push(finding);
    }
    Ok(findings)
}

async fn uncontended(plan: &Plan, targets: &Targets, tasks: u32, progress: &impl Progress) -> Result<Finding, Failure> {
    let names: Vec<_> = (0..tasks).map(|task| plan.name(&format!("own-{task}"))).collect();
    let length = plan.duration / (TURNS * sides(targets));
    let all = pairs::load(targets, &names, TURNS, length, || progress.step()).await?;
    Ok(Finding::Pairs { tasks, all })
}

async fn contended(
    plan: &Plan,
    targets: &Targets,
    mut workers: Option<&mut Workers>,
    findings: &mut Findings,
    progress: &impl Progress,
) -> Result<Finding, Failure> {
    let (load, contenders) = if workers.is_some() {
        (Load::Processes, plan.processes * plan.per_process)
    } else {
        (Load::Tasks, plan.contenders)
    };
    let name = plan.name(if workers.is_some() { "processes" } else { "tasks" });
    // Those of other processes have their own; one is enough to know whether there are any.
    let rivals = targets.rivals(&name, if workers.is_some() { 1 } else { contenders }).await?;
    let mut baseline = match rivals.first() {
        Some(rival) => Some((rival.what(), Contention::new(contenders)?)),
        None => None,
    };
    let mut ours = Contention::new(contenders)?;
    let length = plan.duration / (CONTENDED_TURNS * (1 + u32::from(baseline.is_some())));
    for round in 0..=CONTENDED_TURNS {
        let order = if round % 2 == 0 { [Who::Oarlock, Who::Baseline] } else { [Who::Baseline, Who::Oarlock] };
        for who in order {
            if who == Who::Baseline && baseline.is_none() {
                continue;
            }
            let start = now() + nanos(NOTICE);
            // The first round only warms up.
            let window = Window { start, end: start + nanos(if round == 0 { length / 4 } else { length }) };
            let served = targets.calls().await;
            let mut grants: Vec<Grant> = if let Some(workers) = &mut workers {
                workers.contend(who.word(), &name, window).await?
            } else {
                let mut all = Vec::new();
                for number in 0..contenders {
                    let contender = match rivals.get(number as usize).filter(|_| who == Who::Baseline) {
                        Some(rival) => Contender::Baseline(rival.clone()),
                        None => Contender::Ours(targets.lock(&name)),
                    };
                    all.push(contend(number, contender, window, targets.stop()));
                }
                targets.all(all).await?.into_iter().flatten().collect()
            };
            let side = match &mut baseline {
                Some((_, baseline)) if who == Who::Baseline => baseline,
                _ => {
                    findings.check(&grants);
                    &mut ours
                }
            };
            if round > 0 {
                side.add(&mut grants, window);
                let calls = served.zip(targets.calls().await).map(|(before, after)| after.saturating_sub(before));
                side.served(calls, grants.len());
            }
            progress.step();
        }
    }
    let processes = (load == Load::Processes).then_some(plan.processes);
    Ok(Finding::Contended { load, processes, contenders, ours, baseline })
}

impl Findings {
    pub(crate) fn check(&mut self, grants: &[Grant]) {
        self.checked += grants.len() as u64;
        self.violations.extend(check(grants));
        self.violations.truncate(KEPT);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
