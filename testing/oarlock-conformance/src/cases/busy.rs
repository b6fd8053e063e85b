//! A wait that ends says who was in the way.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::{ErrorKind, Label};

use super::cases;
use crate::context::{TestContext, now};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("busy": a_try_is_none, a_bounded_wait_names_the_holder [Records], a_bounded_wait_is_bounded, a_wait_in_the_gate_is_bounded);

async fn a_try_is_none(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let _guard = one.mutex(name.as_str()).lock().await?;
    ensure!(two.mutex(name.as_str()).try_lock().await?.is_none(), "a held lock was given");
    let waiting = one.inspect(&name).await?.waiters.count();
    ensure!(waiting.is_none_or(|count| count == 0), "a try left a waiter");
    Ok(())
}

async fn a_bounded_wait_names_the_holder(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let label = Label::of_this_process().reason("nightly run");
    let guard = one.mutex(name.as_str()).label(label.clone()).lock().await?;
    let Err(error) = two.mutex(name.as_str()).wait(Duration::from_millis(60)).lock().await else {
        return Err(Failure::new("a held lock was given"));
    };
    ensure_eq!(error.kind(), ErrorKind::Busy, "the error");
    let busy = error.busy().ok_or_else(|| Failure::new("the error says nothing of the holder"))?;
    let holder = busy.holder.as_ref().ok_or_else(|| Failure::new("the error names no holder"))?;
    ensure_eq!(*holder.label, label, "the holder's label");
    ensure_eq!(holder.fence, Some(guard.fence()), "the holder's fence");
    ensure!(busy.waited >= Duration::from_millis(60), "waited {:?}", busy.waited);
    let text = error.to_string();
    ensure!(text.contains("nightly run") && text.contains(&label.pid.to_string()), "the error reads: {text}");
    guard.release().await?;
    context.left_clean(&one, &name).await
}

async fn a_bounded_wait_is_bounded(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let _guard = one.mutex(name.as_str()).lock().await?;
    let asked = now();
    let wait = context.ttl();
    let refused = two.mutex(name.as_str()).wait(wait).lock().await;
    let took = now().since(asked);
    ensure!(refused.is_err() && took >= wait && took < wait + context.pace.soon, "a wait of {wait:?} took {took:?}");
    let waiting = one.inspect(&name).await?.waiters.count();
    ensure!(waiting.is_none_or(|count| count == 0), "who gave up still waits");
    Ok(())
}

async fn a_wait_in_the_gate_is_bounded(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let _guard = one.mutex(name.as_str()).lock().await?;
    let first = two.mutex(name.as_str());
    let first = tokio::spawn(async move { first.lock().await });
    two.waits(&name, 1).await?;
    let second = two.mutex(name.as_str()).wait(Duration::from_millis(60));
    let refused = context.soon("the end of a wait behind a local waiter", second.lock()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    first.abort();
    Ok(())
}
