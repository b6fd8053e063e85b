//! The command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::clients::{CLIENTS, Client, Language};
use crate::pairing::Pairing;
use crate::speed;

/// What to do, and where things are.
#[derive(Debug, Default)]
pub(crate) struct Args {
    /// All versions of each client, and more rounds.
    pub(crate) all: bool,
    /// Measure, instead of trying what works.
    pub(crate) speed: bool,
    /// Print how the programs of the clients are started, instead of running them.
    pub(crate) commands: bool,
    /// These clients only; empty means all.
    only: Vec<String>,
    /// Languages that are not installed.
    without: Vec<Language>,
    /// Clients that could not be built.
    without_clients: Vec<String>,
    /// The repository.
    pub(crate) root: PathBuf,
    /// Where the programs of each language were built.
    pub(crate) out: PathBuf,
}

impl Args {
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut args = Self::default();
        let mut words = words.into_iter();
        while let Some(option) = words.next() {
            let mut value = || words.next().with_context(|| format!("{option} needs a value"));
            match option.as_str() {
                "--all" => args.all = true,
                "--speed" => args.speed = true,
                "--commands" => args.commands = true,
                "--only" => args.only.push(value()?),
                "--without-client" => args.without_clients.push(value()?),
                "--without" => args.without.push(Language::named(&value()?)?),
                "--root" => args.root = value()?.into(),
                "--out" => args.out = value()?.into(),
                other => bail!("interop does not know `{other}`"),
            }
        }
        for name in &args.only {
            let also: Vec<_> = if args.speed { speed::names().collect() } else { Vec::new() };
            if !CLIENTS.iter().any(|client| client.answers_to(name)) && !also.contains(&name.as_str()) {
                let known: Vec<_> = CLIENTS.iter().map(|client| client.name).chain(also).collect();
                bail!("there is no client `{name}`; the clients are {}", known.join(", "));
            }
        }
        Ok(args)
    }

    /// Whether a language is not installed.
    pub(crate) fn lacks(&self, language: Language) -> bool {
        self.without.contains(&language)
    }

    /// Whether nothing in particular was asked for.
    pub(crate) fn is_everything(&self) -> bool {
        self.only.is_empty()
    }

    /// Whether a client could not be built.
    pub(crate) fn lacks_client(&self, name: &str) -> bool {
        self.without_clients.iter().any(|client| client == name)
    }

    /// Whether a client by such a name was asked for.
    pub(crate) fn wants(&self, such: impl Fn(&str) -> bool) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| such(name))
    }

    /// Whether this client was asked for and can be run.
    fn selects(&self, client: &Client) -> bool {
        !self.lacks(client.language)
            && (self.all || !client.long || !self.only.is_empty())
            && self.wants(|name| client.answers_to(name))
    }

    /// Every client and version that was asked for.
    pub(crate) fn pairings(&self) -> Result<Vec<Pairing>> {
        let mut pairings = Vec::new();
        for client in CLIENTS.iter().filter(|client| self.selects(client)) {
            for version in client.versions(&self.root, self.all)? {
                pairings.push(Pairing {
                    client,
                    command: client.command(&self.root, &self.out, &version),
                    all: self.all,
                });
            }
        }
        Ok(pairings)
    }
}
