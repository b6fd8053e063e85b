//! Which page a request comes from. A page of another site must not be able to use a browser of this network: neither
//! by a name that its owner points to this address (DNS rebinding), nor by a request across sites.

use std::net::IpAddr;

use http::{HeaderMap, header};

use crate::problem::Problem;

/// The names under which this server is reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// An address in digits cannot be pointed elsewhere, and `localhost` is this machine; other names must be known.
    fn knows(&self, host: &str) -> bool {
        let name = name_of(host).to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        name == "localhost" || address.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }

    /// Refuses what a page of another site sends. `named` is the host in the line of the request, if that has one. Other
    /// sites may have links to what `is_page`: the page and its files.
    pub(crate) fn check(&self, is_page: bool, named: Option<&str>, headers: &HeaderMap) -> Result<(), Problem> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Problem::bad_request("a request needs one Host header"));
        };
        let host = host.to_str().map_err(|_| Problem::bad_request("the Host header is not text"))?;
        if let Some(unknown) = [Some(host), named].into_iter().flatten().find(|host| !self.knows(host)) {
            let name = oarlock_core::text::quoted(name_of(unknown));
            let detail = format!("{name} is no name of this server. If it is one, start it with --host {name}");
            return Err(Problem::new(http::StatusCode::MISDIRECTED_REQUEST, "unknown-host", detail));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let same =
                origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, from)| from == host);
            if !same {
                return Err(Problem::forbidden("this request was sent by a page of another site (its Origin)"));
            }
        }
        let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
        if !is_page && matches!(site, Some("cross-site" | "same-site")) {
            return Err(Problem::forbidden("this request was sent by a page of another site (Sec-Fetch-Site)"));
        }
        Ok(())
    }
}

/// Without the port.
fn name_of(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(is_page: bool, pairs: &[(&'static str, &str)]) -> Result<(), u16> {
        let headers = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let hosts = Hosts::new(&["Locks.example.org".to_owned()]);
        hosts.check(is_page, None, &headers).map_err(|problem| problem.status.as_u16())
    }

    #[test]
    fn a_name_that_another_points_here_is_refused() {
        for host in ["localhost:7070", "127.0.0.1:7070", "[::1]:7070", "10.1.2.3", "locks.example.org", "LOCALHOST"] {
            assert_eq!(checked(true, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:7070", "127.0.0.1.evil.example", "", "::1"] {
            assert_eq!(checked(true, &[("host", host)]), Err(421), "{host}");
        }
        assert_eq!(checked(true, &[]), Err(400));
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let host = ("host", "localhost:7070");
        assert_eq!(checked(false, &[host, ("origin", "http://localhost:7070")]), Ok(()));
        for origin in ["http://evil.example", "null", "http://localhost:7071", "http://localhost"] {
            assert_eq!(checked(false, &[host, ("origin", origin)]), Err(403), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(checked(false, &[host, ("sec-fetch-site", site)]), Err(403), "{site}");
            assert_eq!(checked(true, &[host, ("sec-fetch-site", site)]), Ok(()), "a link to the page");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(checked(false, &[host, ("sec-fetch-site", site)]), Ok(()), "{site}");
        }
    }
}
