//! `oarlock ls`: what is held or waited for.

use std::time::Duration;

use oarlock::state::ResourceState;
use oarlock::{Error, ErrorKind, Locks};
use oarlock_core::pattern::matches;
use oarlock_core::text::{holder, plain, span};
use serde_json::Value;

use crate::args::StoreArgs;
use crate::cmd::Examples;
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::store::{Store, block_on};

/// List the locks that are held or waited for
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Only names that match, with * and ?
    pub(crate) pattern: Option<String>,
    /// Scan the whole store: slow, and also finds the locks of other programs
    #[arg(long)]
    pub(crate) scan: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) const EXAMPLES: Examples = &[
    ("oarlock ls 'deploy/*'", "The locks in use whose names begin so."),
    ("oarlock -p prod ls -o json", "On a store of the configuration file, for a program."),
];

pub(crate) fn main(args: &LsArgs) -> Result<Exit, Failure> {
    let store = Store::new(&args.store)?;
    let mut states = block_on(async { list(&store, &store.connect().await?, args.scan).await })?;
    if let Some(pattern) = &args.pattern {
        states.retain(|state| matches(pattern, state.name.as_str()));
    }
    match store.messages.format {
        Format::Table => output::print(&table(&states))?,
        Format::Json => output::print_json(&states.iter().map(output::resource_json).collect::<Value>())?,
        Format::Jsonl => {
            for state in &states {
                output::print_line(&output::resource_json(state).to_string())?;
            }
        }
        Format::Name => {
            for state in &states {
                output::print_line(&plain(state.name.as_str()))?;
            }
        }
    }
    Ok(Code::Success.into())
}

/// How long it reads a whole store without having been told to.
const PATIENCE: Duration = Duration::from_secs(2);

async fn list(store: &Store, locks: &Locks, scan: bool) -> Result<Vec<ResourceState>, Failure> {
    if scan {
        return Ok(locks.scan().await?);
    }
    let states = in_use(locks).await.map_err(|error| without_index(error, "show"))?;
    if !locks.info().capabilities.listing {
        store.messages.note(EVERY_KEY);
    }
    Ok(states)
}

/// What a listing of a layout without an index costs.
pub(crate) const EVERY_KEY: &str = "this store has no index of its locks: every key is read, as with ls --scan";

/// The locks in use. A layout without an index of them is scanned, where that takes no longer than [`PATIENCE`].
pub(crate) async fn in_use(locks: &Locks) -> oarlock::Result<Vec<ResourceState>> {
    if locks.info().capabilities.listing {
        return locks.list().await;
    }
    let refused = |more| Error::new(ErrorKind::Unsupported, format!("this store has no index of its locks{more}"));
    match tokio::time::timeout(PATIENCE, locks.scan()).await {
        Ok(Err(error)) if error.kind() == ErrorKind::Unsupported => Err(refused("")),
        Ok(scanned) => scanned,
        Err(_) => Err(refused(", and to read every key takes longer than 2 s (ls --scan does it)")),
    }
}

/// The failure of a listing. `instead` is the subcommand that takes a name, for stores that list none.
pub(crate) fn without_index(error: Error, instead: &str) -> Failure {
    if error.kind() != ErrorKind::Unsupported {
        return error.into();
    }
    Failure::new(Code::Config, format!("{error}: name a lock instead, as in \"oarlock {instead} NAME\""))
}

fn table(states: &[ResourceState]) -> String {
    let head = ["NAME", "KIND", "HOLDER", "SINCE", "LEASE LEFT", "FENCE", "WAITERS"];
    let mut rows = Vec::new();
    for state in states {
        let name = plain(state.name.as_str());
        let kind = state.kind().map_or_else(|| "-".to_owned(), |kind| kind.to_string());
        if state.holders.is_empty() {
            let dash = || "-".to_owned();
            rows.push(vec![name, kind, dash(), dash(), dash(), dash(), output::waiters(state)]);
            continue;
        }
        for (index, held) in state.holders.iter().enumerate() {
            rows.push(vec![
                name.clone(),
                held.kind.to_string(),
                holder(&held.label),
                if output::since_is_known(held) { span(held.held_for) } else { "-".to_owned() },
                span(held.lease_left),
                held.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string()),
                if index == 0 { output::waiters(state) } else { String::new() },
            ]);
        }
    }
    output::table(&head, &rows)
}
