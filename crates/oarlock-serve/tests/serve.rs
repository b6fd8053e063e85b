//! `oarlock serve` over real stores: the embedded one and Redis; in a long run each that keeps leases.

#[cfg(test)]
mod serve {
    mod bad_input;
    mod browser;
    mod chromium;
    mod clients;
    mod dependencies;
    mod document;
    mod leases;
    mod observability;
    mod operators;
    mod reload;
    mod streams;
    mod support;
    mod tls;
    mod tools;
}
