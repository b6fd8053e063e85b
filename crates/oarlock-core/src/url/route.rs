//! Another way to the servers of a URL, as through a proxy.

use super::{Host, Url};
use crate::{Error, ErrorKind, Result};

impl Url {
    /// Connects to servers by other addresses, as through a proxy: each pair is a server and where to connect instead.
    /// Servers without a pair are reached as before. It is not part of the text of the URL.
    ///
    /// A store whose scheme [follows routes](super::Scheme::routes) still checks certificates against the name of the
    /// server, and applies them to servers that another server announced.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an encrypted URL of any other store: it would check the certificate against the
    /// name of the proxy.
    pub fn route(mut self, routes: impl IntoIterator<Item = (Host, Host)>) -> Result<Self> {
        let routes: Vec<_> = routes.into_iter().collect();
        if self.scheme.routes {
            self.routes.extend(routes);
            return Ok(self);
        }
        if self.tls() && !routes.is_empty() {
            let what = format!("{}: the driver cannot check the name in a certificate behind a proxy", self.scheme());
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        for host in &mut self.parts.hosts {
            if let Some((_, way)) = routes.iter().find(|(server, _)| server == host) {
                *host = way.clone();
            }
        }
        Ok(self)
    }

    /// The routes, for a store whose scheme [follows them](super::Scheme::routes).
    #[must_use]
    pub fn routes(&self) -> &[(Host, Host)] {
        &self.routes
    }

    /// Whether servers tell their clients of further servers, whose addresses the URL need not name.
    #[must_use]
    pub fn announces(&self) -> bool {
        self.scheme.announces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::{Scheme, Store, Stores};

    static STORE: Store = Store::new(
        "many",
        &[
            Scheme::new("plain", "a store").port(1).hosts(1),
            Scheme::new("crypt", "a store").port(1).hosts(1).tls(),
            Scheme::new("aware", "a store").port(1).hosts(1).tls().routes().announces(),
        ],
        |_| Box::pin(async { Err(Error::new(ErrorKind::Closed, "closed")) }),
    );
    static STORES: Stores = Stores { built_in: &[&STORE], missing: &[] };

    #[test]
    fn servers_are_replaced_unless_the_store_follows_routes_itself() {
        let routes = || [(Host::new("b", 2), Host::new("127.0.0.1", 9))];
        let url = Url::parse("plain://a,b:2", &STORES).unwrap();
        let routed = url.clone().route(routes()).unwrap();
        assert_eq!((routed.hosts(), routed.announces()), (&[Host::new("a", 1), Host::new("127.0.0.1", 9)][..], false));
        assert_eq!(url.hosts()[1], Host::new("b", 2));

        let aware = Url::parse("aware://a,b:2", &STORES).unwrap().route(routes()).unwrap();
        assert_eq!((aware.hosts(), aware.routes()), (&[Host::new("a", 1), Host::new("b", 2)][..], &routes()[..]));
        assert!(aware.announces());

        let crypt = Url::parse("crypt://b:2", &STORES).unwrap();
        let error = crypt.clone().route(routes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(crypt.route([]).is_ok());
    }
}
