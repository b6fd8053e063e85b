//! Examines the servers of an ensemble, with the four-letter words that they allow, and the session that they grant.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::doctor::{Check, Doctor, OnServer, Report, Severity, examined, list, patience, within};
use oarlock_core::guarantees::Promise;
use oarlock_core::{Error, Result, text};
use tokio::net::TcpStream;

use crate::config::{Config, Layout};
use crate::error::SCHEME;
use crate::record::{RootRecord, read};
use crate::resume::begin;
use crate::servers::Servers;
use crate::session::{Session, if_there};
use crate::unknown_nodes::UnknownNodes;

pub(crate) const DOCTOR: Doctor = Doctor {
    checks: &[&NOT_SERVING, &STANDALONE, &EVEN, &WORDS, &SESSION_RANGE, &BEHIND],
    examine: |url| {
        Box::pin(examined(url, async |url, report| {
            examine(&Config::from_url(url)?, patience(url), report).await;
            Ok(())
        }))
    },
};

static NOT_SERVING: Check = Check {
    id: "zk-not-serving",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "start the missing servers: without a majority no server serves",
};
static STANDALONE: Check = Check {
    id: "zk-standalone",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "run three servers on machines of their own",
};
static EVEN: Check = Check {
    id: "zk-even",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "use an odd number of voting servers",
};
static WORDS: Check = Check {
    id: "zk-words",
    severity: Severity::Unknown,
    promise: Promise::BoundedWait,
    fix: "4lw.commands.whitelist=srvr,mntr,conf; the locks themselves do not need it",
};
static SESSION_RANGE: Check = Check {
    id: "zk-session-range",
    severity: Severity::Warning,
    promise: Promise::LossReported,
    fix: "change ttl in the URL, or minSessionTimeout and maxSessionTimeout of the servers",
};
static BEHIND: Check = Check {
    id: "zk-unsynced",
    severity: Severity::Warning,
    promise: Promise::BoundedWait,
    fix: "find why a follower does not keep up: its disk, its network, initLimit and syncLimit",
};

/// The longest answer that is read.
const LONGEST: usize = 64 << 10;

async fn examine(config: &Config, limit: Duration, report: &mut Report) {
    let mut is_judged = false;
    for host in &config.hosts {
        let mut on = report.on(host);
        if is_encrypted(config) {
            on.find(&WORDS, "the four-letter words are not asked for on encrypted ports");
            is_judged = true;
        } else {
            match within(limit, ask(host, &mut on)).await {
                Ok(judged) => is_judged |= judged,
                Err(error) => {
                    on.failed(&error);
                    is_judged = true;
                }
            }
        }
    }
    if !is_judged {
        let reason = "no server of the URL tells how many servers vote: name all servers to judge the ensemble";
        report.find(&WORDS, reason);
    }
    if let Err(error) = within(limit, session(config, report)).await {
        report.on(&config.hosts.join(",")).failed(&error);
    }
}

fn is_encrypted(config: &Config) -> bool {
    #[cfg(feature = "tls")]
    return config.tls.is_some();
    #[cfg(not(feature = "tls"))]
    {
        let _ = config;
        false
    }
}

/// Opens a session, without making anything in it, and looks at what was granted.
async fn session(config: &Config, report: &mut Report) -> Result<()> {
    let servers = Arc::new(Servers::from_config(config)?);
    let (connection, life) = begin(config, &servers).await?;
    let (asked, granted) = (config.session_timeout, connection.client.session_timeout());
    // A session makes no nodes by itself, unlike a client that is opened.
    let session = Session::on(config, connection, life, UnknownNodes::default());
    if config.layout == Layout::Native
        && let Some((data, _)) = if_there(session.client.get_data(&config.root).await)?
    {
        // A root that was created by hand has no record.
        if !data.is_empty() {
            read::<RootRecord>(&config.root, &data)?;
        }
        report.locks = list(async |query| session.inspect_native(&query).await).await?;
    }
    let hosts = config.hosts.join(",");
    let mut on = report.on(&hosts);
    on.fact("session", text::span(granted));
    // Servers count in ticks.
    if granted.abs_diff(asked) > asked / 10 {
        let reason = format!(
            "sessions of {} were asked for, and {} granted: the death of a holder is noticed after that time",
            text::span(asked),
            text::span(granted)
        );
        on.find(&SESSION_RANGE, reason);
    }
    Ok(())
}

/// Returns whether the ensemble was judged, or something was found that keeps it from being judged.
async fn ask(host: &str, on: &mut OnServer<'_>) -> Result<bool> {
    let sent = Instant::now();
    let answer = word(host, "srvr").await?;
    on.latency(sent.elapsed());
    if answer.contains("not currently serving") {
        on.find(&NOT_SERVING, "it serves no requests: it has no majority, or is starting");
        return Ok(true);
    }
    let field = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let (mode, version) = (field("Mode:"), field("Zookeeper version:"));
    if mode.is_empty() {
        on.find(&WORDS, "not checked: the server refuses the command srvr");
        return Ok(true);
    }
    on.fact("version", version.split(['-', ',']).next().unwrap_or_default());
    on.fact("mode", mode);
    on.fact("clock", "cannot be measured: a server does not tell its time; locks of this store do not depend on it");
    if let Ok(zxid) = u64::from_str_radix(field("Zxid:").trim_start_matches("0x"), 16) {
        on.last_fence(zxid);
    }
    let monitor = word(host, "mntr").await?;
    let answers = monitor.contains("zk_server_state");
    if !answers {
        on.find(&WORDS, "not checked: the server refuses the command mntr");
    }
    if mode == "standalone" {
        on.find(&STANDALONE, "it is alone: while it is down, no lock can be used");
        return Ok(true);
    }
    let number = |name: &str| {
        let line = monitor.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<f64>().ok())
    };
    // Old servers do not tell. How many keep up is known to the leader alone.
    let voters = number("zk_quorum_size");
    if let Some(voters) = voters {
        on.fact("voters", voters.to_string());
        if voters % 2.0 == 0.0 {
            on.find(&EVEN, format!("{voters} voting servers tolerate no more failures than {}", voters - 1.0));
        }
        if number("zk_synced_followers").is_some_and(|followers| followers + 1.0 < voters) {
            on.find(&BEHIND, "not every follower keeps up with the leader: one more failure can end the majority");
        }
    }
    Ok(voters.is_some() || !answers)
}

/// Sends a four-letter word, and reads the answer.
async fn word(host: &str, word: &str) -> Result<String> {
    let asked = async {
        let found: Vec<SocketAddr> = tokio::net::lookup_host(host).await?.collect();
        let stream = TcpStream::connect(&found[..]).await?;
        let mut rest = word.as_bytes();
        while !rest.is_empty() {
            stream.writable().await?;
            match stream.try_write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let mut answer = Vec::new();
        while answer.len() < LONGEST {
            stream.readable().await?;
            match stream.try_read_buf(&mut answer) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let asked: std::io::Result<String> = asked.await;
    asked.map_err(|error| Error::unreachable(format!("no connection to {host}")).on(SCHEME).because(error))
}
