//! Where things are in the store.

use oarlock_core::{ClaimId, ResourceName};

use crate::api::Range;

/// The keys of one name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    folder: String,
}

impl Keys {
    pub(crate) fn of(prefix: &str, name: &ResourceName) -> Self {
        // Without slashes of its own a name is one segment: `foo` and `foo/bar` are apart.
        let segment = name.as_str().replace('%', "%25").replace('/', "%2F");
        Self { folder: format!("{}{segment}/", Self::names(prefix)) }
    }

    /// The folder of all names.
    pub(crate) fn names(prefix: &str) -> String {
        format!("{prefix}n/")
    }

    /// The name and the rest of a key below [`names`](Self::names).
    pub(crate) fn split(prefix: &str, key: &[u8]) -> Option<(ResourceName, String)> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(&Self::names(prefix))?;
        let (segment, rest) = key.split_once('/')?;
        let name = segment.replace("%2F", "/").replace("%25", "%");
        Some((ResourceName::new(name).ok()?, rest.to_owned()))
    }

    /// Everything of this name.
    pub(crate) fn all(&self) -> Range {
        Range::under(&self.folder)
    }

    /// The claims.
    pub(crate) fn claims(&self) -> Range {
        Range::under(&format!("{}q/", self.folder))
    }

    /// One claim.
    pub(crate) fn claim(&self, id: ClaimId) -> Range {
        Range::key(format!("{}q/{id}", self.folder))
    }

    /// What the last holder left.
    pub(crate) fn memo(&self) -> Range {
        Range::key(format!("{}m", self.folder))
    }

    /// By how much fences are ahead of revisions.
    pub(crate) fn floor(&self) -> Range {
        Range::key(format!("{}f", self.folder))
    }
}

/// The folder where one client is told what became of its claims.
pub(crate) fn mailbox(prefix: &str, client: &str) -> String {
    format!("{prefix}b/{client}/")
}

/// The claim that a key is about, if its last segment is one.
pub(crate) fn claim_of(key: &[u8]) -> Option<ClaimId> {
    std::str::from_utf8(key).ok()?.rsplit('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_never_nest() {
        for name in ["foo", "foo/bar", "foo/", "/", "%2F", "%252F/%", "q", "a/q/b", "é\0"] {
            let name = ResourceName::new(name).unwrap();
            let keys = Keys::of("p/", &name);
            let claim = keys.claim(ClaimId::from_bits(7));
            let (back, rest) = Keys::split("p/", &claim.key).unwrap();
            assert_eq!((back, rest), (name, format!("q/{}", ClaimId::from_bits(7))));
            assert_eq!(claim_of(&claim.key), Some(ClaimId::from_bits(7)));
        }
        let (outer, inner) = (ResourceName::new("foo").unwrap(), ResourceName::new("foo/bar").unwrap());
        let (outer, inner) = (Keys::of("", &outer).all(), Keys::of("", &inner).all());
        assert!(inner.key >= outer.end || inner.end <= outer.key);
    }
}
