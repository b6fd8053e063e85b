//! Which store, and the way to it.

use std::path::Path;
use std::time::{Duration, Instant};

use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Label, Locks, Observer, Runtime};
use oarlock_core::text;

use crate::args::StoreArgs;
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::observe::EngineEvents;
use crate::signals;

/// The variable that names the store where the command line does not.
const VARIABLE: &str = "OARLOCK_URL";

/// The store that is used where none is named.
const EMBEDDED: &str = "local:";

/// A store, and how to talk about it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) url: Url,
    /// No store was named.
    pub(crate) implied: bool,
    pub(crate) messages: Messages,
}

impl Store {
    pub(crate) fn new(args: &StoreArgs) -> Result<Self, Failure> {
        let messages = Messages { quiet: args.quiet, verbose: args.verbose, format: args.output };
        let (url, implied) = match (&args.url, &args.url_file) {
            (Some(url), _) => (oarlock::url::parse(url)?, false),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| Failure::new(Code::Config, format!("cannot read {}: {error}", file.display())))?;
                (oarlock::url::parse(text.trim())?, false)
            }
            (None, None) => Self::from_environment()?,
        };
        Ok(Self { url, implied, messages })
    }

    pub(crate) fn from_environment() -> Result<(Url, bool), Failure> {
        match std::env::var(VARIABLE) {
            Ok(url) if !url.is_empty() => Ok((oarlock::url::parse(&url)?, false)),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok((oarlock::url::parse(EMBEDDED)?, true)),
            Err(_) => Err(Failure::new(Code::Config, format!("{VARIABLE} is not UTF-8"))),
        }
    }

    /// Prints which store is used where none was named.
    pub(crate) fn say_if_implied(&self) {
        if self.implied {
            let dir = oarlock_local::default_dir().map_or_else(|_| String::new(), |dir| format!(" in {}", shown(&dir)));
            self.messages.note(&format!(
                "using the embedded store of this machine and user{dir}; name another with -u or {VARIABLE}"
            ));
        }
        if self.url.to_string() == EMBEDDED
            && let Some(other) = oarlock_local::other_default_dir()
        {
            let other = shown(&other);
            self.messages.warning(&format!(
                "programs that are started without XDG_STATE_HOME, as from cron, use another store, {other}, and do not \
                 share these locks: name one directory with -u local:/path or {VARIABLE}"
            ));
        }
    }

    /// Connects to inspect locks.
    pub(crate) async fn connect(&self) -> Result<Locks, Failure> {
        let locks = oarlock::connect(self.url.clone()).await?;
        self.say_if_implied();
        Ok(locks)
    }

    /// Connects to hold locks: renewal on a thread of its own, so that nothing done here holds it up.
    pub(crate) async fn hold(
        &self,
        label: &Label,
        ttl: Duration,
        until: Option<Instant>,
        observer: impl Observer + Clone,
    ) -> Result<Locks, Failure> {
        let runtime = signals::unheard(Runtime::own_thread)?;
        let mut pause = Duration::from_millis(50);
        let mut said = false;
        loop {
            let connect = oarlock::builder(self.url.clone().inherit_session(true))
                .runtime(runtime.clone())
                .label(label.clone())
                .ttl(ttl)
                .observer(observer.clone());
            match connect.connect().await {
                Ok(locks) => {
                    self.say_if_implied();
                    return Ok(locks);
                }
                // A store that cannot be reached may come back while we may still wait.
                Err(error)
                    if error.kind() == ErrorKind::Unreachable
                        && until.is_none_or(|until| Instant::now() + pause < until) =>
                {
                    // Once, and not for a hiccup.
                    if pause >= Duration::from_millis(400) && !std::mem::replace(&mut said, true) {
                        self.messages.note(&format!("still trying: {error}"));
                    } else {
                        self.messages.detail(&format!("trying again: {error}"));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(2));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn shown(path: &Path) -> String {
    text::plain(&path.display().to_string())
}

/// What is left for the farewell to a store that did not answer a release.
pub(crate) const FAREWELL: Duration = Duration::from_millis(200);

/// Waits for the store to hear that we are done. What was granted deserves patience; where nothing was, at most a place
/// in a queue is left to be given up; a store that did not answer the release is not asked again, because the lease
/// ends the lock.
pub(crate) async fn farewell(locks: &Locks, events: &EngineEvents) -> oarlock::Result<()> {
    let (patience, grace) = if events.has_given_up() {
        (Duration::ZERO, FAREWELL)
    } else if events.has_granted() {
        (Duration::from_secs(5), Duration::from_millis(500))
    } else {
        (Duration::from_millis(500), Duration::from_millis(500))
    };
    let done = tokio::time::timeout(patience + grace, locks.shutdown(patience));
    done.await.unwrap_or_else(|_| {
        Err(Error::unreachable("the store did not confirm the release in time; the lease ends the lock"))
    })
}

/// Runs `work` on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // Helper threads are started without a word to us; they leave the signals to the main thread from then on.
    let runtime = builder.enable_all().on_thread_start(signals::deafen).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let result = runtime.block_on(work);
    // Work that hangs in the store must not hang us.
    runtime.shutdown_background();
    result
}
