//! Runs the cases on a fixture, in parallel. Reports which were skipped, and why.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};
use oarlock_core::driver::Info;

use crate::cases::{self, Case};
use crate::context::TestContext;
use crate::failure::{Failure, Outcome};
use crate::fixture::Fixture;

/// No case takes longer than this.
const CASE_BOUND: Duration = Duration::from_secs(120);

/// More than there are processors: cases mostly wait for leases to expire.
const THREADS: usize = 8;

/// Runs the whole suite on `fixture` with the usual test arguments, prints the measurements of the cases, and exits.
/// Call it in the `main` of a test with `harness = false`.
pub fn run(fixture: impl Fixture) -> ! {
    run_with(fixture, &args()).exit()
}

/// The arguments of this process, for [`run_with`].
#[must_use]
pub fn args() -> Arguments {
    Arguments::from_args()
}

/// What takes long and is the same wherever the servers are: mostly the work of the engine. The rest stays: exclusion,
/// order, fences, belief, lost replies.
pub const SAME_ANYWHERE: &[&str] = &[
    "busy::",
    "cancel::",
    "close::",
    "cohort::",
    "dead_waiters::",
    "election::",
    "expiry::",
    "gate::",
    "hand_over::",
    "inspect::",
    "memo::",
    "multi::",
    "names::",
    "once::",
    "owner::",
    "reentrant::",
    "spec::",
    "spin::",
];

/// The arguments of this process, for a deployment that needs no case of these topics, because another one runs them.
/// The long tier (`OARLOCK_LONG`) runs them everywhere, and so does a call that names cases.
#[must_use]
pub fn args_without(topics: &[&str]) -> Arguments {
    let mut args = args();
    if !topics.is_empty() && args.filter.is_none() && std::env::var_os("OARLOCK_LONG").is_none() {
        println!("in the long tier only: {}", topics.join(" "));
        args.skip.extend(topics.iter().map(ToString::to_string));
    }
    args
}

/// Runs the suite with these arguments. For a `main` that must clean up afterwards.
pub fn run_with(fixture: impl Fixture, args: &Arguments) -> Conclusion {
    let suite = Arc::new(Suite::new(Arc::new(fixture)));
    let mut args = args.clone();
    args.test_threads = args.test_threads.or(Some(THREADS));
    let (alone, together): (Vec<Case>, Vec<Case>) = cases::all().into_iter().partition(Case::runs_alone);
    let trial = |case: Case| {
        let suite = suite.clone();
        Trial::ignorable_test(case.name(), move || suite.completion(&case))
    };
    let mut conclusion = libtest_mimic::run(&args, together.into_iter().map(trial).collect());
    let disturbing: Vec<_> = alone.into_iter().map(trial).collect();
    if !args.list && disturbing.iter().any(|trial| !args.is_filtered_out(trial)) {
        args.test_threads = Some(1);
        let rest = libtest_mimic::run(&args, disturbing);
        conclusion.num_passed += rest.num_passed;
        conclusion.num_failed += rest.num_failed;
        conclusion.num_ignored += rest.num_ignored;
    }
    for note in suite.notes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("note: {note}");
    }
    conclusion
}

/// Runs one case by its full name, such as `loss::the_holder_learns_of_its_loss`; `None` if there is no such case.
///
/// # Errors
/// The failure of the case.
pub fn run_case(fixture: Arc<dyn Fixture>, name: &str) -> Option<Outcome<Ran>> {
    let case = cases::all().into_iter().find(|case| case.name() == name)?;
    Some(Suite::new(fixture).verdict(&case))
}

/// The result of a case that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It passed.
    Passed,
    /// The store or the fixture lacks what it needs.
    Skipped(String),
}

struct Suite {
    fixture: Arc<dyn Fixture>,
    info: OnceLock<Outcome<Info>>,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Suite {
    fn new(fixture: Arc<dyn Fixture>) -> Self {
        Self { fixture, info: OnceLock::new(), notes: Arc::default() }
    }

    fn completion(&self, case: &Case) -> Result<Completion, Failed> {
        match self.verdict(case) {
            Ok(Ran::Passed) => Ok(Completion::Completed),
            Ok(Ran::Skipped(why)) => Ok(Completion::ignored_with(why)),
            Err(failure) => Err(failure.to_string().into()),
        }
    }

    fn verdict(&self, case: &Case) -> Outcome<Ran> {
        let info = self.info.get_or_init(|| self.read_info()).clone()?;
        if let Some(why) = case.lacks(&info.capabilities, &self.fixture.powers()) {
            return Ok(Ran::Skipped(why));
        }
        let context = TestContext::new(self.fixture.clone(), info, case.name(), self.notes.clone());
        // A runtime for each case: tasks that it leaves running do not disturb another case.
        let runtime = runtime()?;
        let outcome = runtime.block_on(async {
            let late = |_| Failure::new(format!("was not done after {} s", CASE_BOUND.as_secs()));
            tokio::time::timeout(CASE_BOUND, case.run(Arc::new(context))).await.map_err(late)?
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome.map(|()| Ran::Passed)
    }

    fn read_info(&self) -> Outcome<Info> {
        let runtime = runtime()?;
        let info =
            runtime.block_on(async { self.fixture.connect().await.map(|connection| connection.driver().info()) });
        runtime.shutdown_timeout(Duration::from_secs(1));
        info.map_err(|error| Failure::new(format!("cannot connect: {error}")))
    }
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}
