//! The error type of every store: what went wrong, whether it may have taken effect, whether a retry can help.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::belief::LossReason;
use crate::claim::{Limit, ResourceName};
use crate::state::HolderState;
use crate::text;

/// The result type of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use oarlock_core::{ErrorKind, Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// match locks.mutex("report").wait(Duration::from_secs(5)).lock().await {
///     Ok(guard) => println!("fence {}", guard.fence()),
///     Err(error) if error.kind() == ErrorKind::Busy => println!("later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A bounded wait ended; [`Error::busy`] says who holds the lock.
    Busy,
    /// The lock is not held any more; [`Error::loss`] says why.
    Lost,
    /// The same [`Owner`](crate::Owner) waits for what it holds itself.
    SelfDeadlock,
    /// Two different explicit capacities on one live name; [`Error::stored_capacity`] carries the stored one.
    SpecMismatch,
    /// The claim weighs more than its resource bears: it could never be granted.
    TooHeavy,
    /// A held claim asked for more weight: release it and claim anew.
    Upgrade,
    /// The name is empty or too long.
    InvalidName,
    /// Another part of the request is invalid.
    InvalidClaim,
    /// The URL or an option is wrong.
    Config,
    /// This store does not support the request.
    Unsupported,
    /// The store does not answer.
    Unreachable,
    /// The store refused the credentials, or the operating system the access.
    Denied,
    /// The local store's directory cannot be created.
    CannotCreate,
    /// What is stored cannot be read, or belongs to another program.
    Foreign,
    /// What is stored was written by a newer version.
    NewerFormat,
    /// Fences reached 2^53.
    FenceExhausted,
    /// As many claims of this client wait for the name as [`max_waiters`](crate::LocksBuilder::max_waiters) allows.
    TooManyWaiters,
    /// The client was shut down.
    Closed,
    /// The operating system returned an error.
    Os,
    /// A bug in this library or its driver.
    Internal,
}

/// Whether a failed operation may have taken effect in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Applied {
    /// It certainly had no effect.
    No,
    /// It may have happened, or may still happen.
    Unknown,
}

/// Whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// The same request will fail the same way.
    Never,
    /// At once.
    Now,
    /// After a pause.
    Later,
}

/// Who held the lock when a bounded wait ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Busy {
    /// The holder that has held longest, if the store shows holders.
    pub holder: Option<HolderState>,
    /// How many hold it.
    pub holders: usize,
    /// How many claims wait before this one; `None` if the store does not tell.
    pub ahead: Option<usize>,
    /// How long this claim waited.
    pub waited: Duration,
}

#[derive(Clone, Debug, Default)]
enum Detail {
    #[default]
    None,
    Busy(Busy),
    Loss(LossReason),
    /// It was released by this client.
    Released,
    Stored(Limit),
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    applied: Applied,
    retry: Retry,
    scheme: Option<&'static str>,
    operation: Option<&'static str>,
    resource: Option<ResourceName>,
    detail: Detail,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The error type of this library.
///
/// `Display` is one line that says what happened, with its cause; [`hint`](Self::hint) says what to do next. The cause
/// is already in that line, so [`source`](std::error::Error::source) begins with the cause of the cause: a program that
/// prints an error and all its sources prints each once.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use oarlock_core::{ErrorKind, Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let _guard = locks.mutex("report").reason("nightly").lock().await?;
/// let error = locks.mutex("report").wait(Duration::ZERO).lock().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// let holder = error.busy().and_then(|busy| busy.holder.as_ref()).unwrap();
/// assert_eq!(holder.label.reason.as_deref(), Some("nightly"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl Error {
    /// An error of a request that had no effect and that a retry does not repair.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            applied: Applied::No,
            retry: Retry::Never,
            scheme: None,
            operation: None,
            resource: None,
            detail: Detail::None,
            source: None,
        }))
    }

    /// The store did not answer: the request may have taken effect, and a retry may succeed.
    #[must_use]
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, message).applied_unknown().retry_later()
    }

    /// A bounded wait ended.
    #[must_use]
    pub fn busy_with(busy: Busy) -> Self {
        Self::new(ErrorKind::Busy, String::new()).retry_later().edit(|inner| inner.detail = Detail::Busy(busy))
    }

    /// The lock was lost.
    #[must_use]
    pub fn lost(reason: LossReason) -> Self {
        Self::new(ErrorKind::Lost, String::new()).edit(|inner| inner.detail = Detail::Loss(reason))
    }

    /// This client released the lock, or handed it over.
    pub(crate) fn released() -> Self {
        let message = "this client has released the lock, or handed it over";
        Self::new(ErrorKind::Lost, message).edit(|inner| inner.detail = Detail::Released)
    }

    /// Another explicit capacity is stored.
    #[must_use]
    pub fn spec_mismatch(stored: Limit, asked: Limit) -> Self {
        let message = format!("its capacity is {stored}, not {asked}, while other claims use it");
        Self::new(ErrorKind::SpecMismatch, message).edit(|inner| inner.detail = Detail::Stored(stored))
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        // Clones are not changed.
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// This error, of a request that may have taken effect.
    #[must_use]
    pub fn applied_unknown(self) -> Self {
        self.edit(|inner| inner.applied = Applied::Unknown)
    }

    /// This error, with a retry at once.
    #[must_use]
    pub fn retry_now(self) -> Self {
        self.edit(|inner| inner.retry = Retry::Now)
    }

    /// This error, with a retry after a pause.
    #[must_use]
    pub fn retry_later(self) -> Self {
        self.edit(|inner| inner.retry = Retry::Later)
    }

    /// This error, with the store it came from.
    #[must_use]
    pub fn on(self, scheme: &'static str) -> Self {
        self.edit(|inner| inner.scheme = Some(scheme))
    }

    /// This error, with the operation that failed.
    #[must_use]
    pub fn during(self, operation: &'static str) -> Self {
        self.edit(|inner| inner.operation = Some(operation))
    }

    /// This error, with the resource it is about.
    #[must_use]
    pub fn about(self, resource: &ResourceName) -> Self {
        self.edit(|inner| inner.resource = Some(resource.clone()))
    }

    /// This error, with its cause.
    #[must_use]
    pub fn because(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = source.into();
        self.edit(|inner| inner.source = Some(Arc::from(source)))
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether it may have taken effect.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.0.applied
    }

    /// Whether to try again.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The store's URL scheme.
    #[must_use]
    pub fn scheme(&self) -> Option<&'static str> {
        self.0.scheme
    }

    /// The verb that failed.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The resource it is about.
    #[must_use]
    pub fn resource(&self) -> Option<&ResourceName> {
        self.0.resource.as_ref()
    }

    /// Who holds the lock, if this is [`ErrorKind::Busy`].
    #[must_use]
    pub fn busy(&self) -> Option<&Busy> {
        if let Detail::Busy(busy) = &self.0.detail { Some(busy) } else { None }
    }

    /// Why the lock was lost, if this is [`ErrorKind::Lost`]; `None` if this client released it itself.
    #[must_use]
    pub fn loss(&self) -> Option<&LossReason> {
        if let Detail::Loss(reason) = &self.0.detail { Some(reason) } else { None }
    }

    /// The stored capacity, if this is [`ErrorKind::SpecMismatch`].
    #[must_use]
    pub fn stored_capacity(&self) -> Option<Limit> {
        if let Detail::Stored(limit) = self.0.detail { Some(limit) } else { None }
    }

    /// What to do next, in one sentence; empty if there is no general advice.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.0.kind {
            ErrorKind::Busy => "Wait longer, or inspect the lock to see who holds it.",
            ErrorKind::Lost if matches!(self.0.detail, Detail::Released) => {
                "Take the lock again before you change what it protects."
            }
            ErrorKind::Lost => "Stop changing what the lock protects; another process may hold it now.",
            ErrorKind::SelfDeadlock => "Release the guard that this owner already has, or use another owner.",
            ErrorKind::SpecMismatch => {
                "Use the stored capacity, or call use_stored_permits() while a change rolls out."
            }
            ErrorKind::TooHeavy => "Ask for fewer units, or give the resource a larger capacity.",
            ErrorKind::Upgrade => "Release the lock and ask for the heavier one; upgrading in place can deadlock.",
            ErrorKind::InvalidName => "Names are text of 1 to 1024 bytes.",
            ErrorKind::Config => "Check the URL and its options.",
            ErrorKind::Unsupported => "Choose another store, or another kind of lock.",
            ErrorKind::Unreachable => "Check that the store runs and can be reached from here.",
            ErrorKind::Denied => "Check the credentials and permissions.",
            ErrorKind::CannotCreate => "Check the directory's permissions and free space, or name another one.",
            ErrorKind::Foreign => "Another program wrote this entry; use another name or prefix.",
            ErrorKind::NewerFormat => "Upgrade this program.",
            ErrorKind::FenceExhausted => "Use a fresh name.",
            ErrorKind::TooManyWaiters => "Wait in fewer tasks at once, or raise max_waiters.",
            ErrorKind::Closed => "Connect again.",
            ErrorKind::InvalidClaim | ErrorKind::Os | ErrorKind::Internal => "",
        }
    }
}

impl Error {
    /// The error of a client library or of the operating system that caused this one. `Display` shows it, so
    /// [`source`](std::error::Error::source) continues behind it.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Os, "cannot open the directory").because(std::io::Error::other("disk"));
    /// assert!(error.cause().is_some_and(|cause| cause.is::<std::io::Error>()));
    /// ```
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match &inner.detail {
            Detail::Busy(busy) => return text::write_busy(f, inner.resource.as_ref(), busy),
            Detail::Loss(reason) => {
                if let Some(name) = &inner.resource {
                    write!(f, "{}: ", text::quoted(name.as_str()))?;
                }
                return write!(f, "lock lost: {reason}");
            }
            Detail::None | Detail::Released | Detail::Stored(_) => {}
        }
        if let Some(scheme) = inner.scheme {
            write!(f, "{scheme}: ")?;
        }
        if let Some(operation) = inner.operation {
            write!(f, "{operation} ")?;
        }
        if let Some(name) = &inner.resource {
            write!(f, "{}: ", text::quoted(name.as_str()))?;
        } else if inner.operation.is_some() {
            f.write_str("failed: ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.to_string())
            .field("applied", &self.0.applied)
            .field("retry", &self.0.retry)
            .field("source", &self.0.source)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    /// What the [cause](Error::cause) of this error was caused by: `Display` shows the cause itself.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref()?.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_a_clone_does_not_change_the_original() {
        let name = ResourceName::new("job").unwrap();
        let first = Error::unreachable("no answer").because(std::io::Error::other("broken pipe"));
        let clone = first.clone().during("renew").about(&name);
        assert_eq!(clone.to_string(), r#"renew "job": no answer: broken pipe"#);
        assert_eq!(first.to_string(), "no answer: broken pipe");
    }

    #[test]
    fn a_chain_of_causes_names_each_once() {
        let root = std::io::Error::other("broken pipe");
        let error = Error::unreachable("no answer").because(Error::unreachable("no connection").because(Wrapped(root)));
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let all: Vec<_> = chain.map(ToString::to_string).collect();
        assert_eq!(all, ["no answer: no connection: it was closed", "broken pipe"]);
    }

    /// An error that does not show its cause.
    #[derive(Debug)]
    struct Wrapped(std::io::Error);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("it was closed")
        }
    }

    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_hint_of_a_lock_that_was_released_here_speaks_of_no_other_process() {
        let (released, lost) = (Error::released(), Error::lost(LossReason::Expired));
        assert_eq!((released.kind(), released.loss()), (ErrorKind::Lost, None));
        assert!(released.to_string().contains("this client has released"), "{released}");
        assert!(!released.hint().contains("process") && lost.hint().contains("process"), "{}", released.hint());
    }

    #[test]
    fn an_error_says_what_where_and_why_on_one_line() {
        let name = ResourceName::new("job\n1").unwrap();
        let cause = std::io::Error::other("broken pipe");
        let error = Error::unreachable("no answer").on("local").during("attempt").about(&name).because(cause);
        assert_eq!(error.to_string(), r#"local: attempt "job\n1": no answer: broken pipe"#);
        assert_eq!((error.applied(), error.retry()), (Applied::Unknown, Retry::Later));
        assert!(!error.hint().is_empty());
    }
}
