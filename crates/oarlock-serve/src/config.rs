//! What to serve, where and to whom.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Result};

use crate::access::Access;

/// Settings of a [`Server`](crate::Server). The default serves on `127.0.0.1:7070`, without tokens.
///
/// # Examples
/// ```
/// let mut config = oarlock_serve::Config::default();
/// config.listen = "127.0.0.1:0".parse().expect("an address");
/// assert!(config.check().is_ok());
/// config.listen = "0.0.0.0:7070".parse().expect("an address");
/// assert!(config.check().is_err(), "other machines need a token, and encryption");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Who may do what; [`Reload`](crate::Reload) exchanges it.
    pub access: Access,
    /// The certificate chain and its key, in PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The authorities of client certificates, in a PEM file: with it, TLS lets in only clients with a certificate of one
    /// of them. They need no token, unless there are tokens.
    pub client_ca: Option<PathBuf>,
    /// Serves other machines without TLS: behind a proxy that encrypts.
    pub insecure: bool,
    /// Names under which this server is reached, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The store, for its examination; without it there are no findings.
    pub store: Option<Url>,
    /// How often the store is sampled while no page is open.
    pub sample: Duration,
    /// Where the samples are kept; in memory without it.
    pub history: Option<PathBuf>,
    /// Where the audit log is written; to standard error without it.
    pub audit: Option<PathBuf>,
    /// Lock names that are a label of the metrics, as patterns.
    pub metrics_names: Vec<String>,
    /// Requests a second of one client, in the mean.
    pub rate: u32,
    /// Connections at a time, as far as the limit of open files permits. One address that is not of this machine has a
    /// quarter of them, unless `insecure` says that it is a proxy.
    pub connections: usize,
    /// Streams of events at a time: pages that are open, and watched locks. One client has a quarter of them, where
    /// clients can be told apart.
    pub streams: usize,
    /// How long a client may take to send a request, and to read an answer.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7070).into(),
            access: Access::open(),
            tls: None,
            client_ca: None,
            insecure: false,
            hosts: Vec::new(),
            store: None,
            sample: Duration::from_secs(5),
            history: None,
            audit: None,
            metrics_names: Vec::new(),
            rate: 200,
            connections: 2048,
            streams: 1024,
            patience: Duration::from_secs(20),
        }
    }
}

impl Config {
    /// Whether an address stands for many clients: for a proxy, which `insecure` is for, or for all users of this machine.
    pub(crate) fn is_shared(&self, address: IpAddr) -> bool {
        self.insecure || address.to_canonical().is_loopback()
    }

    /// Whether clients can be told apart by their names, those of tokens or certificates.
    pub(crate) fn has_names(&self, access: &Access) -> bool {
        match access.names().len() {
            0 => self.client_ca.is_some(),
            tokens => tokens > 1,
        }
    }

    /// Refuses what would be unsafe.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], with what to change.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::Config, message));
        let local = self.listen.ip().is_loopback();
        if self.client_ca.is_some() && self.tls.is_none() {
            return refuse("client certificates (--client-ca) need TLS: use --tls-cert and --tls-key");
        }
        if !local && !self.access.needs_token() && self.client_ca.is_none() {
            return refuse(
                "other machines can reach this address: it needs tokens (--token-file) or client certificates \
                 (--client-ca)",
            );
        }
        if !local && self.tls.is_none() && !self.insecure {
            return refuse(
                "other machines can reach this address, and tokens would be sent in clear: use --tls-cert and \
                 --tls-key, or --insecure behind a proxy that encrypts",
            );
        }
        if self.access.breaks() && !self.access.needs_token() {
            return refuse("--allow-break needs tokens (--token-file): the audit log must say who ended a hold");
        }
        if self.sample < Duration::from_millis(100) {
            return refuse("the store is sampled at most every 100 ms");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_need_a_token_and_encryption() {
        let mut config = Config { listen: "[::]:0".parse().unwrap(), ..Config::default() };
        assert!(config.check().unwrap_err().to_string().contains("--token-file"));
        config.insecure = true;
        assert!(config.check().unwrap_err().to_string().contains("--token-file"), "a proxy does not replace a token");
        config.insecure = false;
        config.access = Access::token("0123456789abcdef0123").unwrap();
        assert!(config.check().unwrap_err().to_string().contains("--tls-cert"));
        config.insecure = true;
        assert!(config.check().is_ok());
        (config.insecure, config.tls) = (false, Some(("c".into(), "k".into())));
        assert!(config.check().is_ok());
        config.access = Access::open();
        assert!(config.check().is_err());
        config.client_ca = Some("ca".into());
        assert!(config.check().is_ok(), "a certificate is as good as a token");
        (config.insecure, config.tls) = (true, None);
        assert!(config.check().unwrap_err().to_string().contains("need TLS"), "and shown in TLS alone");
    }

    #[test]
    fn tokens_and_certificates_tell_clients_apart() {
        let mut config = Config::default();
        assert!(!config.has_names(&config.access), "all are anonymous");
        config.client_ca = Some("ca".into());
        assert!(config.has_names(&config.access), "each has a certificate of its own");
        config.access = Access::token("0123456789abcdef0123").unwrap();
        assert!(!config.has_names(&config.access), "all have the same token");
    }

    #[test]
    fn breaking_needs_a_token_also_on_this_machine() {
        let mut config = Config { access: Access::open().allow_break(true), ..Config::default() };
        assert!(config.check().is_err());
        config.access = Access::token("0123456789abcdef0123").unwrap().allow_break(true);
        assert!(config.check().is_ok());
    }
}
