//! OpenTelemetry (feature `otel`): the spans of every lock, exported by OTLP over HTTP as the standard variables say.

use std::env;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::messages::Messages;
use crate::signals;

/// How long the last spans may take at the end of the program.
const FAREWELL: Duration = Duration::from_secs(5);

/// Exports spans until it is dropped.
pub(crate) struct Export(SdkTracerProvider);

impl Export {
    /// Starts it; `None` unless a collector is named, and if it was disabled.
    pub(crate) fn start() -> Option<Self> {
        let is = |name: &str, value: &str| env::var(name).is_ok_and(|set| set.eq_ignore_ascii_case(value));
        let named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
            .iter()
            .any(|name| env::var_os(name).is_some_and(|endpoint| !endpoint.is_empty()));
        if !named || is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return None;
        }
        // Both start threads.
        let provider = signals::unheard(|| {
            let exporter = SpanExporter::builder().with_http().build()?;
            let resource = Resource::builder();
            let named = env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
                || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|all| all.contains("service.name="));
            let resource = if named { resource } else { resource.with_service_name("oarlock") };
            let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
            Ok::<_, opentelemetry_otlp::ExporterBuildError>(provider.with_resource(resource.build()).build())
        });
        let provider = match provider {
            Ok(provider) => provider,
            Err(error) => {
                Messages::default().error(&format!("no traces are exported: {error}; look at OTEL_EXPORTER_OTLP_*"));
                return None;
            }
        };
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("oarlock"));
        let ours = Targets::new().with_target("oarlock", LevelFilter::DEBUG);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(ours).with(layer)).ok()?;
        Some(Self(provider))
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A collector that is away must not change how the command ends.
        let _ = self.0.shutdown_with_timeout(FAREWELL);
    }
}
