//! For whom we wait: one line after a second, and on a terminal a line that keeps up.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use oarlock::Locks;
use oarlock::state::ClaimId;
use oarlock::state::{ResourceState, Waiters};
use oarlock_core::text;

use crate::messages::Messages;
use crate::observe::EngineEvents;
use crate::output::Format;

/// A shorter wait is not worth a message.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says for whom we wait until it is dropped.
pub(crate) async fn announce(locks: &Locks, events: &EngineEvents, messages: Messages) {
    tokio::time::sleep(PATIENCE).await;
    if messages.quiet {
        return;
    }
    let Some(spinner) = people_look(messages).then(Spinner::new).flatten() else {
        // Later changes are of interest to a person, not to a log.
        if let Some(line) = line(locks, events).await {
            messages.note(&format!("waiting: {line}"));
        }
        return;
    };
    loop {
        if let Some(line) = line(locks, events).await {
            spinner.0.set_message(format!("waiting: {line}"));
        }
        tokio::time::sleep(PATIENCE).await;
    }
}

/// Does `work`. If that takes longer than a second, people who look at a terminal read what is done.
pub(crate) async fn during<T>(messages: Messages, what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let spinner = (people_look(messages) && !messages.quiet).then(Spinner::new).flatten();
    if let Some(spinner) = &spinner {
        spinner.0.set_message(what.to_owned());
    }
    work.await
}

fn people_look(messages: Messages) -> bool {
    std::io::stderr().is_terminal() && messages.format == Format::Table && !messages.verbose
}

async fn line(locks: &Locks, events: &EngineEvents) -> Option<String> {
    if let Some(trouble) = events.trouble() {
        return Some(trouble);
    }
    let (name, id) = events.waits_for()?;
    let state = locks.inspect(&name).await.ok()?;
    Some(sentence(&state, Some(id)))
}

/// `"x" is held by ci-7 (pid 4121) for 14 min, fence 88; 2 wait before you`
pub(crate) fn sentence(state: &ResourceState, us: Option<ClaimId>) -> String {
    let name = text::quoted(state.name.as_str());
    let mut line = match state.holders.first() {
        // The store may be busy with a request that we cannot see.
        None => format!("{name} has no holder, but the store has not granted it yet"),
        Some(first) => {
            let fence = first.fence.map(|fence| format!(", fence {fence}")).unwrap_or_default();
            let more = match state.holders.len() {
                1 => String::new(),
                holders => format!(", and by {} more", holders - 1),
            };
            format!("{name} is held by {} for {}{fence}{more}", text::holder(&first.label), text::span(first.held_for))
        }
    };
    match before(&state.waiters, us) {
        None => line.push_str("; the number of waiters is unknown"),
        Some(0) => {}
        Some(1) => line.push_str("; 1 waits before you"),
        Some(count) => line.push_str(&format!("; {count} wait before you")),
    }
    line
}

fn before(waiters: &Waiters, us: Option<ClaimId>) -> Option<usize> {
    match waiters {
        Waiters::Listed(listed) => {
            let ahead = listed.iter().take_while(|waiter| Some(waiter.id) != us);
            Some(ahead.map(|waiter| 1 + waiter.behind as usize).sum())
        }
        _ => None,
    }
}

/// Gone without a trace when dropped.
struct Spinner(ProgressBar);

impl Spinner {
    /// `None` on a terminal that cannot redraw a line.
    fn new() -> Option<Self> {
        let bar = ProgressBar::new_spinner();
        if bar.is_hidden() {
            return None;
        }
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        crate::signals::unheard(|| bar.enable_steady_tick(Duration::from_millis(120)));
        Some(Self(bar))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
