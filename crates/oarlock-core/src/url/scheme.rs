//! What a scheme consists of, as data that a store writes down.

use super::{Url, bad};
use crate::{Result, text};

/// The named parts of a path, such as `("database", "2")`.
pub type PathParts = Vec<(&'static str, String)>;

/// An option with its allowed values; the first is the default.
pub type Choice = (&'static str, &'static [&'static str]);

/// An option that only some schemes have.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    pub(super) key: &'static str,
    pub(super) value: Value,
    pub(super) default: &'static str,
}

impl Opt {
    /// An option with its default, which is shown by [`explain`](Url::explain) when the URL does not set the option.
    #[must_use]
    pub const fn new(key: &'static str, value: Value, default: &'static str) -> Self {
        Self { key, value, default }
    }
}

/// The allowed values of an option.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A whole number.
    Number,
    /// The path of a file.
    File,
    /// One of a few words.
    OneOf(&'static [&'static str]),
}

impl Value {
    /// `yes` or `no`.
    pub const YES_OR_NO: Self = Self::OneOf(&["yes", "no"]);

    /// What is allowed, in words, if `value` is not.
    pub(super) fn wanted_instead_of(self, value: &str) -> Option<String> {
        match self {
            Self::Number if value.parse::<u32>().is_err() => Some("a whole number".to_owned()),
            Self::File if value.is_empty() => Some("the path of a file".to_owned()),
            Self::OneOf(words) if !words.contains(&value) => Some(match words {
                [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
                words => words.concat(),
            }),
            Self::Number | Self::File | Self::OneOf(_) => None,
        }
    }
}

/// The options `ca`, `cert` and `key` of encrypted schemes; [`Url::file`] and [`Url::identity`] read them.
pub const TLS_FILES: [Opt; 3] =
    [Opt::new("ca", Value::File, ""), Opt::new("cert", Value::File, ""), Opt::new("key", Value::File, "")];

/// One scheme of a store: what may stand in its URLs. It begins as one without hosts, path and options of its own.
pub struct Scheme {
    pub(super) name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) title: &'static str,
    pub(super) tls: bool,
    /// Whether `//` follows the scheme.
    pub(super) remote: bool,
    pub(super) port: Option<u16>,
    pub(super) many_hosts: bool,
    pub(super) least_hosts: usize,
    pub(super) path: fn(&str, &str) -> Result<PathParts>,
    pub(super) choices: &'static [Choice],
    pub(super) options: &'static [Opt],
    pub(super) warnings: fn(&Url) -> Vec<String>,
    pub(super) routes: bool,
    pub(super) announces: bool,
}

impl Scheme {
    /// The scheme `name` of the store that people call `title`.
    #[must_use]
    pub const fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            aliases: &[],
            title,
            tls: false,
            remote: false,
            port: None,
            many_hosts: false,
            least_hosts: 1,
            path: no_path,
            choices: &[],
            options: &[],
            warnings: |_| Vec::new(),
            routes: false,
            announces: false,
        }
    }

    /// Other names of the scheme.
    #[must_use]
    pub const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The URL names a host, with this default port.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        (self.port, self.remote) = (Some(port), true);
        self
    }

    /// The URL names several hosts, and no fewer than `least`.
    #[must_use]
    pub const fn hosts(mut self, least: usize) -> Self {
        (self.many_hosts, self.least_hosts) = (true, least);
        self
    }

    /// The URL names a socket on this machine, and no host.
    #[must_use]
    pub const fn socket(mut self) -> Self {
        (self.path, self.remote) = (socket_path, true);
        self
    }

    /// The URL has a path: `read` gets the name of the scheme and the decoded path, and names its parts or refuses it.
    #[must_use]
    pub const fn path(mut self, read: fn(&str, &str) -> Result<PathParts>) -> Self {
        self.path = read;
        self
    }

    /// Connections are encrypted.
    #[must_use]
    pub const fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Options with few allowed values, which [`explain`](Url::explain) lists; the first value is the default.
    #[must_use]
    pub const fn choices(mut self, choices: &'static [Choice]) -> Self {
        self.choices = choices;
        self
    }

    /// Further options of this scheme.
    #[must_use]
    pub const fn options(mut self, options: &'static [Opt]) -> Self {
        self.options = options;
        self
    }

    /// Finds what is allowed in a URL but unwise.
    #[must_use]
    pub const fn warnings(mut self, warnings: fn(&Url) -> Vec<String>) -> Self {
        self.warnings = warnings;
        self
    }

    /// Its store connects by [`Url::routes`] itself, and checks certificates against the names of the servers.
    #[must_use]
    pub const fn routes(mut self) -> Self {
        self.routes = true;
        self
    }

    /// Its servers tell clients of further servers.
    #[must_use]
    pub const fn announces(mut self) -> Self {
        self.announces = true;
        self
    }

    pub(super) fn choice(&self, key: &str) -> Option<&'static [&'static str]> {
        self.choices.iter().find(|(name, _)| *name == key).map(|(_, values)| *values)
    }

    /// Checks the value of an option that only some schemes have, and gives the key as the scheme writes it; `None` if
    /// this scheme has no such option.
    pub(super) fn own_key(&self, key: &str, value: &str) -> Result<Option<&'static str>> {
        let refuse = |wanted| Err(bad(format!("{key} of {} is {wanted}, not {}", self.name, text::quoted(value))));
        if let Some((name, values)) = self.choices.iter().find(|(name, _)| *name == key) {
            return if values.contains(&value) {
                Ok(Some(name))
            } else {
                refuse(format!("one of {}", values.join(", ")))
            };
        }
        let Some(option) = self.options.iter().find(|option| option.key == key) else { return Ok(None) };
        option.value.wanted_instead_of(value).map_or(Ok(Some(option.key)), refuse)
    }
}

/// The warning for a URL that names one server of a store that has several: if that one fails, or only learns or reads,
/// there is no other to ask.
#[must_use]
pub fn one_of_several(url: &Url) -> Vec<String> {
    let [host] = url.hosts() else { return Vec::new() };
    vec![format!("{host} is the only server named: name all, so that another is asked if it fails or is read-only")]
}

fn no_path(scheme: &str, path: &str) -> Result<PathParts> {
    if path.is_empty() { Ok(Vec::new()) } else { Err(bad(format!("{scheme}: takes no path"))) }
}

fn socket_path(scheme: &str, path: &str) -> Result<PathParts> {
    if path.len() < 2 {
        return Err(bad(format!("{scheme}:// needs the path of a socket")));
    }
    Ok(vec![("socket", path.to_owned())])
}
