//! Where things are in the store.

use oarlock_core::{ClaimId, ResourceName};

use crate::api::{Op, Range};
use crate::config::{Config, Layout};

/// What we keep beside the keys that other programs know.
const BESIDE: &str = "oarlock:beside:";

/// A name space: how names are laid out, and below what.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) layout: Layout,
    prefix: String,
}

impl Space {
    pub(crate) fn of(config: &Config) -> Self {
        Self { layout: config.layout, prefix: config.prefix.clone() }
    }

    /// What goes before everything that only we read.
    fn own(&self) -> &str {
        match self.layout {
            Layout::Native => &self.prefix,
            Layout::Go => BESIDE,
        }
    }

    /// A key that whoever may use this name space may read.
    pub(crate) fn door(&self) -> Range {
        Range::key(self.own())
    }

    /// The folder of all records.
    pub(crate) fn records(&self) -> Range {
        Range::under(&format!("{}n/", self.own()))
    }

    /// Everything that other programs have here; `None` where that would be the whole store, or nothing.
    pub(crate) fn seats(&self) -> Option<Range> {
        (self.layout == Layout::Go && !self.prefix.is_empty()).then(|| Range::under(&self.prefix))
    }

    pub(crate) fn keys(&self, name: &ResourceName) -> Keys {
        let (full, seats) = match self.layout {
            Layout::Native => (name.to_string(), None),
            Layout::Go => (format!("{}{name}", self.prefix), Some(format!("{}{name}/", self.prefix))),
        };
        // Without slashes of its own a name is one segment: `foo` and `foo/bar` are apart.
        let segment = full.replace('%', "%25").replace('/', "%2F");
        Keys { folder: format!("{}n/{segment}/", self.own()), seats }
    }

    /// The name that a key of a record, or of a seat, is about.
    pub(crate) fn name(&self, key: &[u8]) -> Option<ResourceName> {
        let key = std::str::from_utf8(key).ok()?;
        if let Some(rest) = key.strip_prefix(self.own()).and_then(|rest| rest.strip_prefix("n/")) {
            let (segment, _) = rest.split_once('/')?;
            let full = segment.replace("%2F", "/").replace("%25", "%");
            let name = if self.layout == Layout::Go { full.strip_prefix(&self.prefix)? } else { &full };
            return ResourceName::new(name).ok();
        }
        let (name, seat) = key.strip_prefix(&self.prefix).filter(|_| self.layout == Layout::Go)?.rsplit_once('/')?;
        lease_of(seat).and_then(|_| ResourceName::new(name).ok())
    }

    /// The folder where one client is told what became of its claims.
    pub(crate) fn mailbox(&self, client: &str) -> Range {
        Range::under(&format!("{}b/{client}/", self.own()))
    }

    pub(crate) fn letter(&self, client: &str, id: ClaimId) -> Range {
        Range::key(format!("{}b/{client}/{id}", self.own()))
    }
}

/// The keys of one name.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    folder: String,
    /// Where the line stands if other programs stand in it too.
    seats: Option<String>,
}

impl Keys {
    /// Everything of ours.
    pub(crate) fn all(&self) -> Range {
        Range::under(&self.folder)
    }

    /// The records of the claims.
    pub(crate) fn claims(&self) -> Range {
        Range::under(&format!("{}q/", self.folder))
    }

    /// The record of the claim that was made on this lease.
    ///
    /// Named after the lease and not after the claim, because leases are used again: the server goes past every key that
    /// was ever in a range, until it is compacted, and a lock must not become slower with each use.
    pub(crate) fn claim(&self, lease: i64) -> Range {
        Range::key(format!("{}q/{lease:x}", self.folder))
    }

    /// The keys whose order is the order of the claims.
    pub(crate) fn line(&self) -> Range {
        self.seats.as_deref().map_or_else(|| self.claims(), Range::under)
    }

    /// Where a claim on this lease stands in a line that is shared; `None` where its record itself stands there.
    pub(crate) fn seat(&self, lease: i64) -> Option<Range> {
        self.seats.as_ref().map(|folder| Range::key(format!("{folder}{lease:x}")))
    }

    /// Whether a key is a seat of this very name. Keys further below belong to names that begin like this one.
    pub(crate) fn is_seat(&self, key: &[u8]) -> bool {
        let rest = self.seats.as_ref().and_then(|folder| key.strip_prefix(folder.as_bytes()));
        rest.and_then(|rest| std::str::from_utf8(rest).ok()).and_then(lease_of).is_some()
    }

    /// Reads the line and everything else of the name.
    pub(crate) fn look(&self) -> Vec<Op> {
        self.watched().iter().map(Range::get).collect()
    }

    /// Reads as much of the line as may tell whether somebody waits: any two. With other programs in it, all of it.
    pub(crate) fn look_at_some(&self) -> Vec<Op> {
        if self.seats.is_some() {
            return vec![self.claims().get(), self.line().get()];
        }
        vec![self.line().some(2)]
    }

    /// Where something changes when anything of the name does.
    pub(crate) fn watched(&self) -> Vec<Range> {
        std::iter::once(self.all()).chain(self.seats.is_some().then(|| self.line())).collect()
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

/// The lease that the claim with this key was made on, whether it is that of a record or of a seat.
pub(crate) fn seat_of(key: &[u8]) -> Option<i64> {
    std::str::from_utf8(key).ok()?.rsplit('/').next().and_then(lease_of)
}

/// The claim that a letter is about.
pub(crate) fn claim_of(key: &[u8]) -> Option<ClaimId> {
    std::str::from_utf8(key).ok()?.rsplit('/').next()?.parse().ok()
}

/// The lease that a seat is named after: lower-case digits without zeros before them, as Go writes them.
pub(crate) fn lease_of(seat: &str) -> Option<i64> {
    let lease = i64::from_str_radix(seat, 16).ok()?;
    (format!("{lease:x}") == seat).then_some(lease)
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
                assert_eq!(seat_of(&claim.key), Some(7));
            }
            let keys = |text| space(layout).keys(&name(text));
            let (outer, inner) = (keys("foo").all(), keys("foo/bar").all());
            assert!(inner.key >= outer.end || inner.end <= outer.key);
        }
    }

    /// In the line of `foo` stand the keys of `foo/bar` too; they are told apart.
    #[test]
    fn seats_are_where_go_has_them() {
        let keys = |text| space(Layout::Go).keys(&name(text));
        let seat = keys("foo").seat(0x1f).unwrap();
        assert_eq!(seat.key, b"p/foo/1f");
        for text in NAMES {
            let seat = keys(text).seat(0x1f).unwrap();
            assert_eq!(space(Layout::Go).name(&seat.key), Some(name(text)));
            for other in NAMES {
                assert_eq!(keys(other).is_seat(&seat.key), other == text, "{text:?} in {other:?}");
            }
        }
        for stray in ["", "config", "1F", "01f", "+1f", "1f/"] {
            assert!(!keys("foo").is_seat(format!("p/foo/{stray}").as_bytes()), "{stray:?}");
        }
        assert_eq!(space(Layout::Native).keys(&name("foo")).seat(1), None);
    }
}
