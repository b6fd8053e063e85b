//! The options of a URL: what follows the question mark.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::bad;
use super::scheme::Scheme;
use super::store::nearest;
use crate::engine::{MAX_OP_TIMEOUT, MAX_TTL, MIN_TTL};
use crate::{Result, span, text};

/// The options that every scheme has.
pub(super) const COMMON: &[&str] = &["prefix", "ttl", "connect_timeout", "op_timeout", "max_waiters"];

/// The file with the password. Only schemes that name a server have it.
pub(super) const PASSWORD_FILE: &str = "password_file";

/// The values that the URL sets; `None` = the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) prefix: Option<String>,
    pub(super) ttl: Option<Duration>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) op_timeout: Option<Duration>,
    pub(super) max_waiters: Option<usize>,
    pub(super) password_file: Option<PathBuf>,
    /// The options that only some schemes have.
    pub(super) own: BTreeMap<&'static str, String>,
}

impl Options {
    pub(super) fn read(scheme: &Scheme, query: &[(String, String)]) -> Result<Self> {
        let mut options = Self::default();
        for (index, (key, value)) in query.iter().enumerate() {
            if query[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(bad(format!("{} is given twice", text::quoted(key))));
            }
            options.set(scheme, key, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, scheme: &Scheme, key: &str, value: &str) -> Result<()> {
        let duration = || span::parse(value).map_err(|error| bad(format!("{key}: {error}")));
        match key {
            "prefix" => self.prefix = Some(value.to_owned()),
            "ttl" => {
                let ttl = duration()?;
                if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
                    let (least, days) = (text::span(MIN_TTL), MAX_TTL.as_secs() / 86_400);
                    return Err(bad(format!("ttl: a lease is between {least} and {days} days long")));
                }
                self.ttl = Some(ttl);
            }
            "connect_timeout" => self.connect_timeout = Some(time_out(key, duration()?)?),
            "op_timeout" => self.op_timeout = Some(time_out(key, duration()?)?),
            "max_waiters" => {
                let most = value.parse().ok().filter(|most| *most > 0);
                let wrong = || bad(format!("max_waiters is a whole number from 1 on, not {}", text::quoted(value)));
                self.max_waiters = Some(most.ok_or_else(wrong)?);
            }
            PASSWORD_FILE if scheme.remote => {
                let path = Some(value).filter(|path| !path.is_empty());
                self.password_file = Some(path.ok_or_else(|| bad("password_file is the path of a file"))?.into());
            }
            _ => {
                if let Some(key) = scheme.own_key(key, value)? {
                    self.own.insert(key, value.to_owned());
                    return Ok(());
                }
                let known = COMMON.iter().copied().chain(scheme.choices.iter().map(|(name, _)| *name));
                let known = known.chain(scheme.options.iter().map(|option| option.key));
                let known = known.chain(scheme.remote.then_some(PASSWORD_FILE));
                let near = nearest(key, known);
                // A password with a raw question mark in it ends up here: only what looks like a key is repeated.
                let is_word = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
                let shown = if is_word && key.len() <= 32 { text::quoted(key) } else { "of that name".to_owned() };
                return Err(bad(format!("{} has no option {shown}; did you mean {near}?", scheme.name)));
            }
        }
        Ok(())
    }
}

fn time_out(key: &str, span: Duration) -> Result<Duration> {
    if !span.is_zero() && span <= MAX_OP_TIMEOUT {
        return Ok(span);
    }
    let days = MAX_OP_TIMEOUT.as_secs() / 86_400;
    Err(bad(format!("{key} must be greater than 0 and at most {days} days")))
}
