//! The table of routes: what is served where. `openapi.json` describes the same table, and a test compares the two.

use http::{Method, StatusCode};
use oarlock::state::ResourceName;
use percent_encoding::percent_decode_str;

use crate::problem::Problem;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Page,
    Script,
    Style,
    Icon,
    Health,
    Metrics,
    OpenApi,
    Store,
    Graph,
    Watch,
    List,
    Show,
    Lock,
    Break,
    Renew,
    Release,
    WatchOne,
    History,
}

/// Each route: method, template and endpoint. `{name}` is one segment: a `/` in a lock name is written `%2F`.
pub(crate) const ROUTES: &[(Method, &str, Endpoint)] = &[
    (Method::GET, "/", Endpoint::Page),
    (Method::GET, "/app.js", Endpoint::Script),
    (Method::GET, "/style.css", Endpoint::Style),
    (Method::GET, "/icon.svg", Endpoint::Icon),
    (Method::GET, "/healthz", Endpoint::Health),
    (Method::GET, "/metrics", Endpoint::Metrics),
    (Method::GET, "/v1/openapi.json", Endpoint::OpenApi),
    (Method::GET, "/v1/store", Endpoint::Store),
    (Method::GET, "/v1/graph", Endpoint::Graph),
    (Method::GET, "/v1/watch", Endpoint::Watch),
    (Method::GET, "/v1/locks", Endpoint::List),
    (Method::GET, "/v1/locks/{name}", Endpoint::Show),
    (Method::POST, "/v1/locks/{name}", Endpoint::Lock),
    (Method::DELETE, "/v1/locks/{name}", Endpoint::Break),
    (Method::POST, "/v1/locks/{name}/renew", Endpoint::Renew),
    (Method::POST, "/v1/locks/{name}/release", Endpoint::Release),
    (Method::GET, "/v1/locks/{name}/watch", Endpoint::WatchOne),
    (Method::GET, "/v1/locks/{name}/history", Endpoint::History),
];

impl Endpoint {
    /// Whether it is the page or one of its files.
    pub(crate) fn is_page(self) -> bool {
        matches!(self, Self::Page | Self::Script | Self::Style | Self::Icon)
    }

    /// Whether it shows nothing of the store: it needs no token.
    pub(crate) fn is_public(self) -> bool {
        matches!(self, Self::Page | Self::Script | Self::Style | Self::Icon | Self::Health | Self::OpenApi)
    }
}

/// A request that has a route.
#[derive(Debug)]
pub(crate) struct Routed {
    pub(crate) endpoint: Endpoint,
    pub(crate) template: &'static str,
    /// The lock, where the route names one.
    pub(crate) name: Option<ResourceName>,
}

/// Finds the route of a request.
pub(crate) fn find(method: &Method, path: &str) -> Result<Routed, Problem> {
    // HEAD is GET without a body, which hyper leaves out.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let mut allowed = Vec::new();
    for (allows, template, endpoint) in ROUTES {
        let Some(segment) = matched(template, path) else { continue };
        if allows != method {
            allowed.push(allows.as_str());
            continue;
        }
        let name = segment.map(decoded).transpose()?;
        return Ok(Routed { endpoint: *endpoint, template, name });
    }
    if allowed.is_empty() {
        let hint = "a \"/\" in the name of a lock is written %2F, and /v1/openapi.json lists what there is";
        let detail = format!("nothing is served at {}; {hint}", oarlock_core::text::quoted(path));
        return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail));
    }
    let detail = format!("{} is not allowed here; use {}", method.as_str(), allowed.join(" or "));
    Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail).with("allow", allowed))
}

/// The segment in the place of `{name}`, in the inner `Option`; `None` if the path is another.
fn matched<'a>(template: &str, path: &'a str) -> Option<Option<&'a str>> {
    let Some((before, after)) = template.split_once("{name}") else {
        return (template == path).then_some(None);
    };
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.is_empty() && !segment.contains('/')).then_some(Some(segment))
}

fn decoded(segment: &str) -> Result<ResourceName, Problem> {
    let name = percent_decode_str(segment).decode_utf8();
    let name =
        name.map_err(|_| Problem::new(StatusCode::BAD_REQUEST, "invalid-name", "the name of a lock is UTF-8"))?;
    Ok(ResourceName::new(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &Method, path: &str) -> Result<(Endpoint, Option<String>), u16> {
        let routed = find(method, path).map_err(|problem| problem.status.as_u16())?;
        Ok((routed.endpoint, routed.name.map(|name| name.as_str().to_owned())))
    }

    #[test]
    fn names_are_one_segment_and_mean_what_was_written() {
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(found(&Method::GET, "/v1/locks/deploy%2Fprod"), Ok((Endpoint::Show, name("deploy/prod"))));
        assert_eq!(found(&Method::POST, "/v1/locks/a%20b%25/renew"), Ok((Endpoint::Renew, name("a b%"))));
        assert_eq!(found(&Method::GET, "/v1/locks/renew"), Ok((Endpoint::Show, name("renew"))));
        assert_eq!(found(&Method::GET, "/v1/locks/%F0%9F%94%92"), Ok((Endpoint::Show, name("🔒"))));
        assert_eq!(found(&Method::HEAD, "/v1/locks"), Ok((Endpoint::List, None)));
    }

    #[test]
    fn malformed_names_and_unknown_paths_have_clear_answers() {
        assert_eq!(found(&Method::GET, "/v1/locks/%FF"), Err(400));
        assert_eq!(found(&Method::GET, &format!("/v1/locks/{}", "a".repeat(1025))), Err(400));
        assert_eq!(found(&Method::GET, "/v1/locks/"), Err(404));
        assert_eq!(found(&Method::GET, "/v1/locks/a/b"), Err(404));
        assert_eq!(found(&Method::GET, "/v1/locks/../../etc/passwd"), Err(404));
        assert_eq!(found(&Method::PUT, "/v1/locks/a"), Err(405));
        assert_eq!(found(&Method::GET, "/v1/locks/a/renew"), Err(405));
    }
}
