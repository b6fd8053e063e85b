//! Compares the speed of lock libraries: one run, one store after the other, one library after the other.

mod contestants;
mod grants;
mod measure;
mod page;
mod plot;
mod progress;
mod table;

use anyhow::Result;

use crate::args::Args;
use crate::clients::MEASURED;
use contestants::{ARENAS, Arena, IN_RUST};
use grants::Contention;
use measure::{LOAD_TURNS, LoadRows, PairRows, TURNS};
use progress::Progress;

/// What `--only` can name besides the clients: stores, and libraries that are only measured.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let measured = MEASURED.iter().map(|client| client.name);
    ARENAS.iter().map(|arena| arena.name).chain(IN_RUST.iter().map(|(name, _)| *name)).chain(measured)
}

/// What was measured on one store.
struct Figures {
    arena: &'static Arena,
    pairs: Vec<PairRows>,
    loads: Vec<LoadRows>,
    /// Of the other libraries.
    versions: Vec<(&'static str, String)>,
}

/// Measures, and prints the tables. Where everything was measured, it writes the page.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let arenas: Vec<_> = Arena::asked(args).collect();
    anyhow::ensure!(!arenas.is_empty(), "nothing to do: what was asked for is not measured on any store");
    let mut steps = 0;
    for arena in &arenas {
        steps += arena.count(args)? * (arena.tasks.len() * (TURNS + 1) + arena.shapes.len() * LOAD_TURNS);
    }
    let mut progress = Progress::of(steps);
    let mut all = Vec::new();
    for arena in &arenas {
        progress.store(arena.name);
        let figures = measure_store(arena, args, &mut progress).await?;
        progress.end();
        println!("## {}\n\n{}\n{}", arena.title, table::pairs(&figures.pairs), table::loads(&figures.loads));
        all.push(figures);
    }
    if args.is_everything() {
        page::write(&args.root, &all)?;
        println!("docs/benchmarks.md was written");
    }
    Ok(())
}

async fn measure_store(arena: &'static Arena, args: &Args, progress: &mut Progress) -> Result<Figures> {
    let servers = arena.start().await?;
    let mut all = arena.contestants(args, &servers)?;
    // Oarlock makes what its store needs, such as the schema that the baseline has its table in, too.
    if let Some(ours) = all.get_mut(1) {
        ours.peers(1).await?;
    }
    let (mut pairs, mut loads) = (Vec::new(), Vec::new());
    for tasks in arena.tasks {
        pairs.push((*tasks, measure::pairs(&mut all, *tasks, progress).await?));
    }
    for shape in arena.shapes {
        loads.push((*shape, measure::loads(&mut all, *shape, &servers, progress).await?));
    }
    let versions = all.iter().filter_map(|contestant| Some((contestant.shown, contestant.version.clone()?)));
    let versions = versions.filter(|(_, version)| version != "this").collect();
    Ok(Figures { arena, pairs, loads, versions })
}

#[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

fn hand_offs(row: &Contention) -> f64 {
    rate(row.hand_offs, row.time.as_secs_f64())
}
