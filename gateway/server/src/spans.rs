//! Spans of requests, sent to an OpenTelemetry collector. Where nobody asked for them none are made, and the trace
//! context of a client goes to the workers as it came.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header::HeaderName};
use opentelemetry::{
    Context as TraceContext, KeyValue, Value,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::{SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider},
};
use smg_config::TraceOptions;
use tokio::runtime::Handle;

use crate::collector::Collector;

/// The name of the program in traces.
const SERVICE: &str = "smg";

/// Spans leave together, at the latest after this.
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// The last ones have this long to leave.
const LAST_BATCH_LIMIT: Duration = Duration::from_secs(3);

/// Headers that carry the trace context.
const CONTEXT_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Makes spans, or none.
#[derive(Default)]
pub struct Spans(Option<Exporting>);

struct Exporting {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// A span that ends when its last clone is dropped. Without export it is nothing.
#[derive(Clone, Default)]
pub struct Span(Option<Recorded>);

#[derive(Clone)]
struct Recorded {
    tracer: SdkTracer,
    cx: TraceContext,
}

// === impl Spans ===

impl Spans {
    /// Within a runtime, which must outlive it.
    pub fn new(options: &TraceOptions) -> Result<Self, ExporterBuildError> {
        if !options.enable_trace {
            return Ok(Self::default());
        }
        let address = &options.otlp_traces_endpoint;
        let address = address.strip_prefix("http://").unwrap_or(address);
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(format!("http://{address}"))
            .build()?;
        let batches = BatchConfigBuilder::default()
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        let processor = BatchSpanProcessor::builder(Collector::new(exporter, address))
            .with_batch_config(batches)
            .build();
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder()
            .with_service_name(SERVICE)
            .with_attribute(version)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer(SERVICE);
        Ok(Self(Some(Exporting { provider, tracer })))
    }

    /// The span of a request: a part of the client's trace, or the begin of one.
    pub fn request(&self, name: impl FnOnce() -> String, headers: &HeaderMap) -> Span {
        let Some(Exporting { tracer, .. }) = &self.0 else {
            return Span::default();
        };
        let parent =
            TraceContextPropagator::new().extract_with_context(&TraceContext::new(), &Headers(headers));
        Span::begin(
            tracer,
            SpanBuilder::from_name(name()).with_kind(SpanKind::Server),
            &parent,
        )
    }

    /// Sends what is left.
    pub async fn end(&self) {
        let Some(Exporting { provider, .. }) = &self.0 else {
            return;
        };
        let provider = provider.clone();
        let ended =
            Handle::current().spawn_blocking(move || provider.shutdown_with_timeout(LAST_BATCH_LIMIT));
        match ended.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "some spans were not sent"),
            Err(error) => tracing::warn!(%error, "sending the last spans was interrupted"),
        }
    }
}

// === impl Span ===

impl Span {
    fn begin(tracer: &SdkTracer, span: SpanBuilder, parent: &TraceContext) -> Self {
        let span = tracer.build_with_context(span, parent);
        Self(Some(Recorded {
            tracer: tracer.clone(),
            cx: parent.with_span(span),
        }))
    }

    /// A span inside this one, for work in this process.
    pub fn child(&self, name: &'static str) -> Self {
        self.part(name, SpanKind::Internal)
    }

    /// A span inside this one, for a call of another process.
    pub fn call(&self, name: &'static str) -> Self {
        self.part(name, SpanKind::Client)
    }

    fn part(&self, name: &'static str, kind: SpanKind) -> Self {
        let Some(Recorded { tracer, cx }) = &self.0 else {
            return Self::default();
        };
        Self::begin(tracer, SpanBuilder::from_name(name).with_kind(kind), cx)
    }

    /// Whether anything comes of what is written to it.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|span| span.cx.span().is_recording())
    }

    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        if let Some(Recorded { cx, .. }) = &self.0 {
            cx.span().set_attribute(KeyValue::new(name, value));
        }
    }

    pub fn fail(&self, why: &str) {
        if let Some(Recorded { cx, .. }) = &self.0 {
            cx.span().set_status(Status::error(why.to_owned()));
        }
    }

    /// Puts the context of this span in the place of another one, for who is called.
    pub fn write_to(&self, metadata: &mut Vec<(String, String)>) {
        let Some(Recorded { cx, .. }) = &self.0 else {
            return;
        };
        metadata.retain(|(name, _)| !CONTEXT_HEADERS.contains(&name.as_str()));
        TraceContextPropagator::new().inject_context(cx, &mut Pairs(metadata));
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct Pairs<'a>(&'a mut Vec<(String, String)>);

impl Injector for Pairs<'_> {
    fn set(&mut self, key: &str, value: String) {
        // An empty tracestate says nothing.
        if !value.is_empty() {
            self.0.push((key.to_owned(), value));
        }
    }
}

/// What of a request's headers goes to the workers as it is.
pub fn context_of(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    CONTEXT_HEADERS.iter().filter_map(|name| {
        let value = headers.get(*name).map(HeaderValue::to_str)?.ok()?;
        Some(((*name).to_owned(), value.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(traceparent: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            HeaderName::from_static("traceparent"),
            HeaderValue::from_static(traceparent),
        )])
    }

    /// What a worker is told; spans go to a port that nobody listens on.
    fn told(headers: &HeaderMap, options: &TraceOptions) -> Vec<(String, String)> {
        let spans = Spans::new(options).unwrap();
        let request = spans.request(|| "POST /generate".to_owned(), headers);
        let mut metadata: Vec<_> = context_of(headers).collect();
        request.call("Generate").write_to(&mut metadata);
        metadata
    }

    fn options(enable_trace: bool) -> TraceOptions {
        TraceOptions {
            enable_trace,
            otlp_traces_endpoint: "127.0.0.1:9".to_owned(),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn without_export_a_context_passes_as_it_is() {
        let expected = [("traceparent".to_owned(), CLIENTS.to_owned())];
        assert_eq!(told(&headers(CLIENTS), &options(false)), expected);
        assert_eq!(told(&HeaderMap::new(), &options(false)), []);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn with_export_the_call_is_a_span_of_the_clients_trace_or_of_a_new_one() {
        let told_with = |headers: &HeaderMap| {
            let metadata = told(headers, &options(true));
            let [(name, value)] = metadata.as_slice() else {
                panic!("{metadata:?}")
            };
            assert_eq!(name, "traceparent");
            value.split('-').map(str::to_owned).collect::<Vec<_>>()
        };
        let joined = told_with(&headers(CLIENTS));
        assert_eq!((joined[1].as_str(), joined[3].as_str()), (&CLIENTS[3..35], "01"));
        assert_ne!(joined[2], CLIENTS[36..52]);
        let unsampled = told_with(&headers(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
        ));
        assert_eq!(
            (unsampled[1].as_str(), unsampled[3].as_str()),
            (&CLIENTS[3..35], "00")
        );
        let begun = told_with(&headers("nonsense"));
        assert_ne!(begun[1], "0".repeat(32));
        assert_eq!(begun[3], "01");
    }
}
