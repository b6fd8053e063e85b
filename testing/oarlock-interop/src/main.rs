//! Runs Oarlock and the lock libraries of other languages against each other, on real servers, and reports what works.
//!
//! `cargo xtask interop` prepares the languages and starts it.

mod args;
mod cases;
mod clients;
mod fences;
mod matrix;
mod pairing;
mod process;
mod servers;
mod speed;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Args;
use crate::matrix::Matrix;

/// How many clients run at once: they mostly wait.
const AT_ONCE: usize = 4;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => run(args).await,
        Err(why) => Err(why),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("interop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if all cases passed.
async fn run(args: Args) -> Result<bool> {
    if args.speed {
        return speed::run(&args).await.map(|()| true);
    }
    let pairings = args.pairings()?;
    anyhow::ensure!(!pairings.is_empty(), "nothing to do: no client is left");
    if args.commands {
        // For a shell; the URL comes last.
        let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        for pairing in pairings {
            println!("{}", pairing.command.iter().map(quoted).collect::<Vec<_>>().join(" "));
        }
        return Ok(true);
    }
    let mut running = tokio::task::JoinSet::new();
    let mut waiting = pairings.into_iter().enumerate();
    let mut matrix = Matrix::default();
    loop {
        while running.len() < AT_ONCE
            && let Some((place, pairing)) = waiting.next()
        {
            running.spawn(async move { (place, pairing.run().await) });
        }
        let Some(done) = running.join_next().await else { break };
        let (place, row) = done?;
        eprintln!("{}", row.line());
        matrix.add(place, row);
    }
    print!("{matrix}");
    Ok(matrix.is_green())
}
