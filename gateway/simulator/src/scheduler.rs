//! The two services of a worker, answered from the script.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use serde_json::Value;
use smg_engine_client::proto::common::{
    FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, GetTokenizerRequest, KvEventBatch,
    ProfileResponse, StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use smg_engine_client::proto::engine::sglang_engine_server::SglangEngine;
use smg_engine_client::proto::engine::{ControlRequest, ControlResponse};
use smg_engine_client::proto::scheduler as wire;
use smg_engine_client::proto::scheduler::sglang_scheduler_server::SglangScheduler;
use smg_engine_client::proto::{Timestamp, json_to_struct};
use tonic::{Request, Response, Status};

use crate::answer::{Generation, Live};
use crate::engine::Inner;
use crate::record::RecordedRequest;
use crate::script::{HealthScript, Outcome};

type Answer<T> = Result<Response<T>, Status>;
type BoxedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(crate) struct SchedulerService(pub Arc<Inner>);

fn unimplemented<T>(rpc: &str) -> Answer<T> {
    Err(Status::unimplemented(format!("{rpc} is not simulated")))
}

#[tonic::async_trait]
impl SglangScheduler for SchedulerService {
    type GenerateStream = BoxedStream<wire::GenerateResponse>;
    type GetTokenizerStream = BoxedStream<GetTokenizerChunk>;
    type SubscribeKvEventsStream = BoxedStream<KvEventBatch>;

    async fn generate(&self, request: Request<wire::GenerateRequest>) -> Answer<Self::GenerateStream> {
        let engine = &self.0;
        let (metadata, _, message) = request.into_parts();
        engine.recorder.note(
            |counts| counts.requests += 1,
            |record| record.requests.push(RecordedRequest::new(&message, &metadata)),
        );
        let mut script = (engine.script.read())(&message);
        if let Some(cache) = &engine.cache {
            script.cached_tokens = cache.lock().take(&message);
        }
        let live = Live::new(Arc::clone(engine), message.request_id.clone());
        let mut generation = Generation::new(message, script, live);
        generation.start().await?;
        Ok(Response::new(Box::pin(generation.into_messages())))
    }

    /// The vector of a prompt is its ids as numbers. A script that refuses is followed.
    async fn embed(&self, request: Request<wire::EmbedRequest>) -> Answer<wire::EmbedResponse> {
        let engine = &self.0;
        let (metadata, _, message) = request.into_parts();
        let as_generation = wire::GenerateRequest {
            request_id: message.request_id,
            tokenized: message.tokenized,
            ..wire::GenerateRequest::default()
        };
        engine.recorder.note(
            |counts| {
                counts.requests += 1;
                counts.embeds += 1;
            },
            |record| {
                record
                    .requests
                    .push(RecordedRequest::new(&as_generation, &metadata))
            },
        );
        let script = (engine.script.read())(&as_generation);
        if let Outcome::Refuse { code, message } = script.outcome {
            return Err(Status::new(code, message));
        }
        let ids = as_generation.tokenized.unwrap_or_default().input_ids;
        Ok(Response::new(wire::EmbedResponse {
            embedding_dim: ids.len() as u32,
            prompt_tokens: ids.len() as u32,
            embedding: ids.into_iter().map(|id| id as f32).collect(),
        }))
    }

    async fn health_check(&self, _: Request<wire::HealthCheckRequest>) -> Answer<wire::HealthCheckResponse> {
        self.0.recorder.count(|counts| counts.health_probes += 1);
        let health = self.0.health.read().clone();
        let (healthy, message) = match health {
            HealthScript::Ready => (true, String::new()),
            HealthScript::NotReady(message) => return Err(Status::unavailable(message)),
            HealthScript::Unhealthy(message) => (false, message),
            HealthScript::Slow(delay) => {
                tokio::time::sleep(delay).await;
                (true, String::new())
            }
            HealthScript::Silent => std::future::pending().await,
        };
        Ok(Response::new(wire::HealthCheckResponse { healthy, message }))
    }

    async fn abort(&self, request: Request<wire::AbortRequest>) -> Answer<wire::AbortResponse> {
        let message = request.into_inner();
        self.0.abort(&message.request_id);
        self.0
            .recorder
            .note(|counts| counts.aborts += 1, |record| record.aborts.push(message));
        Ok(Response::new(wire::AbortResponse {
            success: true,
            message: String::new(),
        }))
    }

    async fn get_model_info(
        &self,
        _: Request<wire::GetModelInfoRequest>,
    ) -> Answer<wire::GetModelInfoResponse> {
        self.0.recorder.count(|counts| counts.model_info += 1);
        Ok(Response::new(self.0.card.read().clone()))
    }

    async fn get_server_info(
        &self,
        _: Request<wire::GetServerInfoRequest>,
    ) -> Answer<wire::GetServerInfoResponse> {
        self.0.recorder.count(|counts| counts.server_info += 1);
        let delay = *self.0.server_info_delay.read();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let start_time = *self.0.start_time.read();
        Ok(Response::new(wire::GetServerInfoResponse {
            server_args: self.0.server_args.as_object().map(json_to_struct),
            active_requests: self.0.live.lock().len() as i32,
            server_type: "grpc".to_owned(),
            sglang_version: "simulated".to_owned(),
            start_time: start_time.map(|seconds| Timestamp { seconds, nanos: 0 }),
            ..wire::GetServerInfoResponse::default()
        }))
    }

    async fn get_loads(&self, request: Request<wire::GetLoadsRequest>) -> Answer<wire::GetLoadsResponse> {
        self.0.recorder.note(
            |_| {},
            |record| record.load_sections.push(request.into_inner().include),
        );
        let running = self.0.live.lock().len() as i32;
        let load = self.0.load.read().clone().unwrap_or_else(|| wire::SchedulerLoad {
            num_running_reqs: running,
            num_total_reqs: running,
            ..wire::SchedulerLoad::default()
        });
        Ok(Response::new(wire::GetLoadsResponse {
            version: "simulated".to_owned(),
            dp_rank_count: 1,
            loads: vec![load],
            ..wire::GetLoadsResponse::default()
        }))
    }

    async fn flush_cache(&self, _: Request<FlushCacheRequest>) -> Answer<FlushCacheResponse> {
        self.0.recorder.count(|counts| counts.flushes += 1);
        let running = self.0.live.lock().len();
        let (success, message) = match running {
            0 => (true, "flushed".to_owned()),
            _ => (false, format!("{running} requests are running")),
        };
        Ok(Response::new(FlushCacheResponse { success, message }))
    }

    async fn start_profile(&self, _: Request<StartProfileRequest>) -> Answer<ProfileResponse> {
        unimplemented("StartProfile")
    }

    async fn stop_profile(&self, _: Request<StopProfileRequest>) -> Answer<ProfileResponse> {
        unimplemented("StopProfile")
    }

    async fn get_tokenizer(&self, _: Request<GetTokenizerRequest>) -> Answer<Self::GetTokenizerStream> {
        self.0.recorder.count(|counts| counts.tokenizer += 1);
        let Some(bundle) = &self.0.bundle else {
            return unimplemented("GetTokenizer without files");
        };
        let chunks = bundle.chunks().into_iter().map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Answer<Self::SubscribeKvEventsStream> {
        self.0.recorder.count(|counts| counts.kv_subscriptions += 1);
        let Some(cache) = &self.0.cache else {
            return unimplemented("SubscribeKvEvents without a cache");
        };
        let from = request.into_inner().start_sequence_number;
        Ok(Response::new(cache.lock().subscribe(from)?))
    }

    async fn load_lo_ra_adapter(
        &self,
        _: Request<wire::LoadLoRaAdapterRequest>,
    ) -> Answer<wire::LoadLoRaAdapterResponse> {
        unimplemented("LoadLoRAAdapter")
    }

    async fn unload_lo_ra_adapter(
        &self,
        _: Request<wire::UnloadLoRaAdapterRequest>,
    ) -> Answer<wire::UnloadLoRaAdapterResponse> {
        unimplemented("UnloadLoRAAdapter")
    }

    async fn list_loaded_lo_ra_adapters(
        &self,
        _: Request<wire::ListLoadedLoRaAdaptersRequest>,
    ) -> Answer<wire::ListLoadedLoRaAdaptersResponse> {
        unimplemented("ListLoadedLoRAAdapters")
    }
}

pub(crate) struct ControlService(pub Arc<Inner>);

#[tonic::async_trait]
impl SglangEngine for ControlService {
    async fn control(&self, request: Request<ControlRequest>) -> Answer<ControlResponse> {
        let ControlRequest { name, json, .. } = request.into_inner();
        let text = if json.is_empty() { "{}" } else { json.as_str() };
        let args: Value =
            serde_json::from_str(text).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let result = (self.0.control)(&name, &args);
        self.0.recorder.note(
            |counts| counts.operations += 1,
            |record| record.operations.push((name, args)),
        );
        let json = result.map_err(Status::invalid_argument)?.to_string();
        Ok(Response::new(ControlResponse {
            json,
            protocol_version: self.0.control_version,
        }))
    }
}
