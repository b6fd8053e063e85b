//! `oarlock demo`: what goes wrong without a lock, and what helps, played on your own store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oarlock::Locks;
use serde_json::Value;

use crate::cmd::Examples;
use crate::demo::args::{DemoArgs, DemoCommand, FlashSaleArgs, OncallArgs, OversellArgs};
use crate::demo::database::{self, Database, Shelves};
use crate::demo::show::{self, Stage};
use crate::demo::strategy::{Strategy, judge};
use crate::demo::trouble::{Boxed, failure};
use crate::demo::{chart, flash_sale, oncall, oversell};
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::progress;
use crate::signals::{self, FORWARDED, Signals};
use crate::store::Store;

/// How many of those who lock have a connection of their own.
const SHOPS: usize = 4;
/// How long taking everything away may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) const EXAMPLES: Examples = &[("oarlock demo oversell", "See what goes wrong without a lock.")];

pub(crate) fn main(args: &DemoArgs) -> Result<Exit, Failure> {
    let store = Store::new(args.command.store())?;
    if let DemoCommand::FlashSale(sale) = &args.command
        && !(Duration::from_millis(50)..=Duration::from_secs(60)).contains(&sale.duration)
    {
        return Err(Failure::usage("--duration is 50ms to 1m"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let result = runtime.block_on(open(&args.command, &store));
    runtime.shutdown_background();
    result
}

/// Finds the places that the URL has for rows and for stock, and plays there.
async fn open(demo: &DemoCommand, store: &Store) -> Result<Exit, Failure> {
    let url = &store.url;
    // From before anything is made, so that nothing is left of it.
    let signals = Signals::new(FORWARDED.iter().copied())?;
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    let what = format!("making tables in {url}");
    #[cfg(feature = "postgres")]
    if url.driver() == "postgres" {
        let database = progress::during(store.messages, &what, database::postgres::Pg::make(url)).await?;
        return play(demo, store, &database, &database, signals).await;
    }
    #[cfg(feature = "mysql")]
    if url.driver() == "mysql" {
        let database = progress::during(store.messages, &what, database::mysql::Maria::make(url)).await?;
        return play(demo, store, &database, &database, signals).await;
    }
    #[cfg(feature = "redis")]
    if database::redis::is_one(url) || database::redis::is_many(url) {
        let rows = || database::sqlite::Lite::make().map_err(|error| failure(&error));
        return if database::redis::is_many(url) {
            let stock = database::redis::Many::new(url).map_err(|error| failure(&error))?;
            let rows = rows()?;
            play(demo, store, &rows, &stock, signals).await
        } else {
            let stock = database::redis::One::new(url).map_err(|error| failure(&error))?;
            let rows = rows()?;
            play(demo, store, &rows, &stock, signals).await
        };
    }
    if matches!(demo, DemoCommand::FlashSale(_)) && url.driver() != "local" {
        let message = format!(
            "flash-sale needs a store that keeps stock, and {}: is none for it. Use local:, postgres://, mysql://, redis:// or redis+cluster://",
            url.scheme()
        );
        return Err(Failure::new(Code::Config, message));
    }
    let database = database::sqlite::Lite::make().map_err(|error| failure(&error))?;
    play(demo, store, &database, &database, signals).await
}

/// Plays to the end or to a signal, and takes everything away.
async fn play<B: Database, S: Shelves>(
    demo: &DemoCommand,
    store: &Store,
    database: &B,
    shelves: &S,
    mut signals: Signals,
) -> Result<Exit, Failure> {
    let name = database::own_name();
    let played = tokio::select! {
        biased;
        signal = signals.stop() => Ok(Exit::signal(signal.as_raw())),
        played = story(demo, store, database, shelves, &name) => played,
    };
    let tidied = tokio::time::timeout(PATIENCE, tidy(demo, database, shelves, &name)).await;
    let left = match tidied {
        Ok(Ok(())) => return played,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the store took too long".to_owned(),
    };
    // Where all has failed already that is no news.
    if played.is_ok() {
        store.messages.warning(&format!("something named {name} may be left in {}: {left}", shelves.what()));
    }
    played
}

async fn tidy<B: Database, S: Shelves>(demo: &DemoCommand, database: &B, shelves: &S, name: &str) -> Result<(), Boxed> {
    let items = match demo {
        DemoCommand::Oversell(_) => vec![name.to_owned()],
        DemoCommand::Oncall(_) => Vec::new(),
        DemoCommand::FlashSale(args) => sale(args, name).names(),
    };
    let tidied = shelves.tidy(&items).await;
    database.clear().await?;
    tidied
}

fn shop(args: &OversellArgs, name: &str) -> oversell::Plan {
    oversell::Plan {
        buyers: args.buyers.into(),
        items: args.items.into(),
        tills: args.tills.into(),
        sabotage: args.sabotage.as_deref().and_then(Strategy::protection),
        name: name.to_owned(),
    }
}

fn ward(args: &OncallArgs, name: &str) -> oncall::Plan {
    oncall::Plan {
        nights: args.nights.into(),
        sabotage: args.sabotage.as_deref().and_then(Strategy::protection),
        in_turn: args.in_turn,
        name: name.to_owned(),
    }
}

fn sale(args: &FlashSaleArgs, name: &str) -> flash_sale::Plan {
    flash_sale::Plan {
        takers: args.takers,
        segments: args.segments.clone(),
        duration: args.duration,
        sabotage: args.sabotage,
        name: name.to_owned(),
    }
}

async fn story<B: Database, S: Shelves>(
    demo: &DemoCommand,
    store: &Store,
    database: &B,
    shelves: &S,
    name: &str,
) -> Result<Exit, Failure> {
    let stage = Stage { store: store.url.scheme(), rows: database.what(), stock: shelves.what() };
    match demo {
        DemoCommand::Oversell(args) => {
            let (plan, locks) = (Arc::new(shop(args, name)), shops(store).await?);
            let outcomes = oversell::run(&plan, database, shelves, &locks).await.map_err(|error| failure(&error));
            close(locks).await;
            let outcomes = outcomes?;
            let judged = judge(&outcomes);
            let json = || show::ways_json("oversell", &stage, &outcomes, judged.is_ok());
            tell(store, || show::oversell(&plan, &stage, &outcomes), json)?;
            judged
        }
        DemoCommand::Oncall(args) => {
            let (plan, locks) = (Arc::new(ward(args, name)), shops(store).await?);
            let outcomes = oncall::run(&plan, database, &locks).await.map_err(|error| failure(&error));
            close(locks).await;
            let outcomes = outcomes?;
            let judged = judge(&outcomes);
            let json = || show::ways_json("oncall", &stage, &outcomes, judged.is_ok());
            tell(store, || show::oncall(&plan, &stage, &outcomes), json)?;
            judged
        }
        DemoCommand::FlashSale(args) => {
            store.say_if_implied();
            let plan = Arc::new(sale(args, name));
            let findings = flash_sale::run(&plan, shelves).await.map_err(|error| failure(&error))?;
            let file = draw(args, &plan, &stage, &findings)?;
            let text = || format!("{}\nDrawn in {}\n", show::flash_sale(&plan, &stage, &findings), file.display());
            tell(store, text, || show::flash_sale_json(&plan, &stage, &findings, &file.display().to_string()))?;
            if findings.is_right() {
                return Ok(Code::Success.into());
            }
            Err(Failure::new(
                Code::Internal,
                "units were promised twice, or are gone: what was told and what is written differ",
            ))
        }
    }
}

/// The locks of each shop, over connections of their own.
async fn shops(store: &Store) -> Result<Vec<Locks>, Failure> {
    let mut locks = Vec::new();
    for _ in 0..SHOPS {
        let mut label = oarlock::Label::of_this_process();
        label.reason = Some("demo".to_owned());
        locks.push(oarlock::builder(store.url.clone()).label(label).connect().await?);
    }
    store.say_if_implied();
    Ok(locks)
}

async fn close(locks: Vec<Locks>) {
    for locks in locks {
        // Nothing is held any more; what the store does not hear now, it learns from the end of the session.
        let _ = locks.shutdown(PATIENCE / 10).await;
    }
}

fn tell(store: &Store, text: impl Fn() -> String, json: impl Fn() -> Value) -> Result<(), Failure> {
    match store.messages.format {
        Format::Table | Format::Name => output::print(&text()),
        Format::Json => output::print_json(&json()),
        Format::Jsonl => output::print_line(&json().to_string()),
    }
}

/// Writes the chart, and says where.
fn draw(
    args: &FlashSaleArgs,
    plan: &flash_sale::Plan,
    stage: &Stage,
    findings: &flash_sale::Findings,
) -> Result<PathBuf, Failure> {
    let file = args
        .chart
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("oarlock-flash-sale-{}.svg", std::process::id())));
    let (title, bars) = (show::title(plan, stage), show::bars(findings));
    let is_page = Path::new(&file).extension().is_some_and(|end| end.eq_ignore_ascii_case("html"));
    let drawn =
        if is_page { chart::html(&title, &bars, &show::reading(stage, findings)) } else { chart::svg(&title, &bars) };
    let failed = |error| Failure::os(&format!("cannot write {}", file.display()), error);
    std::fs::write(&file, drawn).map_err(failed)?;
    Ok(file)
}
