//! The command line of the demos.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;

use crate::args::{StoreArgs, span};

/// See what goes wrong without a lock, and what helps
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each demo creates what it needs (a schema or a database, a file where the store has no rows) and \
removes it. The exit code is 0 if the fault happened without protection and every protection worked, else 70."
)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    pub(crate) command: DemoCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DemoCommand {
    Oversell(OversellArgs),
    Oncall(OncallArgs),
    FlashSale(FlashSaleArgs),
}

/// Many buyers, few items: oversold without a lock, and not with any of four protections
#[derive(Debug, clap::Args)]
pub(crate) struct OversellArgs {
    /// How many buyers there are
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) buyers: u32,
    /// How many items they want one of
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) items: u32,
    /// At how many tills they are served at once, each with its own connection; at one of them nothing can go wrong
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) tills: u32,
    /// Leave this protection out, to see that the demo notices
    #[arg(long, value_name = "PROTECTION", value_parser = PossibleValuesParser::new(["mutex", "version", "for-update", "segments"]))]
    pub(crate) sabotage: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Two doctors on call of whom one must stay: both go, and what prevents it
#[derive(Debug, clap::Args)]
pub(crate) struct OncallArgs {
    /// How many nights
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) nights: u32,
    /// Let the second doctor ask only when the first has decided: nothing goes wrong then, and the demo says so
    #[arg(long)]
    pub(crate) in_turn: bool,
    /// Leave this protection out, to see that the demo notices
    #[arg(long, value_name = "PROTECTION", value_parser = PossibleValuesParser::new(["mutex", "version", "for-update", "serializable"]))]
    pub(crate) sabotage: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// How many units a second are sold, by the number of segments that they lie in
#[derive(Debug, clap::Args)]
pub(crate) struct FlashSaleArgs {
    /// How many take at once, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) takers: u32,
    /// The numbers of segments to try
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,16,64",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) segments: Vec<u32>,
    /// How long the sale lasts with each of them; 50ms to 1m
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = span)]
    pub(crate) duration: Duration,
    /// Where to draw it: an SVG file, or a page if it ends in .html; without this, an SVG file in the folder for
    /// temporary files
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// Give two takers the same ids, to see that the demo notices the units that both were promised
    #[arg(long)]
    pub(crate) sabotage: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

impl DemoCommand {
    pub(crate) fn store(&self) -> &StoreArgs {
        match self {
            Self::Oversell(args) => &args.store,
            Self::Oncall(args) => &args.store,
            Self::FlashSale(args) => &args.store,
        }
    }
}
