//! The pixels of a step's rows, which are written after all else, by any worker.
//!
//! ```text
//! pack      inputs, masks, ... of all rows of the step           the lane waits: Pause::Pixels
//! decode    image 0 | image 1 | ... | zeros behind the last      jobs of their own, in any order
//! pack      rows of samples whose images are damaged lose their loss; the step is published
//! ```

use std::ops::Range;

use super::report::Report;
use crate::batch::ring::LentPart;
use crate::error::Error;
use crate::image::ImageFile;
use crate::lane::block::Document;

/// Some pixels of a row that are to be written.
#[derive(Debug)]
pub struct PixelTask {
    /// Its index among those of the step.
    pub index: usize,
    /// Where they go.
    pub part: LentPart<Report>,
    /// The image that they are. None: no image is there, so they are zeros.
    pub image: Option<FileOfShard>,
}

/// An image file, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOfShard {
    /// The source of its row.
    pub source: usize,
    /// The index in the manifest of its shard.
    pub shard: u32,
    /// Where its record starts in the shard.
    pub record: u64,
    /// The file.
    pub file: ImageFile,
}

/// An image whose pixels are zeros.
#[derive(Debug)]
pub struct Undecodable {
    /// The index of its task.
    pub index: usize,
    /// Why.
    pub fault: PixelFault,
}

/// Why an image cannot be decoded.
#[derive(Debug)]
pub enum PixelFault {
    /// Its bytes are no valid image.
    Damaged {
        /// The key of its sample.
        key: String,
        /// The content and size that were expected and found.
        reason: String,
    },
    /// Its bytes cannot be read, which may be different on another machine.
    Unreadable(Error),
}

/// Some pixels of a row, as the step knows them.
#[derive(Debug, Clone)]
pub(super) struct PixelPart {
    pub row: usize,
    /// The values of the row's pixels.
    pub values: Range<usize>,
    /// The image that they are, if any.
    pub image: Option<PlacedImage>,
}

/// An image of a row.
#[derive(Debug, Clone)]
pub(super) struct PlacedImage {
    pub source: usize,
    pub document: Document,
    /// Its index among the document's images.
    pub number: usize,
    pub file: ImageFile,
    /// The elements of the row that its document takes.
    pub elements: Range<usize>,
    /// How many of them a mask selects.
    pub trained: usize,
}
