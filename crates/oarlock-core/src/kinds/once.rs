//! Work that is done once per slot, by one of many processes.

use std::cmp::Ordering;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::options;
use crate::claim::ResourceName;
use crate::engine::{LAST_CHANCE, Poller, Request, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::held::Held;
use crate::state::Memo;

/// The longest slot, in bytes.
const MAX_SLOT_BYTES: usize = 256;

/// The prefix of memos of this kind; the digit is the version of the format.
const FORMAT: &[u8] = b"once/1 ";

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
/// Both hold as long as the store remembers the name: at least 24 hours after its last use. Asking is a use, also for a
/// slot that is done.
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
        Self { request, at_least_once: false }
    }

    /// Writes the slot down only after the work has succeeded, so that failed work is done again.
    pub fn at_least_once(mut self) -> Self {
        self.at_least_once = true;
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
            guard.publish(|_| {}, Some(memo(slot))).await?;
        }
        // An error drops the guard, which releases the lock.
        let done = guard.with(work).await?;
        if self.at_least_once {
            guard.publish(|_| {}, Some(memo(slot))).await?;
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
        self.request.check_valid()?;
        let resource = &self.request.claim.resource;
        let state = self.request.client.inspect(resource).await?;
        state.memo.map(|memo| read(&memo, resource)).transpose()
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
        match guard.memo().map(|memo| read(memo, guard.resource())).transpose()? {
            Some(last) if compare(&last, slot) != Ordering::Less => {
                let _ = guard.release().await;
                Ok(Slot::AlreadyDone { slot: last })
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
            if let Some(memo) = state.memo
                && let last = read(&memo, resource)?
                && compare(&last, slot) != Ordering::Less
            {
                return Ok(last);
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

fn read(memo: &[u8], resource: &ResourceName) -> Result<Arc<str>> {
    let slot = memo.strip_prefix(FORMAT).and_then(|slot| std::str::from_utf8(slot).ok());
    if let Some(slot) = slot {
        return Ok(slot.into());
    }
    let error = if memo.starts_with(b"once/") {
        Error::new(ErrorKind::NewerFormat, "its last slot was written by a newer version")
    } else {
        Error::new(ErrorKind::Foreign, "another program left a memo on it, so its last slot is unknown")
    };
    Err(error.about(resource))
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
        assert_eq!(&*read(&memo("7"), &name).unwrap(), "7");
        assert_eq!(read(b"7", &name).unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(read(b"once/2 7", &name).unwrap_err().kind(), ErrorKind::NewerFormat);
        assert_eq!(read(b"once/1 \xff", &name).unwrap_err().kind(), ErrorKind::NewerFormat);
    }

    #[test]
    fn slots_are_bounded() {
        let name = ResourceName::new("n").unwrap();
        assert!(check("", &name).is_err() && check(&"9".repeat(257), &name).is_err());
        assert!(check(&"9".repeat(256), &name).is_ok());
        assert!(memo(&"9".repeat(256)).len() <= crate::state::MAX_MEMO_BYTES);
    }
}
