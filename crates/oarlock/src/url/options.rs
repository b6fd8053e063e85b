//! What may follow the question mark.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bad;
use super::scheme::{Says, Scheme, nearest};
use crate::{Result, span, text};
use oarlock_core::engine::{MAX_OP_TIMEOUT, MAX_TTL, MIN_TTL};

/// The keys that every scheme has.
pub(super) const COMMON: &[&str] = &["prefix", "ttl", "connect_timeout", "op_timeout", "max_waiters"];

/// What was said; `None` where the default stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) prefix: Option<String>,
    pub(super) ttl: Option<Duration>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) op_timeout: Option<Duration>,
    pub(super) max_waiters: Option<usize>,
    pub(super) layout: Option<String>,
    pub(super) mode: Option<String>,
    /// The keys that only some schemes have.
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
            "layout" if scheme.choice(key).is_some() => self.layout = Some(chosen(scheme, key, value)?),
            "mode" if scheme.choice(key).is_some() => self.mode = Some(chosen(scheme, key, value)?),
            _ if scheme.own.iter().any(|(name, ..)| *name == key) => self.set_own(scheme, key, value)?,
            _ => {
                let known = COMMON.iter().copied().chain(scheme.choices.iter().map(|(name, _)| *name));
                let known = known.chain(scheme.own.iter().map(|(name, ..)| *name));
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

impl Options {
    fn set_own(&mut self, scheme: &Scheme, key: &str, value: &str) -> Result<()> {
        for (name, says, _) in scheme.own.iter().filter(|(name, ..)| *name == key) {
            let wanted = match says {
                Says::Number if value.parse::<u32>().is_err() => "a whole number",
                Says::YesOrNo if !["yes", "no"].contains(&value) => "yes or no",
                Says::File if value.is_empty() => "the path of a file",
                Says::Encryption if !["disable", "prefer", "require", "verify-full"].contains(&value) => {
                    "disable, prefer, require or verify-full"
                }
                Says::Keys if !["named", "raw"].contains(&value) => "named or raw",
                Says::Number | Says::YesOrNo | Says::File | Says::Encryption | Says::Keys => {
                    self.own.insert(name, value.to_owned());
                    continue;
                }
            };
            return Err(bad(format!("{key} of {} is {wanted}, not {}", scheme.name, text::quoted(value))));
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

fn chosen(scheme: &Scheme, key: &str, value: &str) -> Result<String> {
    let values = scheme.choice(key).unwrap_or_default();
    if values.contains(&value) {
        return Ok(value.to_owned());
    }
    Err(bad(format!("{key} of {} is one of {}, not {}", scheme.name, values.join(", "), text::quoted(value))))
}
