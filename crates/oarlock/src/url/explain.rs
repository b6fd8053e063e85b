//! A URL in plain words.

use serde::Serialize;

use super::options::COMMON;
use super::scheme::PathIs;
use super::{DEFAULT_CONNECT_TIMEOUT, Url};
use crate::span;
use oarlock_core::engine::{DEFAULT_MAX_WAITERS, DEFAULT_OP_TIMEOUT, DEFAULT_TTL};

/// One option of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// Its key.
    pub key: String,
    /// What holds.
    pub value: String,
    /// Whether that is the default, because the URL does not say.
    pub default: bool,
    /// The allowed values, where there are few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
}

/// What a URL means, without its password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The canonical URL, masked.
    pub url: String,
    /// The canonical scheme.
    pub scheme: String,
    /// Which store that is.
    pub store: String,
    /// The driver that serves it.
    pub driver: String,
    /// Whether this build has that driver.
    pub built_in: bool,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether there is a password.
    pub password: bool,
    /// The hosts with their ports.
    pub hosts: Vec<String>,
    /// What the path says: `directory`, `socket`, `database`, `master`, `root`.
    pub path: Vec<(String, String)>,
    /// Every option, with its default where the URL does not say.
    pub options: Vec<Setting>,
    /// What is allowed but unwise.
    pub warnings: Vec<String>,
}

impl Url {
    /// What this URL means, as data to be shown.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        Explanation {
            url: self.to_string(),
            scheme: self.scheme.name.to_owned(),
            store: self.scheme.store.to_owned(),
            driver: self.scheme.driver.to_owned(),
            built_in: crate::registry::built_in(self),
            tls: self.scheme.tls,
            user: self.user().map(str::to_owned),
            password: self.password().is_some(),
            hosts: self.hosts().iter().map(ToString::to_string).collect(),
            path: self.explain_path(),
            options: self.explain_options(),
            warnings: self.warnings(),
        }
    }

    fn explain_path(&self) -> Vec<(String, String)> {
        let path = self.path();
        let inner = path.trim_start_matches('/');
        let number = || ("database".to_owned(), self.number().unwrap_or_default().to_string());
        let one = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        match self.scheme.path {
            PathIs::Nothing => Vec::new(),
            PathIs::Directory if path.is_empty() => one("directory", "the state directory of this user"),
            PathIs::Directory => one("directory", path),
            PathIs::Socket => one("socket", path),
            PathIs::Number => vec![number()],
            PathIs::Master => vec![("master".to_owned(), self.master().to_owned()), number()],
            PathIs::Root => one("root", path),
            PathIs::Database => one("database", if inner.is_empty() { "the user's default" } else { inner }),
        }
    }

    fn explain_options(&self) -> Vec<Setting> {
        let said = |key: &str| self.parts.query.iter().any(|(said, _)| said == key);
        let setting = |key: &str, value: String| {
            let choices = self.scheme.choice(key).unwrap_or_default();
            let choices = choices.iter().map(|&choice| choice.to_owned()).collect();
            Setting { key: key.to_owned(), value, default: !said(key), choices }
        };
        let common = COMMON.iter().map(|&key| match key {
            "prefix" => setting(key, self.prefix().to_owned()),
            "ttl" => setting(key, span::write(self.ttl().unwrap_or(DEFAULT_TTL))),
            "connect_timeout" => {
                setting(key, span::write(self.options.connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT)))
            }
            "max_waiters" => setting(key, self.max_waiters().unwrap_or(DEFAULT_MAX_WAITERS).to_string()),
            _ => setting(key, span::write(self.op_timeout().unwrap_or(DEFAULT_OP_TIMEOUT))),
        });
        let own = self.scheme.choices.iter().map(|&(key, _)| {
            let value = if key == "mode" { self.mode() } else { self.layout() };
            setting(key, value.unwrap_or_default().to_owned())
        });
        let rest = self
            .scheme
            .own
            .iter()
            .map(|&(key, _, default)| setting(key, self.option(key).unwrap_or(default).to_owned()));
        common.chain(own).chain(rest).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.scheme.driver == "redlock" && self.hosts().len().is_multiple_of(2) {
            let hosts = self.hosts().len();
            warnings.push(format!("{hosts} servers bear no more failures than {}: use an odd number", hosts - 1));
        }
        if !crate::registry::built_in(self) {
            warnings.push(format!("this build has no {} driver", self.scheme.driver));
        }
        warnings
    }
}
