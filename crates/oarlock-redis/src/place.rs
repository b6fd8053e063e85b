//! Where a name is in the store.

use oarlock_core::ResourceName;

/// Names are spread over this many hash tags. A part of the layout: all programs that share locks must agree.
pub(crate) const TAGS: u8 = 255;

/// The keys of one resource. Both have one hash tag, so that a script may touch both in a cluster, too.
pub(crate) struct Place {
    pub(crate) key: String,
    pub(crate) index: String,
}

impl Place {
    pub(crate) fn of(prefix: &str, name: &ResourceName) -> Self {
        let index = index(prefix, tag(name.as_str()));
        // The first braces of a key count, so a name may have its own.
        Self { key: format!("{index}:{name}"), index }
    }
}

/// The index of the names with this tag.
pub(crate) fn index(prefix: &str, tag: u8) -> String {
    format!("{prefix}{{{tag:02x}}}")
}

/// The name that has this key in this index.
pub(crate) fn name(index: &str, key: &str) -> Option<ResourceName> {
    ResourceName::new(key.strip_prefix(index)?.strip_prefix(':')?).ok()
}

/// FNV-1a of the name, folded to eight bits.
fn tag(name: &str) -> u8 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_be_bytes().into_iter().fold(0, |tag, byte| tag ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_where_it_always_was() {
        let place = Place::of("oarlock:", &ResourceName::new("deploy/{prod}").unwrap());
        assert_eq!((&*place.key, &*place.index), ("oarlock:{df}:deploy/{prod}", "oarlock:{df}"));
        assert_eq!(name(&place.index, &place.key).unwrap().as_str(), "deploy/{prod}");
    }

    #[test]
    fn names_are_spread_over_all_tags() {
        let tags: std::collections::HashSet<_> = (0..10_000).map(|n| tag(&format!("job/{n}"))).collect();
        assert_eq!(tags.len(), usize::from(TAGS) + 1);
    }
}
