//! The way of spans to their collector, which says once that they are lost, and once that they arrive again.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};

#[derive(Debug)]
pub struct Collector<E> {
    exporter: E,
    address: String,
    is_failing: AtomicBool,
}

impl<E: SpanExporter> Collector<E> {
    pub fn new(exporter: E, address: &str) -> Self {
        Self {
            exporter,
            address: address.to_owned(),
            is_failing: AtomicBool::new(false),
        }
    }
}

impl<E: SpanExporter> SpanExporter for Collector<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        let was_failing = self.is_failing.swap(exported.is_err(), Ordering::Relaxed);
        let collector = self.address.as_str();
        match exported {
            Ok(()) if was_failing => tracing::info!(collector, "the collector takes spans again"),
            Err(error) if !was_failing => {
                tracing::warn!(collector, %error, "spans are lost: the collector takes none");
            }
            Ok(()) | Err(_) => {}
        }
        // The SDK would log every failure that it hears of.
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::Arc,
    };

    use opentelemetry_sdk::error::OTelSdkError;
    use parking_lot::Mutex;

    use super::*;

    /// Takes spans or not, as it is told.
    #[derive(Clone, Debug, Default)]
    struct Scripted(Arc<AtomicBool>);

    impl SpanExporter for Scripted {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            if self.0.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err(OTelSdkError::InternalFailure("nobody listens".to_owned()))
            }
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_loss_is_told_once_and_so_is_its_end() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let takes = Scripted::default();
        let collector = Collector::new(takes.clone(), "collector:4317");
        tracing::subscriber::with_default(subscriber, || {
            for does in [true, false, false, false, true, true, false] {
                takes.0.store(does, Ordering::Relaxed);
                assert!(futures::executor::block_on(collector.export(Vec::new())).is_ok());
            }
        });
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let [lost, again, lost_again] = lines.as_slice() else {
            panic!("{text}")
        };
        assert!(lost.contains("WARN") && lost.contains("nobody listens"), "{lost}");
        assert!(
            lost.contains("spans are lost") && lost.contains("collector:4317"),
            "{lost}"
        );
        assert!(again.contains("takes spans again"), "{again}");
        assert!(lost_again.contains("spans are lost"), "{lost_again}");
    }
}
