//! Where the cluster is.

use std::time::Duration;

/// Choices for an [`Etcd`](crate::Etcd) store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The members, as `host:port`; any of them will do.
    pub members: Vec<String>,
    /// What goes before every key. Everyone who shares locks names the same.
    pub prefix: String,
    /// How long opening a connection may take.
    pub connect_timeout: Duration,
}

impl Config {
    /// The cluster with these members: keys under `oarlock:`, no encryption, no password.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            members: members.into_iter().map(Into::into).collect(),
            prefix: "oarlock:".to_owned(),
            connect_timeout: Duration::from_secs(5),
        }
    }

    /// Where its locks are: two name spaces of one cluster are two addresses.
    pub(crate) fn address(&self) -> String {
        format!("{}/{}", self.members.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_spaces_have_addresses_of_their_own() {
        let one = Config::new(["a:2379", "b:2379"]);
        let two = Config { prefix: "team/".into(), ..one.clone() };
        assert_eq!((&*one.address(), &*two.address()), ("a:2379,b:2379/oarlock:", "a:2379,b:2379/team/"));
    }
}
