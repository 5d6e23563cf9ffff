//! Small objects that are read and written as a whole, and files that become objects: whole, or not at all.

use std::io::{Read, Write};
use std::path::Path as File;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};

use crate::client::{Client, Stop};
use crate::fetch::{Wanted, fetch};
use crate::retries::Failure;

/// The longest file that is sent in one request.
const ONE_REQUEST: u64 = 64 << 20;
/// Bytes of each request for a longer one, unless that would be more requests than stores allow.
const PART_BYTES: u64 = 16 << 20;
const MOST_PARTS: u64 = 9000;
/// Parts that are sent at once.
const AT_ONCE: usize = 4;
/// The slowest connection that a file is sent over, in bytes a second.
const SLOWEST: u64 = 64 << 10;

impl Client {
    /// All bytes of an object; None if there is none. Ends soon after `stop` is true.
    pub fn read(&self, url: &str, stop: Stop<'_>) -> Result<Option<Bytes>, Failure> {
        let (store, path, _) = self.find(url)?;
        let found = self.persist(url, || async {
            match store.get(&path).await {
                Ok(found) => found.bytes().await.map(Some),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        });
        self.block_on(found, stop)
    }

    /// Makes a file of an object of `size` bytes. Ends soon after `stop` is true.
    pub fn download(&self, url: &str, size: u64, file: &File, stop: Stop<'_>) -> Result<(), Failure> {
        let (store, path, _) = self.find(url)?;
        let wanted = Wanted { url: url.into(), store, path, size };
        let unwritten = |error: std::io::Error| {
            Failure::Unavailable(format!("{}: expected to write the file, found: {error}", file.display()))
        };
        let mut out = std::fs::File::create(file).map_err(unwritten)?;
        let ranges = (0..size).step_by(PART_BYTES as usize).map(|at| at..(at + PART_BYTES).min(size));
        let work = async {
            let fetched = ranges.map(|range| fetch(&self.shared, &wanted, range));
            let mut pieces = stream::iter(fetched).buffered(AT_ONCE);
            while let Some(piece) = pieces.next().await {
                out.write_all(&piece?).map_err(unwritten)?;
            }
            Ok(())
        };
        self.block_on(work, stop)
    }

    /// Makes an object of these bytes, in place of one that is there. Ends soon after `stop` is true.
    pub fn write(&self, url: &str, bytes: &Bytes, stop: Stop<'_>) -> Result<(), Failure> {
        let (store, path) = self.find_to_write(url)?;
        let put = || async { store.put(&path, PutPayload::from(bytes.clone())).await.map(drop) };
        written(url, self.block_on(self.persist_long(url, 3 * self.shared.stall_timeout, put), stop))
    }

    /// Makes an object of a file, which appears when all of it has arrived. Ends soon after `stop` is true.
    pub fn upload(&self, url: &str, file: &File, stop: Stop<'_>) -> Result<(), Failure> {
        let unreadable = |error: std::io::Error| {
            Failure::Unavailable(format!("{}: expected to read the file, found: {error}", file.display()))
        };
        let size = file.metadata().map_err(unreadable)?.len();
        if size <= ONE_REQUEST {
            return self.write(url, &std::fs::read(file).map_err(unreadable)?.into(), stop);
        }
        let (store, path) = self.find_to_write(url)?;
        let put = || send(&*store, &path, file, size);
        let deadline = self.shared.stall_timeout + Duration::from_secs(size / SLOWEST);
        written(url, self.block_on(self.persist_long(url, deadline, put), stop))
    }
}

/// Sends a file in parts, of which an object is made at the end.
async fn send(store: &dyn ObjectStore, path: &Path, file: &File, size: u64) -> object_store::Result<()> {
    let local = |error: std::io::Error| Error::Generic { store: "the local file", source: Box::new(error) };
    let mut file = std::fs::File::open(file).map_err(local)?;
    let part = PART_BYTES.max(size / MOST_PARTS) as usize;
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(path).await?, part);
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = async {
            let length = file.read(&mut piece).map_err(local)?;
            upload.wait_for_capacity(AT_ONCE).await?;
            Ok::<_, Error>(length)
        };
        match read.await {
            Ok(0) => return upload.finish().await.map(drop),
            Ok(length) => upload.write(&piece[..length]),
            Err(error) => {
                // The parts of an upload that ended cost its owner money.
                let _ = upload.abort().await;
                return Err(error);
            }
        }
    }
}

/// An object that is not found has another meaning where something is written.
fn written(url: &str, result: Result<(), Failure>) -> Result<(), Failure> {
    result.map_err(|failure| match failure {
        Failure::Missing(_) => Failure::Unavailable(format!(
            "{url}: expected a bucket or container to write into, found none; create it, or choose another one"
        )),
        failure => failure,
    })
}
