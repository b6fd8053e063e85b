//! The signals that we hear instead of dying of them.

use std::task::Poll;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

/// What is passed on to the command.
pub(crate) const FORWARDED: &[Signal] =
    &[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::WINCH];

/// What the terminal and the shell send to stop and continue a job.
pub(crate) const JOB: &[Signal] = &[Signal::TSTP, Signal::CONT];

/// Whether it asks us to end.
pub(crate) fn asks_to_stop(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Hears `signals` from now on, except those that were ignored when we were started: under `nohup`, or in the
    /// background of a script, they stay ignored for us and for the command.
    pub(crate) fn new(signals: impl IntoIterator<Item = Signal>) -> Result<Self, Failure> {
        let ignored = ignored();
        let heard = signals.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let streams = heard.map(|signal| Ok((signal, stream(signal)?)));
        Ok(Self(streams.collect::<Result<_, Failure>>()?))
    }

    /// The next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks us to end.
    pub(crate) async fn stop(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if asks_to_stop(signal) {
                return signal;
            }
        }
    }
}

/// Starts threads that never take a signal, by running `start` with all of them blocked. A signal that the main thread
/// takes is heard before it does anything else; one that another thread takes is heard some time later.
pub(crate) fn unheard<T>(start: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let started = start();
    if let Ok(before) = before {
        // It was in force a moment ago.
        let _ = before.thread_set_mask();
    }
    started
}

/// Lets this thread take no signal from now on.
pub(crate) fn block_all() {
    let _ = SigSet::all().thread_block();
}

pub(crate) fn stream(signal: Signal) -> Result<unix::Signal, Failure> {
    let kind = SignalKind::from_raw(signal.as_raw());
    unix::signal(kind).map_err(|error| Failure::os("cannot listen for signals", error))
}

/// The set of ignored signals, as the kernel shows it; empty where it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
