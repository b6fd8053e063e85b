//! The command line as it is meant: checked, with defaults filled in.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use oarlock::Label;
use oarlock::driver::{DEFAULT_TTL, MAX_TTL, MIN_TTL};
use oarlock::state::ResourceName;

use crate::args::{LockArgs, LossArgs, OnBusy, OnLost};
use crate::cmd::run::RunArgs;
use crate::exit::Failure;
use crate::store::Store;

/// The tag that names the program which runs under a lock.
const COMMAND: &str = "command";

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Spin,
    Shared,
    Permits { of: u32, take: u32 },
}

/// How to ask for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) mode: Mode,
    /// `None` = for ever.
    pub(crate) wait: Option<Duration>,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair: bool,
    pub(crate) skip_if_busy: bool,
    pub(crate) busy_code: u8,
    pub(crate) lost_code: u8,
    pub(crate) label: Label,
}

impl Asking {
    pub(crate) fn new(args: LockArgs, store: &Store) -> Result<Self, Failure> {
        let mode = match (args.shared, args.spin, args.permits) {
            (true, ..) => Mode::Shared,
            (_, true, _) => Mode::Spin,
            (.., Some(of)) => Mode::Permits { of, take: args.take.unwrap_or(1) },
            (.., None) => Mode::Exclusive,
        };
        if let Mode::Permits { of, take } = mode
            && take > of
        {
            return Err(Failure::usage(format!("--take {take} is more than the {of} of --permits")));
        }
        let wait = match (args.no_wait, args.wait, args.on_busy) {
            (true, _, Some(OnBusy::Wait)) => return Err(Failure::usage("-n does not go with --on-busy wait")),
            (true, ..) | (_, None, Some(OnBusy::Fail | OnBusy::Skip)) => Some(Duration::ZERO),
            (_, wait, _) => wait,
        };
        let ttl = args.ttl.or_else(|| store.url.ttl()).unwrap_or(DEFAULT_TTL);
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            let (least, most) = (oarlock_core::text::span(MIN_TTL), oarlock_core::text::span(MAX_TTL));
            return Err(Failure::usage(format!("--ttl: a lease is between {least} and {most} long")));
        }
        if args.max_hold.is_some_and(|span| span.is_zero()) {
            return Err(Failure::usage("--max-hold must be greater than 0"));
        }
        let mut label = Label::of_this_process();
        label.reason = args.label.reason;
        label.tags.extend(args.label.meta);
        label.check()?;
        Ok(Self {
            mode,
            wait,
            ttl,
            renew: !args.no_renew,
            max_hold: args.max_hold,
            fair: args.fair,
            skip_if_busy: args.on_busy == Some(OnBusy::Skip),
            busy_code: args.conflict_exit_code,
            lost_code: args.lost_exit_code,
            label,
        })
    }

    /// The same for this command: others see the name of its program. Not its arguments, which may hold secrets.
    pub(crate) fn running(mut self, command: &[OsString]) -> Self {
        let program = command.first().and_then(|program| Path::new(program).file_name());
        let tags = &mut self.label.tags;
        if let Some(program) = program.map(|name| name.to_string_lossy().into_owned())
            && program.len() <= Label::MAX_TEXT_BYTES
            && tags.len() < Label::MAX_TAGS
        {
            tags.entry(COMMAND.to_owned()).or_insert(program);
        }
        self
    }
}

/// How to treat the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) on_lost: OnLost,
    pub(crate) kill_after: Duration,
    /// Whether `--kill-after` was given.
    pub(crate) chosen: bool,
    /// How much earlier than needed to act, because acting takes time too: a busy machine must run us, and then the
    /// kernel must end the command, all before the lease can end.
    pub(crate) slack: Duration,
}

/// A tenth of the time that a lock lives without renewal, and at most a second. A long `--kill-after` leaves less: more
/// than 11/20 of the lease must not be spent on an ending, because renewals begin when a third of it is over, and need
/// time as well.
fn slack(span: Duration, kill_after: Duration) -> Duration {
    (span * 11 / 20).saturating_sub(kill_after).min(span / 10).min(Duration::from_secs(1))
}

impl Rules {
    pub(crate) fn new(LossArgs { on_lost, kill_after }: LossArgs, asking: &Asking) -> Result<Self, Failure> {
        // How long the lock lives without renewal, and with it at most.
        let span = asking.max_hold.map_or(asking.ttl, |span| span.min(asking.ttl));
        let chosen = kill_after.is_some();
        let kill_after = kill_after.unwrap_or_else(|| Duration::from_secs(5).min(span / 4));
        if kill_after > span / 2 {
            let (kill_after, shown) = (oarlock_core::span::write(kill_after), oarlock_core::span::write(span));
            let message = if span < asking.ttl {
                format!("--kill-after {kill_after} is more than half of --max-hold {shown}: it leaves no time to work")
            } else {
                format!(
                    "--kill-after {kill_after} is more than half of the lease of {shown}: KILL could come after its end"
                )
            };
            return Err(Failure::usage(message));
        }
        Ok(Self { on_lost, kill_after, chosen, slack: slack(span, kill_after) })
    }

    /// The same for a lock that the store gave a shorter lease than it was asked for, as a session of ZooKeeper: what is
    /// left must not be spent on ending the command.
    pub(crate) fn within(self, left: Duration) -> Self {
        let kill_after = if self.chosen { self.kill_after } else { self.kill_after.min(left / 4) };
        Self { kill_after, slack: self.slack.min(left / 10), ..self }
    }
}

/// All of `run`.
#[derive(Debug)]
pub(crate) struct RunSettings {
    pub(crate) names: Vec<ResourceName>,
    pub(crate) asking: Asking,
    pub(crate) rules: Rules,
    pub(crate) min_hold: Duration,
    pub(crate) command: Vec<OsString>,
    pub(crate) report: Option<File>,
    pub(crate) store: Store,
}

impl RunSettings {
    pub(crate) fn new(args: RunArgs) -> Result<Self, Failure> {
        let store = Store::new(&args.store)?;
        let names = names(&args.names)?;
        let command = args.work.command_or(args.argv);
        let asking = Asking::new(args.lock, &store)?.running(&command);
        let rules = Rules::new(args.loss, &asking)?;
        let report = open_report(args.work.report.as_deref())?;
        let min_hold = args.min_hold.unwrap_or_default();
        Ok(Self { names, asking, rules, min_hold, command, report, store })
    }
}

/// Made before anything else, so that nothing runs whose report could not be written.
pub(crate) fn open_report(path: Option<&Path>) -> Result<Option<File>, Failure> {
    path.map(|path| File::create(path).map_err(|error| Failure::os("cannot write the report", error))).transpose()
}

fn names(messages: &[String]) -> Result<Vec<ResourceName>, Failure> {
    let mut seen = BTreeSet::new();
    let check = |word: &String| {
        if !seen.insert(word.clone()) {
            return Err(Failure::usage(format!("{} is given twice", oarlock_core::text::quoted(word))));
        }
        Ok(ResourceName::new(word)?)
    };
    messages.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The margin between KILL and the end of the lease, which is for a busy machine.
    #[test]
    fn the_command_is_ended_with_time_to_spare() {
        let ms = Duration::from_millis;
        for (span, kill_after, least) in [(4000, 500, 400), (4000, 1000, 400), (30_000, 5000, 1000), (4000, 2000, 200)]
        {
            assert_eq!(slack(ms(span), ms(kill_after)), ms(least), "{span} ms, KILL after {kill_after} ms");
        }
        for span in [ms(300), ms(1000), ms(60_000)] {
            let lead = span / 2 + slack(span, span / 2);
            assert!(lead * 20 <= span * 11, "renewals have no time: {lead:?} of {span:?}");
        }
    }

    /// A session of ZooKeeper is at most as long as the server allows: with 10 s of the 30 s that were asked for, 5 s for
    /// KILL would leave the command half of them.
    #[test]
    fn a_shorter_lease_leaves_time_to_work() {
        let slack = Duration::from_secs(1);
        let rules = Rules { on_lost: OnLost::Term, kill_after: Duration::from_secs(5), chosen: false, slack };
        assert_eq!(rules.within(Duration::from_secs(8)).kill_after, Duration::from_secs(2));
        assert_eq!(rules.within(Duration::from_secs(8)).slack, Duration::from_millis(800));
        assert_eq!(rules.within(Duration::from_secs(30)).kill_after, Duration::from_secs(5));
        assert_eq!(rules.within(Duration::from_secs(30)).slack, slack);
        let chosen = Rules { chosen: true, ..rules };
        assert_eq!(chosen.within(Duration::from_secs(8)).kill_after, Duration::from_secs(5), "what was chosen stays");
    }
}
