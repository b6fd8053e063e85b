//! Work that is done once per slot, by one of many processes.

use std::cmp::Ordering;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::options;
use crate::claim::ResourceName;
use crate::driver::Released;
use crate::engine::{LAST_CHANCE, Poller, Request, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::Held;
use crate::state::{MAX_MEMO_BYTES, Memo};

/// The longest slot, in bytes.
const MAX_SLOT_BYTES: usize = 256;

/// The longest time for which a slot is remembered on request. It keeps the arithmetic of stores within bounds.
const MAX_REMEMBERED: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// The prefix of memos of this kind; the digit is the version of the format. After it comes the slot.
const FORMAT: &[u8] = b"once/1 ";

/// The prefix of memos with a record. After it come the length of the slot, a space, the slot and the record.
const WITH_RECORD: &[u8] = b"once/2 ";

/// Work that is done once per slot, by the first process that asks: a nightly run, a migration, the invoices of a day.
///
/// A slot is a text, such as a date or a number. Slots have an order: the shorter one first, then by bytes. So plain
/// numbers and dates of one width (`2026-11-15`) are in natural order. The name remembers its last slot. A slot that is
/// not after it counts as done, for every process and whatever its clock says.
///
/// # Guarantees
/// - **At most once** (the default): the slot is written down *before* the work starts. Work that fails, is killed or
///   loses its lock is not started again for this slot.
/// - **At least once** ([`at_least_once`](Self::at_least_once)): the slot is written down after the work has succeeded.
///   Work that fails, is killed or loses its lock is started again by the next process that asks.
/// - Runs of one name never overlap, as far as a [`Guard`] can promise that.
///
/// Both hold as long as the store remembers the name: at least 24 hours after its last use, or as long as
/// [`remember`](Self::remember) says. Asking is a use, also for a slot that is done.
///
/// The lock is always renewed, because the slot is written down with a renewal: there is no `no_renewal()`.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory, Slot};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let nightly = locks.once("nightly");
/// let first = nightly.run("2026-11-15", |_held| async { oarlock_core::Result::Ok(42) }).await?;
/// assert_eq!(first, Slot::Ran(42));
/// let second = nightly.run("2026-11-15", |_held| async { oarlock_core::Result::Ok(42) }).await?;
/// assert_eq!(second, Slot::AlreadyDone { slot: "2026-11-15".into() });
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before run()"]
pub struct Once {
    request: Request,
    at_least_once: bool,
    remember: Duration,
}

options!(Once);

/// The result of [`Once::run`].
///
/// # Examples
/// ```
/// # use oarlock_core::{Error, Locks, Memory, Slot};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// match locks.once("nightly").run("2026-11-15", |_held| async { Ok::<_, Error>(42) }).await? {
///     Slot::Ran(invoices) => println!("{invoices} invoices"),
///     Slot::AlreadyDone { slot } => println!("{slot} is done"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it says whether the work was done here"]
#[non_exhaustive]
pub enum Slot<T> {
    /// The work was done here and now.
    Ran(T),
    /// It was not: this slot or a later one is written down already.
    AlreadyDone {
        /// The last slot written down. Without [`at_least_once`](Once::at_least_once) another process may still work on
        /// it, or may have failed.
        slot: Arc<str>,
    },
}

#[oarlock_macros::blocking]
impl Once {
    pub(crate) fn new(mut request: Request) -> Self {
        let info = request.client.info();
        if !info.capabilities.memo {
            let message = "this store cannot remember which slots are done";
            let error = Error::new(ErrorKind::Unsupported, message).on(info.scheme).about(&request.claim.resource);
            request = request.refuse(error);
        }
        Self { request, at_least_once: false, remember: Duration::ZERO }
    }

    /// Writes the slot down only after the work has succeeded, so that failed work is done again.
    pub fn at_least_once(mut self) -> Self {
        self.at_least_once = true;
        self
    }

    /// Remembers a slot for at least `span` after it was written down, even if the name is not used meanwhile. Without
    /// this, some stores forget it 24 hours after the last use of the name: set it for slots that are longer than a
    /// day. At most ten years.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Error, Locks, Memory, Slot};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let monthly = locks.once("invoices").remember(Duration::from_secs(40 * 24 * 3600));
    /// assert_eq!(monthly.run("2026-11", |_held| async { Ok::<_, Error>(()) }).await?, Slot::Ran(()));
    /// # Ok(()) }
    /// ```
    pub fn remember(mut self, span: Duration) -> Self {
        self.remember = span.min(MAX_REMEMBERED);
        self
    }

    /// Does `work` unless `slot`, or a later one, is done already.
    ///
    /// If the slot is written down, it returns at once, even while another process still works on it. If the name is
    /// held and the slot is not written down, it waits until the slot is written down or the name is free, for at most
    /// [`wait`](Self::wait). With [`at_least_once`](Self::at_least_once) that is until the other process is done.
    ///
    /// `work` is dropped if the lock is lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, `work` is dropped and the lock is released. The slot is done if it was written down by
    /// then.
    ///
    /// # Errors
    /// Any error of `work`. [`ErrorKind::Busy`] when the wait ends. [`ErrorKind::Lost`] if the lock was lost before the
    /// work was done, or before the slot was written down after it. [`ErrorKind::InvalidClaim`] for an empty or too
    /// long slot. [`ErrorKind::Foreign`] if another program left a memo on the name. [`ErrorKind::Unsupported`] where
    /// the store keeps no memo. Any error that the store returns.
    #[blocking(by_hand)]
    pub async fn run<T, E, F>(&self, slot: &str, work: impl FnOnce(Held) -> F) -> Result<Slot<T>, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.request.check_valid()?;
        check(slot, &self.request.claim.resource)?;
        let mut guard = match self.enter(slot).await? {
            Slot::Ran(guard) => guard,
            Slot::AlreadyDone { slot } => return Ok(Slot::AlreadyDone { slot }),
        };
        if !self.at_least_once {
            guard.publish(|_| {}, Some(memo(slot)), self.remember).await?;
        }
        // An error drops the guard, which releases the lock.
        let done = guard.with(work).await?;
        if self.at_least_once {
            guard.publish(|_| {}, Some(memo(slot)), self.remember).await?;
        }
        // The slot is done; if this fails, it is tried again in the background.
        let _ = guard.release().await;
        Ok(Slot::Ran(done))
    }

    /// The last slot written down, as the store sees it now.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if another program left a memo on the name; any error that the store returns.
    pub async fn last(&self) -> Result<Option<Arc<str>>> {
        Ok(self.last_with_record().await?.map(|last| last.slot).filter(|slot| !slot.is_empty()))
    }

    /// The last slot written down with its record, as the store sees it now. The slot is empty if there is only a
    /// record, of [`memo_beside`](Self::memo_beside).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`last`](Self::last).
    pub async fn last_with_record(&self) -> Result<Option<LastSlot>> {
        self.request.check_valid()?;
        let resource = &self.request.claim.resource;
        let state = self.request.client.inspect(resource).await?;
        LastSlot::read(state.memo.as_deref(), resource)
    }

    /// Takes the lock, whatever slots are done: for a caller that decides about the slot while it holds the lock, with
    /// [`LastSlot::known_to`] and [`write_down`](Self::write_down). Else use [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As for any lock: a request that was sent is withdrawn.
    ///
    /// # Errors
    /// As [`run`](Self::run), without those of the work.
    #[blocking(none)]
    pub async fn lock(&self) -> Result<Guard> {
        self.request.check_valid()?;
        self.request.clone().lock().await
    }

    /// Writes `slot` down by a renewal of `guard`, with a record for [`last_with_record`](Self::last_with_record): who
    /// ran it, when, and how it ended. An empty record is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, the slot may have been written down or not.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before that; it may be written down all the same.
    /// [`ErrorKind::InvalidClaim`] for an empty slot, or if slot and record are too long together.
    #[blocking(none)]
    pub async fn write_down(&self, guard: &mut Guard, slot: &str, record: &str) -> Result<()> {
        guard.publish(|_| {}, Some(self.memo(slot, record)?), self.remember).await
    }

    /// Forgets `last`, so that it is done again, and with it every slot before it. Takes the lock for that: work that
    /// goes on is not forgotten. Returns whether `last` was still the last slot.
    ///
    /// # Cancel safety
    /// If the future is dropped, the slot may have been forgotten or not.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the work goes on for longer than [`wait`](Self::wait). [`ErrorKind::Lost`] if the lock was
    /// lost before the slot was forgotten. Else as [`lock`](Self::lock).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Error, Locks, Memory, Slot};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let nightly = locks.once("nightly");
    /// assert_eq!(nightly.run("2026-11-15", |_held| async { Ok::<_, Error>(1) }).await?, Slot::Ran(1));
    /// let last = nightly.last_with_record().await?.unwrap();
    /// assert!(nightly.forget(&last).await?);
    /// assert_eq!(nightly.run("2026-11-15", |_held| async { Ok::<_, Error>(2) }).await?, Slot::Ran(2));
    /// # Ok(()) }
    /// ```
    pub async fn forget(&self, last: &LastSlot) -> Result<bool> {
        let guard = self.lock().await?;
        if LastSlot::known_to(&guard)?.is_none_or(|found| found.slot != last.slot) {
            guard.release().await?;
            return Ok(false);
        }
        // What a release leaves is left only if it ends the hold. Without that, the reply to a release that did may have
        // been lost, or the lock was lost before.
        if guard.release_leaving("").await? != Released::NotHeld
            || self.last().await?.is_none_or(|found| found != last.slot)
        {
            return Ok(true);
        }
        let message = "the lock was lost before the slot was forgotten";
        Err(Error::new(ErrorKind::Lost, message).about(&self.request.claim.resource))
    }

    /// The memo of a slot with a record, to be left by [`Guard::leave_memo`] when the lock is released.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] for an empty slot, or if slot and record are too long together.
    #[blocking(none)]
    pub fn memo(&self, slot: &str, record: &str) -> Result<Memo> {
        check(slot, &self.request.claim.resource)?;
        self.bounded(if record.is_empty() { memo(slot) } else { with_record(slot, record) })
    }

    /// The memo of `last` with this record in place of its own, to be left by [`Guard::leave_memo`]: for a record of
    /// work that failed, and uses no slot up. `last` is what [`LastSlot::known_to`] the guard says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidClaim`] if slot and record are too long together.
    #[blocking(none)]
    pub fn memo_beside(&self, last: Option<&LastSlot>, record: &str) -> Result<Memo> {
        self.bounded(with_record(last.map_or("", |last| &last.slot), record))
    }

    fn bounded(&self, memo: Memo) -> Result<Memo> {
        if memo.len() > MAX_MEMO_BYTES {
            let message = format!("a slot and its record have at most {MAX_MEMO_BYTES} bytes");
            return Err(Error::new(ErrorKind::InvalidClaim, message).about(&self.request.claim.resource));
        }
        Ok(memo)
    }

    /// Takes the lock for a slot that is not done, or finds that it is done.
    async fn enter(&self, slot: &str) -> Result<Slot<Guard>> {
        let clock = &self.request.client.core.clock;
        let (started, mut request) = (clock.now(), self.request.clone());
        let give_up = request.wait.until(started);
        if give_up > started {
            request.answer_by = give_up + LAST_CHANCE;
        }
        // An attempt, not an inspection: stores forget names that are not used, and with them the slots that are done.
        let guard = match request.clone().attempt().await? {
            Some(guard) => guard,
            None => {
                if let Wait::AtMost(_) = request.wait {
                    request.wait = Wait::AtMost(give_up.since(clock.now()));
                }
                tokio::select! {
                    biased;
                    done = self.written_down(slot) => return done.map(|slot| Slot::AlreadyDone { slot }),
                    guard = request.lock() => guard?,
                }
            }
        };
        // The memo that came with the grant decides: no other process can have written one since.
        match LastSlot::known_to(&guard)? {
            Some(last) if last.covers(slot) => {
                let _ = guard.release().await;
                Ok(Slot::AlreadyDone { slot: last.slot })
            }
            _ => Ok(Slot::Ran(guard)),
        }
    }

    /// Waits until `slot` or a later one is written down. Slots never go back, so an old state is good enough.
    async fn written_down(&self, slot: &str) -> Result<Arc<str>> {
        let resource = &self.request.claim.resource;
        let mut poller = Poller::at(self.request.client.clone(), resource.clone());
        loop {
            let state = poller.next().await?;
            if let Some(last) = LastSlot::read(state.memo.as_deref(), resource)?
                && last.covers(slot)
            {
                return Ok(last.slot);
            }
        }
    }
}

impl<T: fmt::Display> fmt::Display for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ran(done) => done.fmt(f),
            Self::AlreadyDone { slot } => write!(f, "already done: the last slot is {}", crate::text::quoted(slot)),
        }
    }
}

/// The order of slots: the shorter one first, then by bytes.
fn compare(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

fn check(slot: &str, resource: &ResourceName) -> Result<()> {
    let message = match slot.len() {
        0 => "a slot must not be empty".to_owned(),
        1..=MAX_SLOT_BYTES => return Ok(()),
        length => format!("a slot has at most {MAX_SLOT_BYTES} bytes, this one has {length}"),
    };
    Err(Error::new(ErrorKind::InvalidClaim, message).about(resource))
}

fn memo(slot: &str) -> Memo {
    [FORMAT, slot.as_bytes()].concat().into()
}

fn with_record(slot: &str, record: &str) -> Memo {
    let length = format!("{} ", slot.len());
    [WITH_RECORD, length.as_bytes(), slot.as_bytes(), record.as_bytes()].concat().into()
}

/// The last slot of a name, and what its writer recorded about it.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let nightly = locks.once("nightly");
/// let mut guard = nightly.lock().await?;
/// nightly.write_down(&mut guard, "2026-11-15", "started by ci-7").await?;
/// guard.release().await?;
/// let last = nightly.last_with_record().await?.unwrap();
/// assert!(last.covers("2026-11-14") && !last.covers("2026-11-16"));
/// assert_eq!(last.record.as_deref(), Some("started by ci-7"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastSlot {
    /// The slot; empty if none is used up yet, and there is only a record.
    pub slot: Arc<str>,
    /// The record; `None` if its writer left none.
    pub record: Option<Arc<str>>,
}

impl LastSlot {
    /// The last slot at the time of the grant of `held`. No other process can have written one down since.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] if another program left a memo on the name; [`ErrorKind::NewerFormat`] for one of a newer
    /// version.
    pub fn known_to(held: &Held) -> Result<Option<Self>> {
        Self::read(held.memo(), held.resource())
    }

    /// Whether `slot` counts as done: it is this one, or comes before it.
    #[must_use]
    pub fn covers(&self, slot: &str) -> bool {
        compare(&self.slot, slot) != Ordering::Less
    }

    /// An empty memo is left where a slot was forgotten on purpose.
    pub(crate) fn read(memo: Option<&[u8]>, resource: &ResourceName) -> Result<Option<Self>> {
        let Some(memo) = memo.filter(|memo| !memo.is_empty()) else { return Ok(None) };
        if let Some(last) = Self::parse(memo) {
            return Ok(Some(last));
        }
        let error = if memo.starts_with(b"once/") {
            Error::new(ErrorKind::NewerFormat, "its last slot was written by a newer version")
        } else {
            Error::new(ErrorKind::Foreign, "another program left a memo on it, so its last slot is unknown")
        };
        Err(error.about(resource))
    }

    fn parse(memo: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(memo).ok()?;
        if let Some(slot) = text.as_bytes().strip_prefix(FORMAT) {
            return Some(Self { slot: std::str::from_utf8(slot).ok()?.into(), record: None });
        }
        let rest = std::str::from_utf8(text.as_bytes().strip_prefix(WITH_RECORD)?).ok()?;
        let (length, rest) = rest.split_once(' ')?;
        let (slot, record) = rest.split_at_checked(length.parse().ok()?)?;
        Some(Self { slot: slot.into(), record: (!record.is_empty()).then(|| record.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_natural_order() {
        let rising = ["1", "2", "10", "99", "100", "2026-11-14", "2026-11-15", "2026-12-01", "2027-01-01"];
        for pair in rising.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(compare("7", "7"), Ordering::Equal);
    }

    #[test]
    fn memos_of_others_are_not_taken_for_slots() {
        let name = ResourceName::new("n").unwrap();
        let refused = |memo: &[u8]| LastSlot::read(Some(memo), &name).unwrap_err().kind();
        assert_eq!(&*LastSlot::read(Some(&memo("7")), &name).unwrap().unwrap().slot, "7");
        for none in [None, Some(&b""[..])] {
            assert_eq!(LastSlot::read(none, &name).unwrap(), None);
        }
        assert_eq!(refused(b"7"), ErrorKind::Foreign);
        for newer in [&b"once/2 7"[..], b"once/2 9 short", b"once/2 x 7", b"once/3 7", b"once/1 \xff"] {
            assert_eq!(refused(newer), ErrorKind::NewerFormat, "{newer:?}");
        }
    }

    #[test]
    fn a_record_is_told_apart_from_its_slot() {
        let name = ResourceName::new("n").unwrap();
        for (slot, record) in [("7", "{}"), ("a slot", " with a space"), ("ünï", "é")] {
            let last = LastSlot::read(Some(&with_record(slot, record)), &name).unwrap().unwrap();
            assert_eq!((&*last.slot, last.record.as_deref()), (slot, Some(record)));
        }
    }

    /// A record of work that failed where no slot is done yet: no slot may count as done for it.
    #[test]
    fn a_record_alone_covers_no_slot() {
        let name = ResourceName::new("n").unwrap();
        let last = LastSlot::read(Some(&with_record("", "{}")), &name).unwrap().unwrap();
        assert_eq!((&*last.slot, last.record.as_deref()), ("", Some("{}")));
        assert!(!last.covers("0") && !last.covers(" "));
    }

    #[test]
    fn slots_are_bounded() {
        let name = ResourceName::new("n").unwrap();
        assert!(check("", &name).is_err() && check(&"9".repeat(257), &name).is_err());
        assert!(check(&"9".repeat(256), &name).is_ok());
        assert!(memo(&"9".repeat(256)).len() <= crate::state::MAX_MEMO_BYTES);
    }
}
