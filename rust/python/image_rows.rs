//! The parts of an [`ImageModel`] that datasets need for samples with images.

use std::sync::Arc;

use super::images::ImageModel;
use crate::error::Error;
use crate::format::ImageParts;
use crate::image::{self, PixelShape};

#[cfg(feature = "images")]
impl ImageModel {
    /// The rules of the model.
    pub fn core(&self) -> Arc<dyn image::ImageModel> {
        Arc::new(self.inner().clone())
    }

    /// The shape of the pixels that rows hold of its images, see [`image::model::pixel_shape`].
    #[expect(clippy::unnecessary_wraps, reason = "as without the feature")]
    pub fn pixel_shape(
        &self,
        sequence_length: usize,
        max_patches: Option<usize>,
    ) -> Result<PixelShape, Error> {
        Ok(image::model::pixel_shape(self.inner(), sequence_length, max_patches))
    }

    /// The members with these extensions, which are images; of `any_size` if that need not be known.
    pub fn parts(extensions: Vec<String>, are_named: bool, any_size: bool) -> ImageParts {
        let size = if any_size { image::model::any_size } else { image::model::size };
        ImageParts {
            extensions,
            are_named,
            size,
            kind: image::model::kind,
            is_decoded: image::model::is_decoded,
        }
    }
}

#[cfg(not(feature = "images"))]
#[expect(clippy::unused_self, reason = "as with the feature; no model can be made")]
impl ImageModel {
    pub fn core(&self) -> Arc<dyn image::ImageModel> {
        unreachable!("no model can be made")
    }

    pub fn pixel_shape(&self, _: usize, _: Option<usize>) -> Result<PixelShape, Error> {
        Err(super::images::left_out())
    }

    pub fn parts(extensions: Vec<String>, are_named: bool, _: bool) -> ImageParts {
        let size = |_: &[u8]| Err(super::images::left_out().to_string());
        ImageParts { extensions, are_named, size, kind: |_| None, is_decoded: |_| false }
    }
}
