//! The endpoints.

mod info;
mod lease;
mod locks;
pub(crate) mod watch;

use std::sync::Arc;

use http::StatusCode;
use oarlock::state::ResourceName;

use crate::answer::{self, Answer};
use crate::problem::Problem;
use crate::route::Endpoint;
use crate::service::Call;
use crate::state::State;

/// The description of this API.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// The script of the page: its files one after the other, with one scope. What runs at once is in the last.
const SCRIPT: &str = concat!(
    include_str!("page/dom.js"),
    include_str!("page/words.js"),
    include_str!("page/server.js"),
    include_str!("page/leases.js"),
    include_str!("page/store.js"),
    include_str!("page/list.js"),
    include_str!("page/rows.js"),
    include_str!("page/table.js"),
    include_str!("page/timeline.js"),
    include_str!("page/shell.js"),
    include_str!("page/break.js"),
    include_str!("page/lock.js"),
    include_str!("page/graph-drawing.js"),
    include_str!("page/graph.js"),
    include_str!("page/app.js"),
);

/// What shows nothing of the store.
pub(crate) fn public(endpoint: Endpoint) -> Answer {
    let (content_type, body) = match endpoint {
        Endpoint::Script => ("text/javascript; charset=utf-8", SCRIPT),
        Endpoint::Style => ("text/css; charset=utf-8", include_str!("page/style.css")),
        Endpoint::Icon => ("image/svg+xml", include_str!("page/icon.svg")),
        Endpoint::OpenApi => ("application/json", OPENAPI),
        Endpoint::Health => ("text/plain; charset=utf-8", "ok\n"),
        _ => ("text/html; charset=utf-8", include_str!("page/index.html")),
    };
    answer::text(StatusCode::OK, content_type, body)
}

/// Answers a request that was let in.
pub(crate) async fn answer(
    state: &Arc<State>,
    endpoint: Endpoint,
    name: Option<ResourceName>,
    call: Call,
) -> Result<Answer, Problem> {
    let named = || name.clone().ok_or_else(|| Problem::bad_request("a lock must be named"));
    match endpoint {
        Endpoint::List => locks::list(state, &call).await,
        Endpoint::Show => locks::show(state, &named()?, &call).await,
        Endpoint::Break => locks::break_hold(state, &named()?, &call).await,
        Endpoint::History => locks::history(state, &named()?, &call).await,
        Endpoint::Lock => lease::lock(state, named()?, &call).await,
        Endpoint::Renew => lease::renew(state, &named()?, &call).await,
        Endpoint::Release => lease::release(state, &named()?, &call).await,
        Endpoint::Watch => watch::all(state, &call),
        Endpoint::WatchOne => watch::one(state, named()?, &call),
        Endpoint::Store => info::store(state, &call),
        Endpoint::Graph => info::graph(state, &call).await,
        Endpoint::Metrics => info::metrics(state, &call),
        public_one => Ok(public(public_one)),
    }
}

/// Does this also when the request is cancelled, because its client has gone.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request has failed");
    tokio::spawn(work).await.map_err(failed)?
}
