//! Client and engine on a simulated network that loses its links.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use smg_engine_client::{
    Address, BoxFuture, BoxedIo, Connector, EngineClient, EngineError, EngineEvent, GenerateSpec,
};
use smg_simulator::{Outcome, Script, SimulatedEngine};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use turmoil::net::{TcpListener, TcpStream};

const PORT: u16 = 30001;

struct SimulatedSockets;

impl Connector for SimulatedSockets {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>> {
        let Address::Tcp { host, port } = address.clone() else {
            panic!("no sockets in files here")
        };
        Box::pin(async move { Ok(Box::new(TcpStream::connect((host, port)).await?) as BoxedIo) })
    }
}

async fn serve(engine: SimulatedEngine) -> turmoil::Result {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let incoming = futures::stream::unfold(listener, |listener| async move {
        Some((listener.accept().await.map(|(stream, _)| stream), listener))
    });
    engine.serve(incoming, std::future::pending()).await?;
    Ok(())
}

fn client() -> EngineClient {
    let address = format!("grpc://worker:{PORT}").parse().unwrap();
    EngineClient::new(address, Arc::new(SimulatedSockets), TaskTracker::new())
}

fn simulation() -> turmoil::Sim<'static> {
    turmoil::Builder::new()
        .tick_duration(Duration::from_millis(50))
        .simulation_duration(Duration::from_secs(600))
        .rng_seed(1)
        .build()
}

#[test]
fn a_silent_link_is_noticed_by_pings_and_found_again() {
    let script = Script::ending(Outcome::HangAfter { messages: 1 });
    let engine = SimulatedEngine::builder().script(script).build();
    let mut sim = simulation();
    sim.host("worker", move || serve(engine.clone()));
    sim.client("gateway", async {
        let client = client();
        let spec = GenerateSpec {
            request_id: "r".to_owned(),
            input_ids: vec![5],
            ..GenerateSpec::default()
        };
        let mut stream = client.generate(spec).await?;
        assert!(matches!(stream.next().await, Some(Ok(EngineEvent::Tokens(_)))));
        turmoil::partition("gateway", "worker");
        let since = Instant::now();
        let error = stream.next().await.unwrap().unwrap_err();
        assert!(matches!(error, EngineError::Disconnected { .. }), "{error}");
        assert!(
            since.elapsed() < Duration::from_secs(45),
            "noticed after {:?}",
            since.elapsed()
        );
        turmoil::repair("gateway", "worker");
        assert!(client.health().await?.healthy);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_long_silence_over_a_good_link_is_no_failure() {
    let script = Script {
        first_token_delay: Duration::from_secs(300),
        ..Script::default()
    };
    let engine = SimulatedEngine::builder().script(script).build();
    let mut sim = simulation();
    sim.host("worker", move || serve(engine.clone()));
    sim.client("gateway", async {
        let spec = GenerateSpec {
            request_id: "r".to_owned(),
            input_ids: vec![5],
            ..GenerateSpec::default()
        };
        let mut stream = client().generate(spec).await?;
        assert!(matches!(stream.next().await, Some(Ok(EngineEvent::Tokens(_)))));
        Ok(())
    });
    sim.run().unwrap();
}
