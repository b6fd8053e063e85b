//! The data of the nodes, as JSON. Every record carries the version of its format.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::Versioned;
use oarlock_core::state::Ending;
use oarlock_core::{Claim, ClaimId, Error, Fence, Kind, Label, ResourceName, Result, Weight};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zookeeper_client as zk;

use crate::error::{SCHEME, not_ours};

/// The version of everything written here.
pub(crate) const FORMAT: u32 = 1;

/// How many broken claims a resource remembers, so that their holders learn by whom and why.
const MAX_BROKEN: usize = 8;

/// What is shown of a claim: the rule needs none of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    format: u32,
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
    pub(crate) behind: u32,
    /// It holds, by the transaction that wrote this. The first in the queue may hold without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) granted: bool,
    /// Its fence, once another transaction than that of its grant has written here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<Fence>,
    /// Its weight, if it was made lighter than its name says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lighter: Option<Weight>,
    pub(crate) label: Arc<Label>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Arc<str>>,
    /// It was asked to end, within this time after it has noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<(Ending, Duration)>,
}

impl ClaimRecord {
    pub(crate) fn of(claim: &Claim, lease: Duration) -> Self {
        let (label, value) = (claim.label.clone(), claim.value.clone());
        Self { kind: claim.kind, lease, behind: claim.behind, label, value, ..Self::silent() }
    }

    /// A claim without a readable record.
    pub(crate) fn silent() -> Self {
        let (kind, lease, label) = (Kind::Mutex, Duration::ZERO, Arc::default());
        let (granted, fence, lighter, value, ending) = (false, None, None, None, None);
        Self { format: FORMAT, kind, lease, behind: 0, granted, fence, lighter, label, value, ending }
    }

    /// The transaction that marked it as granted, if one did; `stat` is that of its node.
    pub(crate) fn mark(&self, stat: &zk::Stat) -> Option<Fence> {
        let written = || u64::try_from(stat.mzxid).ok().map(Fence::new);
        self.granted.then(|| self.fence.or_else(written)).flatten()
    }

    /// Takes over what may change while a claim lives; whether anything did.
    pub(crate) fn update(&mut self, claim: &Claim) -> bool {
        let before = (self.kind, self.behind, self.value.clone());
        (self.kind, self.behind) = (claim.kind, claim.behind);
        self.value.clone_from(&claim.value);
        before != (self.kind, self.behind, self.value.clone())
    }
}

/// What is kept of a resource beside its claims, in the data of their parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResourceRecord {
    format: u32,
    pub(crate) name: ResourceName,
    #[serde(rename = "graves", default, skip_serializing_if = "Vec::is_empty")]
    broken: Vec<(ClaimId, Ending)>,
}

impl ResourceRecord {
    pub(crate) fn of(name: &ResourceName) -> Self {
        Self { format: FORMAT, name: name.clone(), broken: Vec::new() }
    }

    pub(crate) fn note_end(&mut self, id: ClaimId, ending: Ending) {
        if self.broken.len() >= MAX_BROKEN {
            self.broken.remove(0);
        }
        self.broken.push((id, ending));
    }

    pub(crate) fn end_of(&self, id: ClaimId) -> Option<&Ending> {
        self.broken.iter().find(|(broken, _)| *broken == id).map(|(_, ending)| ending)
    }
}

/// The root: a client that finds a newer version there leaves everything below it alone.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RootRecord {
    pub(crate) format: u32,
}

/// Reads a record, if its version is known.
pub(crate) fn read<T: DeserializeOwned>(path: &str, data: &[u8]) -> Result<T> {
    let version: Versioned = serde_json::from_slice(data).map_err(|_| not_ours(path))?;
    version.check(FORMAT, path).map_err(|error| error.on(SCHEME))?;
    serde_json::from_slice(data).map_err(|_| not_ours(path))
}

pub(crate) fn write(record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record)
        .map_err(|error| Error::new(oarlock_core::ErrorKind::Internal, "a record cannot be written").because(error))
}

#[cfg(test)]
mod tests {
    use oarlock_core::ErrorKind;

    use super::*;

    #[test]
    fn a_newer_record_says_so_whatever_else_it_holds() {
        let error = read::<ClaimRecord>("/x", br#"{"format": 2, "shape": "unknown"}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NewerFormat);
        assert_eq!(read::<ClaimRecord>("/x", b"127.0.0.1").unwrap_err().kind(), ErrorKind::Foreign);
    }

    #[test]
    fn broken_claims_are_few() {
        let mut record = ResourceRecord::of(&ResourceName::new("a").unwrap());
        for bits in 0..20 {
            record.note_end(ClaimId::from_bits(bits), Ending::new("x", bits.to_string()));
        }
        assert!(record.end_of(ClaimId::from_bits(3)).is_none());
        assert_eq!(record.end_of(ClaimId::from_bits(19)).unwrap().why, "19");
        let bytes = write(&record).unwrap();
        assert_eq!(read::<ResourceRecord>("/x", &bytes).unwrap(), record);
    }
}
