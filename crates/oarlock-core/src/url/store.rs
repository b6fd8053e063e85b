//! How a store is registered, and which store a scheme belongs to.

use std::sync::Arc;

use super::{Scheme, Url, bad};
use crate::doctor::Doctor;
use crate::driver::{BoxFuture, DynDriver};
use crate::guarantees::Guarantees;
use crate::{Result, text};

/// Connects to the store behind a URL of one of its schemes.
pub type Open = fn(Url) -> BoxFuture<Result<Arc<dyn DynDriver>>>;

/// A store as its crate exports it: its schemes, and how to connect to it.
pub struct Store {
    pub(super) name: &'static str,
    schemes: &'static [Scheme],
    open: Open,
    setup: Option<Setup>,
    rights: Option<Rights>,
    guarantees: &'static [Guarantees],
    doctor: Option<Doctor>,
}

/// The commands, one on a line, with which an administrator gives a user the rights that locks behind a URL need, and
/// no more.
pub type Rights = fn(&Url, user: &str) -> Result<String>;

/// How a store that needs tables or procedures gets them.
#[derive(Clone, Copy)]
pub struct Setup {
    /// The script that creates them and grants a user the rights that locks need.
    pub script: fn(grant: Option<&str>) -> String,
    /// Runs that script.
    pub run: fn(Url, grant: Option<String>) -> BoxFuture<Result<()>>,
}

impl Store {
    /// A store that needs no setup.
    #[must_use]
    pub const fn new(name: &'static str, schemes: &'static [Scheme], open: Open) -> Self {
        Self { name, schemes, open, setup: None, rights: None, guarantees: &[], doctor: None }
    }

    /// A store that needs tables or procedures before it can be used.
    #[must_use]
    pub const fn setup(mut self, setup: Setup) -> Self {
        self.setup = Some(setup);
        self
    }

    /// A store that needs no setup, whose users may have few rights: those that `rights` lists are enough.
    #[must_use]
    pub const fn rights(mut self, rights: Rights) -> Self {
        self.rights = Some(rights);
        self
    }

    /// What it promises, in each of its layouts and modes.
    #[must_use]
    pub const fn guarantees(mut self, guarantees: &'static [Guarantees]) -> Self {
        self.guarantees = guarantees;
        self
    }

    /// A store whose servers can be examined.
    #[must_use]
    pub const fn doctor(mut self, doctor: Doctor) -> Self {
        self.doctor = Some(doctor);
        self
    }

    /// Connects to the store behind `url`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for options that exclude each other; any error that the store
    /// returns.
    pub async fn open(&self, url: Url) -> Result<Arc<dyn DynDriver>> {
        (self.open)(url).await
    }

    /// How the store gets what it needs; `None` if it needs nothing.
    #[must_use]
    pub fn needs(&self) -> Option<Setup> {
        self.setup
    }

    /// How its users get their rights, if an administrator grants them and [`needs`](Self::needs) does not.
    #[must_use]
    pub fn granted_by(&self) -> Option<Rights> {
        self.rights
    }

    /// What it promises, in each of its layouts and modes.
    #[must_use]
    pub fn promises(&self) -> &'static [Guarantees] {
        self.guarantees
    }

    /// How its servers are examined; `None` if there is nothing to ask.
    #[must_use]
    pub fn examination(&self) -> Option<Doctor> {
        self.doctor
    }
}

/// Schemes of a store that a build does not have.
pub struct Missing {
    /// The feature that brings the store.
    pub feature: &'static str,
    /// What its schemes begin with.
    pub schemes: &'static [&'static str],
}

/// The stores of a build.
pub struct Stores {
    /// Those that the build has.
    pub built_in: &'static [&'static Store],
    /// Those that it could have.
    pub missing: &'static [Missing],
}

impl Stores {
    /// The store and the scheme called `name`, or an error with the missing feature or the nearest scheme.
    pub(super) fn find(&self, name: &str) -> Result<(&'static Store, &'static Scheme)> {
        let wanted = name.to_ascii_lowercase();
        let schemes =
            || self.built_in.iter().flat_map(|&store| store.schemes.iter().map(move |scheme| (store, scheme)));
        let is_wanted = |scheme: &Scheme| scheme.name == wanted || scheme.aliases.contains(&wanted.as_str());
        if let Some(found) = schemes().find(|(_, scheme)| is_wanted(scheme)) {
            return Ok(found);
        }
        // `redis` also stands for `rediss` and `redis+sentinel`, but not for `redisx`.
        let is_variant = |rest: &str| rest.trim_start_matches('s').is_empty() || rest.contains(['+', '-']);
        let is_of = |scheme: &&str| wanted.strip_prefix(scheme).is_some_and(is_variant);
        let is_missing = |missing: &&Missing| missing.schemes.iter().any(is_of);
        if let Some(Missing { feature, .. }) = self.missing.iter().find(is_missing) {
            let name = text::plain(&wanted);
            return Err(bad(format!(
                "this build has no {feature} driver, which {name} needs: add the feature {feature}"
            )));
        }
        let names = schemes().flat_map(|(_, scheme)| [scheme.name].into_iter().chain(scheme.aliases.iter().copied()));
        let names = names.chain(self.missing.iter().flat_map(|missing| missing.schemes.iter().copied()));
        Err(bad(format!("unknown scheme {}; did you mean {}?", text::quoted(name), nearest(&wanted, names))))
    }
}

/// The one of `names` that takes the fewest changes of a letter to reach from `word`.
pub(super) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> &'a str {
    names.into_iter().min_by_key(|name| distance(word, name)).unwrap_or_default()
}

/// How many letters must be added, removed or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    static ONE: Store = Store::new("one", &[Scheme::new("one", "a store")], |_| Box::pin(async { Err(bad("closed")) }));
    static STORES: Stores =
        Stores { built_in: &[&ONE], missing: &[Missing { feature: "other", schemes: &["other", "another"] }] };

    #[test]
    fn a_scheme_whose_store_is_not_built_in_names_the_feature() {
        assert_eq!(Url::parse("ONE:", &STORES).unwrap().driver(), "one");
        for (url, scheme) in [("other://h", "other"), ("Others://u:secret@h/db", "others"), ("another:", "another")] {
            let error = Url::parse(url, &STORES).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Config);
            let expected = format!("this build has no other driver, which {scheme} needs: add the feature other");
            assert!(error.to_string().contains(&expected), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(Url::parse("otherx://h", &STORES).unwrap_err().to_string().contains("did you mean other?"));
        assert!(Url::parse("tone:", &STORES).unwrap_err().to_string().contains("did you mean one?"));
        assert!(Url::parse("anothe:", &STORES).unwrap_err().to_string().contains("did you mean another?"));
    }
}
