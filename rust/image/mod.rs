//! Images of samples: where their files lie, what a model makes of them, and what rows hold of them.
//!
//! ```text
//! reading    name and first bytes of a member        offset, bytes, width, height    (ImageFile)
//! preparing  the model's rule for this size           tokens, patches, grid           (Plan)
//! packing    tokens, images and patches have budgets  an index in the row             (ImageRows)
//! after it   the file is read again and decoded       pixels in the ring's slot
//! ```
//!
//! Images may also be in the columns of a record, which are held as they are, or in files of their own.
//! Nothing before the last line holds a pixel, so windows of samples are small however large their images are.

pub mod model;

use std::fmt;
use std::sync::Arc;

use crate::batch::schema::{Content, DType, Field};
use crate::store::Shard;

/// An image file, of which only the header was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFile {
    /// Where its bytes are.
    pub place: Place,
    /// Columns of pixels.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
}

/// Where the bytes of an image are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the shard of its record.
    Shard {
        /// The offset of its first byte in the shard.
        offset: u64,
        /// How many bytes it has.
        bytes: u64,
    },
    /// In memory: formats with columns, and text in base64, are not read again at random.
    Memory(Arc<[u8]>),
    /// In another file.
    File {
        /// The file.
        file: Arc<Shard>,
        /// The offset of its first byte in it: 0 of a file of its own.
        offset: u64,
        /// How many bytes it has.
        bytes: u64,
    },
}

impl Place {
    /// The byte of the shard that it begins at, if it is there.
    pub fn byte(&self) -> Option<u64> {
        if let Self::Shard { offset, .. } = self { Some(*offset) } else { None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard { offset, .. } => write!(f, ", at byte {offset},"),
            Self::Memory(bytes) => write!(f, ", of {} bytes,", bytes.len()),
            Self::File { file, bytes, .. } if *bytes == file.size => write!(f, ", {},", file.path),
            Self::File { file, offset, .. } => write!(f, ", {}, at byte {offset},", file.path),
        }
    }
}

/// The size, tokens and pixels that a model gives an image, by the image's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Plan {
    /// Tokens of the text that the image takes.
    pub tokens: u32,
    /// Patches of pixels; 0 for models without.
    pub patches: u32,
    /// Tiles, with that of the whole image; 0 for models without.
    pub tiles: u32,
    /// The patches as frames, rows and columns; of tiles, those without the whole image.
    pub grid: [u32; 3],
    /// So many rows and as many columns of patches are one token.
    pub merge: u32,
}

impl Plan {
    /// The image's tokens as frames, rows and columns.
    pub fn merged_grid(&self) -> [u32; 3] {
        let [frames, rows, columns] = self.grid;
        [frames, rows / self.merge.max(1), columns / self.merge.max(1)]
    }
}

/// An image of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The index of its first token in its document.
    pub token: u32,
    /// The plan that the model makes of it.
    pub plan: Plan,
    /// Where it lies.
    pub file: ImageFile,
    /// The text that it is, if the file says it: with an image token for each of its groups of frames.
    pub text: Option<Arc<str>>,
    /// How many groups of frames have an image token of their own: of a still image one.
    pub groups: u32,
}

/// The plan that a model makes of a file whose bytes it must see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlan {
    /// The plan.
    pub plan: Plan,
    /// The text that the image is, with an image token for each group of frames; none if all have the same.
    pub text: Option<Arc<str>>,
    /// How many groups these are.
    pub groups: u32,
}

/// The rules of a model.
pub trait ImageModel: Send + Sync + fmt::Debug {
    /// The plan for an image of this size. The error says what was expected and found.
    fn plan(&self, width: u32, height: u32) -> Result<Plan, String>;

    /// Whether its plans need the bytes of a file, and not a size.
    fn plans_files(&self) -> bool {
        false
    }

    /// The plan for a file of these bytes.
    fn plan_file(&self, _bytes: &[u8]) -> Result<FilePlan, Fault> {
        Err(Fault::Failed("expected a model that plans files".to_owned()))
    }

    /// An image of this size as indices of the words that it is written with, each with how often it is repeated. The word 0
    /// is the image token.
    fn expansion(&self, _width: u32, _height: u32, plan: &Plan) -> Vec<(usize, u32)> {
        vec![(0, plan.tokens)]
    }

    /// Decodes an image file and writes its pixels.
    fn write(&self, bytes: &[u8], out: Pixels<'_>, scratch: &mut Scratch) -> Result<(), Fault>;
}

/// Why the pixels of an image cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The image is damaged: what was expected and found.
    Damaged(String),
    /// Something else is wrong, which may be different for another image or on another machine.
    Failed(String),
}

impl Fault {
    /// The reason of the fault.
    pub fn into_reason(self) -> String {
        match self {
            Self::Damaged(reason) | Self::Failed(reason) => reason,
        }
    }
}

/// Where the pixels of an image go.
#[derive(Debug)]
pub enum Pixels<'a> {
    /// As they are decoded and resized.
    Uint8(&'a mut [u8]),
    /// Normalized, as the model takes them.
    Float32(&'a mut [f32]),
}

impl Pixels<'_> {
    /// Makes all of them zeros.
    pub fn clear(self) {
        match self {
            Self::Uint8(pixels) => pixels.fill(0),
            Self::Float32(pixels) => pixels.fill(0.0),
        }
    }
}

/// Memory that is used again for each image.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Memory of the models of `gristmill_images`.
    pub resize: gristmill_images::Scratch,
}

/// The arrays that rows hold of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRows {
    /// The most images of a row.
    pub max_images: usize,
    /// The arrays of pixels.
    pub shape: PixelShape,
    /// Whether pixels are normalized, as float32.
    pub normalized: bool,
    /// Whether positions have three axes: time, row and column.
    pub rotary: bool,
}

/// The shape of an image's pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PixelShape {
    /// All images have one shape, such as `[height, width, 3]`.
    Fixed(Vec<usize>),
    /// Tiles, of which an image has as many as its size says.
    Tiles {
        /// The most tiles of an image, with that of the whole image.
        most: usize,
        /// The shape of a tile.
        shape: Vec<usize>,
    },
    /// Patches, of which an image has as many as its size says.
    Patches {
        /// The most patches of a row.
        most: usize,
        /// Values of a patch.
        length: usize,
    },
}

impl ImageRows {
    /// The most patches of a row; any number where images have none.
    pub fn max_patches(&self) -> usize {
        match self.shape {
            PixelShape::Fixed(_) | PixelShape::Tiles { .. } => usize::MAX,
            PixelShape::Patches { most, .. } => most,
        }
    }

    /// How many elements of the mask an image has: one, or one for each tile.
    pub fn mask_width(&self) -> usize {
        if let PixelShape::Tiles { most, .. } = self.shape { most } else { 1 }
    }

    /// Adds the fields of images to those of a row's tokens, whose positions get three axes if that is wanted.
    pub fn extend(&self, fields: &mut Vec<Field>) {
        if self.rotary
            && let Some(position) = fields.iter_mut().find(|field| field.content == Content::Position)
        {
            let row_shape = [&[3], &*position.row_shape].concat();
            *position = Field::new(
                &position.name,
                position.dtype,
                row_shape,
                Content::RotaryPosition,
                position.padding,
            );
        }
        fields.extend(self.fields());
    }

    fn fields(&self) -> Vec<Field> {
        let most = self.max_images;
        let dtype = if self.normalized { DType::Float32 } else { DType::Uint8 };
        let int = |name, row_shape, content| Field::new(name, DType::Int32, row_shape, content, 0);
        let (name, pixels, masks) = match &self.shape {
            PixelShape::Fixed(shape) => ("images", [&[most], &**shape].concat(), vec![most]),
            PixelShape::Tiles { most: tiles, shape } => {
                ("images", [&[most, *tiles], &**shape].concat(), vec![most, *tiles])
            }
            PixelShape::Patches { most: patches, length } => {
                ("image_patches", vec![*patches, *length], vec![most])
            }
        };
        let mut fields = vec![Field::new(name, dtype, pixels, Content::Pixels, 0)];
        fields.push(int("image_masks", masks, Content::ImageMask));
        if let PixelShape::Patches { .. } = self.shape {
            fields.push(int("image_grid_thw", vec![most, 3], Content::ImageGrid));
        }
        fields.push(int("image_segmentation", vec![most], Content::ImageSegment));
        fields.push(int("image_position", vec![most], Content::ImageIndex));
        fields
    }

    /// Where the values end that image number `images` of a row may take, if it may take fewer.
    pub fn end(&self, images: usize) -> Option<usize> {
        let PixelShape::Tiles { most, shape } = &self.shape else { return None };
        Some((images + 1) * most * shape.iter().product::<usize>())
    }

    /// The values of a row's pixels that an image takes, behind so many images and patches.
    pub fn values(&self, images: usize, patches: usize, plan: &Plan) -> std::ops::Range<usize> {
        match &self.shape {
            PixelShape::Fixed(shape) => {
                let length: usize = shape.iter().product();
                images * length..(images + 1) * length
            }
            PixelShape::Tiles { most, shape } => {
                let length: usize = shape.iter().product();
                let start = images * most * length;
                start..start + plan.tiles as usize * length
            }
            PixelShape::Patches { length, .. } => {
                patches * length..(patches + plan.patches as usize) * length
            }
        }
    }
}
