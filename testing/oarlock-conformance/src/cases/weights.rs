//! Granted weights never exceed the capacity.

use std::sync::Arc;
use std::time::Duration;

use super::cases;
use crate::contention::{Contention, Lock};
use crate::context::TestContext;
use crate::failure::{Outcome, ensure};
use crate::history::Rules;

cases!("weights":
    permits_add_up [Units],
    a_crowd_stays_within_the_capacity [Units],
    readers_share [Units],
    a_crowd_of_readers_and_writers [Units],
    a_heavy_head_holds_back_the_light [Units, Order],
);

async fn permits_add_up(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (ours, theirs) = (one.semaphore(name.as_str(), 3), two.semaphore(name.as_str(), 3));
    let pair = ours.acquire(2).await?;
    ensure!(theirs.try_acquire(2).await?.is_none(), "4 of 3 permits were given");
    let single = theirs.try_acquire(1).await?;
    ensure!(single.is_some(), "the third permit was refused");
    ensure!(theirs.try_acquire(1).await?.is_none(), "a fourth permit was given");
    pair.release().await?;
    ensure!(theirs.try_acquire(2).await?.is_some(), "returned permits were refused");
    Ok(())
}

async fn a_crowd_stays_within_the_capacity(context: Arc<TestContext>) -> Outcome {
    let lock = Lock::Semaphore { permits: 4 };
    let contention = Contention { peers: 3, tasks: 3, rounds: 5, lock, stay: Duration::from_millis(4) };
    contention.run(&context, &Rules::new().least_holds(45)).await
}

async fn readers_share(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (ours, theirs) = (one.rwlock(name.as_str()), two.rwlock(name.as_str()));
    let readers = (ours.read().await?, ours.read().await?, theirs.try_read().await?);
    ensure!(readers.2.is_some(), "a reader was refused beside readers");
    ensure!(theirs.try_write().await?.is_none(), "a writer was let in beside readers");
    let fences = [readers.0.fence(), readers.1.fence()];
    ensure!(fences[0] < fences[1], "readers' fences do not rise: {fences:?}");
    Ok(())
}

async fn a_crowd_of_readers_and_writers(context: Arc<TestContext>) -> Outcome {
    let contention =
        Contention { peers: 3, tasks: 2, rounds: 5, lock: Lock::ReadWrite, stay: Duration::from_millis(3) };
    contention.run(&context, &Rules::new().least_holds(30)).await
}

async fn a_heavy_head_holds_back_the_light(context: Arc<TestContext>) -> Outcome {
    let name = context.name()?;
    let (one, two, three) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let first = one.semaphore(name.as_str(), 4).acquire(2).await?;
    let heavy = two.semaphore(name.as_str(), 4);
    let heavy = tokio::spawn(async move { heavy.acquire(4).await });
    two.waits(&name, 1).await?;
    let light = three.semaphore(name.as_str(), 4);
    ensure!(light.try_acquire(1).await?.is_none(), "a light claim passed the heavy one at the head");
    first.release().await?;
    let heavy = context.soon("the heavy claim", heavy).await???;
    ensure!(light.try_acquire(1).await?.is_none(), "5 of 4 permits were given");
    heavy.release().await?;
    ensure!(light.try_acquire(1).await?.is_some(), "a free permit was refused");
    Ok(())
}
