//! What the doctors of both databases examine in the same way: the servers of a URL that no client uses.

use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::doctor::{Check, Report, patience, within};
use oarlock_core::url::Url;

use crate::route::{Host, Route, Shown};

/// What a server says of itself.
pub(crate) struct Role {
    /// Whether it takes no writes, so that clients pass over it.
    pub(crate) is_read_only: bool,
    /// How long it took to say so.
    pub(crate) took: Duration,
}

/// Asks every server of the URL for its role, but the one that serves the clients. One that takes writes is
/// `two_primaries`.
pub(crate) async fn examine_others<F>(
    url: &Url,
    route: &Route,
    report: &mut Report,
    two_primaries: &'static Check,
    role: impl Fn(Host) -> F,
) where
    F: Future<Output = Result<Role>>,
{
    for host in route.others() {
        let address = Shown(host).to_string();
        let mut on = report.on(&address);
        match within(patience(url), role(host.clone())).await {
            Ok(Role { is_read_only, took }) => {
                on.latency(took);
                on.fact("role", if is_read_only { "read-only" } else { "takes writes" });
                if !is_read_only {
                    let primary = Shown(route.current()).to_string();
                    let reason =
                        format!("it takes writes, as {primary} does: each of them grants what the other has granted");
                    on.find(two_primaries, reason);
                }
            }
            Err(error) => on.failed(&error),
        }
    }
}
