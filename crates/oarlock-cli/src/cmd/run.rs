//! `oarlock run`: a command that runs while its locks are held.

use std::ffi::OsString;
use std::fs::File;
use std::time::{Duration, Instant};

use oarlock::state::ResourceName;
use oarlock::{Error, ErrorKind, Locks, MultiGuard};
use oarlock_core::text;
use rustix::process::Signal;

use crate::args::{LockArgs, LossArgs, StoreArgs, WorkArgs, span};
use crate::child::cause::Cause;
use crate::child::supervise::{Ended, Watch};
use crate::child::{Child, Status};
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::front::Job;
use crate::messages::Messages;
use crate::observe::EngineEvents;
use crate::output::millis;
use crate::report::{Outcome, Report};
use crate::settings::RunSettings;
use crate::signals::{FORWARDED, JOB, Signals};
use crate::store::{block_on, farewell};
use crate::{messages, multi, nest, progress};

/// Run a command while holding the lock, or several locks
#[derive(Debug, clap::Args)]
#[command(after_help = "The exit code is the command's, or 75 busy, 76 lost, 69 store unreachable, 77 denied, \
78 bad URL, 64 bad usage, 126 not executable, 127 not found, 128+N ended by signal N.")]
pub(crate) struct RunArgs {
    /// The lock; several are taken all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Keep the lock for at least DUR, even if the command ends sooner
    #[arg(hide_short_help = true, long, value_name = "DUR", value_parser = span)]
    pub(crate) min_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "command")]
    pub(crate) argv: Vec<OsString>,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock run --on-busy skip -q nightly-backup -- /usr/local/bin/backup", "A cron job that must not overlap."),
    ("oarlock run -w 10m --reason 'release 2.3' deploy/prod -- ./deploy", "Wait ten minutes, and say why."),
    ("oarlock run -j 3 encoders -- ./encode small.mov", "At most three at a time."),
    ("oarlock run accounts/7 accounts/9 -- ./transfer", "Two locks as one."),
];

pub(crate) fn main(args: RunArgs, job: Option<&Job>) -> Result<Exit, Failure> {
    let mut settings = RunSettings::new(args)?;
    let (file, messages) = (settings.report.take(), settings.store.messages);
    reported(&settings.names, file, messages, |report| block_on(run(&settings, job, report)))
}

/// Does `work`, and writes what it reports to `file`.
pub(crate) fn reported(
    names: &[ResourceName],
    file: Option<File>,
    messages: Messages,
    work: impl FnOnce(&mut Report) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let mut report = Report::new(names);
    let result = work(&mut report);
    let exit = match &result {
        Ok(exit) => *exit,
        Err(failure) => {
            report.message = failure.message().map(str::to_owned);
            if failure.exit() == Code::Unreachable.into() {
                report.outcome = Outcome::Unreachable;
            }
            failure.exit()
        }
    };
    report.exit_code = exit.0;
    report.write(file, messages);
    result
}

async fn run(settings: &RunSettings, job: Option<&Job>, report: &mut Report) -> Result<Exit, Failure> {
    let RunSettings { asking, store, .. } = settings;
    // From here on a signal is a message, not our end.
    let mut signals = Signals::new(FORWARDED.iter().copied().chain(job.iter().flat_map(|_| JOB.iter().copied())))?;
    let started = Instant::now();
    let until = asking.wait.map(|wait| started + wait);
    let events = EngineEvents::new(store.messages);
    let locks = tokio::select! {
        biased;
        signal = wait_for_stop(&mut signals, job) => return Ok(stopped(report, signal)),
        locks = store.hold(asking, until, events.clone()) => locks?,
    };
    let result = with_locks(settings, job, report, &locks, &events, &mut signals, until).await;
    report.waited_ms = report.waited_ms.max(if report.acquired_at.is_none() { millis(started.elapsed()) } else { 0 });
    report.renewals = events.renewals();
    if let Err(error) = farewell(&locks, &events).await {
        store.messages.parting(&error, result.is_err());
    }
    result
}

pub(crate) fn stopped(report: &mut Report, signal: Signal) -> Exit {
    report.outcome = Outcome::Stopped;
    Exit::signal(signal.as_raw())
}

/// Resolves when we are asked to end; follows stops of the job meanwhile.
pub(crate) async fn wait_for_stop(signals: &mut Signals, job: Option<&Job>) -> Signal {
    loop {
        let signal = signals.next().await;
        match (signal, job) {
            (Signal::TSTP, Some(job)) => {
                job.stop(None);
            }
            _ if crate::signals::asks_to_stop(signal) => return signal,
            // There is no command yet that could want the others.
            _ => {}
        }
    }
}

async fn with_locks(
    settings: &RunSettings,
    job: Option<&Job>,
    report: &mut Report,
    locks: &Locks,
    events: &EngineEvents,
    signals: &mut Signals,
    until: Option<Instant>,
) -> Result<Exit, Failure> {
    let RunSettings { asking, names, store, .. } = settings;
    if let Some(nested) = nest::held_by_ancestor(locks, names).await {
        let name = text::quoted(nested.name.as_str());
        let message = format!(
            "busy: {name} is held by the oarlock that runs this command, fence {}; it would wait for itself.",
            nested.fence
        );
        return busy(settings, report, &message);
    }
    loop {
        let acquired = tokio::select! {
            biased;
            signal = wait_for_stop(signals, job) => return Ok(stopped(report, signal)),
            acquired = multi::acquire(locks, names, asking, until) => acquired,
            () = forever(progress::announce(locks, events, store.messages)) => continue,
        };
        let multi = match acquired {
            Ok(multi) => multi,
            Err(error) if error.kind() == ErrorKind::Busy => return busy(settings, report, &busy_words(&error)),
            Err(error) => return Err(error.into()),
        };
        if let Some(signal) = not_started(signals, job, &multi).await {
            let _ = multi::release(multi, events).await;
            return Ok(stopped(report, signal));
        }
        // Looked at once more: the grant may have been long on its way, or we asleep.
        if multi.is_held() {
            return command(settings, job, report, locks, events, signals, multi).await;
        }
        let _ = multi::release(multi, events).await;
    }
}

/// Announcing ends; waiting does not.
pub(crate) async fn forever(work: impl Future<Output = ()>) {
    work.await;
    std::future::pending::<()>().await;
}

/// A stop that was asked for between the grant and the start of the command. While the job is stopped by the shell the
/// command is not started either.
pub(crate) async fn not_started(signals: &mut Signals, job: Option<&Job>, multi: &MultiGuard) -> Option<Signal> {
    loop {
        // A signal that came with the grant is known to the kernel; this lets the runtime hear of it.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            signal = wait_for_stop(signals, job) => return Some(signal),
            () = std::future::ready(()) => {}
        }
        if job.is_none_or(|job| !job.is_stopped()) || !multi.is_held() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Why a wait ended, and what to do next.
pub(crate) fn busy_words(error: &Error) -> String {
    let show = error
        .resource()
        .map_or_else(|| "ls".to_owned(), |name| format!("show {}", messages::shell_word(name.as_str())));
    format!("{error}. Wait longer with -w, see the holder with \"oarlock {show}\".")
}

pub(crate) fn busy(settings: &RunSettings, report: &mut Report, message: &str) -> Result<Exit, Failure> {
    settings.store.messages.note(message);
    report.message = Some(message.to_owned());
    if settings.asking.skip_if_busy {
        report.outcome = Outcome::Skipped;
        return Ok(Code::Success.into());
    }
    report.outcome = Outcome::Busy;
    Ok(Exit(settings.asking.busy_code))
}

/// Runs the command of `settings` while it holds `multi`, and releases it.
pub(crate) async fn command(
    settings: &RunSettings,
    job: Option<&Job>,
    report: &mut Report,
    locks: &Locks,
    events: &EngineEvents,
    signals: &mut Signals,
    multi: MultiGuard,
) -> Result<Exit, Failure> {
    match attend(settings, job, report, locks, events, signals, &multi, None).await {
        Ok(attended) => conclude(settings, report, events, multi, attended).await,
        Err(failure) => {
            let _ = multi::release(multi, events).await;
            Err(failure)
        }
    }
}

/// How a command ended that ran under a lock.
pub(crate) struct Attended {
    pub(crate) status: Status,
    /// It was ended because of its lock, or outlived it.
    pub(crate) lost: bool,
    /// Why, where it was ended.
    pub(crate) cause: Option<Cause>,
}

/// Runs the command of `settings` while it holds `multi`, and until `--min-hold` is over. `more` is one more variable.
#[expect(clippy::too_many_arguments, reason = "all of it belongs to one run")]
pub(crate) async fn attend(
    settings: &RunSettings,
    job: Option<&Job>,
    report: &mut Report,
    locks: &Locks,
    events: &EngineEvents,
    signals: &mut Signals,
    multi: &MultiGuard,
    more: Option<(&'static str, String)>,
) -> Result<Attended, Failure> {
    let RunSettings { asking, rules, store, .. } = settings;
    let rules = rules.within(multi.time_left());
    let acquired = Instant::now();
    note_grant(report, multi);
    let variables = variables(settings, locks, multi).into_iter().chain(more);
    let mut child = Child::spawn(&settings.command, variables, job)?;
    let watch = Watch {
        multi,
        rules,
        signals,
        events,
        held_until: asking.max_hold.map(|span| tokio::time::Instant::from_std(acquired) + span),
        renewed: asking.renew,
        job,
        messages: store.messages,
    };
    let Ended { status, mut lost, cause, stop } = watch.over(&mut child).await;
    (report.child_status, report.stop) = (Some(status), stop);

    let kill_at = tokio::time::Instant::now() + rules.kill_after;
    child.end_group(kill_at, multi.ends_within(rules.slack)).await;
    lost |= !multi.is_held();
    let left = settings.min_hold.saturating_sub(acquired.elapsed());
    if !lost && !left.is_zero() {
        tokio::select! {
            _ = signals.stop() => {}
            () = tokio::time::sleep(left) => {}
            () = multi.ends_within(Duration::ZERO) => {}
        }
    }
    report.held_ms = millis(acquired.elapsed());
    Ok(Attended { status, lost, cause })
}

/// Releases `multi`, and says how the run ended.
pub(crate) async fn conclude(
    settings: &RunSettings,
    report: &mut Report,
    events: &EngineEvents,
    multi: MultiGuard,
    Attended { status, lost, cause }: Attended,
) -> Result<Exit, Failure> {
    let RunSettings { asking, store, .. } = settings;
    let names: Vec<_> = settings.names.iter().map(|name| text::quoted(name.as_str())).collect();
    let lost_name =
        || multi.loss().map_or_else(|| names.join(", "), |(held, _)| text::quoted(held.resource().as_str()));
    let reason = match (&cause, multi.loss()) {
        (Some(cause), _) => Some(format!("lost: {}: {cause}; the command was ended", lost_name())),
        (None, Some((_, reason))) => Some(format!("lost: {}: {reason}", lost_name())),
        (None, None) => None,
    };
    report.lost_because = cause.or_else(|| multi.loss().map(|(_, reason)| Cause::Lost { reason: reason.to_string() }));
    let done = multi::release(multi, events).await;
    for error in &done.errors {
        store.messages.warning(&format!("cannot release the lock; it ends with its lease: {error}"));
    }
    if lost || !done.gone.is_empty() {
        report.outcome = Outcome::Lost;
        let message = reason.unwrap_or_else(|| match done.gone.first() {
            Some(name) => format!("lost: {}: it was gone before it was released", text::quoted(name.as_str())),
            None => format!("lost: {}", names.join(", ")),
        });
        store.messages.error(&message);
        report.message = Some(message);
        return Ok(Exit(asking.lost_code));
    }
    report.outcome = Outcome::Ran;
    Ok(status.exit())
}

fn note_grant(report: &mut Report, multi: &MultiGuard) {
    let now = jiff::Timestamp::now();
    report.acquired_at = Some(format!("{now:.3}"));
    report.waited_ms = multi.iter().map(|held| millis(held.waited())).sum();
    report.fences = multi.iter().map(oarlock::Held::fence).collect();
    report.fence = report.fences.first().copied();
}

pub(crate) fn variables(settings: &RunSettings, locks: &Locks, multi: &MultiGuard) -> Vec<(&'static str, String)> {
    let label = &settings.asking.label;
    let mut variables = vec![
        ("OARLOCK_HOLDER", format!("{}:{}", label.host, label.pid)),
        ("OARLOCK_TTL_MS", millis(settings.asking.ttl).to_string()),
        ("OARLOCK_WAITED_MS", multi.iter().map(|held| millis(held.waited())).sum::<u64>().to_string()),
        ("OARLOCK_BACKEND", locks.info().scheme.to_owned()),
    ];
    if let Some(first) = multi.iter().next() {
        variables.push(("OARLOCK_NAME", first.resource().to_string()));
        variables.push(("OARLOCK_FENCE", first.fence().to_string()));
        variables.push(("OARLOCK_KIND", first.kind().to_string()));
    }
    let nested = serde_json::to_string(&nest::handed_on(locks, multi)).unwrap_or_default();
    variables.push((nest::VARIABLE, nested));
    variables
}
