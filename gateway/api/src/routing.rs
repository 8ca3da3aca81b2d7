//! Fields by which a client names a request, places it, and keeps its cache entries apart.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::body::Body;
use crate::clip::clip;
use crate::error::ApiError;
use crate::limits::MAX_RID_CHARS;
use crate::sampling::require;
use crate::session::{self, SessionFields, SessionParams};
use crate::shapes::OneOrMany;

/// Identity, rank and cache namespace of one prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The client's own request id; the server makes one up when it is absent.
    pub rid: Option<String>,
    /// The one `rid` that a batch was given, of which `rid` is a part.
    pub batch_rid: Option<String>,
    /// Namespace of the prefix cache: prompts share entries only under equal keys.
    pub extra_key: Option<String>,
    /// Appended to the namespace.
    pub cache_salt: Option<String>,
    /// Rank in the worker's queue, where that has ranks.
    pub priority: Option<i32>,
    /// Requests of one key belong together.
    pub routing_key: Option<String>,
    /// The place of the worker that is asked for, among those of the model.
    pub target_worker: Option<u32>,
    /// The conversation on the worker that the prompt continues.
    pub session: Option<SessionParams>,
    /// A serialized processor that the worker runs on the logits.
    pub custom_logit_processor: Option<String>,
    /// The name of an adapter; the model itself without one.
    pub lora_path: Option<String>,
    /// Whether the model reasons before its constraint begins.
    pub require_reasoning: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RoutingFields {
    rid: Option<OneOrMany<String>>,
    extra_key: Option<OneOrMany<TextOrNull>>,
    cache_salt: Option<OneOrMany<TextOrNull>>,
    priority: Option<i32>,
    routing_key: Option<String>,
    custom_logit_processor: Option<OneOrMany<TextOrNull>>,
    lora_path: Option<OneOrMany<TextOrNull>>,
    require_reasoning: Option<bool>,
}

/// An entry of a list that may leave some prompts out.
#[derive(Debug, Clone, Default)]
struct TextOrNull(Option<String>);

impl<'de> Deserialize<'de> for TextOrNull {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNullVisitor;
        impl Visitor<'_> for TextOrNullVisitor {
            type Value = TextOrNull;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TextOrNull, E> {
                Ok(TextOrNull(Some(text.to_owned())))
            }

            fn visit_unit<E: de::Error>(self) -> Result<TextOrNull, E> {
                Ok(TextOrNull(None))
            }
        }
        deserializer.deserialize_any(TextOrNullVisitor)
    }
}

impl Routing {
    /// The fields of an endpoint that takes one prompt.
    pub(crate) fn one(body: &Body, n: u32) -> Result<Self, ApiError> {
        let mut all = Self::batch(body, 1, false, n)?;
        Ok(all.pop().unwrap_or_default())
    }

    /// One entry per prompt. A single `rid` of a batch becomes `rid_0`, `rid_1` …
    pub(crate) fn batch(
        body: &Body,
        num_prompts: usize,
        is_batch: bool,
        n: u32,
    ) -> Result<Vec<Self>, ApiError> {
        let fields: RoutingFields = body.read()?;
        let mut all = vec![Self::default(); num_prompts];
        name(&mut all, fields.rid, is_batch)?;
        let texts = |field, values| spread::<TextOrNull>(field, values, num_prompts);
        let keys = texts("extra_key", fields.extra_key)?;
        let salts = texts("cache_salt", fields.cache_salt)?;
        let processors = texts("custom_logit_processor", fields.custom_logit_processor)?;
        let adapters = texts("lora_path", fields.lora_path)?;
        let sessions = session::batch(body.read::<SessionFields>()?, num_prompts, n)?;
        let routing_key = routing_key(fields.routing_key)?;
        let texts = keys
            .into_iter()
            .zip(salts)
            .zip(processors.into_iter().zip(adapters));
        for (routing, (((key, salt), (processor, adapter)), session)) in
            all.iter_mut().zip(texts.zip(sessions))
        {
            routing.extra_key = key.0;
            routing.cache_salt = salt.0;
            // An empty one asks for nothing.
            routing.custom_logit_processor = processor.0.filter(|text| !text.is_empty());
            routing.lora_path = adapter.0.filter(|name| !name.is_empty());
            routing.session = session;
            routing.priority = fields.priority;
            routing.require_reasoning = fields.require_reasoning.unwrap_or_default();
            routing.routing_key.clone_from(&routing_key);
        }
        Ok(all)
    }
}

fn name(all: &mut [Routing], rid: Option<OneOrMany<String>>, is_batch: bool) -> Result<(), ApiError> {
    if let Some(OneOrMany::One(rid)) = &rid
        && is_batch
    {
        for (i, routing) in all.iter_mut().enumerate() {
            routing.rid = Some(format!("{rid}_{i}"));
            routing.batch_rid = Some(rid.clone());
        }
    } else {
        let rids = spread("rid", rid.map(optional), all.len())?;
        for (routing, rid) in all.iter_mut().zip(rids) {
            routing.rid = rid;
        }
    }
    check_rids(all)
}

/// An empty key is none.
fn routing_key(given: Option<String>) -> Result<Option<String>, ApiError> {
    let given = given.filter(|key| !key.is_empty());
    given.map(|key| check_name("routing_key", key)).transpose()
}

/// A name that a client gives to something: short, and free of control characters.
pub(crate) fn check_name(field: &str, name: String) -> Result<String, ApiError> {
    let num_chars = name.chars().count();
    let fits = (1..=MAX_RID_CHARS).contains(&num_chars) && !name.chars().any(char::is_control);
    let given = format_args!("{num_chars} characters").to_string();
    let allowed = format!("1 to {MAX_RID_CHARS} printable characters");
    require(fits, field, given, &allowed)?;
    Ok(name)
}

fn optional<T>(values: OneOrMany<T>) -> OneOrMany<Option<T>> {
    match values {
        OneOrMany::One(value) => OneOrMany::One(Some(value)),
        OneOrMany::Many(values) => OneOrMany::Many(values.into_iter().map(Some).collect()),
    }
}

/// One value per prompt: a scalar is repeated, a list must have the right length.
pub(crate) fn spread<T: Clone + Default>(
    field: &str,
    values: Option<OneOrMany<T>>,
    num_prompts: usize,
) -> Result<Vec<T>, ApiError> {
    match values {
        None => Ok(vec![T::default(); num_prompts]),
        Some(OneOrMany::One(value)) => Ok(vec![value; num_prompts]),
        Some(OneOrMany::Many(values)) => {
            let given = format_args!("a list of {}", values.len()).to_string();
            let allowed = format!("one value, or a list with one for each of the {num_prompts} prompts");
            require(values.len() == num_prompts, field, given, &allowed)?;
            Ok(values)
        }
    }
}

fn check_rids(all: &[Routing]) -> Result<(), ApiError> {
    let mut seen = HashSet::new();
    for rid in all.iter().filter_map(|routing| routing.rid.as_ref()) {
        check_name("rid", rid.clone())?;
        if !seen.insert(rid) {
            return Err(ApiError::bad_request(
                "rid",
                format!("Duplicate request ID detected: {}", clip(rid)),
            ));
        }
    }
    Ok(())
}
