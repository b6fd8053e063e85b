//! `oarlock once`: a command that runs once per slot, on one machine of many.

mod record;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oarlock::state::ResourceName;
use oarlock::{Error, ErrorKind, Guard, LastSlot, Locks, MultiGuard, Once};
use oarlock_core::text;
use rustix::process::Signal;

use crate::args::{LabelArgs, LockArgs, LossArgs, OnBusy, StoreArgs, WorkArgs, span};
use crate::child::Status;
use crate::cmd::Examples;
use crate::cmd::run::{self, busy, busy_words, forever, not_started, stopped, wait_for_stop};
use crate::exit::{Code, Exit, Failure};
use crate::front::Job;
use crate::observe::EngineEvents;
use crate::report::{Outcome, Report};
use crate::settings::{Asking, Rules, RunSettings, open_report};
use crate::signals::{FORWARDED, JOB, Signals};
use crate::slot::{Clock, Current, Reading, Slots};
use crate::store::{Store, block_on, farewell};
use crate::{multi, nest, progress};
use record::{FailedRun, MAX_BY, Record, Records, now, told};

/// Run a command once per slot, on one machine of many: the cron job of a cluster
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A slot that is done ends with 0, one that runs elsewhere with 75. At most once (the default): the slot \
is used up when the command is started, also if it fails or the machine dies. --at-least-once: only success uses it up."
)]
pub(crate) struct OnceArgs {
    /// The name under which the slots are counted
    pub(crate) name: String,
    /// A duration (15m, 1h, 1d), a cron expression with an optional time zone, or any text
    #[arg(long, value_name = "EXPR", required_unless_present_any = ["show", "forget"])]
    pub(crate) slot: Option<String>,
    /// Show the last slot: who ran it, when, and its exit code
    #[arg(long, conflicts_with_all = ["argv", "command"])]
    pub(crate) show: bool,
    /// Forget the last slot, as --show prints it, and those before it: it runs again
    #[arg(hide_short_help = true, long, value_name = "SLOT", conflicts_with_all = ["argv", "command", "slot", "show"])]
    pub(crate) forget: Option<String>,
    /// Do not ask for confirmation of --forget
    #[arg(hide_short_help = true, long, requires = "forget")]
    pub(crate) yes: bool,
    /// Run a slot again whose command failed or did not finish
    #[arg(long)]
    pub(crate) at_least_once: bool,
    /// Remember the slot for at least DUR; until a day after its end, or 400d for a text
    #[arg(hide_short_help = true, long, value_name = "DUR", value_parser = span)]
    pub(crate) keep: Option<Duration>,
    /// Wait at most DUR if the name is in use; without this, do not wait
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    /// What to do when the command runs elsewhere: fail (the default), skip with exit code 0, or wait
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) on_busy: Option<OnBusy>,
    /// The exit code when busy (N or busy=N) and when the slot is done (done=N); may be repeated
    #[arg(hide_short_help = true, short = 'E', long, value_name = "[done=]N", value_parser = code)]
    pub(crate) conflict_exit_code: Vec<Substitute>,
    /// The exit code when the lock was lost
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 76)]
    pub(crate) lost_exit_code: u8,
    /// Keep the lock for at least DUR: machines whose clocks differ by less find it busy
    #[arg(long, value_name = "DUR", value_parser = span)]
    pub(crate) min_hold: Option<Duration>,
    /// Hold the lock for DUR at most
    #[arg(hide_short_help = true, long, value_name = "DUR", value_parser = span)]
    pub(crate) max_hold: Option<Duration>,
    /// The lease: how long the lock lives without renewal; 30s, or what the URL says
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
    #[command(flatten)]
    pub(crate) label: LabelArgs,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present_any = ["command", "show", "forget"])]
    pub(crate) argv: Vec<OsString>,
}

/// An exit code in place of the usual one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Substitute {
    Busy(u8),
    Done(u8),
}

fn code(text: &str) -> Result<Substitute, String> {
    let (what, number) = text.split_once('=').unwrap_or(("busy", text));
    let number = number.parse().map_err(|_| "write N, busy=N or done=N, with N from 0 to 255".to_owned())?;
    match what {
        "busy" => Ok(Substitute::Busy(number)),
        "done" => Ok(Substitute::Done(number)),
        _ => Err("write N, busy=N or done=N".to_owned()),
    }
}

/// How often a name that is only just in use is asked for again, and the pause before that: another machine that finds
/// its slot done holds the lock for a round trip.
const AGAIN: u32 = 5;
const PAUSE: Duration = Duration::from_millis(60);

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock once report --slot '0 2 * * * Europe/Berlin' -- ./report", "Every night, on the first machine."),
    ("oarlock once cleanup --slot 1h --on-busy skip -q -- ./cleanup", "Each hour."),
    ("oarlock once report --show", "Who ran it last, and how it ended."),
];

pub(crate) fn main(args: OnceArgs, job: Option<&Job>) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    if args.show {
        return block_on(record::show(&store, &name));
    }
    if let Some(slot) = &args.forget {
        return block_on(record::forget(&store, &name, slot, args.yes));
    }
    let slots = Slots::parse(args.slot.as_deref().unwrap_or_default())?;
    let (mut busy_code, mut done_code) = (Code::Busy as u8, 0);
    for substitute in args.conflict_exit_code {
        match substitute {
            Substitute::Busy(code) => busy_code = code,
            Substitute::Done(code) => done_code = code,
        }
    }
    let lock = LockArgs {
        no_wait: args.wait.is_none() && args.on_busy.is_none(),
        wait: args.wait,
        on_busy: args.on_busy,
        ttl: args.ttl,
        max_hold: args.max_hold,
        conflict_exit_code: busy_code,
        lost_exit_code: args.lost_exit_code,
        label: args.label,
        ..LockArgs::waiting()
    };
    let command = args.work.command_or(args.argv);
    let asking = Asking::new(lock, &store)?.running(&command);
    let rules = Rules::new(args.loss, &asking)?;
    let file = open_report(args.work.report.as_deref())?;
    let messages = store.messages;
    let min_hold = args.min_hold.unwrap_or_default();
    let settings = RunSettings { names: vec![name], asking, rules, min_hold, command, report: None, store };
    let (at_least_once, keep) = (args.at_least_once, args.keep);
    let job_of = SlotJob { settings: &settings, slots, at_least_once, keep, done_code };
    run::reported(&settings.names, file, messages, |report| block_on(job_of.run(job, report)))
}

/// A job of which each slot is run once.
struct SlotJob<'a> {
    settings: &'a RunSettings,
    slots: Slots,
    at_least_once: bool,
    keep: Option<Duration>,
    done_code: u8,
}

impl SlotJob<'_> {
    async fn run(&self, job: Option<&Job>, report: &mut Report) -> Result<Exit, Failure> {
        let RunSettings { asking, store, .. } = self.settings;
        let mut signals = Signals::new(FORWARDED.iter().copied().chain(job.iter().flat_map(|_| JOB.iter().copied())))?;
        let until = asking.wait.map(|wait| Instant::now() + wait);
        let events = EngineEvents::new(store.messages);
        let locks = tokio::select! {
            biased;
            signal = wait_for_stop(&mut signals, job) => return Ok(stopped(report, signal)),
            locks = store.hold(asking, until, events.clone()) => locks?,
        };
        let result = self.with_locks(job, report, &locks, &events, &mut signals, until).await;
        report.renewals = events.renewals();
        if let Err(error) = farewell(&locks, &events).await {
            store.messages.parting(&error, result.is_err());
        }
        result
    }

    async fn with_locks(
        &self,
        job: Option<&Job>,
        report: &mut Report,
        locks: &Locks,
        events: &EngineEvents,
        signals: &mut Signals,
        until: Option<Instant>,
    ) -> Result<Exit, Failure> {
        let RunSettings { names, store, .. } = self.settings;
        if let Some(nested) = nest::held_by_ancestor(locks, names).await {
            let name = text::quoted(nested.name.as_str());
            let message =
                format!("busy: {name} is held by the oarlock that runs this command, fence {}.", nested.fence);
            return busy(self.settings, report, &message);
        }
        let (mut tries, mut waited) = (0, false);
        loop {
            let once = self.lock(locks, until);
            let locked = tokio::select! {
                biased;
                signal = wait_for_stop(signals, job) => return Ok(stopped(report, signal)),
                locked = once.lock() => locked,
                () = forever(progress::announce(locks, events, store.messages)) => continue,
            };
            let mut guard = match locked {
                Ok(guard) => guard,
                Err(error) if error.kind() == ErrorKind::Busy => {
                    tries += 1;
                    match self.elsewhere(locks, &once).await {
                        Elsewhere::Done(last, slot) => return Ok(self.done(report, &last, &slot)),
                        Elsewhere::Unknown if tries < AGAIN => tokio::time::sleep(PAUSE).await,
                        Elsewhere::Unknown | Elsewhere::Running => {
                            return busy(self.settings, report, &busy_words(&error));
                        }
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let reading = Clock::of(locks).at(guard.fence(), Timestamp::now());
            self.warn_if_ahead(reading);
            let current = self.slots.at(reading.now)?;
            report.slot = Some(current.slot.clone());
            let last = LastSlot::known_to(&guard)?;
            if let Some(last) = last.as_ref().filter(|last| self.is_done(last, &current.slot)) {
                self.keep_on(locks, &mut guard, last).await;
                let multi = MultiGuard::from(guard);
                let _ = multi::release(multi, events).await;
                // A store whose clock is a little behind that of cron must not cost a whole slot.
                // Waited for once: a fence is the store's time only while that is ahead of the fences before it.
                let Some(soon) = current.next_in.filter(|_| !std::mem::replace(&mut waited, true)) else {
                    return Ok(self.done(report, last, &current.slot));
                };
                store.messages.note(&format!("the next slot of the store's clock starts in {}", text::span(soon)));
                tokio::select! {
                    biased;
                    signal = wait_for_stop(signals, job) => return Ok(stopped(report, signal)),
                    () = tokio::time::sleep(soon + PAUSE) => continue,
                }
            }
            let multi = MultiGuard::from(guard);
            if let Some(signal) = not_started(signals, job, &multi).await {
                let _ = multi::release(multi, events).await;
                return Ok(stopped(report, signal));
            }
            // Looked at once more, as for `run`. From here on the slot is used up.
            if multi.is_held() {
                let slot = SlotRun { once: self.writer(locks, &current), current, last };
                return self.work(job, report, locks, events, signals, multi, &slot).await;
            }
            let _ = multi::release(multi, events).await;
        }
    }

    fn lock(&self, locks: &Locks, until: Option<Instant>) -> Once {
        let Asking { ttl, label, max_hold, .. } = &self.settings.asking;
        let mut once = locks.once(self.settings.names[0].as_str()).ttl(*ttl).label(label.clone()).whole_lease();
        if let Some(span) = max_hold {
            once = once.max_hold(*span);
        }
        match until {
            Some(until) => once.wait(until.saturating_duration_since(Instant::now())),
            None => once.wait_forever(),
        }
    }

    /// Writes this slot down, for as long as it must be remembered.
    fn writer(&self, locks: &Locks, current: &Current) -> Once {
        let remember = self.slots.remember(current, self.keep);
        locks.once(self.settings.names[0].as_str()).remember(remember)
    }

    /// Says why this machine's clock decides, also with -q: until the time of the fences has come, machines whose clocks
    /// differ can take the beginning of a slot for the one before it.
    fn warn_if_ahead(&self, reading: Reading) {
        // A text is the same at any time.
        if let Some(ahead) = reading.ahead.filter(|_| !matches!(self.slots, Slots::Text(_))) {
            let name = text::quoted(self.settings.names[0].as_str());
            self.settings.store.messages.warning(&format!(
                "the fences of {name} are {} ahead of this machine's clock: the store's clock is or was ahead, or this \
                 one is behind. This machine's clock decides about the slot; \"oarlock doctor\" compares the clocks",
                text::span(ahead)
            ));
        }
    }

    /// Whether `slot` needs no run. A slot that was started and did not succeed is run again, if that is wanted: it does
    /// not run elsewhere, because we hold the lock.
    fn is_done(&self, last: &LastSlot, slot: &str) -> bool {
        let failed = || Record::of(last).is_some_and(|record| record.code != Some(0));
        last.covers(slot) && !(self.at_least_once && *last.slot == *slot && failed())
    }

    /// A text has no end after which it is not asked for again: it is remembered anew from now on.
    async fn keep_on(&self, locks: &Locks, guard: &mut Guard, last: &LastSlot) {
        if !matches!(self.slots, Slots::Text(_)) {
            return;
        }
        let Ok(current) = self.slots.at(Timestamp::now()) else { return };
        let once = self.writer(locks, &current);
        let record = last.record.as_deref().unwrap_or_default();
        if let Err(error) = once.write_down(guard, &last.slot, record).await {
            self.settings.store.messages.warning(&format!("the slot is not remembered for longer: {error}"));
        }
    }

    /// What became of the slot while another process has the lock.
    async fn elsewhere(&self, locks: &Locks, once: &Once) -> Elsewhere {
        let Ok(Some(last)) = once.last_with_record().await else { return Elsewhere::Unknown };
        let Ok(state) = locks.inspect(&self.settings.names[0]).await else { return Elsewhere::Unknown };
        // The fence of the present holder is the store's time, a moment ago.
        let Some(fence) = state.last_fence else { return Elsewhere::Unknown };
        let reading = Clock::of(locks).at(fence, Timestamp::now());
        let Ok(current) = self.slots.at(reading.now) else { return Elsewhere::Unknown };
        let is_running = *last.slot == *current.slot && Record::of(&last).is_some_and(|record| record.code.is_none());
        match (is_running, self.is_done(&last, &current.slot) && current.next_in.is_none()) {
            (true, _) => Elsewhere::Running,
            (false, true) => Elsewhere::Done(last, current.slot),
            (false, false) => Elsewhere::Unknown,
        }
    }

    fn done(&self, report: &mut Report, last: &LastSlot, slot: &str) -> Exit {
        let name = text::quoted(self.settings.names[0].as_str());
        let how = Record::of(last).map(|record| format!(" {}", told(&record, false))).unwrap_or_default();
        let ran = text::plain(&last.slot);
        let message = if *last.slot == *slot {
            format!("done: the slot {ran} of {name} ran{how}")
        } else {
            let slot = text::plain(slot);
            format!("done: the slot {slot} of {name} counts as done, because the later slot {ran} ran{how}")
        };
        if self.slots.is_ahead(&last.slot, Timestamp::now()) {
            // Also with -q: the job does not run until then, and only an operator can tell which clock was wrong.
            let hint =
                format!("{ran} is in the future: if a clock was ahead, oarlock once --forget lets slots run again");
            self.settings.store.messages.warning(&format!("{message}; {hint}"));
        } else if last.slot.len() == slot.len() {
            self.settings.store.messages.note(&message);
        } else {
            // Also with -q: after a change of --slot no slot may run any more.
            let hint = "the two have another form: slots are in order only if they are equally long";
            self.settings.store.messages.warning(&format!("{message}; {hint}"));
        }
        (report.outcome, report.message) = (Outcome::Done, Some(message));
        Exit(self.done_code)
    }

    /// Runs the command under the lock, with the slot written down as the policy says.
    #[expect(clippy::too_many_arguments, reason = "all of it belongs to one run")]
    async fn work(
        &self,
        job: Option<&Job>,
        report: &mut Report,
        locks: &Locks,
        events: &EngineEvents,
        signals: &mut Signals,
        multi: MultiGuard,
        slot: &SlotRun,
    ) -> Result<Exit, Failure> {
        let SlotRun { once, current, .. } = slot;
        let mut by = text::plain(&text::holder(&self.settings.asking.label));
        while by.len() > MAX_BY {
            by.pop();
        }
        let mut record = Record { by, started: now(), ended: None, code: None };
        let mut guard = only(multi)?;
        if !self.at_least_once {
            let text = record.text();
            let written = tokio::select! {
                biased;
                signal = wait_for_stop(signals, job) => Err(Start::Stopped(signal)),
                written = once.write_down(&mut guard, &current.slot, &text) => written.map_err(Start::Failed),
            };
            if let Err(why) = written {
                let _ = multi::release(MultiGuard::from(guard), events).await;
                return self.not_begun(report, why);
            }
        }
        let multi = MultiGuard::from(guard);
        // The write may have taken a while: looked at once more. The slot is used up, so the record says how it ended.
        let stop = not_started(signals, job, &multi).await;
        if stop.is_some() || !multi.is_held() {
            let mut guard = only(multi)?;
            // At least once, nothing was begun that could have failed.
            if let Some(signal) = stop.filter(|_| !self.at_least_once) {
                self.leave(&mut guard, slot, &mut record, Exit::signal(signal.as_raw()).0);
            }
            let why = stop.map_or_else(|| Start::Failed(lost(&guard)), Start::Stopped);
            let _ = multi::release(MultiGuard::from(guard), events).await;
            return self.not_begun(report, why);
        }
        let variable = Some(("OARLOCK_SLOT", current.slot.clone()));
        let attended = run::attend(self.settings, job, report, locks, events, signals, &multi, variable).await;
        let mut guard = only(multi)?;
        let mut attended = match attended {
            Ok(attended) => attended,
            Err(failure) => {
                self.leave(&mut guard, slot, &mut record, failure.exit().0);
                let _ = multi::release(MultiGuard::from(guard), events).await;
                return Err(failure);
            }
        };
        if !attended.lost {
            self.leave(&mut guard, slot, &mut record, attended.status.exit().0);
            if self.at_least_once
                && attended.status == Status::Code(0)
                && let Err(error) = once.write_down(&mut guard, &current.slot, &record.text()).await
            {
                self.settings.store.messages.warning(&format!("the slot is not written down: {error}"));
                attended.lost = true;
            }
        }
        run::conclude(self.settings, report, events, MultiGuard::from(guard), attended).await
    }

    /// Completes the record, which the release leaves. At least once, success uses the slot up and is written down by the
    /// caller; a failure is recorded beside the last slot that is used up.
    fn leave(&self, guard: &mut Guard, slot: &SlotRun, record: &mut Record, code: u8) {
        let SlotRun { once, current, last } = slot;
        (record.ended, record.code) = (Some(now()), Some(code));
        // A slot that failed before, at most once, stays used up for those who ask for that.
        let is_used_up = last.as_ref().is_some_and(|last| *last.slot == *current.slot);
        let memo = if !self.at_least_once || is_used_up {
            once.memo(&current.slot, &record.text())
        } else if code == 0 {
            return;
        } else {
            let failed = Some(FailedRun { slot: current.slot.clone(), run: record.clone() });
            let records = Records { last: last.as_ref().and_then(Record::of), failed };
            once.memo_beside(last.as_ref(), &records.text())
        };
        if let Err(error) = memo.and_then(|memo| guard.leave_memo(memo)) {
            self.settings.store.messages.warning(&format!("the exit code is not recorded: {error}"));
        }
    }

    /// Says why the command was not started.
    fn not_begun(&self, report: &mut Report, why: Start) -> Result<Exit, Failure> {
        match why {
            Start::Stopped(signal) => Ok(stopped(report, signal)),
            Start::Failed(error) if error.kind() == ErrorKind::Lost => {
                let message = format!("lost: {error}; the command was not started");
                self.settings.store.messages.error(&message);
                (report.outcome, report.message) = (Outcome::Lost, Some(message));
                Ok(Exit(self.settings.asking.lost_code))
            }
            Start::Failed(error) => Err(error.into()),
        }
    }
}

/// A slot that is run.
struct SlotRun {
    /// Writes it down.
    once: Once,
    current: Current,
    /// The last slot that was used up before.
    last: Option<LastSlot>,
}

/// Why a command was not started.
enum Start {
    Stopped(Signal),
    Failed(Error),
}

/// What is known of a slot while another process has the lock.
enum Elsewhere {
    Done(LastSlot, String),
    Running,
    Unknown,
}

fn lost(guard: &Guard) -> Error {
    guard.check().err().unwrap_or_else(|| Error::new(ErrorKind::Lost, "the lock was lost"))
}

fn only(multi: MultiGuard) -> Result<Guard, Failure> {
    multi.into_guards().pop().ok_or_else(|| Failure::new(Code::Internal, "the lock is not there"))
}
