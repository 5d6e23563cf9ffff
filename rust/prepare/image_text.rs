//! Images with a text or a conversation.
//!
//! ```text
//! caption         <vision><image></vision>A cat.            one image token for each image, wherever the text has it
//! ids             12 44 13 319 7
//! with images     12 44 44 44 44 44 44 13 319 7             as many as the image's size says
//! trained         .  .  .  .  .  .  .  .  1   1             image tokens never
//! ```

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use gristmill_chat_template::TrainedSpan;

use super::chat::{Conversations, Given, MessageFormat};
use super::field::Field;
use super::image_columns::{self, Files, ImageColumns, Missing};
use super::{Sample, Samples, image_messages};
use crate::format::{FoundImage, GroupImages, Values};
use crate::image::{Image, ImageFile, ImageModel, ImageRows, Place};

/// Where a text has an image.
pub(super) const PLACEHOLDER: &str = "<image>";
/// Where a text has what is not read.
const UNSEEN: [&str; 2] = ["<video>", "<audio>"];

/// How records become samples of images and text.
#[derive(Debug, Clone)]
pub struct ImageTexts {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The extensions of which a sample has the images of the first one that it has, where a folder says that. None: a sample
    /// has all images of the list.
    pub first_of: Option<Vec<String>>,
    /// Where the images of records are that are no group of a tar.
    pub columns: Option<ImageColumns>,
    /// The text that comes with them.
    pub text: TextPart,
    /// The tokens that an image is in a text.
    pub tokens: ImageTokens,
    /// The rules of the model.
    pub model: Arc<dyn ImageModel>,
    /// The arrays that rows hold of images.
    pub rows: ImageRows,
}

/// The text of a sample with images.
#[derive(Debug, Clone)]
pub enum TextPart {
    /// The string under a key, all of which is trained on.
    Text(Field),
    /// A conversation.
    Chat(Box<Conversations>),
}

/// The tokens that an image is in the text of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTokens {
    /// The text that a template writes for an image; empty: [`text`](Self::text) itself.
    pub template: String,
    /// The text of an image: with one image token.
    pub text: String,
    /// The id of the image token, which an image has as many of as its size says. None: images are not in the text.
    pub image: Option<u32>,
    /// Further ids around images that are not trained on.
    pub untrained: Vec<u32>,
    /// The ids of the words that an image is written with; the first one is the image token.
    pub words: Vec<Vec<u32>>,
}

impl ImageTexts {
    /// Appends the samples of a record, and sets its key. The error says what was expected and found.
    pub(super) fn fill(
        &self,
        values: &Values<'_>,
        images: Option<&GroupImages>,
        files: Files<'_>,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let filled = self.fill_sample(values, images, files, samples);
        filled.map_err(|missing| match missing {
            Missing::Bad(reason) => reason,
            Missing::Failed(error) => {
                let reason = error.to_string();
                samples.failed = Some(error);
                reason
            }
        })
    }

    fn fill_sample(
        &self,
        values: &Values<'_>,
        images: Option<&GroupImages>,
        files: Files<'_>,
        samples: &mut Samples,
    ) -> Result<(), Missing> {
        let key = images.map_or("", |images| &images.key);
        samples.key.push_str(key);
        let sample = samples.add();
        let in_columns;
        let members: Vec<&str> = match (images, &self.columns) {
            (Some(images), _) => self.plan(images, &mut sample.images)?,
            (None, Some(columns)) => {
                in_columns = columns.of(values, files)?;
                for found in &in_columns {
                    sample.images.push(self.plan_of(found)?);
                }
                in_columns.iter().map(|found| &*found.name).collect()
            }
            (None, None) => Vec::new(),
        };
        match &self.text {
            TextPart::Text(field) => {
                self.check_has_image(&sample.images)?;
                Ok(self.caption(values, field, sample)?)
            }
            TextPart::Chat(conversations) => {
                let messages = conversations.messages(values)?;
                let images_first = conversations.format == MessageFormat::ChatMl;
                let messages = conversations.in_memory(messages)?;
                let are_references = self.columns.is_some();
                let (messages, names) = image_messages::with_parts(messages, images_first, are_references)?;
                match &self.columns {
                    // The parts are all that leads to the images.
                    Some(columns) if members.is_empty() && names.iter().any(Option::is_some) => {
                        for (number, name) in names.iter().enumerate() {
                            sample.images.push(self.plan_of_part(columns, name.as_deref(), number, files)?);
                        }
                    }
                    _ => {
                        let order = image_messages::order(&names, key, &members)?;
                        sample.images = order.into_iter().map(|image| sample.images[image].clone()).collect();
                    }
                }
                conversations.render_one(&Given::Value(messages), values, sample)?;
                if !self.tokens.template.is_empty() {
                    expand(&self.tokens, &mut sample.text, &mut sample.trained, &mut sample.data);
                }
                Ok(())
            }
        }
    }

    /// The plan of an image of a record with keys.
    fn plan_of(&self, found: &image_columns::Found) -> Result<Image, String> {
        let (width, height) = found.size;
        let plan = self.model.plan(width, height).map_err(|error| {
            let name = if found.name.is_empty() { String::new() } else { format!(" {:?}", found.name) };
            format!("the image{name} of {width} x {height} pixels: {error}")
        })?;
        Ok(Image { token: 0, plan, file: ImageFile { place: found.place.clone(), width, height } })
    }

    /// The same for the image that a part of a message names.
    fn plan_of_part(
        &self,
        columns: &ImageColumns,
        name: Option<&str>,
        number: usize,
        files: Files<'_>,
    ) -> Result<Image, Missing> {
        let of_part = |reason| format!("image {number} of the messages: {reason}");
        let Some(name) = name else {
            let found = "expected a path, a URL or a data URL, as in other parts of type image, found none";
            return Err(of_part(found.to_owned()).into());
        };
        let found = columns.named(name, files).map_err(|missing| match missing {
            Missing::Bad(reason) => Missing::Bad(of_part(reason)),
            failed @ Missing::Failed(_) => failed,
        })?;
        Ok(self.plan_of(&found).map_err(of_part)?)
    }

    /// Plans the images of a record. Returns the members that they are in.
    fn plan<'a>(&self, images: &'a GroupImages, planned: &mut Vec<Image>) -> Result<Vec<&'a str>, String> {
        let mut found: Vec<&FoundImage> = images.images.iter().collect();
        if let Some(parts) = &self.first_of {
            let part = parts.iter().find(|part| found.iter().any(|image| image.member == **part));
            found.retain(|image| Some(&image.member) == part);
        } else if let (TextPart::Text(_), Some(missing)) = (&self.text, &images.missing) {
            return Err(missing.clone()); // The messages of a conversation have a placeholder for each image.
        } else if let (true, Some(unseen)) = (found.is_empty(), &images.unseen) {
            return Err(format!(
                "expected an image, found none but {unseen:?}: videos and audio are not read, and the text would be trained on \
                 alone"
            ));
        }
        let mut members = Vec::with_capacity(found.len());
        for FoundImage { member, offset, bytes, size } in found {
            let (offset, bytes) = (*offset, *bytes);
            let (width, height) = match size {
                Ok(size) => *size,
                Err(error) => return Err(format!("the image {member:?}, at byte {offset}: {error}")),
            };
            let plan = self.model.plan(width, height);
            let plan = plan.map_err(|error| {
                format!("the image {member:?} of {width} x {height} pixels, at byte {offset}: {error}")
            })?;
            let file = ImageFile { place: Place::Shard { offset, bytes }, width, height };
            planned.push(Image { token: 0, plan, file });
            members.push(&**member);
        }
        Ok(members)
    }

    /// A text of a folder whose samples have an image is not trained on without it.
    fn check_has_image(&self, images: &[Image]) -> Result<(), String> {
        if let (true, Some(columns)) = (images.is_empty(), &self.columns) {
            return columns.missing().map_or(Ok(()), Err);
        }
        match &self.first_of {
            Some(parts) if images.is_empty() && !parts.is_empty() => Err(format!(
                "expected an image with the extension {}, as dataset.yaml says, found none; add it, or exclude the sample in \
                 split.yaml",
                parts.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>().join(" or ")
            )),
            _ => Ok(()),
        }
    }

    /// A text with its images where it has placeholders, or in front of it if it has none.
    fn caption(&self, values: &Values<'_>, field: &Field, sample: &mut Sample) -> Result<(), String> {
        let Sample { text, trained, images, .. } = sample;
        let images = images.len();
        let caption = field.text(values)?;
        check_seen(&caption)?;
        let placeholders = caption.matches(PLACEHOLDER).count();
        if placeholders > 0 && placeholders != images {
            return Err(mismatch(placeholders, images));
        }
        if placeholders == 0 {
            (0..images).for_each(|_| text.push_str(&self.tokens.text));
        }
        for (number, part) in caption.split(PLACEHOLDER).enumerate() {
            if number > 0 {
                text.push_str(&self.tokens.text);
            }
            let start = text.len();
            text.push_str(part);
            if !part.is_empty() {
                trained.push(TrainedSpan::whole(start..text.len()));
            }
        }
        Ok(())
    }

    /// Appends the ids of a text with as many image tokens as its images have, and which of them are trained on, of a sample
    /// whose ids begin at `start`. The error says what was expected and found.
    pub(crate) fn expand(
        &self,
        text_ids: &[u32],
        is_trained: impl Iterator<Item = bool>,
        images: &mut [Image],
        start: usize,
        ids: &mut Vec<u32>,
        trained: &mut Vec<bool>,
    ) -> Result<(), String> {
        let ImageTokens { image: image_token, untrained, words, .. } = &self.tokens;
        let is_image = |id: u32| Some(id) == *image_token;
        let placeholders = text_ids.iter().filter(|id| is_image(**id)).count();
        if image_token.is_some() && placeholders != images.len() {
            return Err(mismatch(placeholders, images.len()));
        }
        let mut images = images.iter_mut();
        for (&id, is_trained) in text_ids.iter().zip(is_trained) {
            if !is_image(id) {
                ids.push(id);
                trained.push(is_trained && !untrained.contains(&id));
                continue;
            }
            let Some(image) = images.next() else { break };
            let first = ids.len();
            let ImageFile { width, height, .. } = image.file;
            for (word, count) in self.model.expansion(width, height, &image.plan) {
                let word = words.get(word).map_or(&[][..], Vec::as_slice);
                (0..count).for_each(|_| ids.extend_from_slice(word));
            }
            let before = ids[first..].iter().take_while(|id| !is_image(**id)).count();
            image.token = (first + before - start) as u32;
            trained.extend(std::iter::repeat_n(false, ids.len() - first));
        }
        Ok(())
    }

    /// Why a sample with so many tokens and these images does not fit into a row, if it does not.
    pub(crate) fn misfit(&self, tokens: usize, images: &[Image], sequence_length: usize) -> Option<String> {
        let of_images: u64 = images.iter().map(|image| u64::from(image.plan.tokens)).sum();
        if tokens > sequence_length {
            return Some(format!(
                "expected a sample of at most sequence_length={sequence_length} tokens, found one of {tokens}, {of_images} of \
                 them those of images; raise sequence_length=, or leave such samples out with truncation=\"drop\""
            ));
        }
        let (found, most) = (images.len(), self.rows.max_images);
        if found > most {
            return Some(format!(
                "expected a sample of at most max_images={most} images, found one of {found}; raise max_images=, or leave such \
                 samples out with truncation=\"drop\""
            ));
        }
        let patches: usize = images.iter().map(|image| image.plan.patches as usize).sum();
        let most = self.rows.max_patches();
        (patches > most).then(|| {
            format!(
                "expected images of at most max_patches={most} patches in a sample, found {patches}; raise max_patches=, or \
                 leave such samples out with truncation=\"drop\""
            )
        })
    }
}

/// A message about a sample with images, with its key if it has one: people know samples of tars by it.
pub fn of_sample(key: &str, reason: &str) -> String {
    if key.is_empty() {
        return reason.to_owned();
    }
    format!("sample {key:?}: {reason}")
}

/// A text has no placeholder of a video or of sound. The error says what was expected and found.
pub(super) fn check_seen(text: &str) -> Result<(), String> {
    match UNSEEN.iter().find(|placeholder| text.contains(**placeholder)) {
        None => Ok(()),
        Some(found) => {
            Err(format!("expected placeholders of images, found {found:?}: videos and audio are not read"))
        }
    }
}

pub(super) fn mismatch(placeholders: usize, images: usize) -> String {
    let mut message = String::new();
    _ = write!(message, "expected a placeholder for each image, found {placeholders} for {images}");
    message
}

/// Puts what an image is in a text in place of what the template writes for it, wherever no message says that.
fn expand(tokens: &ImageTokens, text: &mut String, trained: &mut [TrainedSpan], data: &mut [Range<usize>]) {
    let is_data = |at: usize| data.iter().any(|range| range.contains(&at));
    let places: Vec<usize> =
        text.match_indices(&tokens.template).map(|(at, _)| at).filter(|at| !is_data(*at)).collect();
    let (old, new) = (tokens.template.len(), tokens.text.len());
    let moved = |at: usize| {
        let before = places.iter().take_while(|place| **place + old <= at).count();
        at + before * new - before * old
    };
    let mut expanded = String::with_capacity(text.len() + places.len() * new);
    let mut start = 0;
    for place in &places {
        expanded.push_str(&text[start..*place]);
        expanded.push_str(&tokens.text);
        start = place + old;
    }
    expanded.push_str(&text[start..]);
    for TrainedSpan { bytes, lead, words } in trained {
        *lead = moved(*lead);
        for range in [bytes, words] {
            *range = moved(range.start)..moved(range.end);
        }
    }
    for range in data {
        *range = moved(range.start)..moved(range.end);
    }
    *text = expanded;
}
