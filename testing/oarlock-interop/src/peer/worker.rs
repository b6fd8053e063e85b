//! The commands of one handle.

use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Client, Lock, Refusal, now};

const LEASE: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

pub(super) struct Worker<C: Client> {
    client: Arc<C>,
    handle: String,
    hold: Option<C::Lock>,
}

impl<C: Client> Worker<C> {
    pub(super) fn new(client: Arc<C>, handle: String) -> Self {
        Self { client, handle, hold: None }
    }

    /// One command, one answer.
    pub(super) async fn obey(&mut self, words: &[String]) -> String {
        let handle = self.handle.clone();
        match self.answer(words).await {
            Ok((verb, rest)) if rest.is_empty() => format!("{verb} {handle}"),
            Ok((verb, rest)) => format!("{verb} {handle} {rest}"),
            Err(Refusal::Cannot(why)) => format!("cannot {handle} {why}"),
            Err(Refusal::Error(why)) => format!("error {handle} {why}"),
        }
    }

    async fn answer(&mut self, words: &[String]) -> Result<(&'static str, String), Refusal> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match *words {
            ["lock", _, kind, name, lease, wait] => {
                let mut lock = self.client.lock(kind, name).await?;
                let (renewed, lease) = lease.strip_prefix("renew:").map_or((false, lease), |lease| (true, lease));
                if !lock.acquire(millis(lease)?, millis(wait)?, renewed).await? {
                    return Ok(("busy", String::new()));
                }
                let fence = shown(lock.fence());
                self.hold = Some(lock);
                Ok(("held", format!("{} {fence}", now())))
            }
            ["again", _] => {
                let hold = self.hold()?;
                if !hold.again().await? {
                    return Ok(("busy", String::new()));
                }
                Ok(("held", format!("{} {}", now(), shown(hold.fence()))))
            }
            ["unlock", _] => {
                let before = now();
                Ok(match self.hold()?.release().await? {
                    None => ("freed", before.to_string()),
                    Some(why) => ("lost", format!("{} {why}", now())),
                })
            }
            ["held", _] => Ok((if self.hold()?.loss().await?.is_some() { "no" } else { "yes" }, String::new())),
            ["loss", _, wait] => self.loss(millis(wait)?).await,
            ["break", _, name] => {
                let before = now();
                let freed = self.client.force_unlock(name).await?;
                Ok(if freed { ("freed", before.to_string()) } else { ("free", String::new()) })
            }
            ["count", _, kind, name, file, rounds] => self.count(kind, name, file, parsed(rounds)?).await,
            ["load", _, kind, name, contenders, seconds, file] => {
                self.load(kind, name, parsed(contenders)?, seconds, file).await
            }
            ["pairs", _, kind, name, tasks, seconds] => self.pairs(kind, name, parsed(tasks)?, seconds).await,
            _ => Err(Refusal::Cannot("there is no such command".to_owned())),
        }
    }

    fn hold(&mut self) -> Result<&mut C::Lock, Refusal> {
        self.hold.as_mut().ok_or_else(|| Refusal::Error("nothing is held".to_owned()))
    }

    async fn loss(&mut self, wait: Duration) -> Result<(&'static str, String), Refusal> {
        let end = now() + nanos(wait);
        while now() < end {
            if let Some(why) = self.hold()?.loss().await? {
                return Ok(("lost", format!("{} {why}", now())));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(("kept", String::new()))
    }

    async fn count(&self, kind: &str, name: &str, file: &str, rounds: u32) -> Result<(&'static str, String), Refusal> {
        for _ in 0..rounds {
            let mut lock = self.client.lock(kind, name).await?;
            take(&mut lock, WAIT).await?;
            let number: u64 = parsed(tokio::fs::read_to_string(file).await?.trim())?;
            tokio::fs::write(file, (number + 1).to_string()).await?;
            let_go(&mut lock).await?;
        }
        Ok(("counted", rounds.to_string()))
    }

    async fn load(
        &self,
        kind: &str,
        name: &str,
        contenders: u32,
        seconds: &str,
        file: &str,
    ) -> Result<(&'static str, String), Refusal> {
        let end = now() + nanos(Duration::from_secs_f64(parsed(seconds)?));
        let mut tasks = JoinSet::new();
        for contender in 0..contenders {
            let mut lock = self.client.lock(kind, name).await?;
            tasks.spawn(async move {
                let (mut lines, mut count) = (String::new(), 0_usize);
                loop {
                    let asked = now();
                    if asked >= end {
                        return Ok::<_, Refusal>((lines, count));
                    }
                    take(&mut lock, WAIT).await?;
                    let granted = now();
                    let releasing = now();
                    let_go(&mut lock).await?;
                    // Writing to a `String` cannot fail.
                    let _ = writeln!(lines, "{contender} {asked} {granted} {releasing} {}", now());
                    count += 1;
                }
            });
        }
        let (mut text, mut grants) = (String::new(), 0);
        while let Some(done) = tasks.join_next().await {
            let (lines, count) = done??;
            text.push_str(&lines);
            grants += count;
        }
        tokio::fs::write(file, text).await?;
        Ok(("loaded", grants.to_string()))
    }

    async fn pairs(
        &self,
        kind: &str,
        name: &str,
        tasks: u32,
        seconds: &str,
    ) -> Result<(&'static str, String), Refusal> {
        let end = now() + nanos(Duration::from_secs_f64(parsed(seconds)?));
        let mut pairing = JoinSet::new();
        for task in 0..tasks {
            let mut lock = self.client.lock(kind, &format!("{name}-{task}")).await?;
            pairing.spawn(async move {
                let mut took = Vec::new();
                loop {
                    let start = now();
                    if start >= end {
                        return Ok::<_, Refusal>(took);
                    }
                    take(&mut lock, Duration::ZERO).await?;
                    let_go(&mut lock).await?;
                    took.push(now() - start);
                }
            });
        }
        let mut all = Vec::new();
        while let Some(done) = pairing.join_next().await {
            all.extend(done??);
        }
        all.sort_unstable();
        let at = |hundredth: usize| all.get(all.len() * hundredth / 100).copied().unwrap_or(0);
        Ok(("pairs", format!("{} {} {}", all.len(), at(50), at(99))))
    }
}

async fn take(lock: &mut impl Lock, wait: Duration) -> Result<(), Refusal> {
    if lock.acquire(LEASE, wait, true).await? {
        return Ok(());
    }
    Err(Refusal::Error(format!("the lock is held by another, for {wait:?}")))
}

async fn let_go(lock: &mut impl Lock) -> Result<(), Refusal> {
    match lock.release().await? {
        None => Ok(()),
        Some(why) => Err(Refusal::Error(format!("lost: {why}"))),
    }
}

fn shown(fence: Option<u64>) -> String {
    fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string())
}

fn parsed<T: FromStr>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal::Error(format!("not a number: {text}")))
}

fn millis(text: &str) -> Result<Duration, Refusal> {
    parsed(text).map(Duration::from_millis)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
