//! Histories of runs: judged again, drawn, or run again.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use oarlock_core::text::quoted;
use oarlock_torture::judge::judge;
use oarlock_torture::record::{FaultKind, OARLOCK, Record};
use oarlock_torture::render;

use crate::cmd::torture::{ReplayArgs, TortureRunArgs};
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::torture::show;

pub(crate) fn read(path: &Path) -> Result<Record, Failure> {
    let shown = oarlock_core::text::plain(&path.display().to_string());
    let file = File::open(path).map_err(|error| Failure::os(&format!("cannot read {shown}"), error))?;
    Record::read(BufReader::new(file)).map_err(|error| {
        // What the file says may be in the message.
        let error = oarlock_core::text::plain(&error.to_string());
        Failure::new(Code::Config, format!("{shown}: {error}"))
    })
}

pub(crate) fn check(path: &Path, format: Format) -> Result<Exit, Failure> {
    let record = read(path)?;
    show::judgement(&record, &judge(&record), None, format)
}

/// The page goes to standard output whatever the verdict is, so that it can be looked at.
pub(crate) fn render(path: &Path) -> Result<Exit, Failure> {
    let record = read(path)?;
    output::print(&render::page(&record, &judge(&record)))?;
    Ok(Code::Success.into())
}

/// The run of a history, as the command line would name it.
pub(crate) fn replayed(args: &ReplayArgs) -> Result<TortureRunArgs, Failure> {
    let header = read(&args.file)?.header;
    // Programs are never taken from the file: people send histories to each other.
    if header.lock != OARLOCK && args.with.is_none() {
        let library = quoted(&header.lock);
        return Err(Failure::usage(format!(
            "this is a history of another library: name it with --with (it was {library})"
        )));
    }
    if let Some(also) = header.also.as_deref().filter(|_| args.also.is_none()) {
        let build = quoted(also);
        return Err(Failure::usage(format!(
            "every second worker was another build: name it with --also (it was {build})"
        )));
    }
    // Without its command, or with another fault more, the seed means another storm.
    match (header.faults.contains(&FaultKind::Command), args.fault_cmd.is_some()) {
        (true, false) => {
            return Err(Failure::usage("this run also broke the servers: name its command with --fault-cmd"));
        }
        (false, true) => return Err(Failure::usage("this run had no fault command: leave --fault-cmd out")),
        _ => {}
    }
    Ok(TortureRunArgs {
        duration: Duration::from_millis(header.duration_ms),
        seed: Some(header.seed),
        workers: header.workers.clamp(2, 64),
        ttl: Duration::from_millis(header.ttl_ms),
        rate: Some(header.rate.clamp(1, 5000)),
        fault_cmd: args.fault_cmd.clone(),
        faults: header.faults,
        with: args.with.clone(),
        beside: header.beside,
        also: args.also.clone(),
        server: args.server.clone(),
        by_hand: header.by_hand,
        fault_loses_data: header.loses_data && args.fault_cmd.is_some(),
        no_network: false,
        history: args.history.clone(),
        store: args.store.clone(),
    })
}
