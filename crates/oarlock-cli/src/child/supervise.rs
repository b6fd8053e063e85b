//! While the command runs: pass on signals, follow stops, and end it before its lock can.

use oarlock::MultiGuard;
use oarlock::state::Ending;
use oarlock_core::text;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Change, Child, Status};
use crate::args::OnLost;
use crate::front::Job;
use crate::messages::Messages;
use crate::settings::Rules;
use crate::signals::{Signals, asks_to_stop};

/// Everything that happens around a running command.
pub(crate) struct Watch<'a> {
    pub(crate) multi: &'a MultiGuard,
    pub(crate) rules: Rules,
    pub(crate) signals: &'a mut Signals,
    pub(crate) endings: watch::Receiver<Option<Ending>>,
    pub(crate) job: Option<&'a Job>,
    pub(crate) messages: Messages,
}

/// How it ended.
pub(crate) struct Ended {
    pub(crate) status: Status,
    /// It was ended, or would have been, because of its lock.
    pub(crate) lost: bool,
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
    pub(crate) async fn over(mut self, child: &mut Child) -> Ended {
        let Rules { on_lost, kill_after, slack } = self.rules;
        let lead = match on_lost {
            OnLost::Term => kill_after + slack,
            OnLost::Kill => slack,
            OnLost::Warn => std::time::Duration::ZERO,
        };
        let (mut doom, mut stop) = (Doom::No, None);
        // When to see whether the job really stopped.
        let mut check_at: Option<Instant> = None;
        loop {
            let kill_at = if let Doom::Asked(at) = doom { Some(at) } else { None };
            tokio::select! {
                biased;
                () = self.multi.ends_within(lead), if matches!(doom, Doom::No) => doom = self.act(child, None),
                asked = self.endings.changed(), if matches!(doom, Doom::No) => {
                    let ending = if asked.is_ok() { self.endings.borrow_and_update().clone() } else { None };
                    match ending {
                        Some(ending) if on_lost == OnLost::Warn => self.messages.warning(&broken(&ending)),
                        Some(ending) => doom = self.act(child, Some(&ending)),
                        None => {}
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
                        return Ended { status, lost, stop };
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

    fn act(&self, child: &Child, asked: Option<&Ending>) -> Doom {
        let why = asked.map_or_else(|| self.why(), broken);
        match self.rules.on_lost {
            OnLost::Term => {
                self.messages.warning(&format!("{why}: ending the command"));
                child.terminate();
                Doom::Asked(Instant::now() + self.rules.kill_after)
            }
            OnLost::Kill => {
                self.messages.warning(&format!("{why}: killing the command"));
                child.signal(Signal::KILL);
                Doom::Done
            }
            OnLost::Warn => {
                self.messages.warning(&format!("{why}: the command continues without the lock"));
                Doom::Done
            }
        }
    }

    fn why(&self) -> String {
        if let Some((held, reason)) = self.multi.loss() {
            return format!("{} is lost: {reason}", text::quoted(held.resource().as_str()));
        }
        match self.multi.weakest() {
            Some(held) => {
                let name = text::quoted(held.resource().as_str());
                format!("{name} ends in {}", text::span(held.time_left()))
            }
            None => "the lock is lost".to_owned(),
        }
    }
}

fn broken(ending: &Ending) -> String {
    let why = if ending.why.is_empty() { String::new() } else { format!(" ({})", text::quoted(&ending.why)) };
    format!("{} asks for the end of the lock{why}", text::plain(&ending.by))
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
