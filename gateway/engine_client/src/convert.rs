//! Between plain values and wire messages. Requests fill every field; answers are read so that engines with
//! the older variant of the messages (no logprobs, no counts in chunks, answers in `complete` only) are
//! understood too.

use serde_json::{Map, Value};

use crate::event::{
    CachedTiers, Completion, Finish, FinishReason, LogprobRows, Matched, StageTimes, TokenChunk,
};
use crate::json::{from_struct, to_struct};
use crate::proto::scheduler as wire;
use crate::request::{Constraint, GenerateSpec, Sampling, Session};
use crate::worker::{
    DisaggregationLoad, Health, Load, LoraLoad, MemoryLoad, ModelInfo, QueueLoad, SpeculativeLoad,
};

/// The word that some foreign engines end a failed answer with.
const FOREIGN_FAILURE: &str = "error";

/// HTTP status of an answer whose engine only says that it failed.
const UNEXPLAINED_FAILURE: u16 = 500;

pub(crate) fn generate_request(spec: GenerateSpec) -> wire::GenerateRequest {
    wire::GenerateRequest {
        request_id: spec.request_id,
        tokenized: Some(wire::TokenizedInput {
            original_text: String::new(),
            input_ids: spec.input_ids,
        }),
        mm_inputs: None,
        sampling_params: Some(sampling_params(spec.sampling)),
        return_logprob: spec.return_logprob,
        logprob_start_len: spec.logprob_start_len,
        top_logprobs_num: saturating_i32(spec.top_logprobs_num),
        token_ids_logprob: spec.token_ids_logprob,
        return_hidden_states: false,
        disaggregated_params: None,
        custom_logit_processor: spec.custom_logit_processor,
        timestamp: None,
        // Foreign engines count only requests that ask for it.
        log_metrics: true,
        input_embeds: Vec::new(),
        lora_id: spec.lora_name,
        data_parallel_rank: spec.data_parallel_rank.map(saturating_i32),
        // A stream is what lets the gateway end a generation early.
        stream: true,
        require_reasoning: spec.require_reasoning,
        priority: spec.priority,
        extra_key: spec.extra_key,
        cache_salt: spec.cache_salt,
        routing_key: spec.routing_key,
        session: spec.session.map(session),
    }
}

fn session(session: Session) -> wire::SessionParams {
    wire::SessionParams {
        id: session.id,
        rid: session.rid,
        offset: session.offset,
        replace: session.replace,
        drop_previous_output: session.drop_previous_output,
    }
}

fn sampling_params(sampling: Sampling) -> wire::SamplingParams {
    wire::SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        repetition_penalty: sampling.repetition_penalty,
        max_new_tokens: sampling.max_new_tokens,
        stop: sampling.stop,
        stop_token_ids: sampling.stop_token_ids,
        skip_special_tokens: sampling.skip_special_tokens,
        spaces_between_special_tokens: sampling.spaces_between_special_tokens,
        n: sampling.n,
        min_new_tokens: sampling.min_new_tokens,
        ignore_eos: sampling.ignore_eos,
        no_stop_trim: sampling.no_stop_trim,
        stream_interval: sampling.stream_interval.map(saturating_i32),
        logit_bias: sampling
            .logit_bias
            .into_iter()
            .map(|(id, bias)| (id.to_string(), bias))
            .collect(),
        custom_params: sampling.custom_params.as_ref().map(to_struct),
        sampling_seed: sampling.seed,
        stop_regex: sampling.stop_regex,
        constraint: sampling.constraint.map(constraint),
    }
}

fn constraint(constraint: Constraint) -> wire::sampling_params::Constraint {
    use wire::sampling_params::Constraint as Wire;
    match constraint {
        Constraint::JsonSchema(schema) => Wire::JsonSchema(schema),
        Constraint::Regex(regex) => Wire::Regex(regex),
        Constraint::Ebnf(grammar) => Wire::EbnfGrammar(grammar),
        Constraint::StructuralTag(tag) => Wire::StructuralTag(tag),
    }
}

pub(crate) fn token_chunk(chunk: wire::GenerateStreamChunk) -> TokenChunk {
    TokenChunk {
        index: chunk.index,
        token_ids: chunk.token_ids,
        prompt_tokens: chunk.prompt_tokens,
        completion_tokens: chunk.completion_tokens,
        cached_tokens: chunk.cached_tokens,
        output_logprobs: chunk.output_logprobs.map(output_rows),
        input_logprobs: chunk.input_logprobs.map(input_rows),
        cached_tiers: chunk.cached_tokens_details.map(cached_tiers),
        times: chunk.times.map(stage_times),
    }
}

/// The end of an answer, and the log probabilities that came with it.
pub(crate) struct Ending {
    pub completion: Completion,
    /// Rows of `completion.output_ids`.
    pub output_logprobs: Option<LogprobRows>,
    pub input_logprobs: Option<LogprobRows>,
}

/// Fails with a sentence when the finish reason is none of the protocol's.
pub(crate) fn ending(complete: wire::GenerateComplete) -> Result<Ending, String> {
    let unexplained = complete.finish_reason == FOREIGN_FAILURE && complete.abort_message.is_empty();
    let finish = Finish {
        reason: finish_reason(&complete.finish_reason)?,
        matched: complete.matched_stop.map(|matched| match matched {
            wire::generate_complete::MatchedStop::MatchedTokenId(id) => Matched::Token(id),
            wire::generate_complete::MatchedStop::MatchedStopStr(text) => Matched::Text(text),
        }),
        message: if unexplained {
            Some("the engine failed without giving a reason".to_owned())
        } else {
            Some(complete.abort_message).filter(|message| !message.is_empty())
        },
        status_code: match u16::try_from(complete.abort_status_code) {
            Ok(0) | Err(_) => unexplained.then_some(UNEXPLAINED_FAILURE),
            Ok(code) => Some(code),
        },
    };
    Ok(Ending {
        completion: Completion {
            index: complete.index,
            finish,
            prompt_tokens: complete.prompt_tokens,
            completion_tokens: complete.completion_tokens,
            cached_tokens: complete.cached_tokens,
            reasoning_tokens: complete.reasoning_tokens,
            num_retractions: complete.num_retractions,
            spec_accepted_tokens: complete.spec_accepted_tokens,
            spec_draft_tokens: complete.spec_draft_tokens,
            output_ids: complete.output_ids,
            cached_tiers: complete.cached_tokens_details.map(cached_tiers),
            times: complete.times.map(stage_times),
        },
        output_logprobs: complete.output_logprobs.map(output_rows),
        input_logprobs: complete.input_logprobs.map(input_rows),
    })
}

fn finish_reason(word: &str) -> Result<FinishReason, String> {
    match word {
        // Engines that name no reason mean the ordinary one.
        "stop" | "" => Ok(FinishReason::Stop),
        "length" => Ok(FinishReason::Length),
        "abort" | FOREIGN_FAILURE => Ok(FinishReason::Abort),
        other => Err(format!(
            "finish_reason is {other:?}, allowed are stop, length and abort"
        )),
    }
}

fn cached_tiers(details: wire::CachedTokensDetails) -> CachedTiers {
    CachedTiers {
        device: details.device,
        host: details.host,
        storage: details.storage,
    }
}

fn stage_times(times: wire::StageTimes) -> StageTimes {
    StageTimes {
        received: times.received,
        compiled: times.compiled,
        admitted: times.admitted,
        prefilled: times.prefilled,
    }
}

fn output_rows(rows: wire::OutputLogProbs) -> LogprobRows {
    LogprobRows {
        logprobs: rows.token_logprobs.into_iter().map(Some).collect(),
        token_ids: rows.token_ids,
        top: pairs(rows.top_logprobs),
        chosen: pairs(rows.token_ids_logprobs),
    }
}

fn input_rows(rows: wire::InputLogProbs) -> LogprobRows {
    LogprobRows {
        logprobs: rows
            .token_logprobs
            .into_iter()
            .map(|logprob| logprob.value)
            .collect(),
        token_ids: rows.token_ids,
        top: pairs(rows.top_logprobs),
        chosen: pairs(rows.token_ids_logprobs),
    }
}

fn pairs(rows: Vec<wire::TopLogProbs>) -> Vec<Vec<(u32, f32)>> {
    rows.into_iter()
        .map(|row| row.token_ids.into_iter().zip(row.values).collect())
        .collect()
}

pub(crate) fn health(answer: wire::HealthCheckResponse) -> Health {
    Health {
        healthy: answer.healthy,
        message: answer.message,
    }
}

/// Fails with a sentence when one of the JSON fields holds no object.
pub(crate) fn model_info(answer: wire::GetModelInfoResponse) -> Result<ModelInfo, String> {
    Ok(ModelInfo {
        default_sampling_params: object(
            "default_sampling_params_json",
            &answer.default_sampling_params_json,
        )?,
        preferred_sampling_params: object("preferred_sampling_params", &answer.preferred_sampling_params)?,
        model_path: answer.model_path,
        tokenizer_path: answer.tokenizer_path,
        served_model_name: answer.served_model_name,
        is_generation: answer.is_generation,
        weight_version: answer.weight_version,
        max_context_length: count(answer.max_context_length),
        max_req_input_len: count(answer.max_req_input_len),
        vocab_size: count(answer.vocab_size),
        supports_vision: answer.supports_vision,
        model_type: answer.model_type,
        architectures: answer.architectures,
        eos_token_ids: answer
            .eos_token_ids
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok())
            .collect(),
        pad_token_id: answer.pad_token_id,
        bos_token_id: answer.bos_token_id,
    })
}

fn object(field: &str, text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err(format!("{field} holds no JSON object but {text}")),
        Err(error) => Err(format!("{field} holds no JSON: {error}")),
    }
}

/// One flat object: the entries of `server_args`, then those of `scheduler_info`, then the worker's own.
pub(crate) fn server_info(answer: wire::GetServerInfoResponse) -> Value {
    let mut info = answer.server_args.map(from_struct).unwrap_or_default();
    info.extend(answer.scheduler_info.map(from_struct).unwrap_or_default());
    let own = [
        ("active_requests", Value::from(answer.active_requests)),
        ("is_paused", Value::from(answer.is_paused)),
        (
            "last_receive_timestamp",
            Value::from(answer.last_receive_timestamp),
        ),
        ("uptime_seconds", Value::from(answer.uptime_seconds)),
        ("server_type", Value::from(answer.server_type)),
        (
            "start_time",
            answer
                .start_time
                .map_or(Value::Null, |time| Value::from(time.to_string())),
        ),
        ("version", Value::from(answer.sglang_version)),
    ];
    info.extend(own.map(|(name, value)| (name.to_owned(), value)));
    if answer.max_total_num_tokens > 0 {
        info.insert(
            "max_total_num_tokens".to_owned(),
            Value::from(answer.max_total_num_tokens),
        );
    }
    Value::Object(info)
}

pub(crate) fn load(load: wire::SchedulerLoad) -> Load {
    Load {
        dp_rank: count(load.dp_rank),
        num_running_reqs: count(load.num_running_reqs),
        num_waiting_reqs: count(load.num_waiting_reqs),
        num_total_reqs: count(load.num_total_reqs),
        num_used_tokens: count(load.num_used_tokens),
        max_total_num_tokens: count(load.max_total_num_tokens),
        num_waiting_uncached_tokens: count(load.num_waiting_uncached_tokens),
        max_running_requests: count(load.max_running_requests),
        token_usage: load.token_usage,
        gen_throughput: load.gen_throughput,
        cache_hit_rate: load.cache_hit_rate,
        utilization: load.utilization,
        memory: load.memory.map(|memory| MemoryLoad {
            weight_gb: memory.weight_gb,
            kv_cache_gb: memory.kv_cache_gb,
            graph_gb: memory.graph_gb,
            token_capacity: count(memory.token_capacity),
        }),
        speculative: load.speculative.map(|speculative| SpeculativeLoad {
            accept_length: speculative.accept_length,
            accept_rate: speculative.accept_rate,
        }),
        lora: load.lora.map(|lora| LoraLoad {
            slots_used: count(lora.slots_used),
            slots_total: count(lora.slots_total),
            utilization: lora.utilization,
        }),
        disaggregation: load.disaggregation.map(disaggregation),
        queues: load.queues.map(|queues| QueueLoad {
            waiting: count(queues.waiting),
            grammar: count(queues.grammar),
            paused: count(queues.paused),
            retracted: count(queues.retracted),
        }),
    }
}

fn disaggregation(metrics: wire::DisaggregationMetrics) -> DisaggregationLoad {
    DisaggregationLoad {
        mode: metrics.mode,
        prefill_prealloc_queue_reqs: count(metrics.prefill_prealloc_queue_reqs),
        prefill_inflight_queue_reqs: count(metrics.prefill_inflight_queue_reqs),
        decode_prealloc_queue_reqs: count(metrics.decode_prealloc_queue_reqs),
        decode_transfer_queue_reqs: count(metrics.decode_transfer_queue_reqs),
        decode_retracted_queue_reqs: count(metrics.decode_retracted_queue_reqs),
        kv_transfer_speed_gb_s: metrics.kv_transfer_speed_gb_s,
        kv_transfer_latency_ms: metrics.kv_transfer_latency_ms,
    }
}

/// A count that the wire declares signed; negative ones mean "not told".
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn saturating_i32(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
