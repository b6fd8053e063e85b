//! The claim that a client sends to a store, and its parts: name, weight, capacity, label.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// The longest resource name, in bytes, that works on every store.
pub const MAX_NAME_BYTES: usize = 1024;

/// The name of a resource: any text of 1 to 1024 bytes. Stores escape or hash it; it is shown as written.
///
/// # Examples
/// ```
/// # use oarlock_core::ResourceName;
/// assert_eq!(ResourceName::new("deploy/prod")?.as_str(), "deploy/prod");
/// assert!(ResourceName::new("").is_err());
/// # Ok::<(), oarlock_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// Checks and wraps `name`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] if it is empty or longer than [`MAX_NAME_BYTES`].
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let problem = if name.is_empty() {
            "a lock name must not be empty".to_owned()
        } else if name.len() > MAX_NAME_BYTES {
            format!("a lock name has at most {MAX_NAME_BYTES} bytes, this one has {}", name.len())
        } else {
            return Ok(Self(name.into()));
        };
        let start: String = name.chars().take(32).collect();
        let shown = if start.len() < name.len() { format!("{start}…") } else { start };
        Err(Error::new(ErrorKind::InvalidName, problem).about(&Self::unchecked(&shown)))
    }

    /// A name that may be invalid, for an error that names it.
    pub(crate) fn unchecked(name: &str) -> Self {
        Self(name.into())
    }

    /// The name as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for ResourceName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ResourceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ResourceName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<ResourceName> for String {
    fn from(name: ResourceName) -> Self {
        name.0.as_ref().to_owned()
    }
}

/// The identity of one acquisition: 128 random bits, drawn once, repeated on every retry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClaimId(u128);

impl ClaimId {
    /// An id with exactly these bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits of this id.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({self})")
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let well_formed = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(bits) if well_formed => Ok(Self(bits)),
            _ => Err(Error::new(ErrorKind::InvalidClaim, "a claim id is 32 hexadecimal digits")),
        }
    }
}

impl TryFrom<String> for ClaimId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ClaimId> for String {
    fn from(id: ClaimId) -> Self {
        id.to_string()
    }
}

/// A number that is strictly larger for every later grant of the same resource in one store.
///
/// Send it with every write to what the lock protects, and let that side refuse smaller ones: this protects the data
/// from a holder that was paused and does not know yet that it lost the lock. In JSON it is a string, because some
/// readers lose large numbers.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let first = locks.mutex("ledger").lock().await?.fence();
/// let second = locks.mutex("ledger").lock().await?.fence();
/// assert!(second > first);
/// let column = i64::from(second); // for a database: `UPDATE … WHERE fence <= $1`
/// # assert!(column > 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fence(u64);

impl Fence {
    /// All fences are below this: Lua, JavaScript and JSON keep such numbers exactly.
    pub const LIMIT: u64 = 1 << 53;

    /// A fence with this number, which is not checked: for drivers, and for a number that was stored with the data.
    /// Stores give numbers below [`LIMIT`](Self::LIMIT) only.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next larger one, below the limit.
    pub(crate) fn next(self) -> Option<Self> {
        let next = self.0.saturating_add(1);
        (next < Self::LIMIT).then_some(Self(next))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for Fence {
    type Err = Error;

    /// [`ErrorKind::InvalidClaim`] for what is not a whole number below [`Fence::LIMIT`].
    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(number) if number < Self::LIMIT => Ok(Self(number)),
            _ => Err(Error::new(ErrorKind::InvalidClaim, "a fence is a whole number below 2^53")),
        }
    }
}

impl TryFrom<String> for Fence {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

/// For a column of a database: fences stay below [`Fence::LIMIT`], which an `i64` holds.
impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        Self::try_from(fence.0).unwrap_or(Self::MAX)
    }
}

impl From<Fence> for String {
    fn from(fence: Fence) -> Self {
        fence.to_string()
    }
}

/// The user of this process, also where a service manager or cron sets no variable.
fn user() -> String {
    let set = ["USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok()).find(|name| !name.is_empty());
    set.unwrap_or_else(|| {
        let id = rustix::process::getuid().as_raw();
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        user_of(id, &accounts).map_or_else(|| format!("uid {id}"), str::to_owned)
    })
}

/// The name of an account in a file such as `/etc/passwd`.
fn user_of(id: u32, accounts: &str) -> Option<&str> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(id) && !name.is_empty()).then_some(name)
    })
}

/// How much weight a resource bears at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// This many units.
    Units(NonZeroU32),
    /// Any number of units: readers.
    Unlimited,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => fmt::Display::fmt(units, f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// What a claim says about the capacity of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// Nothing: the stored capacity applies.
    Any,
    /// Exactly this; a live resource with another explicit capacity is a [`ErrorKind::SpecMismatch`].
    Fixed(Limit),
    /// The stored capacity if the resource is live, else this: for changing a limit without stopping the fleet.
    // The word that tickets of format 1 have.
    #[serde(rename = "adopt")]
    Stored(Limit),
}

/// How much of a resource a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Everything: excludes every other claim.
    All,
    /// This many units.
    Units(NonZeroU32),
}

impl Weight {
    /// One unit.
    pub const ONE: Self = Self::Units(NonZeroU32::MIN);

    /// Whether two claims of these weights may ever hold one resource together.
    #[must_use]
    pub fn coexists_with(self, other: Self) -> bool {
        self != Self::All && other != Self::All
    }
}

/// The kind of lock that the user asked for. It is shown to others, and selects the recipe in layouts shared with other
/// programs. The rule itself does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// One holder.
    Mutex,
    /// One holder, polled for without notification.
    Spin,
    /// One of many readers.
    Read,
    /// The only writer.
    Write,
    /// Some units of many.
    Semaphore,
    /// The leader of an election.
    Election,
}

impl Kind {
    /// Its name in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Spin => "spin",
            Self::Read => "read",
            Self::Write => "write",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
        }
    }

    /// The name of what its user locks, in metrics: readers and writers lock one `rwlock`.
    #[must_use]
    pub const fn family(self) -> &'static str {
        match self {
            Self::Read | Self::Write => "rwlock",
            other => other.as_str(),
        }
    }

    /// How it holds, in metrics: `exclusive`, `shared` or `permits`.
    #[must_use]
    pub const fn mode(self) -> &'static str {
        match self {
            Self::Read => "shared",
            Self::Semaphore => "permits",
            _ => "exclusive",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a claim lives by, besides its lease.
///
/// # Examples
/// ```
/// # use oarlock_core::{Lifetime, Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("import").lifetime(Lifetime::Lease).lock().await?;
/// let ticket = guard.hand_over()?; // another process can adopt it
/// # drop(ticket);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Lifetime {
    /// Released when its process or session ends, where the store can detect that.
    Process,
    /// Survives its process until the lease expires: for handing a lock over.
    Lease,
}

/// Identifies this client to others (host, pid, user, reason). Everyone with access to the store can read it: keep
/// secrets out.
///
/// # Examples
/// ```
/// # use oarlock_core::Label;
/// # mod oarlock {
/// #     use std::sync::Arc;
/// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
/// #     pub fn builder(_: &str) -> LocksBuilder {
/// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let label = Label::of_this_process().reason("nightly import").tag("job", "7");
/// let locks = oarlock::builder("redis://localhost").label(label).connect().await?;
/// let _guard = locks.mutex("import").lock().await?;
/// let holder = &locks.inspect("import").await?.holders[0];
/// assert_eq!(holder.label.reason.as_deref(), Some("nightly import"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Label {
    /// The machine's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The user it runs as.
    pub user: String,
    /// Why the lock is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The user's own `key=value` pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

impl Label {
    /// The longest text kept of any part of a label, in bytes.
    pub const MAX_TEXT_BYTES: usize = 1024;
    /// The most tags kept.
    pub const MAX_TAGS: usize = 32;

    /// A label of this process on this machine.
    #[must_use]
    pub fn of_this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, pid: std::process::id(), user: user(), ..Self::default() }
    }

    /// This label with a reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// This label with one more tag.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Checks its length.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] if it has too many tags, or a text that is too long.
    pub fn check(&self) -> Result<()> {
        let texts = [&self.host, &self.user].into_iter().chain(&self.reason);
        let mut texts = texts.chain(self.tags.iter().flat_map(|(key, value)| [key, value]));
        if self.tags.len() > Self::MAX_TAGS {
            return Err(Error::new(ErrorKind::InvalidClaim, format!("a label has at most {} tags", Self::MAX_TAGS)));
        }
        if texts.any(|text| text.len() > Self::MAX_TEXT_BYTES) {
            let limit = Self::MAX_TEXT_BYTES;
            return Err(Error::new(ErrorKind::InvalidClaim, format!("each text of a label has at most {limit} bytes")));
        }
        Ok(())
    }
}

/// One request for (a part of) a resource. The engine builds it; a driver stores it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Claim {
    /// The identity of this acquisition.
    pub id: ClaimId,
    /// What is claimed.
    pub resource: ResourceName,
    /// What the user called it.
    pub kind: Kind,
    /// What it says about the resource's capacity.
    pub capacity: Capacity,
    /// How much it takes.
    pub weight: Weight,
    /// Whether a refused attempt leaves a waiter record.
    pub wait: bool,
    /// How many more wait behind this one inside its process.
    pub behind: u32,
    /// What it lives by besides its lease.
    pub lifetime: Lifetime,
    /// How long a grant lives without renewal.
    pub ttl: Duration,
    /// Whether it is renewed from the first moment on: then a grant may begin with a shorter lease.
    pub renews: bool,
    /// Identifies the client to others.
    pub label: Arc<Label>,
    /// A value published while it is held.
    pub value: Option<Arc<str>>,
    /// The fence that the client proposes, for stores that derive fences from their clock. A client of several stores
    /// (Redlock) proposes one so that they agree. The store gives a larger one if it gave larger ones before, and moves
    /// the proposal to within a minute of its own clock, so that a client with a wrong clock does not decide the fences
    /// of all. Other stores ignore it.
    pub least_fence: Option<Fence>,
}

impl Claim {
    /// A claim of everything, without waiting, for 30 seconds.
    #[must_use]
    pub fn new(id: ClaimId, resource: ResourceName) -> Self {
        Self {
            id,
            resource,
            kind: Kind::Mutex,
            capacity: Capacity::Any,
            weight: Weight::All,
            wait: false,
            behind: 0,
            lifetime: Lifetime::Process,
            ttl: Duration::from_secs(30),
            renews: true,
            label: Arc::default(),
            value: None,
            least_fence: None,
        }
    }

    /// How long a waiter keeps its position in the queue without renewal.
    #[must_use]
    pub fn waiter_ttl(&self) -> Duration {
        self.ttl.min(Self::MAX_WAITER_TTL)
    }

    /// A dead waiter blocks a queue for at most this long.
    pub const MAX_WAITER_TTL: Duration = Duration::from_secs(10);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        assert!(ResourceName::new("").is_err());
        assert!(ResourceName::new("a".repeat(1024)).is_ok());
        assert_eq!(ResourceName::new("a".repeat(1025)).unwrap_err().kind(), ErrorKind::InvalidName);
    }

    #[test]
    fn users_have_the_names_of_their_accounts() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7:7::/:\nci:x:1000:1000::/home/ci:/bin/sh\n";
        assert_eq!(user_of(0, accounts), Some("root"));
        assert_eq!(user_of(1000, accounts), Some("ci"));
        assert_eq!((user_of(7, accounts), user_of(8, accounts)), (None, None));
        assert!(!Label::of_this_process().user.is_empty());
    }

    #[test]
    fn fences_read_back_what_they_print_and_nothing_beyond_the_limit() {
        let last = Fence::new(Fence::LIMIT - 1);
        assert_eq!(last.to_string().parse::<Fence>().unwrap(), last);
        for bad in [Fence::LIMIT.to_string().as_str(), &u64::MAX.to_string(), "", "-1", "7.0"] {
            assert_eq!(bad.parse::<Fence>().unwrap_err().kind(), ErrorKind::InvalidClaim, "{bad:?}");
        }
        assert_eq!((last.next(), Fence::new(u64::MAX).next()), (None, None));
    }

    #[test]
    fn claim_ids_read_back_what_they_print() {
        let id = ClaimId::from_bits(0xfeed);
        assert_eq!(id.to_string().parse::<ClaimId>().unwrap(), id);
        for bad in ["", "feed", "+0000000000000000000000000000feed", &"g".repeat(32)] {
            assert!(bad.parse::<ClaimId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn long_labels_are_refused() {
        assert!(Label::default().reason("x".repeat(1025)).check().is_err());
        assert!(Label::default().reason("release 2.3").tag("job", "7").check().is_ok());
    }
}
