//! The server's own named locks (`GET_LOCK`), for sharing locks with programs that use them: each is held by a
//! connection.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::session::{self, Mailbox, Seen, Server, SessionLocks};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, params};
use oarlock_core::capabilities::WaiterView;
use oarlock_core::driver::SessionEnd;
use oarlock_core::{Error, ErrorKind, Label, ResourceName, Result};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::mysql::config::{Config, Keys};
use crate::mysql::connection::{dial, host_of, probe};
use crate::mysql::error::{NO_NAME, SCHEME, STORE, UNKNOWN_VARIABLE, failed, read_only};
use crate::mysql::server_watch::ServerWatch;
use crate::route::Host;

/// A wait is one statement: after so long it begins anew.
const QUEUE_FOR: Duration = Duration::from_secs(60);

const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The same, and nothing where the server takes no writes: a replica grants named locks, too.
const CLOCK_OF_A_PRIMARY: &str = "SELECT IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF'),
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), NULL)";

/// The server would grant a name again to the connection that has it, and it may take two names for one.
const TAKE: &str = "SELECT IF(IS_USED_LOCK(:key) = CONNECTION_ID(), 0, GET_LOCK(:key, 0))";

/// Statements that may end a wait too soon are told not to; each server knows one of these.
const PATIENCE: [&str; 2] = ["SET SESSION max_statement_time = 0", "SET SESSION max_execution_time = 0"];

/// The server's last words on a connection that it ends.
const LAST_WORDS: [u16; 2] = [1053, 1927];

/// There is no such connection any more.
const NO_SUCH_THREAD: u16 = 1094;

/// Named locks of a `MySQL` or `MariaDB` server, for sharing locks with other programs. See the [module](crate::mysql)
/// for what they promise.
pub type MySqlSession = SessionLocks<Named>;

/// A server, and how its named locks are called.
#[derive(Debug)]
pub struct Named {
    config: Config,
    /// Kept by the connections.
    server_watch: std::sync::Mutex<Weak<ServerWatch>>,
}

impl Named {
    /// The server with this configuration: [`SessionLocks::connect`] connects to it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, server_watch: std::sync::Mutex::default() }
    }

    async fn connect(&self, mailbox: Mailbox) -> Result<Connection> {
        let config = self.config.clone();
        config.check()?;
        let mut conn = dial_patient(&config).await?;
        let host = host_of(&conn);
        let server_watch = self.server_watch(&host, &mailbox);
        let (is_alone, _) = probe(&mut conn).await?;
        if !is_alone {
            let message =
                "named locks are those of one server and one connection: here is a cluster, or a pooler in between";
            return Err(Error::new(ErrorKind::Unsupported, message).on(SCHEME));
        }
        let seconds = config.session_ttl.as_secs_f64().ceil();
        conn.query_drop(format!("SET SESSION wait_timeout = {seconds}")).await.map_err(failed)?;
        let (id, over) = (conn.id(), SessionEnd::new());
        Ok(Connection {
            config,
            host,
            open: Arc::new(Open { conn: Mutex::new(Some(conn)), over, mailbox }),
            id,
            server_watch,
        })
    }

    /// What notices the end of this server.
    fn server_watch(&self, host: &Host, mailbox: &Mailbox) -> Arc<ServerWatch> {
        let mut kept = self.server_watch.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = kept.upgrade().filter(|watch| watch.is_of(host));
        let server_watch =
            watch.unwrap_or_else(|| ServerWatch::new(self.config.only(host), mailbox.clone(), Handle::current()));
        *kept = Arc::downgrade(&server_watch);
        server_watch
    }
}

impl Server for Named {
    type Key = String;
    type Connection = Connection;

    const SCHEME: &'static str = SCHEME;
    const WAITERS: WaiterView = WaiterView::Hidden;

    fn address(&self) -> String {
        format!("{} (named locks)", self.config)
    }

    fn session_ttl(&self) -> Duration {
        self.config.session_ttl
    }

    fn key(&self, name: &ResourceName) -> Result<String> {
        Ok(match self.config.keys {
            Keys::Raw => name.as_str().to_owned(),
            Keys::Named => hashed(&self.config.prefix, name.as_str()),
        })
    }

    async fn open(self: Arc<Self>, mailbox: Mailbox) -> Result<Connection> {
        tokio::time::timeout(self.config.connect_timeout, self.connect(mailbox))
            .await
            .unwrap_or_else(|_| Err(STORE.no_answer()))
    }
}

/// All 64 characters that every server takes, whatever it thinks of letters.
fn hashed(prefix: &str, name: &str) -> String {
    let digest = Sha256::new().chain_update(prefix).chain_update(name).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A connection that holds named locks.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    /// The server that it is connected to.
    host: Host,
    open: Arc<Open>,
    id: u32,
    server_watch: Arc<ServerWatch>,
}

/// What the requests of a connection share.
#[derive(Debug)]
struct Open {
    /// One request at a time; `None` once it was closed.
    conn: Mutex<Option<Conn>>,
    /// Also ends the request that is under way.
    over: SessionEnd,
    mailbox: Mailbox,
}

/// A connection whose statements may take as long as they like.
pub(crate) async fn dial_patient(config: &Config) -> Result<Conn> {
    let mut conn = dial(config).await?;
    for setting in PATIENCE {
        match conn.query_drop(setting).await {
            Err(mysql_async::Error::Server(told)) if told.code == UNKNOWN_VARIABLE => {}
            set => set.map_err(failed)?,
        }
    }
    Ok(conn)
}

impl Open {
    /// Whatever fails in another way than by a refusal is the end of the connection.
    async fn query<T: mysql_async::prelude::FromValue + Send + 'static>(
        &self,
        sql: &str,
        params: Params,
        limit: Duration,
    ) -> Result<Option<T>> {
        let mut open = self.conn.lock().await;
        if self.is_over() {
            open.take();
        }
        let conn = open.as_mut().ok_or_else(|| STORE.closed())?;
        let asked = tokio::time::timeout(limit, conn.exec_first::<Option<T>, _, _>(sql, params));
        let answer = tokio::select! {
            answer = asked => answer,
            // The server has to see that the client is gone: it may be in the middle of a wait for a lock.
            () = self.over.ended() => {
                open.take();
                return Err(Error::unreachable("the connection was closed").on(SCHEME));
            }
        };
        let answer = match answer {
            Ok(Ok(answer)) => return answer.ok_or_else(|| STORE.unexpected("no answer")),
            Ok(Err(mysql_async::Error::Server(told))) if NO_NAME.contains(&told.code) => {
                return Err(Error::new(ErrorKind::InvalidName, "the name is too long for a named lock of this server")
                    .on(SCHEME)
                    .because(told));
            }
            Ok(Err(error)) => {
                let refused = matches!(&error, mysql_async::Error::Server(told) if !LAST_WORDS.contains(&told.code));
                let error = failed(error);
                if refused {
                    return Err(error);
                }
                error
            }
            Err(_) => STORE.silent(),
        };
        open.take();
        self.end();
        Err(answer)
    }

    fn end(&self) {
        self.close();
        // Claims that were held on it are lost.
        self.mailbox.notify();
    }

    /// At once, also while a request is under way: that request drops the connection.
    fn close(&self) {
        self.over.end();
        if let Ok(mut conn) = self.conn.try_lock() {
            conn.take();
        }
    }

    fn is_over(&self) -> bool {
        self.over.has_ended()
    }
}

impl Connection {
    /// One request that has one answer, in a task of its own: it goes on whether or not its caller does, and so do the
    /// others on this connection.
    async fn query<T: mysql_async::prelude::FromValue + Send + 'static>(
        &self,
        sql: &'static str,
        params: impl Into<Params> + Send,
        limit: Duration,
    ) -> Result<Option<T>> {
        let (open, params) = (self.open.clone(), params.into());
        let gone = |error| STORE.closed().because(error);
        self.server_watch.runtime().spawn(async move { open.query(sql, params, limit).await }).await.map_err(gone)?
    }

    fn patience(&self) -> Duration {
        self.config.silence_timeout.min(self.config.session_ttl)
    }

    /// Asked whenever something is taken or kept: then the client wants to hear of the end.
    async fn clock(&self) -> Result<u64> {
        self.server_watch.listen();
        if !self.config.route().has_choice() {
            let clock = self.query::<u64>(CLOCK, (), self.patience()).await?;
            return clock.ok_or_else(|| STORE.unexpected("no clock"));
        }
        let clock = self.query::<u64>(CLOCK_OF_A_PRIMARY, (), self.patience()).await?;
        clock.ok_or_else(|| {
            // Other clients do not ask this server any more.
            session::Connection::end(self);
            read_only()
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.close();
    }
}

impl session::Connection for Connection {
    type Key = String;

    async fn take(&self, key: &String) -> Result<Option<u64>> {
        let taken = self.query::<i64>(TAKE, params! { "key" => key }, self.patience()).await;
        // The clock is read once it is taken: that of a statement is from its beginning.
        let clock = match taken {
            Ok(Some(1)) => self.clock().await.map(Some),
            Ok(Some(_)) => Ok(None),
            Ok(None) => Err(STORE.unexpected("unexpected NULL reply from the server")),
            Err(error) => Err(error),
        };
        // A name that the server refuses cannot have been taken, and it would refuse to release it as well.
        let refused = |error: &Error| error.kind() == ErrorKind::InvalidName;
        if clock.as_ref().is_err_and(|error| !refused(error)) && !self.is_over() {
            // It may have been taken before the statement failed, and the client would not know.
            self.release(key).await.inspect_err(|_| self.end())?;
        }
        clock
    }

    async fn queue(&self, key: &String) -> Result<bool> {
        let queued =
            self.query::<i64>("SELECT GET_LOCK(?, ?)", (key, QUEUE_FOR.as_secs()), QUEUE_FOR + self.patience()).await;
        if let Ok(Some(1)) = queued {
            return Ok(true);
        }
        if self.is_over() {
            return queued.map(|_| false);
        }
        // Told to stop, or for too long: it releases the lock, held or not.
        self.release(key).await.inspect_err(|_| self.end())?;
        Ok(false)
    }

    async fn stop(&self) -> Result<()> {
        let told = tokio::time::timeout(self.config.connect_timeout, async {
            // There, whatever it takes: elsewhere the number is that of another client.
            let mut conn = dial(&self.config.only(&self.host)).await?;
            match conn.query_drop(format!("KILL QUERY {}", self.id)).await {
                // It has ended by itself.
                Err(mysql_async::Error::Server(told)) if told.code == NO_SUCH_THREAD => {}
                told => told.map_err(failed)?,
            }
            let _ = conn.disconnect().await;
            Ok(())
        });
        told.await.unwrap_or_else(|_| Err(STORE.silent()))
    }

    async fn release(&self, key: &String) -> Result<bool> {
        Ok(self.query::<i64>("SELECT RELEASE_LOCK(?)", (key,), self.patience()).await? == Some(1))
    }

    async fn ping(&self) -> Result<u64> {
        self.clock().await
    }

    async fn peek(&self, key: &String) -> Result<Seen> {
        let holder = self.query::<u64>("SELECT IS_USED_LOCK(?)", (key,), self.patience()).await?;
        let mut seen = Seen::default();
        if let Some(number) = holder {
            let mut label = Label::default();
            label.pid = u32::try_from(number).unwrap_or_default();
            // Shown to those who may see it.
            let whose = "SELECT (SELECT CONCAT(user, '@', host) FROM information_schema.processlist WHERE id = ?)";
            let whose = self.query::<String>(whose, (number,), self.patience()).await?.unwrap_or_default();
            let (user, host) = whose.split_once('@').unwrap_or_default();
            (label.user, label.host) = (user.to_owned(), host.to_owned());
            seen.holders.push((number, label));
        }
        Ok(seen)
    }

    fn number(&self) -> u64 {
        self.id.into()
    }

    fn end(&self) {
        self.open.end();
    }

    fn over(&self) -> &SessionEnd {
        &self.open.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_hash() {
        // SELECT SHA2('oarlock:nightly', 256)
        assert_eq!(hashed("oarlock:", "nightly"), "547bf3c1b4c9399754bdc40bd1cb8cadc2e22916e98a6b1c0781fa1ce6aff1e2");
        assert_eq!(hashed("a", "bc").len(), 64);
    }

    #[test]
    fn a_raw_key_is_the_name_itself() {
        let mut config = Config::new("db", 3306, "app");
        (config.keys, config.prefix) = (Keys::Raw, "oarlock:".into());
        assert_eq!(Named::new(config).key(&ResourceName::new("Nightly").unwrap()).unwrap(), "Nightly");
    }
}
