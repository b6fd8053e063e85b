//! Which waiters of this process are notified: of what its own requests did, and of what its
//! [listener](crate::mysql::listener) heard.

use oarlock_core::driver::Waiters;

/// Notifies the claims that a step called: `<id in hexadecimal>@<session>,` for each, of which those of `session` are
/// ours.
pub(crate) fn tell(hub: &Waiters, called: &str, session: i64) {
    let called = called.split_terminator(',').filter_map(|one| one.split_once('@'));
    let ours = called.filter(|(_, theirs)| theirs.parse() == Ok(session)).filter_map(|(id, _)| id.parse().ok());
    ours.for_each(|id| _ = hub.notify(id, |()| ()));
}

#[cfg(test)]
mod tests {
    use oarlock_core::ClaimId;
    use oarlock_core::driver::Hint;

    use super::*;

    #[tokio::test]
    async fn only_our_own_are_told() {
        let hub = Waiters::default();
        let (mine, theirs) = (ClaimId::from_bits(1), ClaimId::from_bits(2));
        let (mut turn, mut other) = (hub.turn(mine), hub.turn(theirs));
        tell(&hub, &format!("{theirs}@8,{mine}@7,"), 7);
        assert_eq!(turn.changed().await, Some(Hint::about(mine)));
        hub.end();
        assert_eq!(other.changed().await, None, "told of another's turn");
    }
}
