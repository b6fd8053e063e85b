//! The Sentinels: can they replace a master, and do they agree?

use std::collections::BTreeSet;
use std::time::Duration;

use oarlock_core::doctor::{Report, within};
use oarlock_core::{ErrorKind, Result};

use super::{Asked, cause, checks};
use crate::config::Host;
use crate::connection::{Connector, Login, Target};

/// Asks every Sentinel, and returns the masters that they name: one, if they agree.
pub(super) async fn examine(
    connector: &Connector,
    hosts: &[Host],
    master: &str,
    limit: Duration,
    report: &mut Report,
) -> Vec<Target> {
    let (mut masters, mut totals) = (BTreeSet::new(), BTreeSet::new());
    for (host, port) in hosts {
        let target = Target::Tcp(host.clone(), *port);
        let name = target.to_string();
        match within(limit, ask(connector, &target, master, &name, report)).await {
            Ok((named, total)) => {
                masters.insert(named);
                totals.insert(total);
            }
            Err(error) => report.on(&name).failed(&error),
        }
    }
    if let Some(&total) = totals.last().filter(|total| **total < 3 || total.is_multiple_of(2)) {
        let spare = (total.max(1) - 1) / 2;
        let reason = format!(
            "there are {total} Sentinels; a majority must agree on a failover, so that {spare} of them may fail"
        );
        report.find(&checks::SENTINEL_COUNT, reason);
    }
    if masters.len() > 1 {
        let named: Vec<_> = masters.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let reason = format!("they name different masters: {}. Two clients can hold one lock", named.join(" and "));
        report.find(&checks::SENTINEL_DISAGREE, reason);
    }
    masters.into_iter().map(|(host, port)| Target::Tcp(host, port)).collect()
}

async fn ask(
    connector: &Connector,
    target: &Target,
    master: &str,
    name: &str,
    report: &mut Report,
) -> Result<(Host, u64)> {
    let sentinel = match Asked::open(connector, target, Login::None).await {
        Err(error) if error.kind() == ErrorKind::Denied => Asked::open(connector, target, Login::Sentinel).await?,
        opened => opened?,
    };
    let state = sentinel.pairs(&["SENTINEL", "MASTER", master]).await?;
    let number = |field: &str| state.number::<u64>(field).unwrap_or_default();
    let (quorum, total) = (number("quorum"), number("num-other-sentinels").saturating_add(1));
    let mut on = report.on(name);
    on.fact("quorum", format!("{quorum} of {total} Sentinels, {} replicas", number("num-slaves")));
    if quorum.saturating_mul(2) <= total {
        let reason = format!(
            "its quorum is {quorum} of {total}: Sentinels without a majority can call the master down. Each needless \
             failover can lose grants"
        );
        on.find(&checks::SENTINEL_QUORUM, reason);
    }
    if let Err(error) = sentinel.ask(&["SENTINEL", "CKQUORUM", master]).await {
        if error.kind() == ErrorKind::Denied {
            on.cannot_tell("SENTINEL CKQUORUM");
        } else {
            on.find(&checks::SENTINEL_UNABLE, format!("it cannot replace the master: {}", cause(&error)));
        }
    } else if number("num-slaves") == 0 {
        on.find(&checks::SENTINEL_UNABLE, "the master has no replica that could take its place");
    }
    Ok(((state.text("ip").to_owned(), state.number("port").unwrap_or_default()), total))
}
