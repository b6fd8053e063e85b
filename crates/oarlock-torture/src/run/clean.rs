//! Ends what an interrupted run left in a store, and nothing else.

use std::time::Duration;

use oarlock_core::state::{ResourceState, Waiters};
use oarlock_core::{Ending, Error, ErrorKind, Locks, Result};

use crate::worker::PREFIX;

/// The names of the locks of a run.
pub const LOCKS: [&str; 4] = ["a", "b", "rw", "permits"];

/// The run that a name in a store belongs to; `None` for names that no run has made.
#[must_use]
pub fn run_of(name: &str) -> Option<&str> {
    let (run, lock) = name.strip_prefix(PREFIX)?.split_once('/')?;
    (is_run(run) && LOCKS.contains(&lock)).then_some(run)
}

/// Whether this has the form of the name of a run: when it began, and its process, in hexadecimal digits.
#[must_use]
pub fn is_run(text: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.len() <= 16 && part.bytes().all(|b| b.is_ascii_hexdigit());
    text.split_once('-').is_some_and(|(began, process)| hex(began) && hex(process))
}

/// The names of locks that runs hold, or have left: of `run`, or of all.
///
/// # Errors
/// Any error that the store returns; [`ErrorKind::Unsupported`] where it cannot list names.
pub async fn left(locks: &Locks, run: Option<&str>) -> Result<Vec<ResourceState>> {
    let mut states = locks.list().await?;
    states.retain(|state| run_of(state.name.as_str()).is_some_and(|of| run.is_none_or(|run| run == of)));
    Ok(states)
}

/// Ends every claim of `run`, or of all runs, also of those that go on. Says of which locks.
///
/// # Errors
/// As [`left`]; [`ErrorKind::Config`] for a `run` that cannot be one.
pub async fn clean(locks: &Locks, run: Option<&str>) -> Result<Vec<String>> {
    if let Some(run) = run.filter(|run| !is_run(run)) {
        let what = format!("{} is not the name of a run", oarlock_core::text::quoted(run));
        return Err(Error::new(ErrorKind::Config, what));
    }
    let mut cleaned = Vec::new();
    for state in left(locks, run).await? {
        if end_claims(locks, &state).await? {
            cleaned.push(state.name.to_string());
        }
    }
    Ok(cleaned)
}

/// Ends the claims of one lock; false if it has none.
pub(super) async fn end_claims(locks: &Locks, state: &ResourceState) -> Result<bool> {
    let waiters = match &state.waiters {
        Waiters::Listed(waiters) => waiters.iter().map(|waiter| waiter.id).collect(),
        _ => Vec::new(),
    };
    // The queue first, or its head would be granted what a holder gives up.
    let ids: Vec<_> = waiters.into_iter().chain(state.holders.iter().map(|holder| holder.id)).collect();
    for id in &ids {
        let ending = Ending::new("oarlock torture", "left over from a run");
        locks.break_claim(&state.name, *id, ending, Duration::ZERO).await?;
    }
    Ok(!ids.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_runs_are_its_own() {
        assert_eq!(run_of("oarlock-torture/6afc832a-42b/permits"), Some("6afc832a-42b"));
        for name in [
            "torture/6afc832a-42b/a",
            "oarlock-torture/nightly",
            "oarlock-torture/nightly/a",
            "oarlock-torture/6afc832a-42b/backup",
            "oarlock-torture/6afc832a-42b/a/b",
            "oarlock-torture/6afc832a-/a",
            "oarlock-torture/a",
            "x/oarlock-torture/6afc832a-42b/a",
        ] {
            assert_eq!(run_of(name), None, "{name}");
        }
    }

    #[tokio::test]
    async fn other_locks_stay() {
        let locks = Locks::over(oarlock_core::Memory::new()).unwrap();
        let mine = locks.mutex("oarlock-torture/nightly/a").lock().await.unwrap();
        let other = locks.mutex("oarlock-torture/6afc832a-1/a").lock().await.unwrap();
        let _left = locks.mutex("oarlock-torture/6afc832a-2/a").lock().await.unwrap();
        assert_eq!(left(&locks, None).await.unwrap().len(), 2);
        assert_eq!(clean(&locks, Some("6afc832a-2")).await.unwrap(), ["oarlock-torture/6afc832a-2/a"]);
        assert_eq!(clean(&locks, Some("nightly")).await.unwrap_err().kind(), ErrorKind::Config);
        assert!(mine.is_held() && other.is_held());
        assert_eq!(clean(&locks, None).await.unwrap(), ["oarlock-torture/6afc832a-1/a"]);
        other.lost().await;
        assert!(mine.is_held());
    }
}
