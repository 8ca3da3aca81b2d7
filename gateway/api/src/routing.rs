//! Fields by which a client names a request and keeps its cache entries apart.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::clip::clip;
use crate::error::ApiError;
use crate::limits::MAX_RID_CHARS;
use crate::sampling::require;
use crate::shapes::OneOrMany;

/// Identity and cache namespace of one prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The client's own request id; the server makes one up when it is absent.
    pub rid: Option<String>,
    /// Namespace of the prefix cache: prompts share entries only under equal keys.
    pub extra_key: Option<String>,
    /// Appended to the namespace.
    pub cache_salt: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RoutingFields {
    rid: Option<OneOrMany<String>>,
    extra_key: Option<OneOrMany<TextOrNull>>,
    cache_salt: Option<OneOrMany<TextOrNull>>,
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
    pub(crate) fn one(fields: RoutingFields) -> Result<Self, ApiError> {
        let mut all = Self::batch(fields, 1, false)?;
        Ok(all.pop().unwrap_or_default())
    }

    /// One entry per prompt. A single `rid` of a batch becomes `rid_0`, `rid_1` …
    pub(crate) fn batch(
        fields: RoutingFields,
        num_prompts: usize,
        is_batch: bool,
    ) -> Result<Vec<Self>, ApiError> {
        let rids = match fields.rid {
            Some(OneOrMany::One(rid)) if is_batch => Some(OneOrMany::Many(
                (0..num_prompts).map(|i| format!("{rid}_{i}")).collect(),
            )),
            other => other,
        };
        let rids = spread("rid", rids.map(optional), num_prompts)?;
        check_rids(&rids)?;
        let keys = spread("extra_key", fields.extra_key, num_prompts)?
            .into_iter()
            .map(|key| key.0);
        let salts = spread("cache_salt", fields.cache_salt, num_prompts)?
            .into_iter()
            .map(|salt| salt.0);
        let rows = rids.into_iter().zip(keys).zip(salts);
        Ok(rows
            .map(|((rid, extra_key), cache_salt)| Self {
                rid,
                extra_key,
                cache_salt,
            })
            .collect())
    }
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

fn check_rids(rids: &[Option<String>]) -> Result<(), ApiError> {
    let mut seen = HashSet::new();
    for rid in rids.iter().flatten() {
        let num_chars = rid.chars().count();
        let fits = (1..=MAX_RID_CHARS).contains(&num_chars) && !rid.chars().any(char::is_control);
        let given = format_args!("{num_chars} characters").to_string();
        require(
            fits,
            "rid",
            given,
            &format!("1 to {MAX_RID_CHARS} printable characters"),
        )?;
        if !seen.insert(rid) {
            return Err(ApiError::bad_request(
                "rid",
                format!("Duplicate request ID detected: {}", clip(rid)),
            ));
        }
    }
    Ok(())
}
