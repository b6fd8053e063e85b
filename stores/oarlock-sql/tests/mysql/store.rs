//! A server and the plainest questions to the store on it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder};
use oarlock_core::driver::{Attempt, Driver as _, Grant, Pending, Renewal, Renewed};
use oarlock_core::{Claim, ClaimId, Error, ResourceName};
use oarlock_sql::mysql::{Config, MySql};
use oarlock_testbed::{Flavour, SqlServer};

/// Makes a test for each server of functions that take the kind of server they run on.
#[allow(unused_macros, reason = "not every test uses all that is shared")]
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(oarlock_testbed::Flavour::MariaDb).await;
            })+
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(oarlock_testbed::Flavour::MySql).await;
            })+
        }
    };
}

/// A server, and a client of its own to look behind the scenes; `None` where no server is installed.
pub(crate) async fn start(on: Flavour) -> Option<(Server, Conn)> {
    let idle = Idle::get();
    let used = idle.take(on);
    let server = match used {
        Some(server) => server,
        None => tokio::task::spawn_blocking(move || SqlServer::start_with_or_skip(on, &[])).await.unwrap().unwrap()?,
    };
    clean(server.addr()).await;
    let root = raw(server.addr()).await;
    Some((Server { server: Some(server), idle: Some(idle) }, root))
}

/// A server that no other test uses, with settings of its own.
pub(crate) async fn start_with(on: Flavour, settings: &'static [(&str, &str)]) -> Option<(Server, Conn)> {
    let server =
        tokio::task::spawn_blocking(move || SqlServer::start_with_or_skip(on, settings)).await.unwrap().unwrap()?;
    let root = raw(server.addr()).await;
    Some((Server::from(server), root))
}

/// A server that the next test takes over when this one is done with it: starting one takes a second or more.
pub(crate) struct Server {
    server: Option<SqlServer>,
    idle: Option<Arc<Idle>>,
}

impl From<SqlServer> for Server {
    fn from(server: SqlServer) -> Self {
        Self { server: Some(server), idle: None }
    }
}

impl std::ops::Deref for Server {
    type Target = SqlServer;

    fn deref(&self) -> &SqlServer {
        self.server.as_ref().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let server = self.server.take().filter(|server| server.is_running() && !std::thread::panicking());
        if let (Some(server), Some(idle)) = (server, &self.idle) {
            idle.servers.lock().unwrap().push(server);
        }
    }
}

/// Servers that no test uses just now. They end with the last one that is used.
#[derive(Default)]
pub(crate) struct Idle {
    servers: Mutex<Vec<SqlServer>>,
}

impl Idle {
    fn get() -> Arc<Self> {
        static IDLE: Mutex<Weak<Idle>> = Mutex::new(Weak::new());
        let mut shared = IDLE.lock().unwrap();
        let idle = shared.upgrade().unwrap_or_default();
        *shared = Arc::downgrade(&idle);
        idle
    }

    fn take(&self, on: Flavour) -> Option<SqlServer> {
        let mut servers = self.servers.lock().unwrap();
        let at = servers.iter().position(|server| server.flavour() == on)?;
        Some(servers.swap_remove(at))
    }
}

/// Leaves nothing of a test before: no connection, no table, no user.
async fn clean(addr: SocketAddr) {
    let opts = OptsBuilder::default().ip_or_hostname(addr.ip().to_string()).tcp_port(addr.port());
    let mut root = Conn::new(opts.user(Some("root")).prefer_socket(false)).await.unwrap();
    let others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user NOT IN ('event_scheduler', 'system user')";
    for other in root.query::<u64, _>(others).await.unwrap() {
        // It may have ended by itself.
        let _ = root.query_drop(format!("KILL {other}")).await;
    }
    root.query_drop("DROP DATABASE IF EXISTS locks; CREATE DATABASE locks").await.unwrap();
    let users = "SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) FROM mysql.user WHERE user IN ('app', 'secret')";
    for user in root.query::<String, _>(users).await.unwrap() {
        root.query_drop(format!("DROP USER {user}")).await.unwrap();
    }
}

pub(crate) async fn raw(addr: SocketAddr) -> Conn {
    let opts = OptsBuilder::default().ip_or_hostname(addr.ip().to_string()).tcp_port(addr.port());
    Conn::new(opts.user(Some("root")).db_name(Some("locks")).prefer_socket(false)).await.unwrap()
}

pub(crate) fn config(addr: SocketAddr) -> Config {
    Config::new(addr.ip().to_string(), addr.port(), "locks")
}

pub(crate) fn claim(bits: u128, name: &str) -> Claim {
    Claim::new(ClaimId::from_bits(bits), ResourceName::new(name).unwrap())
}

pub(crate) async fn grant(store: &MySql, claim: &Claim) -> Result<Grant, Error> {
    match store.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => panic!("not granted: {pending:?}"),
    }
}

pub(crate) async fn pending(store: &MySql, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("granted while another believes: {grant:?}"),
    }
}

pub(crate) async fn renew(store: &MySql, claim: &Claim) -> Result<Renewed, Error> {
    store.renew(&[Renewal::of(Arc::new(claim.clone()))]).await.remove(0)
}

/// Asks until `sql` answers with this number.
pub(crate) async fn until(root: &mut Conn, sql: &str, number: i64) {
    for _ in 0..250 {
        match root.query_first::<i64, _>(sql).await {
            Ok(found) if found == Some(number) => return,
            Ok(_) => {}
            // MySQL does not list statements while one of them has bytes that are no text.
            Err(mysql_async::Error::Server(error)) if error.code == 3854 => {}
            Err(error) => panic!("{error}: {sql}"),
        }
        // Its picture of transactions is made anew only if it was not read for a tenth of a second.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    panic!("not {number}: {sql}");
}

/// One of the server's counters.
pub(crate) async fn counted(root: &mut Conn, what: &str) -> u64 {
    let counted: Option<(String, u64)> = root.query_first(format!("SHOW GLOBAL STATUS LIKE '{what}'")).await.unwrap();
    counted.unwrap().1
}
