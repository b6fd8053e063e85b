//! One client in one version against Oarlock: every case, on servers of their own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use crate::cases::{self, Case, Outcome};
use crate::clients::Client;
use crate::fences;
use crate::matrix::{Cell, Kinds, Row};
use crate::process::{Peer, Trouble};
use crate::servers::Servers;

/// How many processes of each side count together.
const COUNTERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Pairing {
    pub(crate) client: &'static Client,
    pub(crate) command: Vec<String>,
    /// More rounds.
    pub(crate) all: bool,
}

/// Several processes of one side.
type Side = Vec<Arc<Peer>>;

impl Pairing {
    pub(crate) async fn run(self) -> Row {
        let mut row = Row {
            client: self.client.name.to_owned(),
            version: "?".to_owned(),
            store: Servers::shown(self.client.store),
            cells: Vec::new(),
            kinds: Vec::new(),
            fences: Vec::new(),
        };
        match self.meet().await {
            Ok((servers, ours, theirs)) => {
                row.version = theirs.first().map_or_else(String::new, |peer| peer.version.clone());
                // First, before processes are killed.
                row.kinds = self.kinds(&ours, &theirs).await;
                row.fences = self.fences(&servers, &ours, &theirs).await;
                row.cells = self.cells(&ours, &theirs).await;
                // Servers are stopped by calls that block.
                let _ = tokio::task::spawn_blocking(move || drop(servers)).await;
            }
            Err(error) => {
                let why = format!("{error:#}");
                row.cells = Case::ALL.iter().map(|case| (*case, Cell::Red(why.clone()))).collect();
            }
        }
        row
    }

    async fn meet(&self) -> Result<(Servers, Side, Side)> {
        let store = self.client.store;
        let servers = tokio::task::spawn_blocking(move || Servers::start(store)).await??;
        let lease = self.client.terms.lease;
        let ours = start(&our_command()?, &servers.ours(lease), lease).await?;
        let theirs = start(&self.command, &servers.theirs(), lease).await?;
        Ok((servers, ours, theirs))
    }

    /// For each pair of kinds: they to us, and we to them.
    async fn kinds(&self, ours: &Side, theirs: &Side) -> Vec<Kinds> {
        let (Some(us), Some(them)) = (ours.first(), theirs.first()) else { return Vec::new() };
        let mut kinds = Vec::new();
        for (their_kind, our_kind) in self.client.kinds {
            let they_to_us = cell(cases::excludes((them, their_kind), (us, our_kind)).await);
            let we_to_them = cell(cases::excludes((us, our_kind), (them, their_kind)).await);
            kinds.push(Kinds { theirs: their_kind, ours: our_kind, they_to_us, we_to_them });
        }
        kinds
    }

    /// Where fences come from one counter: that they do.
    async fn fences(&self, servers: &Servers, ours: &Side, theirs: &Side) -> Vec<(&'static str, Cell)> {
        let (Some(kind), Some(us), Some(them)) = (self.client.fenced, ours.first(), theirs.first()) else {
            return Vec::new();
        };
        let lease = self.client.terms.lease;
        let minter =
            async { Peer::start(&our_command()?, &format!("{}&tokens=yes", servers.ours(lease)), lease).await };
        match minter.await {
            Ok(minter) => fences::all(servers, (them, kind), (us, "mutex"), (&minter, "mutex"))
                .await
                .map(|(who, outcome)| (who, cell(outcome)))
                .into(),
            Err(error) => vec![("?", Cell::Red(format!("{error:#}")))],
        }
    }

    async fn cells(&self, ours: &Side, theirs: &Side) -> Vec<(Case, Cell)> {
        // One of each side is there to be killed. Another of ours is broken: where a connection is ended to that end,
        // all that is held on it is lost.
        let ([us, frail, .., our_victim], [them, .., their_victim]) = (ours.as_slice(), theirs.as_slice()) else {
            return Vec::new();
        };
        let terms = self.client.terms;
        let rounds = if self.all { 15 } else { 5 };
        let mut cells = vec![
            (Case::WeWait, cell(cases::waits(terms, them, us, rounds, self.client.we_notice).await)),
            (Case::TheyWait, cell(cases::waits(terms, us, them, rounds, self.client.they_notice).await)),
        ];
        let count = if self.all && self.client.stalls.is_none() { 50 } else { 10 };
        cells.push(match self.client.stalls {
            Some(why) if !self.all => (Case::Counter, Cell::Absent(format!("only where all was asked for: {why}"))),
            _ => (Case::Counter, cell(cases::counts(terms, ours, theirs, count).await)),
        });
        // These mostly wait, on names of their own.
        let (renew_them, renew_us, again_them, again_us, break_them, break_us, kill_them, kill_us) = tokio::join!(
            cases::renews(terms, them, us),
            cases::renews(terms, us, them),
            cases::enters_again(terms, them, us),
            cases::enters_again(terms, us, them),
            cases::is_broken(terms, them, us),
            cases::is_broken(terms, frail, them),
            cases::is_killed(terms, their_victim, us),
            cases::is_killed(terms, our_victim, them),
        );
        cells.extend(
            [
                (Case::TheyRenew, renew_them),
                (Case::WeRenew, renew_us),
                (Case::TheyEnterAgain, again_them),
                (Case::WeEnterAgain, again_us),
                (Case::WeBreakThem, break_them),
                (Case::TheyBreakUs, break_us),
                (Case::TheyAreKilled, kill_them),
                (Case::WeAreKilled, kill_us),
            ]
            .map(|(case, outcome)| (case, cell(outcome))),
        );
        cells
    }
}

/// How a peer of ours is started; the URL comes last.
fn our_command() -> Result<[String; 2]> {
    let us = std::env::current_exe()?.with_file_name("interop-peer");
    Ok([us.to_string_lossy().into_owned(), "oarlock".to_owned()])
}

async fn start(command: &[String], url: &str, lease: Duration) -> Result<Side> {
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..COUNTERS {
        let (command, url) = (command.to_vec(), url.to_owned());
        starting.spawn(async move { Peer::start(&command, &url, lease).await });
    }
    let mut side = Side::new();
    while let Some(peer) = starting.join_next().await {
        side.push(Arc::new(peer??));
    }
    Ok(side)
}

fn cell(outcome: Outcome) -> Cell {
    match outcome {
        Ok(figure) => Cell::Green(figure),
        Err(Trouble::Cannot(why)) => Cell::Absent(why),
        Err(Trouble::Failed(why)) => Cell::Red(why),
    }
}
