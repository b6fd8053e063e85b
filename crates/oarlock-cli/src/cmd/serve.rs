//! `oarlock serve`: a dashboard, an HTTP API and metrics.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use oarlock::{Label, Runtime};
use oarlock_core::text;
use oarlock_serve::{Access, Config, Reload, Server};
use rustix::process::Signal;
use serde_json::json;

use crate::args::{StoreArgs, span};
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::messages::{Messages, shell_word};
use crate::output::{self, Format};
use crate::signals::{self, FORWARDED, Signals};
use crate::store::{Store, block_on};

/// How long the store may take to hear that we end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serve a dashboard, an HTTP API for locks, and metrics
#[derive(Debug, clap::Args)]
#[command(after_help = "Without tokens only this machine is served: its users may read and lock, and none may break. \
Any other address needs --token-file or --client-ca, and TLS or --insecure. docs/serve.md is the manual.")]
pub(crate) struct ServeArgs {
    /// Address and port; port 0 takes a free one
    #[arg(short, long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) listen: SocketAddr,
    /// Tokens and their rights (TOML): name, secret or sha256, and patterns for read, lock and break
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Let tokens with the right break end the holds of others
    #[arg(long, requires = "token_file")]
    pub(crate) allow_break: bool,
    /// Let clients read only: no lock is taken over HTTP
    #[arg(long, conflicts_with = "allow_break")]
    pub(crate) read_only: bool,
    /// Certificate chain, for TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of these authorities (PEM); without --token-file they need nothing else
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Serve other machines without TLS: behind a proxy that encrypts
    #[arg(hide_short_help = true, long, conflicts_with = "tls_cert")]
    pub(crate) insecure: bool,
    /// A name under which this server is reached, besides localhost and addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Keep the history of holds and waits in this SQLite file; in memory without it
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
    /// Append the audit log to FILE; to standard error without it
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// How often the store is sampled while no page is open
    #[arg(hide_short_help = true, long, value_name = "DUR", default_value = "5s", value_parser = span)]
    pub(crate) sample: Duration,
    /// Metrics with the names of locks that match, with * and ?; may be repeated
    #[arg(hide_short_help = true, long, value_name = "PATTERN")]
    pub(crate) metrics_name: Vec<String>,
    /// Requests a second that one client may send
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// Streams of events at a time: pages that are open, and watched locks
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams: u32,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock serve -u redis://localhost", "Who holds what, at http://127.0.0.1:7070/."),
    (
        "oarlock serve --listen 0.0.0.0:7070 --tls-cert c.pem --tls-key k.pem --token-file tokens.toml --allow-break",
        "For other machines, with tokens that may end holds.",
    ),
];

pub(crate) fn main(args: &ServeArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let config = config(args, &store)?;
    block_on(async {
        let mut signals = Signals::new(FORWARDED.iter().copied())?;
        let runtime = signals::unheard(Runtime::own_thread)?;
        let connect = async {
            let builder = oarlock::builder(store.url.clone()).runtime(runtime);
            Ok::<_, Failure>(builder.label(Label::of_this_process().reason("oarlock serve")).connect().await?)
        };
        let locks = tokio::select! {
            biased;
            signal = signals.stop() => return Ok(Exit::signal(signal.as_raw())),
            locks = connect => locks?,
        };
        store.say_if_implied();
        if !args.read_only && args.token_file.is_none() && args.client_ca.is_none() {
            let text = "every user of this machine can take locks here, as you: --token-file asks for a token, and \
                        --read-only forbids it";
            store.messages.warning(text);
        }
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let server = Server::bind(locks.clone(), config).await?;
        let url = format!("{scheme}://{}/", server.address());
        match store.messages.format {
            Format::Json | Format::Jsonl => output::print_line(&json!({ "url": url }).to_string())?,
            Format::Name => output::print_line(&url)?,
            Format::Table => {
                let shown = text::plain(&store.url.to_string());
                store.messages.note(&format!("serving {shown} at {url}"));
            }
        }
        let (mut stopped, reload) = (None, server.reload());
        let stop = async {
            loop {
                match signals.stop().await {
                    Signal::HUP if args.can_reload() => args.reload(&reload, store.messages),
                    signal => break stopped = Some(signal),
                }
            }
        };
        server.run(stop).await;
        // Leases of clients live on; waiters were withdrawn.
        let _ = tokio::time::timeout(FAREWELL * 2, locks.shutdown(FAREWELL)).await;
        Ok(stopped.map_or_else(|| Code::Success.into(), |signal| Exit::signal(signal.as_raw())))
    })
}

impl ServeArgs {
    /// Who may do what, as the file of tokens says now.
    fn access(&self, messages: Messages) -> Result<Access, oarlock::Error> {
        let access = match &self.token_file {
            Some(file) => Access::file(file)?,
            None => Access::open(),
        };
        for file in self.token_file.iter().chain(&self.tls_key) {
            // A group may be that of the administrators.
            if std::fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o004 != 0) {
                let file = shell_word(&file.display().to_string());
                messages.warning(&format!("others can read {file}: run chmod o= {file}"));
            }
        }
        Ok(access.allow_break(self.allow_break).allow_lock(!self.read_only))
    }

    /// Whether there is a file to read again. Else HUP ends the server, as when its terminal is closed.
    fn can_reload(&self) -> bool {
        self.token_file.is_some() || self.tls_cert.is_some() || self.audit_log.is_some()
    }

    fn reload(&self, reload: &Reload, messages: Messages) {
        match self.access(messages).and_then(|access| reload.with(access)) {
            Ok(()) => messages.note("reloaded: tokens, certificates and the audit log were opened again"),
            Err(error) => messages.error(&format!("not reloaded, nothing has changed: {error}")),
        }
    }
}

fn config(args: &ServeArgs, store: &Store) -> Result<Config, Failure> {
    let mut config = Config::default();
    config.listen = args.listen;
    config.access = args.access(store.messages)?;
    config.tls = args.tls_cert.clone().zip(args.tls_key.clone());
    config.client_ca.clone_from(&args.client_ca);
    config.insecure = args.insecure;
    config.hosts.clone_from(&args.host);
    config.store = Some(store.url.clone());
    config.sample = args.sample;
    config.history.clone_from(&args.history);
    config.audit.clone_from(&args.audit_log);
    config.metrics_names.clone_from(&args.metrics_name);
    config.rate = args.rate;
    config.streams = usize::try_from(args.streams).unwrap_or(usize::MAX);
    config.check()?;
    Ok(config)
}
