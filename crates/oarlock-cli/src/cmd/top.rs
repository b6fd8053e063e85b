//! `oarlock top`: the locks on a terminal, the oldest waiter first.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use oarlock::state::{Ending, ResourceName};
use oarlock::{Locks, Released};
use oarlock_core::text;
use rustix::process::Signal;
use tokio::sync::mpsc;

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::cmd::break_::who;
use crate::cmd::ls::{in_use, without_index};
use crate::exit::{Code, Exit, Failure};
use crate::pace::next_poll;
use crate::signals::Signals;
use crate::store::Store;
use crate::top::draw::{Theme, draw};
use crate::top::keys::Action;
use crate::top::model::{Broken, Model};
use crate::top::snapshot::Snapshot;
use crate::top::terminal::{Screen, Told, listen};

/// How often bars are drawn anew.
const TICK: Duration = Duration::from_millis(250);

/// Show the locks on a terminal, the oldest waiter first; break one with a key
#[derive(Debug, clap::Args)]
#[command(after_help = "Keys: ? lists them. NO_COLOR removes the colours.")]
pub(crate) struct TopArgs {
    /// How often the store is asked; less often if it takes more than a quarter of that to answer
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = span)]
    pub(crate) every: Duration,
    /// How long a holder that is asked to end may take
    #[arg(long, value_name = "DUR", default_value = "5s", value_parser = span)]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[("oarlock top -u redis://cache", "Who holds what, the oldest waiter first.")];

pub(crate) fn main(args: &TopArgs) -> Result<Exit, Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("top needs a terminal: use ls or watch in a script"));
    }
    let store = Store::new(&args.store)?;
    // Requests are answered on threads of their own, so that ten thousand locks do not delay a key.
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().on_thread_start(crate::signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let result = runtime.block_on(show(args, &store));
    runtime.shutdown_background();
    result
}

/// What a request to the store brought.
enum Answer {
    Listed(Result<Snapshot, String>),
    Said(String),
}

async fn show(args: &TopArgs, store: &Store) -> Result<Exit, Failure> {
    let locks = store.connect().await?;
    // Said before the terminal is taken: there is nothing to show.
    if !locks.info().capabilities.listing {
        in_use(&locks).await.map_err(|error| without_index(error, "watch"))?;
    }
    let mut signals = Signals::new([Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM])?;
    let (told, mut terminal) = mpsc::unbounded_channel();
    let (answered, mut answers) = mpsc::unbounded_channel();
    let mut screen = Screen::take().map_err(|error| Failure::os("cannot use the terminal", error))?;
    let (_stop, stopped) = std::sync::mpsc::channel();
    listen(told, stopped);
    let theme = Theme::from_environment();
    let mut model = Model::new(store.url.to_string(), Instant::now());
    let (mut asked, mut due) = (None, Instant::now());
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = Instant::now();
        if asked.is_none() && !model.paused && now >= due {
            asked = Some(now);
            let (locks, answered) = (locks.clone(), answered.clone());
            tokio::spawn(async move {
                let listed = in_use(&locks).await.map(|states| Snapshot::of(states, now));
                // The receiver is gone when the program ends.
                let _ = answered.send(Answer::Listed(listed.map_err(|error| error.to_string())));
            });
        }
        let drawn = screen.terminal.draw(|frame| {
            let area = frame.area();
            model.page = draw(&model, Instant::now(), theme, area, frame.buffer_mut());
        });
        drawn.map_err(|error| Failure::os("cannot draw", error))?;
        let action = tokio::select! {
            biased;
            signal = signals.next() => return Ok(Exit::signal(signal.as_raw())),
            event = terminal.recv() => match event {
                Some(Told::Key(key)) => model.press(key),
                Some(Told::Resized) => Action::Nothing,
                Some(Told::Ended) | None => Action::Quit,
            },
            answer = answers.recv() => {
                match answer {
                    Some(Answer::Listed(listed)) => {
                        let now = Instant::now();
                        let begun = asked.take().unwrap_or(now);
                        // Unless a key or a break asked for another poll since.
                        if due <= begun {
                            due = next_poll(begun, if listed.is_ok() { now } else { begun }, args.every);
                        }
                        match listed {
                            Ok(snapshot) if !model.paused => model.refresh(snapshot),
                            Ok(_) => {}
                            Err(error) => model.said = error,
                        }
                    }
                    Some(Answer::Said(words)) => {
                        model.said = words;
                        due = Instant::now();
                    }
                    None => {}
                }
                Action::Nothing
            }
            _ = ticks.tick() => Action::Nothing,
        };
        match action {
            Action::Nothing => {}
            Action::Quit => return Ok(Code::Success.into()),
            Action::Refresh => due = Instant::now(),
            Action::Break(broken) => {
                let (locks, answered, grace) = (locks.clone(), answered.clone(), args.grace);
                tokio::spawn(async move {
                    let said = end(&locks, &broken, grace).await.unwrap_or_else(|error| error.to_string());
                    let _ = answered.send(Answer::Said(said));
                });
            }
        }
    }
}

/// Ends a hold, if it is still the one that was shown.
async fn end(locks: &Locks, broken: &Broken, grace: Duration) -> oarlock::Result<String> {
    let name = ResourceName::new(&broken.name)?;
    let quoted = text::quoted(&broken.name);
    let state = locks.inspect(&name).await?;
    if !state.holders.iter().any(|holder| holder.id == broken.id && holder.fence == broken.fence) {
        return Ok(format!("not broken: {} does not hold {quoted} any more", broken.holder));
    }
    let ending = Ending::new(who(), "oarlock top");
    Ok(match locks.break_claim(&name, broken.id, ending, grace).await? {
        Released::Asked => format!("asked {} to release {quoted} within {}", broken.holder, text::span(grace)),
        Released::Released => format!("took {quoted} from {}", broken.holder),
        _ => format!("{} had released {quoted}", broken.holder),
    })
}
