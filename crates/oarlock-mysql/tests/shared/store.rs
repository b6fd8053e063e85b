//! A server and the plainest questions to the store on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, OptsBuilder};
use oarlock_core::driver::{Attempt, Driver as _, Grant, Pending, Renewal, Renewed};
use oarlock_core::{Claim, ClaimId, Error, ResourceName};
use oarlock_mysql::{Config, MySql};

pub(crate) type Server = oarlock_testbed::MariaDb;

/// A server, and a client of its own to look behind the scenes; `None` where no server is installed.
pub(crate) async fn start() -> Option<(Server, Conn)> {
    let server = tokio::task::spawn_blocking(Server::start_or_skip).await.unwrap().unwrap()?;
    let root = raw(server.addr()).await;
    Some((server, root))
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
        if root.query_first::<i64, _>(sql).await.unwrap() == Some(number) {
            return;
        }
        // Its picture of transactions is made anew only if nobody looked for a tenth of a second.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    panic!("not {number}: {sql}");
}
