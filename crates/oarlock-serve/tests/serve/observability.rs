//! The board and the alert rules ask for metrics that there are. `tools` shows that Prometheus can read them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use oarlock_serve::Config;
use serde_json::json;

use super::support::{Running, Store, eventually};

/// What `/metrics` has, whether the board shows it or not. The library has the first eight of its own locks, too.
const EMITTED: [&str; 18] = [
    "oarlock_wait_duration_seconds",
    "oarlock_hold_duration_seconds",
    "oarlock_held",
    "oarlock_waiting",
    "oarlock_renewal_duration_seconds",
    "oarlock_lost_total",
    "oarlock_lease_margin_seconds",
    "oarlock_lease_margin_ratio",
    "oarlock_lock_held_seconds",
    "oarlock_lock_waiters",
    "oarlock_lock_oldest_waiter_seconds",
    "oarlock_lock_token",
    "oarlock_store_up",
    "oarlock_store_listed",
    "oarlock_store_held",
    "oarlock_store_waiting",
    "oarlock_store_oldest_waiter_seconds",
    "oarlock_history_missing_total",
];

fn page(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../docs/observability", name].iter().collect()
}

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("oarlock_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_board_and_the_rules_ask_for_metrics_that_there_are() {
    let store = Store::local();
    let mut config = Config::default();
    (config.metrics_names, config.sample) = (vec!["x*".to_owned()], Duration::from_millis(100));
    let server = Running::with(&store, config).await;
    let lease_of = |granted: &serde_json::Value| json!({ "lease": granted["lease"] }).to_string();
    let released = lease_of(&server.send("POST", "/v1/locks/y", "").await.json());
    assert_eq!(server.send("POST", "/v1/locks/y/release", &released).await.status, 200);
    let lease = lease_of(&server.send("POST", "/v1/locks/x%22%0A", "").await.json());
    assert_eq!(server.send("POST", "/v1/locks/x%22%0A/renew", &lease).await.status, 200);
    let metrics = || async { server.send("GET", "/metrics", "").await.text };
    eventually("it is sampled", || async { metrics().await.contains("oarlock_lock_token") }).await;
    let text = metrics().await;
    assert!(text.contains("oarlock_lock_waiters{name=\"x\\\"\\n\"} 0\n"), "{text}");
    let there = named(&text);
    let read = |file| std::fs::read_to_string(page(file)).unwrap();
    for name in EMITTED {
        let is_there = ["", "_bucket"].iter().any(|end| there.contains(&format!("{name}{end}")));
        assert!(is_there, "{name} is missing: {there:?}");
        assert!(read("../serve.md").contains(&format!("`{name}`")), "{name} is not in the manual");
    }
    // Programs and servers have the same buckets, so that the board can add them up.
    let page = read("README.md");
    for (example, metric) in [("spans", "oarlock_renewal_duration_seconds"), ("parts", "oarlock_lease_margin_ratio")] {
        let begin = format!("let {example} = [");
        let listed = page.split_once(&begin).and_then(|(_, rest)| rest.split_once("];")).expect("the example").0;
        let listed: Vec<f64> = listed.split(", ").map(|bound| bound.parse().unwrap()).collect();
        let series = text.lines().filter(|line| line.starts_with(&format!("{metric}_bucket{{")));
        let bounds: Vec<f64> = series
            .filter_map(|line| line.split_once("le=\"")?.1.split_once('"')?.0.parse().ok())
            .filter(|bound: &f64| bound.is_finite())
            .collect();
        assert_eq!(bounds, listed, "{metric}");
    }
    let alerts = read("alerts.yml");
    let (of_server, of_programs) = alerts.split_once("- name: oarlock-programs").expect("rules for programs");
    // What programs report that use the library, which this page lists; a histogram has a count.
    let of_library = named(&read("README.md"));
    let wanted: BTreeSet<_> =
        named(of_programs).iter().map(|name| name.trim_end_matches("_count").to_owned()).collect();
    assert!(wanted.len() >= 2 && wanted.is_subset(&of_library), "{wanted:?}");
    for (file, text) in [("alerts.yml", of_server), ("grafana.json", &read("grafana.json"))] {
        let wanted = named(text);
        assert!(wanted.len() >= 5, "{file}: {wanted:?}");
        assert!(wanted.is_subset(&there), "{file} asks for {:?}", wanted.difference(&there));
    }
    assert_eq!(server.send("POST", "/v1/locks/x%22%0A/release", &lease).await.status, 200);
    server.stop().await;
}
