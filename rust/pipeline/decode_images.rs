//! The decoding of images into rows: what a worker does with a [`PixelTask`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::batch::schema::DType;
use crate::error::{Error, ShardError};
use crate::format::key_at;
use crate::image::{Fault, Pixels, Place, Scratch};
use crate::pack::pixels::{FileOfShard, PixelFault, PixelTask};
use crate::prepare::image_text::of_sample;
use crate::spec::StreamSpec;
use crate::store::{Source, read_exact_at};

/// The longest file whose memory is kept.
const KEPT_BYTES: usize = 4 << 20;

/// Decodes images, for one thread.
pub struct ImageDecoder {
    stream: Arc<StreamSpec>,
    /// The source, index and file of the last image's shard: the next one is often in it too.
    open: Option<(usize, u32, Box<dyn Source>)>,
    bytes: Vec<u8>,
    scratch: Scratch,
    /// Set when the consumer no longer waits: a read of a store on the network then ends soon.
    stop: Arc<AtomicBool>,
}

impl ImageDecoder {
    /// A decoder of the images of a mixture's sources, until `stop` is set.
    pub fn new(stream: &Arc<StreamSpec>, stop: &Arc<AtomicBool>) -> Self {
        Self {
            stream: Arc::clone(stream),
            open: None,
            bytes: Vec::new(),
            scratch: Scratch::default(),
            stop: Arc::clone(stop),
        }
    }

    /// Writes the pixels of a task. Pixels that cannot be had are zeros.
    pub fn write(&mut self, task: PixelTask) -> Result<(), PixelFault> {
        let PixelTask { mut part, image, .. } = task;
        let pixels = match part.dtype() {
            DType::Float32 => Pixels::Float32(part.elements()),
            _ => Pixels::Uint8(part.elements()),
        };
        let Some(image) = image else {
            pixels.clear();
            return Ok(());
        };
        let written = self.write_image(&image, pixels);
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        written.inspect_err(|_| match part.dtype() {
            DType::Float32 => Pixels::Float32(part.elements()).clear(),
            _ => Pixels::Uint8(part.elements()).clear(),
        })
    }

    fn write_image(&mut self, image: &FileOfShard, pixels: Pixels<'_>) -> Result<(), PixelFault> {
        if let Place::Memory(bytes) = &image.file.place {
            let bytes = Arc::clone(bytes);
            return self.write_bytes(image, &bytes, pixels);
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let written = match self.read(image, &mut bytes) {
            Ok(()) => self.write_bytes(image, &bytes, pixels),
            Err(error) => Err(PixelFault::Unreadable(error)),
        };
        self.bytes = bytes;
        written
    }

    fn write_bytes(
        &mut self,
        image: &FileOfShard,
        bytes: &[u8],
        pixels: Pixels<'_>,
    ) -> Result<(), PixelFault> {
        let model = self.stream.sources[image.source].prepare.image_model();
        let model =
            model.ok_or_else(|| PixelFault::Unreadable(Error::Bug("a source without images".to_owned())))?;
        let written = model.write(bytes, pixels, &mut self.scratch);
        written.map_err(|fault| self.located(image, fault).unwrap_or_else(PixelFault::Unreadable))
    }

    /// A fault with the key of the image's sample. The error is that this cannot be read.
    fn located(&mut self, image: &FileOfShard, fault: Fault) -> Result<PixelFault, Error> {
        let key = self.key(image)?;
        Ok(match fault {
            Fault::Damaged(reason) => PixelFault::Damaged { key, reason },
            Fault::Failed(reason) => {
                let medium = self.stream.sources[image.source].prepare.medium().one();
                let reason = of_sample(&key, &format!("the pixels of {medium} cannot be made: {reason}"));
                PixelFault::Unreadable(self.error(image, image.file.place.byte(), reason))
            }
        })
    }

    /// The key of an image's sample. Windows do not hold it, as it is needed for damaged images only.
    /// Records with keys in place of members have none.
    fn key(&mut self, image: &FileOfShard) -> Result<String, Error> {
        if image.file.place.byte().is_none() {
            return Ok(String::new());
        }
        let stream = &self.stream.sources[image.source];
        let shard = &stream.shards[image.shard as usize];
        let file = match self.open.take() {
            Some((_, _, file)) => file,
            None => stream.read.access.open(shard, &self.stop)?,
        };
        key_at(file, image.record, &self.stop).map_err(|error| {
            let reason = format!("expected to read the name of a sample again, found: {error}");
            self.error(image, Some(image.record), reason)
        })
    }

    /// An error at a byte of an image's shard; or why its store could not be read.
    fn error(&self, image: &FileOfShard, byte: Option<u64>, reason: String) -> Error {
        let stream = &self.stream.sources[image.source];
        let shard = Arc::clone(stream.shards[image.shard as usize].name());
        let error = ShardError { shard, record: None, byte, reason };
        stream.read.access.outage().unwrap_or(Error::Shard(error))
    }

    /// Reads the bytes of an image file.
    fn read(&mut self, image: &FileOfShard, into: &mut Vec<u8>) -> Result<(), Error> {
        let FileOfShard { source, shard: index, ref file, .. } = *image;
        let stream = &self.stream.sources[source];
        let shard = &stream.shards[index as usize];
        let (offset, bytes) = match &file.place {
            Place::Shard { offset, bytes } => (*offset, *bytes),
            Place::Memory(bytes) => {
                into.clear();
                into.extend_from_slice(bytes);
                return Ok(());
            }
            Place::File { file, offset, bytes } => {
                let mut open = stream.read.access.open(file, &self.stop)?;
                into.clear();
                into.resize(*bytes as usize, 0);
                return read_exact_at(&mut *open, *offset, into).map_err(|error| {
                    let reason = format!("expected to read {:?} again, found: {error}", file.path);
                    self.error(image, None, reason)
                });
            }
        };
        let open = match self.open.take_if(|(of, open, _)| (*of, *open) == (source, index)) {
            Some((_, _, file)) => file,
            None => stream.read.access.open(shard, &self.stop)?,
        };
        let (_, _, open) = self.open.insert((source, index, open));
        into.clear();
        into.resize(bytes as usize, 0);
        read_exact_at(&mut **open, offset, into).map_err(|error| {
            if let Some(outage) = stream.read.access.outage() {
                return outage;
            }
            Error::Shard(ShardError {
                shard: Arc::clone(shard.name()),
                record: None,
                byte: Some(offset),
                reason: format!(
                    "expected to read {} of {bytes} bytes again, found: {error}",
                    stream.prepare.medium().one()
                ),
            })
        })
    }
}
