//! The parts of an [`ImageModel`] that datasets need for samples with images.

use std::sync::Arc;

use super::images::ImageModel;
use crate::format::{ImageParts, Medium, SizeOf};
use crate::image::{self, PixelShape};

impl ImageModel {
    /// The rules of the model.
    pub fn core(&self) -> Arc<dyn image::ImageModel> {
        Arc::new(self.inner().clone())
    }

    /// The shape of the pixels that rows hold of its images, see [`image::model::pixel_shape`].
    pub fn pixel_shape(&self, sequence_length: usize, max_patches: Option<usize>) -> PixelShape {
        image::model::pixel_shape(self.inner(), sequence_length, max_patches)
    }

    /// The members with these extensions, which are images; whose sizes a function finds. `are_columns`: images are
    /// in keys of records, and tars are refused.
    pub fn parts(
        extensions: Vec<String>,
        are_named: bool,
        are_columns: bool,
        medium: Medium,
        size: SizeOf,
    ) -> ImageParts {
        ImageParts {
            extensions,
            are_named,
            medium,
            are_columns,
            size,
            kind: image::model::kind,
            is_decoded: image::model::is_decoded,
        }
    }
}
