//! `oarlock elect`: a command that runs on the leader only.

use std::ffi::OsString;
use std::time::Duration;

use oarlock::state::ResourceName;
use oarlock::{Election, Leader, Locks, MultiGuard};
use oarlock_core::text;
use serde_json::json;

use crate::args::{LabelArgs, LockArgs, LossArgs, OnLost, StoreArgs, span};
use crate::child::supervise::{Ended, Watch};
use crate::child::{Child, Status};
use crate::cmd::Examples;
use crate::cmd::run::{self, forever, not_started, wait_for_stop};
use crate::exit::{Exit, Failure};
use crate::front::Job;
use crate::observe::EngineEvents;
use crate::output::{self, Format};
use crate::report::{Outcome, Report};
use crate::settings::{Asking, Rules, RunSettings};
use crate::signals::{FORWARDED, JOB, Signals};
use crate::store::{Store, block_on, farewell};
use crate::{multi, progress};

/// How long `--on-demoted` may take.
const DEMOTED: Duration = Duration::from_secs(30);

/// The pause after a failed poll of the leader.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Run a command on one machine of many: on the leader, for as long as it leads
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A leader that loses its lock ends the command before the lease can end, and stands for election \
again. When the command ends by itself, the leader resigns and exits with the command's code."
)]
pub(crate) struct ElectArgs {
    /// The election
    pub(crate) name: String,
    /// What the leader publishes, such as its address; others see it in show and with --observe
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) value: String,
    /// Run STRING with sh -c after the election, before CMD
    #[arg(long, value_name = "STRING", conflicts_with = "observe")]
    pub(crate) on_elected: Option<OsString>,
    /// Run STRING with sh -c when the leadership is over, after CMD has ended; for 30s at most
    #[arg(long, value_name = "STRING", conflicts_with = "observe")]
    pub(crate) on_demoted: Option<OsString>,
    /// Print each change of the leader as a line, and take no part
    #[arg(long, conflicts_with = "argv")]
    pub(crate) observe: bool,
    /// The lease: how long the leadership lives without renewal; 30s, or what the URL says
    #[arg(short, long, value_name = "DUR", value_parser = span)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) loss: LossArgs,
    #[command(flatten)]
    pub(crate) label: LabelArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "observe")]
    pub(crate) argv: Vec<OsString>,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock elect billing --value \"$(hostname):8080\" -- ./worker", "A worker on one machine of many."),
    ("oarlock elect billing --observe", "Print each new leader."),
];

pub(crate) fn main(args: ElectArgs, job: Option<&Job>) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let name = ResourceName::new(&args.name)?;
    if args.observe {
        return block_on(observe(&store, &name));
    }
    if args.loss.on_lost == OnLost::Warn {
        return Err(Failure::usage("--on-lost warn does not go with elect: the command must end with the leadership"));
    }
    let lock = LockArgs { ttl: args.ttl, label: args.label, ..LockArgs::waiting() };
    let asking = Asking::new(lock, &store)?.running(&args.argv);
    let rules = Rules::new(args.loss, &asking)?;
    let settings = RunSettings {
        names: vec![name],
        asking,
        rules,
        min_hold: Duration::ZERO,
        command: args.argv,
        report: None,
        store,
    };
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied().chain(job.iter().flat_map(|_| JOB.iter().copied())))?;
        let events = EngineEvents::new(settings.store.messages);
        let RunSettings { asking, store, .. } = &settings;
        let locks = tokio::select! {
            biased;
            signal = wait_for_stop(&mut signals, job) => return Ok(Exit::signal(signal.as_raw())),
            locks = store.hold(asking, None, events.clone()) => locks?,
        };
        let mut candidate = Candidate {
            settings: &settings,
            locks: &locks,
            events: &events,
            value: &args.value,
            on_elected: args.on_elected.as_ref(),
            on_demoted: args.on_demoted.as_ref(),
            signals: &mut signals,
            job,
        };
        let exit = candidate.stand().await;
        if let Err(error) = farewell(&locks, &events).await {
            settings.store.messages.parting(&error, exit.is_err());
        }
        exit
    })
}

/// A process that stands for election.
struct Candidate<'a> {
    settings: &'a RunSettings,
    locks: &'a Locks,
    events: &'a EngineEvents,
    value: &'a str,
    on_elected: Option<&'a OsString>,
    on_demoted: Option<&'a OsString>,
    signals: &'a mut Signals,
    job: Option<&'a Job>,
}

impl Candidate<'_> {
    /// Leads, again and again, until the command ends by itself or a signal asks for the end.
    async fn stand(&mut self) -> Result<Exit, Failure> {
        let RunSettings { names, asking, store, .. } = self.settings;
        let name = text::quoted(names[0].as_str());
        let election = self.election();
        loop {
            let elected = tokio::select! {
                biased;
                signal = wait_for_stop(self.signals, self.job) => return Ok(Exit::signal(signal.as_raw())),
                elected = election.campaign(self.value) => elected?,
                () = forever(progress::announce(self.locks, self.events, store.messages)) => continue,
            };
            let (fence, multi) = (elected.fence(), MultiGuard::from(elected.into_guard()));
            let variables = run::variables(self.settings, self.locks, &multi);
            store.messages.note(&format!("elected: leading {name}, fence {fence}"));
            let mut report = Report::new(names);
            let led = self.lead(multi, &mut report).await;
            store.messages.note(&format!("demoted: no longer leading {name}, fence {fence}"));
            self.demoted(variables).await;
            let exit = led?;
            if report.outcome != Outcome::Lost {
                return Ok(exit);
            }
            if let Some(signal) = report.stop {
                return Ok(Exit::signal(signal.as_raw()));
            }
            // The lease may still block the next grant; a store that lost it at once must not make this loop spin.
            tokio::time::sleep((asking.ttl / 20).min(Duration::from_secs(1))).await;
        }
    }

    fn election(&self) -> Election {
        let Asking { ttl, label, .. } = &self.settings.asking;
        let election = self.locks.election(self.settings.names[0].as_str());
        // The time to end a command in order is longer than the lease that a handed on lock may begin with.
        election.ttl(*ttl).label(label.clone()).whole_lease().wait_forever()
    }

    /// `--on-elected`, then the command, under the lock.
    async fn lead(&mut self, multi: MultiGuard, report: &mut Report) -> Result<Exit, Failure> {
        if let Some(script) = self.on_elected {
            let Ended { status, lost, stop, .. } = self.hook(script, &multi).await?;
            report.stop = stop;
            if lost || stop.is_some() {
                return self.resign(multi, report, status.exit()).await;
            }
            if status != Status::Code(0) {
                let code = status.exit().0;
                self.settings
                    .store
                    .messages
                    .warning(&format!("--on-elected ended with {code}; the command is started"));
            }
        }
        // Looked at once more, as for `run`: nothing is started after a stop, or after the end was asked for.
        report.stop = not_started(self.signals, self.job, &multi).await;
        let asked = tokio::select! {
            biased;
            asked = multi.asked_to_end() => asked.is_some(),
            () = std::future::ready(()) => false,
        };
        if asked || report.stop.is_some() || !multi.is_held() {
            let exit = report.stop.map_or(Exit(self.settings.asking.lost_code), |stop| Exit::signal(stop.as_raw()));
            return self.resign(multi, report, exit).await;
        }
        run::command(self.settings, self.job, report, self.locks, self.events, self.signals, multi).await
    }

    /// Gives up a leadership under which no command was started.
    async fn resign(&self, multi: MultiGuard, report: &mut Report, exit: Exit) -> Result<Exit, Failure> {
        let _ = multi::release(multi, self.events).await;
        report.outcome = Outcome::Lost;
        Ok(exit)
    }

    /// Runs a script under the lock: it is ended when the lock is about to be lost.
    async fn hook(&mut self, script: &OsString, multi: &MultiGuard) -> Result<Ended, Failure> {
        let RunSettings { rules, store, .. } = self.settings;
        let rules = rules.within(multi.time_left());
        let variables = run::variables(self.settings, self.locks, multi);
        let (events, job) = (self.events, self.job);
        let mut child = Child::spawn(&shell(script), variables, job)?;
        let (held_until, renewed) = (None, true);
        let messages = store.messages;
        let watch = Watch { multi, rules, signals: self.signals, events, held_until, renewed, job, messages };
        let ended = watch.over(&mut child).await;
        child.end_group(tokio::time::Instant::now() + rules.kill_after, multi.ends_within(rules.slack)).await;
        Ok(ended)
    }

    /// `--on-demoted`: without the lock, and not for ever.
    async fn demoted(&self, variables: Vec<(&'static str, String)>) {
        let Some(script) = self.on_demoted else { return };
        let messages = self.settings.store.messages;
        let mut child = match Child::spawn(&shell(script), variables, None) {
            Ok(child) => child,
            Err(failure) => return messages.warning(failure.message().unwrap_or("cannot start --on-demoted")),
        };
        match tokio::time::timeout(DEMOTED, child.changed()).await {
            Ok(crate::child::Change::Ended(Status::Code(0))) => {}
            Ok(_) => messages.warning("--on-demoted failed"),
            Err(_) => messages.warning("--on-demoted took too long and was ended"),
        }
        child.end_group(tokio::time::Instant::now() + Duration::from_secs(1), std::future::pending()).await;
    }
}

fn shell(script: &OsString) -> Vec<OsString> {
    vec!["sh".into(), "-c".into(), script.clone()]
}

/// Prints each leader until a signal comes.
async fn observe(store: &Store, name: &ResourceName) -> Result<Exit, Failure> {
    let mut signals = Signals::new(FORWARDED.iter().copied())?;
    let locks = store.connect().await?;
    let mut leaders = locks.election(name.as_str()).observe();
    let mut failed = false;
    loop {
        let leader = tokio::select! {
            biased;
            signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
            leader = leaders.changed() => leader,
        };
        match leader {
            Ok(leader) => {
                failed = false;
                print_leader(store, leader.as_ref())?;
            }
            Err(error) if error.retry() == oarlock::error::Retry::Never => return Err(error.into()),
            Err(error) => {
                // Once for each failure of the store, not for each try.
                if !std::mem::replace(&mut failed, true) {
                    store.messages.warning(&format!("{error}; changes may be missing until it answers again"));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

fn print_leader(store: &Store, leader: Option<&Leader>) -> Result<(), Failure> {
    let at = format!("{:.3}", jiff::Timestamp::now());
    match (store.messages.format, leader) {
        (Format::Json | Format::Jsonl, leader) => {
            let leader = leader.map(|leader| {
                json!({
                    "value": leader.value.as_deref(),
                    "fence": leader.fence,
                    "label": *leader.label,
                    "ending": leader.ending,
                })
            });
            output::print_line(&json!({ "at": at, "leader": leader }).to_string())
        }
        (_, None) => output::print_line(&format!("{at}\t-\t-\t-")),
        (_, Some(leader)) => {
            let fence = leader.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
            let value = leader.value.as_deref().map(text::plain).unwrap_or_default();
            output::print_line(&format!("{at}\t{}\t{fence}\t{value}", text::holder(&leader.label)))
        }
    }
}
