//! The client of all stores of a process: its thread, its connections, its bounds and its counts.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use crate::cache::{Cache, CacheOptions};
use crate::counters::{Counters, lock};
use crate::fetch::{self, attempt_of};
use crate::hub::Hub;
use crate::listing::OddKeys;
use crate::location::Location;
use crate::retries::{Failure, Next, Retries};
use crate::service::{Connector, Kind, WebConnector};
use crate::shared::{Announced, Shared, is_weak};

/// How long an answer may take to begin or continue, unless the options say otherwise.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an outage is waited out unless the options say otherwise.
const RETRY_TIMEOUT: Duration = Duration::from_secs(600);
/// How long it is waited out before anything was read: who starts a run waits for an answer.
const LISTING_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects that are asked for their sizes at once.
const HEADS_AT_ONCE: usize = 64;

/// How soon a listing notices that it should stop.
const TICK: Duration = Duration::from_millis(100);

/// Whether somebody wants a listing to stop.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// How stores are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Names and values as `object_store` knows them, for any of its stores, and `retry_timeout` and `stall_timeout` in
    /// seconds.
    pub storage: Vec<(String, String)>,
    /// The most bytes that all objects together request ahead of their readers.
    pub io_bytes: usize,
    /// Where objects are kept for the next time.
    pub cache: Option<CacheOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self { storage: Vec::new(), io_bytes: 256 << 20, cache: None }
    }
}

/// An object, as its store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key, from the root of the store.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// The tag that changes with its content, if the store says so.
    pub e_tag: Option<String>,
}

/// The contents of a folder of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The folders directly in it, where only those are listed.
    pub folders: Vec<String>,
    /// The objects.
    pub objects: Vec<Listed>,
    /// Keys that no request can name, such as `a//b`; those of folders end in a slash.
    pub odd: Vec<String>,
}

/// Reads objects of stores, on a thread of its own. Clones share it; the last one ends the thread.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    runtime: Arc<OwnedRuntime>,
}

struct OwnedRuntime {
    runtime: Option<Runtime>,
    storage: Vec<(String, String)>,
    stores: Mutex<HashMap<String, Store>>,
    /// The connections to servers of the web, by whether they are encrypted.
    web: [WebConnector; 2],
}

/// A store.
#[derive(Clone)]
struct Store {
    objects: Arc<dyn ObjectStore>,
    /// None: it lists nothing.
    pages: Option<Arc<dyn PaginatedListStore>>,
}

impl Client {
    /// Starts the thread, which counts what it does. Options that no store knows are an error, and so are those that one refuses as soon as it is
    /// named.
    pub fn new(options: &Options, counters: &Arc<Counters>) -> Result<Self, String> {
        let mut storage = Vec::with_capacity(options.storage.len());
        let (mut retry_timeout, mut stall_timeout) = (RETRY_TIMEOUT, STALL_TIMEOUT);
        for (name, value) in &options.storage {
            if name == "retry_timeout" {
                retry_timeout = seconds(name, value)?;
            } else if name == "stall_timeout" {
                stall_timeout = seconds(name, value)?;
            } else if is_endpoint(name) && !value.contains("://") {
                return Err(format!(
                    "{name}: expected a URL with a scheme, such as http://localhost:9000, found {value:?}"
                ));
            } else if is_known(name) || Hub::has_option(name) {
                storage.push((name.to_ascii_lowercase(), value.clone()));
            } else {
                return Err(format!(
                    "{name:?}: expected an option of object_store, such as \"aws_region\", \"google_service_account\", \
                     \"azure_storage_account_name\" or \"endpoint\", or \"hf_token\", \"hf_endpoint\", \"retry_timeout\" or \"stall_timeout\""
                ));
            }
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("gristmill-io")
            .enable_all()
            .build()
            .map_err(|error| format!("expected to start a thread for the network, found: {error}"))?;
        let shared = Shared {
            retry_timeout,
            stall_timeout,
            io_bytes: options.io_bytes,
            ahead: Arc::default(),
            counters: Arc::clone(counters),
            outage: Mutex::new(None),
            cache: options.cache.as_ref().map(|options| Arc::new(Cache::new(options, counters))),
            tees: Mutex::default(),
            e_tags: Mutex::default(),
            lost: Mutex::default(),
            following: Mutex::default(),
            begun: Mutex::default(),
        };
        let runtime = OwnedRuntime {
            runtime: Some(runtime),
            storage,
            stores: Mutex::default(),
            web: Default::default(),
        };
        Ok(Self { shared: Arc::new(shared), runtime: Arc::new(runtime) })
    }

    /// Objects in the order of their URLs; none for one that is not there. Ends soon after `stop` is true.
    pub fn sizes(&self, urls: &[String], stop: Stop<'_>) -> Result<Vec<Option<Listed>>, Failure> {
        let wanted = urls.iter().map(|url| async move {
            let (store, path, _) = self.find(url)?;
            let found = self.persist(url, || async {
                match store.head(&path).await {
                    Ok(found) => Ok(Some(found)),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            });
            let found = found.await?.map(listed);
            self.remember(url, found.as_ref());
            Ok::<_, Failure>(found)
        });
        self.block_on(stream::iter(wanted).buffered(HEADS_AT_ONCE).try_collect(), stop)
    }

    /// All objects in the folder of `url`, at any depth. Ends soon after `stop` is true.
    pub fn list(&self, url: &str, stop: Stop<'_>) -> Result<Listing, Failure> {
        self.block_on(self.pages(url, None), stop)
    }

    /// The folders directly below that of `url`, and the objects. Ends soon after `stop` is true.
    pub fn list_folder(&self, url: &str, stop: Stop<'_>) -> Result<Listing, Failure> {
        self.block_on(self.pages(url, Some("/")), stop)
    }

    /// The pages of a listing, each of which is asked for until it is there.
    async fn pages(&self, url: &str, delimiter: Option<&'static str>) -> Result<Listing, Failure> {
        let (store, path, location) = self.store(url)?;
        let store =
            store.pages.ok_or_else(|| Failure::Unavailable(format!("{url}: the store lists nothing")))?;
        let folder = Some(format!("{path}/")).filter(|folder| folder != "/");
        let mut found = Listing::default();
        let (mut token, mut seen) = (None::<String>, HashSet::new());
        loop {
            let request = || {
                let options = PaginatedListOptions {
                    delimiter: delimiter.map(Into::into),
                    page_token: token.clone(),
                    ..PaginatedListOptions::default()
                };
                store.list_paginated(folder.as_deref(), options)
            };
            let page = self.persist(url, request).await?;
            let (result, next) = (page.result, page.page_token.filter(|token| !token.is_empty()));
            let first =
                result.objects.first().map(|object| &object.location).or(result.common_prefixes.first());
            let marks = [first.map(|first| format!("/{first}")), next.clone()];
            if marks.into_iter().flatten().any(|mark| !seen.insert(mark)) {
                return Err(Failure::Unavailable(format!(
                    "{url}: expected further pages of the listing, found one again after {} objects: the store lists without \
                     end; name its objects one by one, without globs",
                    found.objects.len()
                )));
            }
            found.folders.extend(result.common_prefixes.into_iter().map(String::from));
            found.objects.extend(result.objects.into_iter().map(listed));
            found.odd.extend(result.extensions.get::<OddKeys>().into_iter().flat_map(|odd| odd.0.clone()));
            token = next;
            if token.is_none() {
                break;
            }
        }
        for object in &found.objects {
            self.remember(&format!("{}/{}", location.root, object.key), Some(object));
        }
        Ok(found)
    }

    /// The `ETag` of an object that was listed or read, if it has one.
    pub fn e_tag(&self, url: &str) -> Option<Arc<str>> {
        lock(&self.shared.e_tags).get(url).cloned()
    }

    fn remember(&self, url: &str, found: Option<&Listed>) {
        let e_tag = found.and_then(|found| found.e_tag.as_deref());
        if let Some(e_tag) = e_tag.filter(|found| !is_weak(found)) {
            self.shared.e_tag(&url.into(), Some(e_tag));
        }
    }

    /// Why a store could not be read, if one could not: from then on nothing that is read counts.
    pub fn outage(&self) -> Option<Failure> {
        lock(&self.shared.outage).clone()
    }

    /// Whether an object was found to be gone, or another one than before.
    pub fn is_lost(&self, url: &str) -> bool {
        lock(&self.shared.lost).contains(url)
    }

    /// The file of an object in the cache, if it is there: its bytes come first.
    pub fn cached(&self, url: &str, size: u64, e_tag: Option<&str>) -> Option<File> {
        let (cache, key) = self.shared.in_cache(url, size, e_tag)?;
        cache.find(&key)
    }

    /// Removes an object from the cache: its bytes turned out to be damaged.
    pub fn forget(&self, url: &str, size: u64, e_tag: Option<&str>) {
        if let Some((cache, key)) = self.shared.in_cache(url, size, e_tag) {
            let tee = lock(&self.shared.tees).remove(url);
            if let Some(tee) = tee.and_then(|tee| tee.upgrade()) {
                tee.give_up();
            }
            cache.forget(&key);
        }
    }

    /// Says what is read after the object of `url`, before that one is opened: once all of that one has been requested, the
    /// start of the other is.
    pub fn announce(&self, url: &Arc<str>, next: &Arc<str>, size: u64, e_tag: Option<Arc<str>>) {
        if self.shared.in_cache(next, size, e_tag.as_deref()).is_some_and(|(cache, key)| cache.may_have(&key))
        {
            return;
        }
        let next = Announced { url: Arc::clone(next), size, e_tag };
        lock(&self.shared.following).insert(Arc::clone(url), next);
    }

    /// The Hugging Face Hub.
    pub fn hub(&self) -> Hub {
        Hub::find(&self.runtime.storage)
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime.runtime {
            runtime.spawn(work);
        }
    }

    pub(crate) fn block_on<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
        stop: Stop<'_>,
    ) -> Result<T, Failure> {
        let Some(runtime) = &self.runtime.runtime else { return Err(Failure::Closed) };
        runtime.block_on(async {
            let mut work = std::pin::pin!(work);
            loop {
                match tokio::time::timeout(TICK, &mut work).await {
                    Ok(found) => return found,
                    Err(_) if stop() => return Err(Failure::Closed),
                    Err(_) => {}
                }
            }
        })
    }

    /// The store of a URL, and the object's path and address in it.
    pub(crate) fn find(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path, Location), Failure> {
        let (store, path, location) = self.store(url)?;
        Ok((store.objects, path, location))
    }

    fn store(&self, url: &str) -> Result<(Store, Path, Location), Failure> {
        let location = Location::parse(url).map_err(Failure::Unavailable)?;
        let refused = |error: &dyn std::fmt::Display| {
            Failure::Unavailable(format!("{url}: expected a store, found: {error}; set storage_options="))
        };
        // Attempts are counted here, where an outage of minutes is waited out with lines in the log.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        if let Some(address) = location.web_address() {
            // Its query and escapes are those of the server, so that the URL is the store, and its object has no name.
            let client = client_options(self.shared.stall_timeout, &self.runtime.storage)
                .with_allow_http(url.starts_with("http://"));
            let connector = self.runtime.web[usize::from(url.starts_with("https://"))].clone();
            let builder = HttpBuilder::new().with_url(address).with_client_options(client).with_retry(retry);
            let store = builder.with_http_connector(connector).build().map_err(|error| refused(&error))?;
            return Ok((Store { objects: Arc::new(store), pages: None }, Path::default(), location));
        }
        // Requests leave a slash at the start out, and would name another object.
        let path = Path::parse(&location.key).ok().filter(|_| !location.key.starts_with('/'));
        let path = path.ok_or_else(|| {
            Failure::Unavailable(format!(
                "{url}: expected a key without empty parts, \".\", \"..\" and control characters; copy the object to another \
                 key"
            ))
        })?;
        let mut stores = lock(&self.runtime.stores);
        if let Some(store) = stores.get(&location.root) {
            return Ok((store.clone(), path, location));
        }
        let store = open(&location, &self.runtime.storage, retry, self.shared.stall_timeout)
            .map_err(|error| refused(&error))?;
        stores.insert(location.root.clone(), store.clone());
        drop(stores);
        Ok((store, path, location))
    }

    /// The store of a URL that is written, and the object's path in it.
    pub(crate) fn find_to_write(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path), Failure> {
        let (_, path, location) = self.find(url)?;
        let refused = |reason: &dyn std::fmt::Display| {
            Failure::Unavailable(format!("{url}: expected a store that can be written, found {reason}"))
        };
        if let Some(scheme @ ("http" | "https" | "hf")) = location.root.split("://").next() {
            return Err(refused(&format!("{scheme}://: choose gs://, s3:// or az://")));
        }
        // A part of a file is sent again by itself, not with all others.
        let store = open(&location, &self.runtime.storage, RetryConfig::default(), self.shared.stall_timeout);
        Ok((store.map_err(|error| refused(&error))?.objects, path))
    }

    /// Tries a request about what there is until it succeeds or its time is over.
    pub(crate) async fn persist<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        url: &str,
        request: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let retry_timeout = self.shared.retry_timeout.min(LISTING_TIMEOUT);
        self.persist_for(retry_timeout, url, 3 * self.shared.stall_timeout, request).await
    }

    /// Tries a request as long as outages are waited out while shards are read.
    pub(crate) async fn persist_long<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        url: &str,
        deadline: Duration,
        request: impl Fn() -> F,
    ) -> Result<T, Failure> {
        self.persist_for(self.shared.retry_timeout, url, deadline, request).await
    }

    async fn persist_for<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        retry_timeout: Duration,
        url: &str,
        deadline: Duration,
        request: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let mut retries = Retries::new(retry_timeout);
        loop {
            let attempt = match tokio::time::timeout(deadline, request()).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(error)) => attempt_of(&error),
                Err(_) => fetch::stalled(deadline),
            };
            match retries.failed(url, attempt, std::time::Instant::now()) {
                Next::GiveUp(failure) => return Err(failure),
                Next::Retry { delay, note } => {
                    self.shared.counters.note(note);
                    tokio::time::sleep(delay).await;
                }
            }
        }
    }
}

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Requests are dropped where they wait; a look-up of a name on a thread of its own may take longer.
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

fn listed(found: object_store::ObjectMeta) -> Listed {
    Listed { key: found.location.into(), size: found.size, e_tag: found.e_tag }
}

/// Whether some store has an option of this name.
fn is_known(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.parse::<AmazonS3ConfigKey>().is_ok()
        || name.parse::<GoogleConfigKey>().is_ok()
        || name.parse::<AzureConfigKey>().is_ok()
        || name.parse::<ClientConfigKey>().is_ok()
}

/// Whether an option of this name is the URL of a server.
fn is_endpoint(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["endpoint", "endpoint_url", "base_url"].iter().any(|end| name.ends_with(end))
}

/// The value of an option that is a time.
fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("{name}: expected a number of seconds, found {value:?}"))
}

/// How all stores are reached.
fn client_options(stall_timeout: Duration, storage: &[(String, String)]) -> ClientOptions {
    // Each process has one; another part of it may have set one before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT)
        .with_read_timeout(stall_timeout)
        .with_http1_only();
    let options =
        storage.iter().filter_map(|(name, value)| Some((name.parse::<ClientConfigKey>().ok()?, value)));
    options.fold(client, |client, (key, value)| client.with_config(key, value))
}

fn open(
    location: &Location,
    storage: &[(String, String)],
    retry: RetryConfig,
    stall_timeout: Duration,
) -> object_store::Result<Store> {
    let client = client_options(stall_timeout, storage);
    // Other libraries say gcs:// for the same.
    let root = location.root.strip_prefix("gcs://").map(|bucket| format!("gs://{bucket}"));
    let url = root.as_deref().unwrap_or(&location.root);
    let (scheme, bucket) = url.split_once("://").unwrap_or_default();
    macro_rules! built {
        ($builder:expr, $kind:expr, $endpoint:expr) => {{
            let mut builder = $builder.with_url(url).with_retry(retry).with_http_connector(Connector($kind));
            for (name, value) in storage {
                if let Ok(key) = name.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            // One of the environment, which the options do not have.
            if let Some(found) = builder.get_config_value(&$endpoint).filter(|found| !found.contains("://")) {
                let source =
                    format!("the endpoint {found:?} without a scheme, such as http://localhost:9000").into();
                return Err(object_store::Error::Generic { store: "store", source });
            }
            let store = Arc::new(builder.build()?);
            Ok(Store { objects: Arc::clone(&store) as Arc<dyn ObjectStore>, pages: Some(store) })
        }};
    }
    match scheme {
        "gs" => {
            let kind = Kind::Google(bucket.to_owned());
            built!(
                GoogleCloudStorageBuilder::from_env().with_client_options(client),
                kind,
                GoogleConfigKey::BaseUrl
            )
        }
        "s3" | "s3a" => built!(
            AmazonS3Builder::from_env().with_client_options(client),
            Kind::Other,
            AmazonS3ConfigKey::Endpoint
        ),
        "hf" => {
            let hub = Hub::find(storage);
            let headers = hub
                .headers()
                .map_err(|error| object_store::Error::Generic { store: "hub", source: error.into() })?;
            let client =
                client.with_allow_http(hub.endpoint.starts_with("http://")).with_default_headers(headers);
            let builder =
                HttpBuilder::new().with_url(hub.folder(url)).with_client_options(client).with_retry(retry);
            let store = builder.with_http_connector(Connector(Kind::Web)).build()?;
            Ok(Store { objects: Arc::new(store), pages: None })
        }
        _ => built!(
            MicrosoftAzureBuilder::from_env().with_client_options(client),
            Kind::Other,
            AzureConfigKey::Endpoint
        ),
    }
}
