//! While the command runs: pass on signals, follow stops, and end it before its lock can.

use std::time::Duration;

use oarlock::MultiGuard;
use rustix::process::Signal;
use tokio::time::Instant;

use super::cause::Cause;
use super::{Change, Child, Status};
use crate::args::OnLost;
use crate::front::Job;
use crate::messages::Messages;
use crate::observe::EngineEvents;
use crate::settings::Rules;
use crate::signals::{Signals, asks_to_stop};

/// Everything that happens around a running command.
pub(crate) struct Watch<'a> {
    pub(crate) multi: &'a MultiGuard,
    pub(crate) rules: Rules,
    pub(crate) signals: &'a mut Signals,
    pub(crate) events: &'a EngineEvents,
    /// When `--max-hold` is over.
    pub(crate) held_until: Option<Instant>,
    /// Whether the lock is renewed.
    pub(crate) renewed: bool,
    pub(crate) job: Option<&'a Job>,
    pub(crate) messages: Messages,
}

/// How it ended.
pub(crate) struct Ended {
    pub(crate) status: Status,
    /// It was ended, or would have been, because of its lock.
    pub(crate) lost: bool,
    /// Why, where it was ended.
    pub(crate) cause: Option<Cause>,
    /// We were asked to end meanwhile.
    pub(crate) stop: Option<Signal>,
}

/// How far an ending for the lock's sake has come.
enum Doom {
    No,
    /// TERM was sent; KILL is due.
    Asked(Instant),
    /// KILL was sent, or the loss only said.
    Done,
}

impl Watch<'_> {
    pub(crate) async fn over(self, child: &mut Child) -> Ended {
        let Rules { on_lost, kill_after, slack, .. } = self.rules;
        let lead = match on_lost {
            OnLost::Term => kill_after + slack,
            OnLost::Kill => slack,
            OnLost::Warn => Duration::ZERO,
        };
        let (mut doom, mut stop, mut cause) = (Doom::No, None, None);
        let mut endings = self.events.endings();
        // When to see whether the job really stopped.
        let mut check_at: Option<Instant> = None;
        loop {
            let kill_at = if let Doom::Asked(at) = doom { Some(at) } else { None };
            tokio::select! {
                biased;
                () = self.multi.ends_within(lead), if matches!(doom, Doom::No) => {
                    let why = self.cause(lead);
                    doom = self.act(child, &why);
                    cause = Some(why);
                }
                asked = endings.changed(), if matches!(doom, Doom::No) => {
                    let ending = if asked.is_ok() { endings.borrow_and_update().clone() } else { None };
                    if let Some(why) = ending.as_ref().map(Cause::from) {
                        if on_lost == OnLost::Warn {
                            self.messages.warning(&self.warning(&why));
                        } else {
                            doom = self.act(child, &why);
                        }
                        cause = Some(why);
                    }
                }
                () = self.multi.ends_within(slack), if kill_at.is_some() => {
                    child.signal(Signal::KILL);
                    doom = Doom::Done;
                }
                () = sleep_until(kill_at), if kill_at.is_some() => {
                    child.signal(Signal::KILL);
                    doom = Doom::Done;
                }
                change = child.changed() => match change {
                    Change::Ended(status) => {
                        if let Some(job) = self.job {
                            job.take_back(child.group());
                        }
                        let lost = !matches!(doom, Doom::No) || !self.multi.is_held();
                        return Ended { status, lost, cause: cause.filter(|_| lost), stop };
                    }
                    Change::Stopped => check_at = self.job.map(|job| job.stop(Some(child.group()))),
                },
                () = sleep_until(check_at), if check_at.is_some() => {
                    check_at = None;
                    if let Some(job) = self.job && !job.is_stopped() {
                        // No shell is there that could continue us: an orphaned job cannot be stopped.
                        job.resume(child);
                    }
                }
                signal = self.signals.next() => match (signal, self.job) {
                    (Signal::CONT, Some(job)) => {
                        check_at = None;
                        job.resume(child);
                    }
                    _ => {
                        stop = stop.or_else(|| asks_to_stop(signal).then_some(signal));
                        child.signal(signal);
                    }
                },
            }
        }
    }

    fn act(&self, child: &Child, cause: &Cause) -> Doom {
        let why = self.warning(cause);
        match self.rules.on_lost {
            OnLost::Term => {
                self.messages.warning(&format!("{why}; ending the command"));
                child.terminate();
                Doom::Asked(Instant::now() + self.rules.kill_after)
            }
            OnLost::Kill => {
                self.messages.warning(&format!("{why}; killing the command"));
                child.signal(Signal::KILL);
                Doom::Done
            }
            OnLost::Warn => {
                self.messages.warning(&format!("{why}; the command continues without the lock"));
                Doom::Done
            }
        }
    }

    fn warning(&self, cause: &Cause) -> String {
        let lost = self.multi.loss().map(|(held, _)| held);
        match lost.or_else(|| self.multi.weakest()) {
            Some(held) => cause.warning(held.resource().as_str(), held.time_left()),
            None => "the lock is lost".to_owned(),
        }
    }

    /// Why the lock ends within `lead`.
    fn cause(&self, lead: Duration) -> Cause {
        if let Some((_, reason)) = self.multi.loss() {
            return Cause::Lost { reason: reason.to_string() };
        }
        if self.held_until.is_some_and(|until| Instant::now() + lead + self.rules.slack >= until) {
            return Cause::MaxHold;
        }
        match self.events.renewal_error() {
            Some(error) => Cause::Unreachable { error },
            None if !self.renewed => Cause::NotRenewed,
            None => Cause::Ending,
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
