//! Conversations that a worker keeps: the bodies of `/open_session` and `/close_session`, and how a prompt names the
//! tokens that it continues.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use crate::body::Body;
use crate::error::ApiError;
use crate::routing::{check_name, spread};
use crate::sampling::require;
use crate::shapes::OneOrMany;

/// Which tokens of a session a prompt continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionParams {
    pub id: String,
    /// The request to go on from; `None`: from the start of the session.
    pub rid: Option<String>,
    /// Tokens of that request that are kept; `None`: all.
    pub offset: Option<u32>,
    /// What came after that request is dropped.
    pub replace: bool,
    /// Only the prompt of that request is kept.
    pub drop_previous_output: bool,
}

/// What `/open_session` asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenSession {
    /// `None`: the only model there is.
    pub model: Option<String>,
    /// Characters that the session is expected to hold.
    pub capacity_of_str_len: u32,
    /// The client's own name of it; the server makes one up when it is absent.
    pub session_id: Option<String>,
    /// The worker keeps the cache entries of the last turn locked.
    pub streaming: bool,
    /// Seconds without a request after which the worker closes it; `None`: never.
    pub timeout: Option<f64>,
}

/// What `/close_session` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseSession {
    pub session_id: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct SessionFields {
    session_params: Option<OneOrMany<ParamsOrNull>>,
    session_id: Option<String>,
}

/// An entry of a list that may leave some prompts out.
#[derive(Debug, Clone, Default)]
struct ParamsOrNull(Option<RawParams>);

impl<'de> Deserialize<'de> for ParamsOrNull {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParamsVisitor;
        impl<'de> Visitor<'de> for ParamsVisitor {
            type Value = ParamsOrNull;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ParamsOrNull, A::Error> {
                RawParams::deserialize(MapAccessDeserializer::new(map))
                    .map(|params| ParamsOrNull(Some(params)))
            }

            fn visit_unit<E: de::Error>(self) -> Result<ParamsOrNull, E> {
                Ok(ParamsOrNull(None))
            }
        }
        deserializer.deserialize_any(ParamsVisitor)
    }
}

#[derive(Debug, Clone, Deserialize)]
struct RawParams {
    id: String,
    rid: Option<String>,
    offset: Option<u32>,
    replace: Option<bool>,
    drop_previous_output: Option<bool>,
}

#[derive(Deserialize)]
struct RawOpen {
    model: Option<String>,
    capacity_of_str_len: u32,
    session_id: Option<String>,
    streaming: Option<bool>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
struct RawClose {
    session_id: String,
}

/// The longest `timeout` of a session, in seconds: a year.
const MAX_TIMEOUT: f64 = 31_536_000.0;

/// One entry per prompt.
pub(crate) fn batch(
    fields: SessionFields,
    num_prompts: usize,
    n: u32,
) -> Result<Vec<Option<SessionParams>>, ApiError> {
    let id = fields.session_id.filter(|id| !id.is_empty());
    if id.is_some() && fields.session_params.is_some() {
        let message =
            "session_id and session_params exclude each other; session_params.id names the session too";
        return Err(ApiError::bad_request("session_id", message));
    }
    let params = spread("session_params", fields.session_params, num_prompts)?;
    let mut sessions = params
        .into_iter()
        .map(|params| {
            params
                .0
                .map(|params| checked("session_params.id", params))
                .transpose()
        })
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(id) = id {
        let session = SessionParams {
            id: check_name("session_id", id)?,
            ..SessionParams::default()
        };
        sessions.fill(Some(session));
    }
    let in_session = sessions.iter().any(Option::is_some);
    require(
        n == 1 || !in_session,
        "n",
        n,
        "1 in a session, which one answer continues",
    )?;
    Ok(sessions)
}

fn checked(field: &str, raw: RawParams) -> Result<SessionParams, ApiError> {
    Ok(SessionParams {
        id: check_name(field, raw.id)?,
        rid: raw.rid.filter(|rid| !rid.is_empty()),
        // 0 is what clients write for "no cut".
        offset: raw.offset.filter(|offset| *offset > 0),
        replace: raw.replace.unwrap_or(false),
        drop_previous_output: raw.drop_previous_output.unwrap_or(false),
    })
}

// === impl OpenSession ===

impl OpenSession {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let raw: RawOpen = Body::parse(bytes)?.read()?;
        if let Some(timeout) = raw.timeout {
            let allowed = format!("seconds, above 0 and at most {MAX_TIMEOUT}");
            require(
                timeout > 0.0 && timeout <= MAX_TIMEOUT,
                "timeout",
                timeout,
                &allowed,
            )?;
        }
        let id = raw.session_id.map(|id| check_name("session_id", id));
        Ok(Self {
            model: raw.model,
            capacity_of_str_len: raw.capacity_of_str_len,
            session_id: id.transpose()?,
            streaming: raw.streaming.unwrap_or(false),
            timeout: raw.timeout,
        })
    }
}

// === impl CloseSession ===

impl CloseSession {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let raw: RawClose = Body::parse(bytes)?.read()?;
        Ok(Self {
            session_id: check_name("session_id", raw.session_id)?,
        })
    }
}
