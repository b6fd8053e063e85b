//! Which store, and the way to it.

use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Locks, Observer, Runtime};
use oarlock_core::text;

use crate::args::StoreArgs;
use crate::config::{ConfigFile, Profile};
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::observe::EngineEvents;
use crate::settings::Asking;
use crate::{progress, signals};

/// The variable that names the store where the command line does not.
const VARIABLE: &str = "OARLOCK_URL";

/// The variable that names a profile of the configuration file.
const PROFILE: &str = "OARLOCK_PROFILE";

/// The key of a URL that names the file with its password.
const PASSWORD_KEY: &str = "password_file";

/// The store that is used where none is named.
const EMBEDDED: &str = "local:";

/// How long a try to connect may take that begins when the wait is almost over.
const LAST_TRY: Duration = Duration::from_millis(500);

/// How long a store may be silent before a note says so.
const SILENCE: Duration = Duration::from_secs(1);

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
            (Some(url), _) => (url.clone(), false),
            (None, Some(file)) => (read(file)?, false),
            (None, None) => return Self::chosen(args.profile.as_deref(), args.password_file.as_deref(), messages),
        };
        let parsed = with_password_file(&url, args.password_file.as_deref())?;
        let in_a_file = args.password_file.is_some() || url.contains(PASSWORD_KEY);
        if args.url.is_some() && parsed.has_password() && !in_a_file && !args.quiet {
            messages.warning(&format!(
                "every user of this machine can read the password in -u: use --url-file, --password-file or {VARIABLE}"
            ));
        }
        Ok(Self { url: parsed, implied, messages })
    }

    /// The store that the environment or the configuration file names; the embedded one where neither does.
    pub(crate) fn chosen(
        profile: Option<&str>,
        password_file: Option<&Path>,
        messages: Messages,
    ) -> Result<Self, Failure> {
        let named = |url: String, file: Option<&Path>| {
            Ok(Self { url: with_password_file(&url, password_file.or(file))?, implied: false, messages })
        };
        if profile.is_none()
            && let Some(url) = variable(VARIABLE)?
        {
            return named(url, None);
        }
        let profile = match profile {
            Some(profile) => Some(profile.to_owned()),
            None => variable(PROFILE)?,
        };
        let config = ConfigFile::read()?;
        let Some(name) = profile.or_else(|| config.profile.clone()) else {
            return Ok(Self { url: oarlock::url::parse(EMBEDDED)?, implied: true, messages });
        };
        let Profile { url, url_file, password_file } = config.profile(&name)?;
        let url = match (url, url_file) {
            (Some(url), None) => url,
            (None, Some(file)) => read(&file)?,
            _ => {
                let message = format!("the profile {} needs url or url_file, and not both", text::quoted(&name));
                return Err(Failure::new(Code::Config, message));
            }
        };
        named(url, password_file.as_deref())
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
        let what = format!("connecting to {}", self.url);
        let locks = progress::during(self.messages, &what, oarlock::connect(self.url.clone())).await?;
        self.say_if_implied();
        Ok(locks)
    }

    /// Connects to hold locks: renewal on a thread of its own, so that nothing done here holds it up.
    pub(crate) async fn hold(
        &self,
        asking: &Asking,
        until: Option<Instant>,
        observer: impl Observer + Clone,
    ) -> Result<Locks, Failure> {
        let runtime = signals::unheard(Runtime::own_thread)?;
        let started = Instant::now();
        let mut pause = Duration::from_millis(50);
        let mut said = false;
        loop {
            let connect = oarlock::builder(self.url.clone().inherit_session(true))
                .runtime(runtime.clone())
                .label(asking.label.clone())
                .ttl(asking.ttl)
                .observer(observer.clone());
            // Without a wait, `connect_timeout` is the only bound: a store that is slow is asked all the same.
            let waits = asking.wait.is_some_and(|wait| !wait.is_zero());
            let give_up = until.filter(|_| waits).map(|until| until.max(Instant::now() + LAST_TRY));
            match self.answer(connect.connect(), started, give_up, &mut said).await {
                Ok(locks) => {
                    self.say_if_implied();
                    return Ok(locks);
                }
                // A store that cannot be reached may come back while we may still wait.
                Err(error)
                    if error.kind() == ErrorKind::Unreachable && until.is_none_or(|until| Instant::now() < until) =>
                {
                    // Once, and not for a hiccup.
                    if pause >= Duration::from_millis(400) && !std::mem::replace(&mut said, true) {
                        self.messages.note(&format!("still trying: {error}"));
                    } else {
                        self.messages.detail(&format!("trying again: {error}"));
                    }
                    // The last try is made when the wait is over, not earlier.
                    let left = until.map_or(pause, |until| until.saturating_duration_since(Instant::now()));
                    tokio::time::sleep(pause.min(left)).await;
                    pause = (pause * 2).min(Duration::from_secs(2));
                }
                Err(error) if error.kind() == ErrorKind::Unreachable && until.is_some() => {
                    // The wait began a moment before this function did.
                    let tried = text::span(started.elapsed().max(asking.wait.unwrap_or_default()));
                    let message =
                        format!("gave up after {tried}: {}", Failure::from(error).message().unwrap_or_default());
                    return Err(Failure::new(Code::Unreachable, message));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One try to connect. A store that accepts connections and is silent ends no wait later than one that refuses them.
    async fn answer(
        &self,
        connect: impl Future<Output = oarlock::Result<Locks>>,
        started: Instant,
        give_up: Option<Instant>,
        said: &mut bool,
    ) -> oarlock::Result<Locks> {
        let silent = || Error::unreachable(format!("no answer from {}", self.url));
        let mut connect = pin!(connect);
        loop {
            let say_at = if *said { None } else { Some(started + SILENCE) };
            let next = [say_at, give_up].into_iter().flatten().min();
            let tried = match next {
                Some(next) => tokio::time::timeout_at(next.into(), &mut connect).await,
                None => return connect.await,
            };
            match tried {
                Ok(tried) => return tried,
                Err(_) if give_up.is_some_and(|give_up| give_up <= Instant::now()) => return Err(silent()),
                Err(_) => {
                    *said = true;
                    self.messages.note(&format!("still trying: {}", silent()));
                }
            }
        }
    }
}

fn variable(name: &str) -> Result<Option<String>, Failure> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(Some(value)),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(_) => Err(Failure::new(Code::Config, format!("{name} is not UTF-8"))),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Failure::new(Code::Config, format!("cannot read {}: {error}", file.display())))?;
    Ok(text.trim().to_owned())
}

/// The URL, with the file that its password is in.
fn with_password_file(url: &str, file: Option<&Path>) -> Result<Url, Failure> {
    let Some(file) = file else { return Ok(oarlock::url::parse(url)?) };
    let path = file.to_str().ok_or_else(|| Failure::new(Code::Config, "the path of a password file must be UTF-8"))?;
    let escaped: String = path
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    let joint = if url.contains('?') { '&' } else { '?' };
    Ok(oarlock::url::parse(&format!("{url}{joint}{PASSWORD_KEY}={escaped}"))?)
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
    let runtime = builder.enable_all().on_thread_start(signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let result = runtime.block_on(work);
    // Work that hangs in the store must not hang us.
    runtime.shutdown_background();
    result
}
