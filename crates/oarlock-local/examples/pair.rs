//! How long an uncontended attempt and its release take, beside a bare flock(2) pair on one open file.
//!
//! `cargo run --release -p oarlock-local --example pair -- [pairs] [directory]`

use std::time::Instant;

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::{Claim, ClaimId, Label, ResourceName};
use oarlock_local::{Config, Local};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let pairs: usize = args.next().map_or(Ok(50_000), |pairs| pairs.parse())?;
    let dir = match args.next() {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = runtime.block_on(Local::open(Config::new(dir.path().join("store"))))?;
    let file = std::fs::File::create(dir.path().join("bare"))?;
    // In turn, so that whatever else the machine does meets both.
    for round in 1..=3 {
        let mut bare = Vec::with_capacity(pairs);
        for _ in 0..pairs {
            let start = Instant::now();
            file.try_lock()?;
            file.unlock()?;
            bare.push(start.elapsed());
        }
        report(&format!("round {round}: flock"), bare);
        let ours = runtime.block_on(pairs_of(&store, pairs))?;
        report(&format!("round {round}: local"), ours);
    }
    Ok(())
}

async fn pairs_of(store: &Local, pairs: usize) -> Result<Vec<std::time::Duration>, Failure> {
    let name = ResourceName::new("deploy")?;
    let label = std::sync::Arc::new(Label::of_this_process());
    let mut spans = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let mut claim = Claim::new(ClaimId::from_bits(pair as u128), name.clone());
        claim.label = label.clone();
        let start = Instant::now();
        let Attempt::Granted(_) = store.attempt(&claim).await? else { return Err("not granted".into()) };
        store.release(&name, claim.id, &End::Done { memo: None }).await?;
        spans.push(start.elapsed());
    }
    Ok(spans)
}

fn report(what: &str, mut spans: Vec<std::time::Duration>) {
    spans.sort_unstable();
    let at = |part: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank"
        )]
        let rank = ((spans.len().saturating_sub(1)) as f64 * part) as usize;
        spans.get(rank).map_or(0.0, |span| span.as_secs_f64() * 1e6)
    };
    println!("{what}: p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs", at(0.5), at(0.99), at(0.999));
}
