//! Bounds that a request may not exceed, whatever the model.

/// Answers per prompt (`n`).
pub const MAX_N: u32 = 128;
/// Prompts in one request.
pub const MAX_BATCH: usize = 1024;
/// Answers in one request: prompts × `n`.
pub const MAX_ANSWERS: usize = 4096;
/// Strings in `stop`, and patterns in `stop_regex`.
pub const MAX_STOPS: usize = 32;
/// Bytes of one `stop_regex` pattern.
pub const MAX_STOP_REGEX_BYTES: usize = 256;
/// Ids in `stop_token_ids`, `logit_bias` and `token_ids_logprob`.
pub const MAX_TOKEN_IDS: usize = 16_384;
/// `top_logprobs` of chat and `logprobs` of completions.
pub const MAX_TOP_LOGPROBS: u32 = 20;
/// `top_logprobs_num` of `/generate`.
pub const MAX_NATIVE_TOP_LOGPROBS: u32 = 1024;
/// Alternatives that all answers of one request report for their prompts: per position `top_logprobs` plus the
/// ids of `token_ids_logprob`, times positions, times `n`. One costs some 50 bytes on its way to the client.
pub const MAX_PROMPT_LOGPROBS: u64 = 2_000_000;
/// Characters of a request id given by the client.
pub const MAX_RID_CHARS: usize = 256;
/// Objects and lists inside each other in `custom_params`.
pub const MAX_PARAMS_DEPTH: usize = 16;
/// Bytes of one constraint: a schema, a regex, a grammar. Workers have a lower limit of their own.
pub const MAX_CONSTRAINT_BYTES: usize = 1 << 20;
/// Objects, lists and groups inside each other in one constraint. Workers have a lower limit of their own.
pub const MAX_CONSTRAINT_DEPTH: usize = 100;
/// Entries of `tools`.
pub const MAX_TOOLS: usize = 512;
/// Characters of a function's name.
pub const MAX_TOOL_NAME_CHARS: usize = 64;
