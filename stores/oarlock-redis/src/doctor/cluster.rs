//! A cluster: are all slots served, and can each master be replaced?

use std::time::Duration;

use oarlock_core::Result;
use oarlock_core::doctor::{Report, within};

use super::server::Surroundings;
use super::{Asked, checks};
use crate::config::Host;
use crate::connection::{Connector, Login, Target};

/// Asks the first node that answers, and returns the masters.
pub(super) async fn examine(
    connector: &Connector,
    seeds: &[Host],
    limit: Duration,
    report: &mut Report,
) -> Vec<(Target, Surroundings)> {
    let mut nodes = None;
    for (host, port) in seeds {
        let target = Target::Tcp(host.clone(), *port);
        match within(limit, ask(connector, &target)).await {
            Ok(answer) => nodes = nodes.or(Some(answer)),
            Err(error) => report.on(&target.to_string()).failed(&error),
        }
    }
    let Some((state, nodes)) = nodes else { return Vec::new() };
    if let Some(broken) = state.lines().find(|line| line.starts_with("cluster_state:") && !line.contains(":ok")) {
        let reason = format!("{}: names in slots that no node serves cannot be locked", broken.trim());
        report.find(&checks::CLUSTER_DOWN, reason);
    }
    let nodes: Vec<_> = nodes.lines().filter_map(Node::read).collect();
    let masters: Vec<_> = nodes.iter().filter(|node| node.is("master") && node.slots).collect();
    if masters.len() < 3 || masters.len().is_multiple_of(2) {
        let reason = format!(
            "{} masters serve slots; a majority must agree on a successor, so that {} of them may fail",
            masters.len(),
            (masters.len().max(1) - 1) / 2
        );
        report.find(&checks::CLUSTER_MASTERS, reason);
    }
    let mut found = Vec::new();
    for master in masters {
        let name = master.target.to_string();
        let replicas = nodes.iter().filter(|node| node.master == master.id && !node.is("fail")).count();
        if replicas == 0 {
            let reason = "it has no replica: when it fails, the locks of its slots cannot be used until it is back";
            report.on(&name).find(&checks::CLUSTER_NO_REPLICA, reason);
        }
        let surroundings = if replicas == 0 { Surroundings::Alone } else { Surroundings::FailsOver };
        found.push((master.target.clone(), surroundings));
    }
    found
}

async fn ask(connector: &Connector, target: &Target) -> Result<(String, String)> {
    let node = Asked::open(connector, target, Login::User).await?;
    Ok((node.text(&["CLUSTER", "INFO"]).await?, node.text(&["CLUSTER", "NODES"]).await?))
}

/// A line of `CLUSTER NODES`.
struct Node<'a> {
    id: &'a str,
    target: Target,
    flags: &'a str,
    master: &'a str,
    slots: bool,
}

impl<'a> Node<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, address, flags, master) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let address = address.split(['@', ',']).next()?;
        let (host, port) = address.rsplit_once(':')?;
        let target = Target::Tcp(host.to_owned(), port.parse().ok()?);
        // Its pings, its epoch and its connection come before its slots.
        Some(Self { id, target, flags, master, slots: words.nth(4).is_some() })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|word| word == flag)
    }
}
