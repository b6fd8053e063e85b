//! Certificates.

use std::time::Duration;

use oarlock_core::{ErrorKind, Locks, Retry};
use oarlock_redis::{Address, Config, Redis, Tls};
use oarlock_testbed::RedisTls;
use oarlock_testbed::ports::Port;
use oarlock_testbed::server::{
    CertificateFolder, MASTER, Missing, RedisNodeProgram, SentinelProgram, Server, redis_command, until,
};

use crate::context::{config, started};

/// A server that does not encrypt waits for the rest of what it takes for a command, and says nothing.
const SILENCE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn only_a_trusted_server_is_accepted() {
    let server = started!(RedisTls::start_or_skip());
    let mut config = config(server.addr());
    // Without encryption it hangs up.
    assert_eq!(Redis::open(config.clone()).await.unwrap_err().kind(), ErrorKind::Unreachable);

    let mut tls = Tls::default();
    tls.ca = Some(server.other_ca());
    config.tls = Some(tls.clone());
    let error = Redis::open(config.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{error}");
    assert!(error.to_string().contains("not trusted"), "{error}");

    config.tls = Some(Tls::default());
    assert_eq!(Redis::open(config.clone()).await.unwrap_err().kind(), ErrorKind::Config, "no authority of the system");

    tls.ca = Some(server.ca());
    config.tls = Some(tls);
    let client = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    client.mutex("deploy").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_over_or_of_another_host_is_refused() {
    for certificate in ["expired.pem", "elsewhere.pem"] {
        let server = started!(RedisTls::start_with_or_skip(&[("tls-cert-file", certificate)]));
        let (mut config, mut tls) = (config(server.addr()), Tls::default());
        tls.ca = Some(server.ca());
        config.tls = Some(tls);
        let error = Redis::open(config).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{certificate}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_encrypt_is_refused() {
    let server = started!(oarlock_testbed::Redis::start_or_skip());
    let mut config = config(server.addr());
    (config.tls, config.connect_timeout) = (Some(Tls::default()), SILENCE);
    assert_eq!(Redis::open(config).await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let server = started!(RedisTls::start_with_or_skip(&[("tls-auth-clients", "yes")]));
    let mut config = config(server.addr());
    let mut tls = Tls::default();
    tls.ca = Some(server.ca());
    for identity in [None, Some(server.other_identity())] {
        tls.identity = identity;
        config.tls = Some(tls.clone());
        let error = Redis::open(config.clone()).await.unwrap_err();
        // Whether the client receives the reason before the connection ends is a race.
        assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable), "{error}");
    }
    tls.identity = Some(server.identity());
    config.tls = Some(tls);
    let client = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    client.mutex("deploy").lock().await.unwrap().release().await.unwrap();
}

/// Servers that clients find by asking another one, with a port for TLS and a plain one.
enum Group {
    Sentinel { sentinel: Server<SentinelProgram>, master: oarlock_testbed::Redis },
    Cluster(Server<RedisNodeProgram>),
}

/// What is encrypted: the ports, and the certificates of all servers.
struct Encrypted {
    group: Group,
    /// The port that clients ask first.
    entrance: Port,
    /// That of a master behind a Sentinel.
    _master: Port,
    certificates: CertificateFolder,
}

impl Encrypted {
    /// `None` if it is not installed.
    fn start(is_cluster: bool, certificate: &str) -> Option<Self> {
        match Self::started(is_cluster, certificate) {
            Ok(started) => Some(started),
            Err(error) if error.is::<Missing>() => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error:#}"),
        }
    }

    fn started(is_cluster: bool, certificate: &str) -> anyhow::Result<Self> {
        let certificates = CertificateFolder::make("redis")?;
        let file = |name: &str| certificates.file(name).display().to_string();
        let (certificate, key, ca) = (file(certificate), file("server.key"), file("ca.pem"));
        let (entrance, behind) = (Port::reserve()?, Port::reserve()?);
        let (port, behind_port) = (entrance.number().to_string(), behind.number().to_string());
        let encrypted = |port| {
            [
                ("tls-port", port),
                ("tls-cert-file", certificate.as_str()),
                ("tls-key-file", &key),
                ("tls-ca-cert-file", &ca),
                ("tls-auth-clients", "no"),
            ]
        };
        let group = if is_cluster {
            // A client that asks over TLS is told the encrypted ports.
            let own = [("tls-cluster", "yes"), ("cluster-announce-ip", "127.0.0.1")];
            let node = Server::<RedisNodeProgram>::start_with(&[&encrypted(&*port)[..], &own].concat())?;
            redis_command(node.addr(), &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
            until(node.addr(), &["CLUSTER", "INFO"], |said| said.contains("cluster_state:ok"))?;
            Group::Cluster(node)
        } else {
            let master = oarlock_testbed::Redis::start_with(&encrypted(&*behind_port))?;
            // It asks the master over TLS, as clients do.
            let monitor = format!("{MASTER} 127.0.0.1 {behind_port} 1");
            let own = [("tls-replication", "yes"), ("monitor", monitor.as_str())];
            let sentinel = Server::start_with(&[&encrypted(&*port)[..], &own].concat())?;
            Group::Sentinel { sentinel, master }
        };
        Ok(Self { group, entrance, _master: behind, certificates })
    }

    /// Through this port, with this authority.
    fn config(&self, port: u16, ca: &str) -> Config {
        let hosts = vec![("127.0.0.1".to_owned(), port)];
        let mut config = match self.group {
            Group::Cluster(_) => Config::new(Address::Cluster(hosts)),
            Group::Sentinel { .. } => Config::new(Address::Sentinel { hosts, master: MASTER.to_owned() }),
        };
        let mut tls = Tls::default();
        tls.ca = Some(self.certificates.file(ca));
        config.tls = Some(tls);
        config
    }

    /// The port that is not encrypted.
    fn plain(&self) -> u16 {
        match &self.group {
            Group::Cluster(node) => node.addr().port(),
            Group::Sentinel { sentinel, .. } => sentinel.addr().port(),
        }
    }
}

/// The same five cases where servers are found by asking another one.
async fn only_trusted_servers(is_cluster: bool) {
    let Some(servers) = Encrypted::start(is_cluster, "server.pem") else { return };
    let port = servers.entrance.number();
    let client = Locks::over(Redis::open(servers.config(port, "ca.pem")).await.unwrap()).unwrap();
    let guard = client.mutex("deploy").lock().await.unwrap();
    let data = match &servers.group {
        Group::Cluster(node) => node.addr(),
        Group::Sentinel { master, .. } => master.addr(),
    };
    assert!(redis_command(data, &["DBSIZE"]).unwrap() != "0", "the lock is on this server");
    guard.release().await.unwrap();

    let error = Redis::open(servers.config(port, "other-ca.pem")).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "wrong authority: {error}");
    let mut plain = servers.config(servers.plain(), "ca.pem");
    plain.connect_timeout = SILENCE;
    let error = Redis::open(plain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "a server that does not encrypt: {error}");
    for certificate in ["expired.pem", "elsewhere.pem"] {
        let Some(servers) = Encrypted::start(is_cluster, certificate) else { return };
        let error = Redis::open(servers.config(servers.entrance.number(), "ca.pem")).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Config, Retry::Never), "{certificate}: {error}");
    }
}

#[tokio::test]
async fn only_a_trusted_sentinel_and_master_are_accepted() {
    only_trusted_servers(false).await;
}

#[tokio::test]
async fn only_trusted_nodes_of_a_cluster_are_accepted() {
    only_trusted_servers(true).await;
}
