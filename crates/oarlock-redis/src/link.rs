//! One client's way to the server: one connection for requests and news, opened anew by whoever needs it next.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_core::driver::Watch;
use oarlock_core::{Error, ErrorKind, ResourceName, Result};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, Pipeline, ProtocolVersion,
    RedisConnectionInfo, RedisError, Script, ServerErrorKind, Value,
};

use crate::config::{Address, Config};
use crate::error::{SCHEME, closed, failed, unconnected, unexpected};
use crate::place::Place;
use crate::watch::{Hub, Topic};

/// What is open.
pub(crate) struct Link {
    pub(crate) config: Config,
    /// Names the mailbox of this client.
    pub(crate) session: String,
    client: Client,
    state: Mutex<State>,
    /// How often a connection was tried; the last error, while there is none.
    dials: AtomicU64,
    dialling: tokio::sync::Mutex<Option<Error>>,
}

#[derive(Default)]
struct State {
    line: Option<Arc<Line>>,
    closed: bool,
}

/// One connection.
struct Line {
    connection: MultiplexedConnection,
    hub: Arc<Hub>,
    channels: tokio::sync::Mutex<HashSet<String>>,
}

impl Link {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
        let link = Self {
            client: client(&config).map_err(unconnected)?,
            config,
            session: format!("{:032x}", u128::from_be_bytes(bits)),
            state: Mutex::default(),
            dials: AtomicU64::new(0),
            dialling: tokio::sync::Mutex::default(),
        };
        link.line().await?;
        Ok(link)
    }

    /// What goes before a session to name the channel of its mailbox.
    pub(crate) fn mail(&self) -> String {
        format!("{}mail:", self.config.prefix)
    }

    /// A call of `script` on a resource, to which its arguments are to be added.
    pub(crate) fn call(&self, script: &Script, name: &ResourceName) -> Cmd {
        let place = Place::of(&self.config.prefix, name);
        let mut call = redis::cmd("EVALSHA");
        call.arg(script.get_hash()).arg(2).arg(place.key).arg(place.index).arg(self.mail());
        call
    }

    /// Runs one call of `script`.
    pub(crate) async fn run_one(&self, script: &Script, call: Cmd) -> Result<Value> {
        self.run(script, vec![call]).await.pop().unwrap_or_else(|| Err(unexpected()))
    }

    /// Runs calls of `script` in one go: an answer for each. A server that does not know the script is taught it.
    pub(crate) async fn run(&self, script: &Script, calls: Vec<Cmd>) -> Vec<Result<Value>> {
        let count = calls.len();
        let line = match self.line().await {
            Ok(line) => line,
            Err(error) => return vec![Err(error); count],
        };
        let mut answers = self.send(&line, calls.clone()).await;
        let unknown = |answer: &Result<Value, RedisError>| matches!(answer, Err(error) if error.kind() == ServerErrorKind::NoScript.into());
        if answers.iter().any(unknown) {
            let places: Vec<_> = (0..count).filter(|at| answers.get(*at).is_some_and(unknown)).collect();
            let again = places.iter().filter_map(|at| calls.get(*at).cloned()).collect();
            if let Err(error) = script.load_async(&mut line.connection.clone()).await {
                return vec![Err(failed(error)); count];
            }
            for (at, answer) in places.into_iter().zip(self.send(&line, again).await) {
                answers[at] = answer;
            }
        }
        answers.into_iter().map(|answer| answer.map_err(failed)).collect()
    }

    /// Runs commands that are not scripts, and that change nothing.
    pub(crate) async fn ask(&self, commands: Vec<Cmd>) -> Result<Vec<Value>> {
        let line = self.line().await?;
        let answers: Result<_, _> = self.send(&line, commands).await.into_iter().collect();
        answers.map_err(failed)
    }

    async fn send(&self, line: &Arc<Line>, mut commands: Vec<Cmd>) -> Vec<Result<Value, RedisError>> {
        let mut connection = line.connection.clone();
        let count = commands.len();
        let answers = match commands.pop() {
            Some(command) if count == 1 => connection.send_packed_command(&command).await.map(|answer| vec![answer]),
            last => {
                let mut pipeline = Pipeline::with_capacity(count);
                commands.into_iter().chain(last).for_each(|command| {
                    pipeline.add_command(command);
                });
                connection.send_packed_commands(&pipeline, 0, count).await
            }
        };
        match answers {
            Ok(answers) => answers.into_iter().map(Value::extract_error).collect(),
            Err(error) => {
                self.discard(line);
                vec![Err(error); count]
            }
        }
    }

    /// Arms a watch; it is in force when this returns.
    pub(crate) async fn listen(&self, topic: Topic) -> Result<Watch> {
        let channel = match &topic {
            Topic::Turn(_) | Topic::Mailbox => format!("{}{}", self.mail(), self.session),
            Topic::Channel(channel) => channel.clone(),
        };
        let line = self.line().await?;
        let mut connection = line.connection.clone();
        let mut channels = line.channels.lock().await;
        let watch = line.hub.listen(topic);
        let change = async {
            let unheard: Vec<_> = channels.extract_if(|channel| !line.hub.hears(channel)).collect();
            if !unheard.is_empty() {
                connection.unsubscribe(&unheard).await?;
            }
            if !channels.contains(&channel) {
                connection.subscribe(&channel).await?;
                channels.insert(channel);
            }
            Ok(())
        };
        match change.await {
            Ok(()) => Ok(watch),
            Err(error) => {
                self.discard(&line);
                Err(failed(error))
            }
        }
    }

    /// The connection, or a new one if it has ended.
    async fn line(&self) -> Result<Arc<Line>> {
        let seen = self.dials.load(Ordering::Acquire);
        if let Some(line) = self.current()? {
            return Ok(line);
        }
        let mut last = self.dialling.lock().await;
        if let Some(line) = self.current()? {
            return Ok(line);
        }
        if let Some(error) = last.as_ref().filter(|_| self.dials.load(Ordering::Acquire) > seen) {
            // Somebody else tried while this one waited to.
            return Err(error.clone());
        }
        let dialled = self.dial().await.map_err(unconnected);
        self.dials.fetch_add(1, Ordering::AcqRel);
        *last = dialled.as_ref().err().cloned();
        let line = Arc::new(dialled?);
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        state.line = Some(line.clone());
        Ok(line)
    }

    async fn dial(&self) -> Result<Line, RedisError> {
        let hub = Hub::new(format!("{}{}", self.mail(), self.session));
        let heard = hub.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_response_timeout(Some(self.config.silence_timeout))
            .set_push_sender(move |push| {
                heard.push(push);
                Ok::<_, std::convert::Infallible>(())
            });
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Line { connection, hub, channels: tokio::sync::Mutex::default() })
    }

    fn current(&self) -> Result<Option<Arc<Line>>> {
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        state.line.take_if(|line| line.hub.is_ended());
        Ok(state.line.clone())
    }

    /// Lets go of a connection that failed, unless another has taken its place.
    fn discard(&self, line: &Arc<Line>) {
        line.hub.end();
        self.lock().line.take_if(|current| Arc::ptr_eq(current, line));
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        if let Some(line) = state.line.take() {
            line.hub.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}

fn client(config: &Config) -> Result<Client, RedisError> {
    let address = match &config.address {
        Address::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    let mut user = RedisConnectionInfo::default()
        .set_db(config.database.into())
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("oarlock", env!("CARGO_PKG_VERSION"));
    if let Some(name) = &config.user {
        user = user.set_username(name);
    }
    if let Some(password) = &config.password {
        user = user.set_password(password);
    }
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(config.connect_timeout);
    Client::open(address.into_connection_info()?.set_redis_settings(user).set_tcp_settings(tcp))
}
