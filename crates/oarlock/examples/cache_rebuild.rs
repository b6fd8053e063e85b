//! A shared cache: many processes read it, and one rebuilds it. The rebuilder keeps its lock as a reader, so that it
//! reads what it has written before another rebuild can begin.
//!
//! `cargo run -p oarlock --example cache_rebuild -- [--url URL]`

use std::path::{Path, PathBuf};
use std::time::Duration;

use oarlock::Locks;

#[path = "support/url.rs"]
mod url;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (url, folder) = (url::from_args()?, tempfile::tempdir()?);
    let cache = folder.path().join("cache");
    rebuild(&oarlock::connect(&url).await?, &cache, "v1").await?;
    let mut readers = Vec::new();
    for _ in 0..8 {
        readers.push(tokio::spawn(read(oarlock::connect(&url).await?, cache.clone())));
    }
    rebuild(&oarlock::connect(&url).await?, &cache, "v2").await?;
    for reader in readers {
        println!("a reader saw {}", reader.await??);
    }
    Ok(())
}

/// A reader sees a whole cache, never the middle of a rebuild.
async fn read(locks: Locks, cache: PathBuf) -> Result<String, Failure> {
    let guard = locks.rwlock("cache").read().await?;
    let text = std::fs::read_to_string(cache)?;
    guard.release().await?;
    match &*text {
        "v1 v1" | "v2 v2" => Ok(text),
        _ => Err(format!("half a cache: {text:?}").into()),
    }
}

/// Writes the cache in two steps, under the write lock, and checks it as a reader.
async fn rebuild(locks: &Locks, cache: &Path, version: &str) -> Result<(), Failure> {
    let writer = locks.rwlock("cache").reason("rebuild").write().await?;
    std::fs::write(cache, version)?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    writer.check()?; // a lost lock ends the rebuild here
    std::fs::write(cache, format!("{version} {version}"))?;
    let reader = writer.downgrade().await?; // waiting readers get in, no writer does
    let written = std::fs::read_to_string(cache)?;
    reader.release().await?;
    if written.starts_with(version) { Ok(()) } else { Err("another rebuild got in between".into()) }
}
