//! One token, or one vector, as the proof that a worker does more than answer probes.

use std::time::Duration;

use futures::StreamExt;
use smg_engine_client::{EmbedSpec, EngineError, EngineEvent, GenerateSpec, Sampling, StatusClass};
use uuid::Uuid;

use super::Member;
use crate::error::Failure;

/// A token that every vocabulary has.
const PROMPT: [u32; 1] = [0];

/// Why a worker gave no proof.
#[derive(Debug, thiserror::Error)]
pub enum Unproven {
    /// It works, for others.
    #[error("{0}")]
    Full(String),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("{0}")]
    Failed(String),
}

/// Has a worker generate one token, or embed one where it has no other use.
pub async fn prove(member: &Member, is_generation: bool, limit: Duration) -> Result<(), Unproven> {
    let asked = async {
        if is_generation {
            generate(member, limit).await
        } else {
            embed(member, limit).await
        }
    };
    tokio::time::timeout(limit, asked)
        .await
        .unwrap_or(Err(Unproven::Late(limit)))
}

async fn generate(member: &Member, limit: Duration) -> Result<(), Unproven> {
    let spec = GenerateSpec {
        request_id: request_id(),
        input_ids: PROMPT.to_vec(),
        sampling: Sampling {
            temperature: 0.0,
            max_new_tokens: Some(1),
            ..Sampling::default()
        },
        timeout: Some(limit),
        ..GenerateSpec::default()
    };
    let failed = |error: EngineError| Unproven::of(&error, limit);
    let mut events = member.client.generate(spec).await.map_err(failed)?;
    // Read to the end, so that nothing has to be aborted.
    while let Some(event) = events.next().await {
        if let EngineEvent::Complete(completion) = event.map_err(failed)?
            && let Some(failure) = Failure::of_finish(&completion.finish)
        {
            return Err(Unproven::Failed(failure.to_string()));
        }
    }
    Ok(())
}

async fn embed(member: &Member, limit: Duration) -> Result<(), Unproven> {
    let spec = EmbedSpec {
        request_id: request_id(),
        input_ids: PROMPT.to_vec(),
        timeout: limit,
        trace: Vec::new(),
    };
    let vector = member.client.embed(spec).await;
    vector.map(drop).map_err(|error| Unproven::of(&error, limit))
}

fn request_id() -> String {
    format!("HEALTH_CHECK_{}", Uuid::new_v4().simple())
}

impl Unproven {
    fn of(error: &EngineError, limit: Duration) -> Self {
        match error.status_class() {
            StatusClass::Deadline => Self::Late(limit),
            StatusClass::ResourceExhausted => Self::Full(error.message()),
            _ => Self::Failed(error.message()),
        }
    }
}
