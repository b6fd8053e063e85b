//! A few bytes outlive their holder.

use std::sync::Arc;

use super::cases;
use crate::bench::Bench;
use crate::failure::{Outcome, ensure_eq};

cases!("memo": the_next_holder_reads_it [Memo], a_release_without_one_keeps_it [Memo]);

async fn the_next_holder_reads_it(bench: Arc<Bench>) -> Outcome {
    let (one, two, name) = (bench.peer().await?, bench.peer().await?, bench.name()?);
    let bytes: Vec<u8> = (0..=255).collect();
    let guard = one.mutex(name.as_str())?.lock().await?;
    ensure_eq!(guard.memo(), None, "the memo of a fresh name");
    guard.release_leaving(bytes.clone()).await?;
    let guard = two.mutex(name.as_str())?.lock().await?;
    ensure_eq!(guard.memo(), Some(&bytes[..]), "the memo that was left");
    ensure_eq!(one.inspect(&name).await?.memo.as_deref(), Some(&bytes[..]), "the memo shown");
    guard.release_leaving(&b""[..]).await?;
    ensure_eq!(one.mutex(name.as_str())?.lock().await?.memo(), Some(&b""[..]), "an empty memo");
    Ok(())
}

async fn a_release_without_one_keeps_it(bench: Arc<Bench>) -> Outcome {
    let (peer, name) = (bench.peer().await?, bench.name()?);
    let lock = peer.mutex(name.as_str())?;
    lock.lock().await?.release_leaving(&b"slot 7"[..]).await?;
    lock.lock().await?.release().await?;
    drop(lock.lock().await?);
    ensure_eq!(lock.lock().await?.memo(), Some(&b"slot 7"[..]), "the memo after plain releases");
    Ok(())
}
