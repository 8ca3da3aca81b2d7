//! Invented log probabilities: a fixed function of the token, so that tests can tell the rows apart.

use smg_engine_client::proto::scheduler::{
    GenerateRequest, InputLogProbs, InputTokenLogProb, OutputLogProbs, TopLogProbs,
};

/// Between -0.1 and -1.
fn logprob(token: u32) -> f32 {
    -0.1 * (1 + token % 10) as f32
}

pub(crate) fn output_rows(request: &GenerateRequest, token_ids: &[u32]) -> OutputLogProbs {
    OutputLogProbs {
        token_logprobs: token_ids.iter().map(|id| logprob(*id)).collect(),
        token_ids: token_ids.to_vec(),
        top_logprobs: top_rows(request, token_ids),
        token_ids_logprobs: chosen_rows(request, token_ids),
    }
}

/// The rows of the prompt from `logprob_start_len` on; none where that is negative.
pub(crate) fn input_rows(request: &GenerateRequest) -> Option<InputLogProbs> {
    let start = usize::try_from(request.logprob_start_len).ok()?;
    let token_ids = request.tokenized.as_ref()?.input_ids.get(start..)?;
    let first_of_prompt = |position: usize| start + position == 0;
    Some(InputLogProbs {
        token_logprobs: token_ids
            .iter()
            .enumerate()
            .map(|(position, id)| InputTokenLogProb {
                value: (!first_of_prompt(position)).then(|| logprob(*id)),
            })
            .collect(),
        token_ids: token_ids.to_vec(),
        top_logprobs: top_rows(request, token_ids),
        token_ids_logprobs: chosen_rows(request, token_ids),
    })
}

fn top_rows(request: &GenerateRequest, token_ids: &[u32]) -> Vec<TopLogProbs> {
    let Ok(width @ 1..) = u32::try_from(request.top_logprobs_num) else {
        return Vec::new();
    };
    token_ids
        .iter()
        .map(|id| row((0..width).map(|rank| id.wrapping_add(rank))))
        .collect()
}

fn chosen_rows(request: &GenerateRequest, token_ids: &[u32]) -> Vec<TopLogProbs> {
    if request.token_ids_logprob.is_empty() {
        return Vec::new();
    }
    token_ids
        .iter()
        .map(|_| row(request.token_ids_logprob.iter().copied()))
        .collect()
}

fn row(token_ids: impl Iterator<Item = u32>) -> TopLogProbs {
    let token_ids: Vec<u32> = token_ids.collect();
    TopLogProbs {
        values: token_ids.iter().map(|id| logprob(*id)).collect(),
        token_ids,
    }
}
