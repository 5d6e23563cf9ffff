//! Images with a text or a conversation.
//!
//! ```text
//! caption         <vision><image></vision>A cat.            one image token for each image, wherever the text has it
//! ids             12 44 13 319 7
//! with images     12 44 44 44 44 44 44 13 319 7             as many as the image's size says
//! trained         .  .  .  .  .  .  .  .  1   1             image tokens never
//! ```

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use gristmill_chat_template::TrainedSpan;

use super::chat::{Conversations, Given, MessageFormat};
use super::completion::Completions;
use super::field::Field;
use super::record_function::RecordFunction;
use super::{Sample, Samples, image_messages};
use crate::format::{FoundImage, GroupImages, Values};
use crate::image::{Image, ImageFile, ImageModel, ImageRows, Plan};

/// Where a text has an image.
pub(super) const PLACEHOLDER: &str = "<image>";
/// Tags that stand for images in other programs' data, by their names.
const IMAGE_TAGS: [&str; 9] = [
    "image",
    "images",
    "img",
    "imagehere",
    "image_pad",
    "image_placeholder",
    "image_token",
    "image_soft_token",
    "start_of_image",
];
/// And those that stand for what is not read.
const UNSEEN_TAGS: [&str; 15] = [
    "video",
    "videos",
    "vid",
    "videohere",
    "video_pad",
    "video_placeholder",
    "video_token",
    "audio",
    "audios",
    "audiohere",
    "audio_pad",
    "audio_placeholder",
    "speech",
    "speechhere",
    "sound",
];
/// No tag of these is longer.
const LONGEST_TAG: usize = 32;

/// How records become samples of images and text.
#[derive(Debug, Clone)]
pub struct ImageTexts {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The extensions of which a sample has the images of the first one that it has, where a folder says that. None: a sample
    /// has all images of the list.
    pub first_of: Option<Vec<String>>,
    /// The function that makes of a record the one that is read.
    pub function: Option<RecordFunction>,
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
    /// A prompt and its completion, which is trained on.
    Completion(Completions),
    /// Two of these with the same images, which stay together.
    Pair(Box<[TextPart; 2]>),
}

/// The tokens that an image is in the text of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageTokens {
    /// The text that a template writes for an image; empty: [`text`](Self::text) itself.
    pub template: String,
    /// The text of an image: with one image token.
    pub text: String,
    /// The id of the image token, which an image has as many of as its size says. None: images are not in the text.
    pub image: Option<u32>,
    /// Further ids around images that are not trained on.
    pub untrained: Vec<u32>,
    /// The ids between tiles, of models that have them.
    pub separators: Option<Separators>,
}

/// The ids between the tiles of an image.
///
/// ```text
/// 2 x 3 tiles     T x T x T y T x T x T y W T         T: the image tokens of a tile, x and y: separators
/// 1 tile          W T                                 W T: the whole image
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Separators {
    /// Between the tiles of a row.
    pub across: u32,
    /// After a row of tiles.
    pub down: u32,
    /// Before the whole image.
    pub whole: u32,
}

impl Separators {
    /// Appends the ids of an image.
    fn write(self, image: u32, plan: &Plan, ids: &mut Vec<u32>) {
        let tile = || std::iter::repeat_n(image, (plan.tokens / plan.tiles.max(1)) as usize);
        let [_, down, across] = plan.grid;
        if plan.tiles > 1 {
            for _ in 0..down {
                for column in 1..=across {
                    ids.extend(tile());
                    ids.push(if column < across { self.across } else { self.down });
                }
            }
        }
        ids.push(self.whole);
        ids.extend(tile());
    }
}

impl TextPart {
    /// How many samples it is.
    pub fn segments(&self) -> usize {
        if let Self::Pair(_) = self { 2 } else { 1 }
    }

    /// Whether the token after the sample is trained on.
    pub fn trains_eos(&self) -> bool {
        match self {
            Self::Text(_) | Self::Completion(_) => true,
            Self::Chat(_) => false,
            Self::Pair(halves) => halves[0].trains_eos(),
        }
    }

    /// The added tokens, other than special ones, that are text in what conversations say.
    pub fn guarded_tokens(&self) -> &[String] {
        match self {
            Self::Text(_) | Self::Completion(_) => &[],
            Self::Chat(conversations) => conversations.template.written_tokens(),
            Self::Pair(halves) => halves[0].guarded_tokens(),
        }
    }

    /// Whether a sample without trained tokens is left out.
    pub fn drops_untrained(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Chat(conversations) => conversations.drops_untrained,
            Self::Completion(completions) => completions.drops_untrained,
            Self::Pair(halves) => halves.iter().any(Self::drops_untrained),
        }
    }
}

impl ImageTexts {
    /// Appends the samples of a record, and sets its key. The error says what was expected and found.
    pub(super) fn fill(
        &self,
        values: &Values<'_>,
        images: Option<&GroupImages>,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let key = images.map_or("", |images| &images.key);
        samples.key.push_str(key);
        match &self.function {
            None => self.fill_with(values, images, None, key, samples),
            Some(function) => {
                let members =
                    images.into_iter().flat_map(|images| &images.images).map(|image| &*image.member);
                let fill = |made: &Values<'_>, listed: Option<&[usize]>| {
                    self.fill_with(made, images, listed, key, samples)
                };
                function.call(values, key, &members.collect::<Vec<_>>(), fill)
            }
        }
    }

    /// Appends the samples of a record with these values, and those of its images that are listed, or all.
    fn fill_with(
        &self,
        values: &Values<'_>,
        images: Option<&GroupImages>,
        listed: Option<&[usize]>,
        key: &str,
        samples: &mut Samples,
    ) -> Result<(), String> {
        let mut planned = Vec::new();
        let members = match images {
            Some(images) => self.plan(images, listed, &mut planned)?,
            None => Vec::new(),
        };
        let halves = match &self.text {
            TextPart::Pair(halves) => &**halves,
            text => std::slice::from_ref(text),
        };
        for text in halves {
            let sample = samples.add();
            sample.images.clone_from(&planned);
            self.write(text, values, key, &members, sample)?;
        }
        Ok(())
    }

    /// Puts a text with its images in a sample that has them.
    fn write(
        &self,
        text: &TextPart,
        values: &Values<'_>,
        key: &str,
        members: &[&str],
        sample: &mut Sample,
    ) -> Result<(), String> {
        match text {
            TextPart::Text(field) => {
                self.check_has_image(&sample.images)?;
                self.place(&[(field.text(values)?, true)], sample)
            }
            TextPart::Completion(completions) => {
                self.check_has_image(&sample.images)?;
                let prompt = completions.prompt.text_of(values, "prompt_field")?;
                let completion = completions.completion.text_of(values, "completion_field")?;
                self.place(&[(prompt, false), (completion, true)], sample)
            }
            TextPart::Chat(conversations) => {
                let messages = conversations.messages(values)?;
                let images_first = conversations.format == MessageFormat::ChatMl;
                let mut messages = conversations.in_memory(messages)?;
                if conversations.columns.is_some() {
                    messages = image_messages::in_front(messages, sample.images.len())?;
                }
                let (messages, names) = image_messages::with_parts(messages, images_first, &self.tokens)?;
                let order = image_messages::order(&names, key, members)?;
                sample.images = order.into_iter().map(|image| sample.images[image]).collect();
                conversations.render_one(&Given::Value(messages), values, sample)?;
                if !self.tokens.template.is_empty() {
                    expand(&self.tokens, &mut sample.text, &mut sample.trained, &mut sample.data);
                }
                Ok(())
            }
            TextPart::Pair(_) => Err("expected one text, found a pair inside of a pair".to_owned()),
        }
    }

    /// Plans the images of a record, or those that are listed. Returns the members that they are in.
    fn plan<'a>(
        &self,
        images: &'a GroupImages,
        listed: Option<&[usize]>,
        planned: &mut Vec<Image>,
    ) -> Result<Vec<&'a str>, String> {
        let mut found: Vec<&FoundImage> = images.images.iter().collect();
        if let Some(listed) = listed {
            found = listed.iter().map(|at| &images.images[*at]).collect();
        } else if let Some(parts) = &self.first_of {
            let part = parts.iter().find(|part| found.iter().any(|image| image.member == **part));
            found.retain(|image| Some(&image.member) == part);
        } else if let (TextPart::Text(_), Some(missing)) = (&self.text, &images.missing)
            && self.function.is_none()
        {
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
            let file = ImageFile { offset, bytes, width, height };
            planned.push(Image { token: 0, plan, file });
            members.push(&**member);
        }
        Ok(members)
    }

    /// A text of a folder whose samples have an image is not trained on without it.
    fn check_has_image(&self, images: &[Image]) -> Result<(), String> {
        match &self.first_of {
            Some(parts) if images.is_empty() && !parts.is_empty() => Err(format!(
                "expected an image with the extension {}, as dataset.yaml says, found none; add it, or exclude the sample in \
                 split.yaml",
                parts.iter().map(|part| format!("{part:?}")).collect::<Vec<_>>().join(" or ")
            )),
            _ => Ok(()),
        }
    }

    /// Appends texts, of which each is trained on or not, with their images where they have placeholders, or in front of them
    /// if they have none.
    fn place(&self, texts: &[(Cow<'_, str>, bool)], sample: &mut Sample) -> Result<(), String> {
        let Sample { text, trained, images, .. } = sample;
        let images = images.len();
        let mut placeholders = 0;
        for (piece, _) in texts {
            self.tokens.check(piece)?;
            placeholders += piece.matches(PLACEHOLDER).count();
        }
        if placeholders > 0 && placeholders != images {
            return Err(mismatch(placeholders, images));
        }
        if placeholders == 0 {
            (0..images).for_each(|_| text.push_str(&self.tokens.text));
        }
        for (piece, is_trained) in texts {
            for (number, part) in piece.split(PLACEHOLDER).enumerate() {
                if number > 0 {
                    text.push_str(&self.tokens.text);
                }
                let start = text.len();
                text.push_str(part);
                if *is_trained && !part.is_empty() {
                    trained.push(TrainedSpan::whole(start..text.len()));
                }
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
        let ImageTokens { image: image_token, untrained, separators, .. } = &self.tokens;
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
            match separators {
                Some(separators) => separators.write(id, &image.plan, ids),
                None => ids.extend(std::iter::repeat_n(id, image.plan.tokens as usize)),
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

/// A message about a sample with images, which has its key: people know samples of tars by it.
pub fn of_sample(key: &str, reason: &str) -> String {
    format!("sample {key:?}: {reason}")
}

impl ImageTokens {
    /// A text has no placeholder but `<image>`. The error says what was expected and found.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        for (start, _) in text.match_indices('<') {
            let Some(length) =
                text.as_bytes()[start..].iter().take(LONGEST_TAG).position(|byte| *byte == b'>')
            else {
                continue;
            };
            let tag = &text[start..=start + length];
            let name =
                tag[1..length].trim_matches(['|', '/', ' ']).trim_end_matches(|c: char| c.is_ascii_digit());
            let name = name.trim_end_matches(['_', '-', ' ']).to_ascii_lowercase();
            if UNSEEN_TAGS.contains(&&*name) {
                return Err(format!(
                    "expected placeholders of images, found {tag:?}: videos and audio are not read"
                ));
            }
            let is_own = tag == PLACEHOLDER || self.text.contains(tag) || self.template.contains(tag);
            if IMAGE_TAGS.contains(&&*name) && !is_own {
                return Err(format!(
                    "expected {PLACEHOLDER:?} where a text has an image, found {tag:?}, which would be trained on as text: write \
                     {PLACEHOLDER:?}"
                ));
            }
        }
        Ok(())
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
