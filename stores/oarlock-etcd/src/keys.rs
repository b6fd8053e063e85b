//! The keys in the store.

use oarlock_core::{ClaimId, ResourceName};

use crate::api::{Op, Range};
use crate::config::{Config, Layout};

/// The prefix of the records beside the keys that other programs know.
pub(crate) const BESIDE: &str = "oarlock:beside:";

/// A name space: the layout of names, and their prefix.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) layout: Layout,
    prefix: String,
}

impl Space {
    pub(crate) fn of(config: &Config) -> Self {
        Self { layout: config.layout, prefix: config.prefix.clone() }
    }

    /// The prefix of all keys that only Oarlock reads.
    fn own(&self) -> &str {
        match self.layout {
            Layout::Native => &self.prefix,
            Layout::Go => BESIDE,
        }
    }

    /// A key that every client of this name space may read.
    pub(crate) fn probe_key(&self) -> Range {
        Range::key(self.own())
    }

    /// The folder of all records.
    pub(crate) fn records(&self) -> Range {
        Range::under(&format!("{}n/", self.own()))
    }

    /// The range of all shared keys; `None` if that is the whole store, or if there are none.
    pub(crate) fn shared(&self) -> Option<Range> {
        (self.layout == Layout::Go && !self.prefix.is_empty()).then(|| Range::under(&self.prefix))
    }

    pub(crate) fn keys(&self, name: &ResourceName) -> Keys {
        let (full, shared) = match self.layout {
            Layout::Native => (name.to_string(), None),
            Layout::Go => (format!("{}{name}", self.prefix), Some(format!("{}{name}/", self.prefix))),
        };
        // Without slashes of its own a name is one segment: `foo` and `foo/bar` are apart.
        let segment = full.replace('%', "%25").replace('/', "%2F");
        Keys { folder: format!("{}n/{segment}/", self.own()), shared }
    }

    /// The name that a record or a shared key belongs to.
    pub(crate) fn name(&self, key: &[u8]) -> Option<ResourceName> {
        let key = std::str::from_utf8(key).ok()?;
        if let Some(rest) = key.strip_prefix(self.own()).and_then(|rest| rest.strip_prefix("n/")) {
            let (segment, _) = rest.split_once('/')?;
            let full = segment.replace("%2F", "/").replace("%25", "%");
            let name = if self.layout == Layout::Go { full.strip_prefix(&self.prefix)? } else { &full };
            return ResourceName::new(name).ok();
        }
        let (name, lease) = key.strip_prefix(&self.prefix).filter(|_| self.layout == Layout::Go)?.rsplit_once('/')?;
        lease_of(lease).and_then(|_| ResourceName::new(name).ok())
    }

    /// The prefix of the notifications for one client.
    pub(crate) fn mailbox(&self, client: &str) -> Range {
        Range::under(&format!("{}b/{client}/", self.own()))
    }

    pub(crate) fn notification(&self, client: &str, id: ClaimId) -> Range {
        Range::key(format!("{}b/{client}/{id}", self.own()))
    }
}

/// The keys of one name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    folder: String,
    /// The prefix of the queue that is shared with other programs; `None` if the records are the queue.
    shared: Option<String>,
}

impl Keys {
    /// All keys of Oarlock for this name.
    pub(crate) fn all(&self) -> Range {
        Range::under(&self.folder)
    }

    /// The records of the claims.
    pub(crate) fn claims(&self) -> Range {
        Range::under(&format!("{}q/", self.folder))
    }

    /// The record of the claim that was made on this lease.
    ///
    /// Named after the lease and not after the claim, because leases are used again. Until it is compacted, the server
    /// goes past every key that was ever in a range: with new names, a lock would become slower with each use.
    pub(crate) fn claim(&self, lease: i64) -> Range {
        Range::key(format!("{}q/{lease:x}", self.folder))
    }

    /// The keys whose order is the order of the claims.
    pub(crate) fn queue(&self) -> Range {
        self.shared.as_deref().map_or_else(|| self.claims(), Range::under)
    }

    /// The key by which other programs see a claim on this lease; `None` if the queue is not shared.
    pub(crate) fn shared_key(&self, lease: i64) -> Option<Range> {
        self.shared.as_ref().map(|folder| Range::key(format!("{folder}{lease:x}")))
    }

    /// Whether a key is a shared key of this very name. Longer keys belong to names that begin like this one.
    pub(crate) fn is_shared_key(&self, key: &[u8]) -> bool {
        let rest = self.shared.as_ref().and_then(|folder| key.strip_prefix(folder.as_bytes()));
        rest.and_then(|rest| std::str::from_utf8(rest).ok()).and_then(lease_of).is_some()
    }

    /// Reads the queue and everything else of the name.
    pub(crate) fn read_all(&self) -> Vec<Op> {
        self.watched().iter().map(Range::get).collect()
    }

    /// The ranges to watch for any change of the name.
    pub(crate) fn watched(&self) -> Vec<Range> {
        std::iter::once(self.all()).chain(self.shared.is_some().then(|| self.queue())).collect()
    }

    /// The memo of the last holder.
    pub(crate) fn memo(&self) -> Range {
        Range::key(format!("{}m", self.folder))
    }

    /// By how much fences are ahead of revisions.
    pub(crate) fn fence_offset(&self) -> Range {
        Range::key(format!("{}f", self.folder))
    }
}

/// The lease in the name of a record or of a shared key.
pub(crate) fn lease_in(key: &[u8]) -> Option<i64> {
    std::str::from_utf8(key).ok()?.rsplit('/').next().and_then(lease_of)
}

/// The claim that a notification is about.
pub(crate) fn claim_of(key: &[u8]) -> Option<ClaimId> {
    std::str::from_utf8(key).ok()?.rsplit('/').next()?.parse().ok()
}

/// A lease as Go writes it: lower-case hexadecimal digits without leading zeros.
pub(crate) fn lease_of(text: &str) -> Option<i64> {
    let lease = i64::from_str_radix(text, 16).ok()?;
    (format!("{lease:x}") == text).then_some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = ["foo", "foo/bar", "foo/", "/", "%2F", "%252F/%", "q", "a/q/b", "é\0"];

    fn space(layout: Layout) -> Space {
        Space { layout, prefix: "p/".into() }
    }

    fn name(name: &str) -> ResourceName {
        ResourceName::new(name).unwrap()
    }

    #[test]
    fn names_come_back_and_never_nest() {
        for layout in [Layout::Native, Layout::Go] {
            for name in NAMES.map(name) {
                let claim = space(layout).keys(&name).claim(7);
                assert_eq!(space(layout).name(&claim.key), Some(name));
                assert_eq!(lease_in(&claim.key), Some(7));
            }
            let keys = |text| space(layout).keys(&name(text));
            let (outer, inner) = (keys("foo").all(), keys("foo/bar").all());
            assert!(inner.key >= outer.end || inner.end <= outer.key);
        }
    }

    /// The range of `foo` also has the keys of `foo/bar`; they are told apart.
    #[test]
    fn shared_keys_are_where_go_has_them() {
        let keys = |text| space(Layout::Go).keys(&name(text));
        let shared = keys("foo").shared_key(0x1f).unwrap();
        assert_eq!(shared.key, b"p/foo/1f");
        for text in NAMES {
            let shared = keys(text).shared_key(0x1f).unwrap();
            assert_eq!(space(Layout::Go).name(&shared.key), Some(name(text)));
            for other in NAMES {
                assert_eq!(keys(other).is_shared_key(&shared.key), other == text, "{text:?} in {other:?}");
            }
        }
        for stray in ["", "config", "1F", "01f", "+1f", "1f/"] {
            assert!(!keys("foo").is_shared_key(format!("p/foo/{stray}").as_bytes()), "{stray:?}");
        }
        assert_eq!(space(Layout::Native).keys(&name("foo")).shared_key(1), None);
    }
}
