//! The meaning of a URL in plain words.

use serde::Serialize;

use super::Url;
use super::options::{COMMON, PASSWORD_FILE};
use crate::engine::{DEFAULT_MAX_WAITERS, DEFAULT_OP_TIMEOUT, DEFAULT_TTL};
use crate::span;

/// One option of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Setting {
    /// Its key.
    pub key: String,
    /// The value in effect.
    pub value: String,
    /// Whether the URL does not set it, so that this is the default.
    pub default: bool,
    /// The allowed values, where there are few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
}

/// The meaning of a URL, without its password.
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
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether there is a password.
    pub password: bool,
    /// The hosts with their ports.
    pub hosts: Vec<String>,
    /// The parts of the path: `directory`, `socket`, `database`, `master`, `root`.
    pub path: Vec<(String, String)>,
    /// Every option, with its default if the URL does not set it.
    pub options: Vec<Setting>,
    /// What is allowed but unwise.
    pub warnings: Vec<String>,
}

impl Url {
    /// Explains this URL, as data to be shown.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        Explanation {
            url: self.to_string(),
            scheme: self.scheme.name.to_owned(),
            store: self.scheme.title.to_owned(),
            driver: self.store.name.to_owned(),
            tls: self.tls(),
            user: self.user().map(str::to_owned),
            password: self.has_password(),
            hosts: self.hosts().iter().map(ToString::to_string).collect(),
            path: self.path_parts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            options: self.explain_options(),
            warnings: (self.scheme.warnings)(self),
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
            "connect_timeout" => setting(key, span::write(self.connect_timeout())),
            "max_waiters" => setting(key, self.max_waiters().unwrap_or(DEFAULT_MAX_WAITERS).to_string()),
            _ => setting(key, span::write(self.op_timeout().unwrap_or(DEFAULT_OP_TIMEOUT))),
        });
        let choices = self.scheme.choices.iter().map(|&(key, _)| (key, self.choice(key).unwrap_or_default()));
        let options =
            self.scheme.options.iter().map(|option| (option.key, self.option(option.key).unwrap_or(option.default)));
        let file = self.options.password_file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let file = self.scheme.remote.then(|| setting(PASSWORD_FILE, file));
        common.chain(file).chain(choices.chain(options).map(|(key, value)| setting(key, value.to_owned()))).collect()
    }
}
