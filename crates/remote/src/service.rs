//! Requests and answers on their way between the stores and the network.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderMap, HeaderValue};

use crate::counters::lock;
use crate::listing;
use crate::retries::{Attempt, Kind as Failed};

/// The bytes that are read of an answer that says why a request failed.
const REASON_BYTES: usize = 4 << 10;
/// Codes in an answer of 400 that say that credentials are too old, or not those of this store.
const DENIALS: [&str; 4] =
    ["ExpiredToken", "TokenRefreshRequired", "InvalidToken", "AuthorizationHeaderMalformed"];

/// The kind of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Google's, and its bucket.
    Google(String),
    /// A server of the web.
    Web,
    Other,
}

/// Makes the clients of a store.
#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Kind);

/// Makes the clients of servers of the web, each URL of which is a store of its own: all share their connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct WebConnector(Arc<Mutex<Option<HttpClient>>>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { inner, kind: self.0.clone() }))
    }
}

impl HttpConnector for WebConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut held = lock(&self.0);
        if let Some(client) = &*held {
            return Ok(client.clone());
        }
        Ok(held.insert(Connector(Kind::Web).connect(options)?).clone())
    }
}

#[derive(Debug)]
struct Service {
    inner: HttpClient,
    kind: Kind,
}

type Answer = Result<HttpResponse, HttpError>;

impl HttpService for Service {
    fn call<'a, 'f>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Answer> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(self.answer(request))
    }
}

impl Service {
    async fn answer(&self, mut request: HttpRequest) -> Answer {
        let is_listing = request.method() == "GET"
            && request.uri().query().is_some_and(|query| {
                query.split('&').any(|part| part == "list-type=2" || part == "comp=list")
            });
        let is_read = request.method() == "GET" || request.method() == "HEAD";
        let answer = match &self.kind {
            Kind::Web if request.method() == "HEAD" => self.size(request).await?,
            Kind::Google(bucket) if is_part(&request, bucket) => {
                // An object that is stored compressed is else inflated on the way, without its size and ranges.
                request.headers_mut().insert("accept-encoding", HeaderValue::from_static("gzip"));
                self.inner.execute(request).await?
            }
            _ => self.inner.execute(request).await?,
        };
        match answer.status().as_u16() {
            200 if is_listing => page(answer).await,
            404 | 410 if is_listing => Err(failed(answer, is_read).await),
            // An object that is gone for ever.
            410 => Ok(with_status(answer, 404)),
            200..300 | 304 | 404 | 412 => Ok(answer),
            // The crate knows what it has written.
            409 if !is_read => Ok(answer),
            _ => Err(failed(answer, is_read).await),
        }
    }

    /// The answer to a question for the size of an object. Servers that do not answer it are asked for the first byte: that is
    /// all that signed URLs allow.
    async fn size(&self, request: HttpRequest) -> Answer {
        let mut first_byte = request.clone();
        let answer = self.inner.execute(request).await?;
        match answer.status().as_u16() {
            200 if answer.headers().contains_key("content-length") => return Ok(answer),
            200 | 400 | 403 | 405 | 501 => {}
            _ => return Ok(answer),
        }
        if let Ok(get) = "GET".parse() {
            *first_byte.method_mut() = get;
        }
        first_byte.headers_mut().insert("range", HeaderValue::from_static("bytes=0-0"));
        let answer = self.inner.execute(first_byte).await?;
        let size = match answer.status().as_u16() {
            200 => answer.headers().get("content-length").cloned(),
            206 | 416 => whole_size(answer.headers()),
            _ => return Ok(answer),
        };
        let Some(size) = size else {
            return Err(refused(
                "expected the size of the object, found an answer without Content-Length and Content-Range; download it"
                    .to_owned(),
            ));
        };
        let (mut parts, _) = with_status(answer, 200).into_parts();
        parts.headers.insert("content-length", size);
        Ok(HttpResponse::from_parts(parts, Bytes::new().into()))
    }
}

/// Whether a request asks for a part of an object of a bucket, or for its size.
fn is_part(request: &HttpRequest, bucket: &str) -> bool {
    let path = request.uri().path();
    let is_in = path.split('/').any(|part| part == bucket);
    is_in && (request.method() == "HEAD" || request.headers().contains_key("range"))
}

/// The size of an object by the header of an answer with a part of it: `bytes 0-0/1234`.
fn whole_size(headers: &HeaderMap) -> Option<HeaderValue> {
    let (_, size) = headers.get("content-range")?.to_str().ok()?.split_once('/')?;
    size.trim().parse::<u64>().ok().map(HeaderValue::from)
}

/// A page of a listing without the keys that cannot be named, which it carries beside.
async fn page(answer: HttpResponse) -> Answer {
    let (mut parts, body) = answer.into_parts();
    let (body, odd) = listing::page(body.bytes().await?)
        .map_err(|attempt| HttpError::new(HttpErrorKind::Unknown, attempt))?;
    parts.headers.remove("content-length");
    parts.extensions.insert(odd);
    Ok(HttpResponse::from_parts(parts, body.into()))
}

/// The error that an answer with this status is.
async fn failed(answer: HttpResponse, is_read: bool) -> HttpError {
    let (parts, body) = answer.into_parts();
    let mut text = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        text.extend_from_slice(&chunk[..chunk.len().min(REASON_BYTES - text.len())]);
        if text.len() == REASON_BYTES {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text);
    let kind = kind_of(parts.status.as_u16(), &text);
    let found = match text.trim() {
        "" => parts.status.to_string(),
        text => format!("{}: {text}", parts.status),
    };
    let reason = match parts.status.as_u16() {
        300..400 => {
            let region = parts.headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
            let region = region.map(|region| format!(", here {region}")).unwrap_or_default();
            format!(
                "expected the object, found a redirect without an address, {found}; set the region of the bucket in \
                     storage_options={{\"aws_region\": ...}}{region}"
            )
        }
        416 => format!(
            "expected the bytes of the manifest, found an object with fewer, {found}: the object has changed since; restore \
             it, or create the dataset again"
        ),
        404 | 410 => {
            format!("expected a bucket or container to list, found none of this name, {found}; check the URL")
        }
        _ if kind == Failed::Refused => format!(
            "expected an answer with the object or listing, found {found}; the server refuses such requests: check the URL \
             and storage_options="
        ),
        _ => found,
    };
    // The crate itself repeats parts of what it writes.
    let again = kind == Failed::Disturbed && !is_read;
    let again = if again { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
    HttpError::new(again, Attempt { kind, reason })
}

/// The kind of failure that a status is, with what the answer says: see docs/buckets.md.
fn kind_of(status: u16, text: &str) -> Failed {
    match status {
        401 | 403 | 407 => Failed::Denied,
        400 if text.contains("RequestTimeout") => Failed::Disturbed,
        // The answer to a question for a size has no text.
        400 if text.is_empty() || DENIALS.iter().any(|code| text.contains(code)) => Failed::Denied,
        416 => Failed::Changed,
        501 | 505 | 511 => Failed::Refused,
        408 | 425 | 429 | 500.. => Failed::Disturbed,
        _ => Failed::Refused,
    }
}

fn refused(reason: String) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, Attempt { kind: Failed::Refused, reason })
}

fn with_status(answer: HttpResponse, status: u16) -> HttpResponse {
    let (mut parts, body) = answer.into_parts();
    if let Ok(status) = status.try_into() {
        parts.status = status;
    }
    HttpResponse::from_parts(parts, body)
}
