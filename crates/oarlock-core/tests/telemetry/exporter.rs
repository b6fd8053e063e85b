//! The exporter for Prometheus that programs install, as `docs/observability/README.md` says.

use std::path::PathBuf;

use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

use crate::client::client;

/// The buckets of the example with this name.
fn buckets(name: &str) -> Vec<f64> {
    let page: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../docs/observability/README.md"].iter().collect();
    let page = std::fs::read_to_string(page).unwrap();
    let begin = format!("let {name} = [");
    let bounds = page.split_once(&begin).and_then(|(_, rest)| rest.split_once("];")).expect("the example").0;
    bounds.split(", ").map(|bound| bound.parse().unwrap()).collect()
}

/// The board and the alerts ask for buckets, which this exporter makes only where it is told to.
#[tokio::test(start_paused = true)]
async fn histograms_have_the_buckets_of_the_example() {
    let (spans, parts) = (buckets("spans"), buckets("parts"));
    let exporter = PrometheusBuilder::new();
    let exporter = exporter.set_buckets_for_metric(Matcher::Prefix("oarlock_".to_owned()), &spans).unwrap();
    let ratio = Matcher::Full("oarlock_lease_margin_ratio".to_owned());
    let exporter = exporter.set_buckets_for_metric(ratio, &parts).unwrap();
    let exporter = exporter.build_recorder();
    let _recorder = set_default_local_recorder(&exporter);
    let (locks, _) = client(|builder| builder);
    let guard = locks.mutex("a").lock().await.unwrap();
    // Long enough for a renewal.
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    guard.release().await.unwrap();
    let text = exporter.handle().render();
    let of_spans = ["wait_duration", "hold_duration", "renewal_duration", "lease_margin"];
    let of_spans = of_spans.map(|metric| (format!("oarlock_{metric}_seconds"), &spans));
    for (metric, bounds) in of_spans.into_iter().chain([("oarlock_lease_margin_ratio".to_owned(), &parts)]) {
        let series = |end: &str| text.lines().filter(|line| line.starts_with(&format!("{metric}{end}{{"))).count();
        assert_eq!((series("_bucket"), series("_count")), (bounds.len() + 1, 1), "{metric}\n{text}");
        assert!(text.contains(&format!("# TYPE {metric} histogram\n")), "{metric}\n{text}");
        let last = format!("le=\"{}\"", bounds.last().unwrap());
        assert!(text.lines().any(|line| line.starts_with(&metric) && line.contains(&last)), "{metric}: {last}\n{text}");
    }
}
