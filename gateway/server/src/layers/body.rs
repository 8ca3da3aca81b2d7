//! Reads the body of a request before the request gets anything: within a time, and out of a memory that all bodies
//! share. Who sends slowly holds no permit, and many large bodies together cannot use up the machine.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use smg_api::ApiError;

use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER},
};

/// A client that has sent a request's head has this long for the whole body.
pub const BODY_LIMIT: Duration = Duration::from_secs(60);

/// The content coding that changes nothing.
const IDENTITY: &str = "identity";

/// The bytes that bodies may take together.
pub struct BodyMemory(Arc<Ledger>);

struct Ledger {
    limit: usize,
    taken: AtomicUsize,
}

/// Part of the memory, given back when dropped.
pub struct BodySpace {
    ledger: Arc<Ledger>,
    len: usize,
}

/// A body that has arrived, as an extension of its request.
#[derive(Clone)]
pub struct ReadBody {
    pub bytes: Bytes,
    /// To be kept until the prompts in the body are tokenized.
    pub space: Arc<BodySpace>,
}

pub async fn layer(State(cx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    if let Some(given) = content_coding(&parts.headers).filter(|_| !body.is_end_stream()) {
        let refusal = Failure(ApiError::unsupported_content_encoding(&given));
        return ([(header::ACCEPT_ENCODING, IDENTITY)], refusal).into_response();
    }
    match read(&cx.bodies, cx.max_body_bytes, &parts.headers, body).await {
        Ok(read) => {
            parts.extensions.insert(read);
            next.run(Request::from_parts(parts, Body::empty())).await
        }
        Err(failure) => failure.into_response(),
    }
}

// === impl BodyMemory ===

impl BodyMemory {
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Ledger {
            limit,
            taken: AtomicUsize::new(0),
        }))
    }

    pub(super) fn space(&self) -> BodySpace {
        BodySpace {
            ledger: self.0.clone(),
            len: 0,
        }
    }
}

// === impl BodySpace ===

impl BodySpace {
    /// Bytes of the body.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes more bytes. Never waits: bodies that wait for each other's bytes would all be late.
    fn grow(&mut self, more: usize) -> Result<(), Failure> {
        let fits = |taken: usize| taken.checked_add(more).filter(|sum| *sum <= self.ledger.limit);
        match self
            .ledger
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        {
            Ok(_) => {
                self.len += more;
                Ok(())
            }
            Err(_) => {
                let message = format!(
                    "the bodies of the requests that wait here take all of the {} bytes that they may take together \
                     (--max-payload-size)",
                    self.ledger.limit
                );
                Err(ApiError::unavailable(message, RETRY_AFTER)
                    .with_code("too_many_body_bytes")
                    .into())
            }
        }
    }
}

impl Drop for BodySpace {
    fn drop(&mut self) {
        self.ledger.taken.fetch_sub(self.len, Ordering::Relaxed);
    }
}

async fn read(
    memory: &BodyMemory,
    max_bytes: usize,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReadBody, Failure> {
    if declared_length(headers).is_some_and(|length| length > max_bytes as u64) {
        return Err(ApiError::too_large(max_bytes).into());
    }
    let mut space = memory.space();
    match tokio::time::timeout(BODY_LIMIT, collect(body, max_bytes, &mut space)).await {
        Ok(bytes) => Ok(ReadBody {
            bytes: bytes?,
            space: Arc::new(space),
        }),
        Err(_) => Err(ApiError::body_timeout(BODY_LIMIT.as_secs()).into()),
    }
}

async fn collect(mut body: Body, max_bytes: usize, space: &mut BodySpace) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::invalid_body(format!("the request body broke off: {error}")))?;
        // Trailers mean nothing here.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > max_bytes {
            return Err(ApiError::too_large(max_bytes).into());
        }
        space.grow(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// What the body was coded with, if it was.
fn content_coding(headers: &HeaderMap) -> Option<String> {
    let given = headers.get_all(header::CONTENT_ENCODING).iter();
    let words: Vec<_> = given
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    let words = words.join(", ");
    let is_plain = |word: &str| word.is_empty() || word.eq_ignore_ascii_case(IDENTITY);
    (!words.split(',').map(str::trim).all(is_plain)).then_some(words)
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{StreamExt, stream};

    use super::*;

    async fn read_whole(memory: &BodyMemory, body: Body) -> Result<ReadBody, ApiError> {
        read(memory, 100, &HeaderMap::new(), body)
            .await
            .map_err(|failure| failure.0)
    }

    #[tokio::test]
    async fn bodies_share_the_memory_and_give_it_back() {
        let memory = BodyMemory::new(150);
        let first = read_whole(&memory, vec![b'x'; 100].into()).await.unwrap();
        assert_eq!((first.bytes.len(), first.space.len()), (100, 100));
        let refused = read_whole(&memory, vec![b'x'; 51].into()).await.err().unwrap();
        assert_eq!(
            (refused.status.as_u16(), &*refused.code, refused.retry_after),
            (503, "too_many_body_bytes", Some(RETRY_AFTER))
        );
        assert!(read_whole(&memory, vec![b'x'; 50].into()).await.is_ok());
        drop(first);
        assert!(read_whole(&memory, vec![b'x'; 100].into()).await.is_ok());
        assert_eq!(memory.0.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_a_coding_that_changes_the_body_counts() {
        let cases = [
            (&[][..], None),
            (&[""], None),
            (&["Identity", "identity, identity"], None),
            (&["gzip"], Some("gzip")),
            (&["identity, BR"], Some("identity, BR")),
            (&["deflate", "zstd"], Some("deflate, zstd")),
        ];
        for (values, coding) in cases {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
            }
            assert_eq!(content_coding(&headers).as_deref(), coding, "{values:?}");
        }
    }

    #[tokio::test]
    async fn a_body_without_a_declared_length_is_bounded_too() {
        let pieces = stream::iter((0..11).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"0123456789"))));
        let refused = read_whole(&BodyMemory::new(1000), Body::from_stream(pieces)).await;
        assert_eq!(refused.err().unwrap().status, 413);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up_with_its_memory() {
        let memory = BodyMemory::new(1000);
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let before = tokio::time::Instant::now();
        let late = read_whole(&memory, Body::from_stream(first.chain(stream::pending()))).await;
        assert_eq!(late.err().unwrap().status, 408);
        assert_eq!(before.elapsed(), BODY_LIMIT);
        assert_eq!(memory.0.taken.load(Ordering::Relaxed), 0);
    }
}
