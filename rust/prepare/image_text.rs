//! Images with a text or a conversation.
//!
//! ```text
//! caption         <vision><image></vision>A cat.            one image token for each image, wherever the text has it
//! ids             12 44 13 319 7
//! with images     12 44 44 44 44 44 44 13 319 7             as many as the image's size says
//! trained         .  .  .  .  .  .  .  .  1   1             image tokens never
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use gristmill_chat_template::TrainedSpan;

use super::chat::{Conversations, Given, MessageFormat};
use super::completion::Completions;
use super::field::Field;
use super::image_columns::{Files, Found, ImageColumns, Missing};
use super::image_messages::Name;
use super::record_function::{Listed, RecordFunction};
use super::{Sample, Samples, image_messages};
use crate::error::Error;
use crate::format::{FoundImage, GroupImages, Medium, Values};
use crate::image::{Fault, FilePlan, Image, ImageFile, ImageModel, ImageRows, Place};

impl Medium {
    /// The placeholder in a text.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            Self::Image => "<image>",
            Self::Video => "<video>",
        }
    }

    /// The media that are not read beside it.
    pub(super) fn unseen(self) -> &'static str {
        match self {
            Self::Image => "videos and audio are not read",
            Self::Video => "images and audio are not read beside videos",
        }
    }
}

/// By the type of parts of a medium, the names of the tags that stand for it in other programs' data.
pub(super) const TAGS: [(&str, &[&str]); 3] = [
    (
        "image",
        &[
            "image",
            "images",
            "img",
            "imagehere",
            "image_pad",
            "image_placeholder",
            "image_token",
            "image_soft_token",
            "start_of_image",
        ],
    ),
    ("video", &["video", "videos", "vid", "videohere", "video_pad", "video_placeholder", "video_token"]),
    (
        "audio",
        &["audio", "audios", "audiohere", "audio_pad", "audio_placeholder", "speech", "speechhere", "sound"],
    ),
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
    /// Where the images of records are that are no group of a tar.
    pub columns: Option<ImageColumns>,
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

/// The images of a record before they are planned.
enum OfRecord<'a> {
    /// Members of a group.
    Members(&'a GroupImages),
    /// Images that its keys lead to.
    Found(Vec<Found>),
}

impl OfRecord<'_> {
    fn names(&self) -> Vec<&str> {
        match self {
            Self::Members(images) => images.images.iter().map(|image| &*image.member).collect(),
            Self::Found(found) => found.iter().map(|image| &*image.name).collect(),
        }
    }
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
    /// The ids of the words that an image is written with; the first one is the image token.
    pub words: Vec<Vec<u32>>,
    /// Whether they are images or videos.
    pub medium: Medium,
}

impl TextPart {
    /// How many samples it is.
    pub fn segments(&self) -> usize {
        if let Self::Pair(_) = self { 2 } else { 1 }
    }

    /// Whether an image must be there where a source has them. The messages of a conversation have a placeholder for each one.
    fn needs_images(&self) -> bool {
        match self {
            Self::Text(_) | Self::Completion(_) => true,
            Self::Chat(conversations) => conversations.columns.is_some(),
            Self::Pair(halves) => halves.iter().any(Self::needs_images),
        }
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
        let images = match (images, &self.columns) {
            (Some(images), _) => OfRecord::Members(images),
            (None, Some(columns)) => OfRecord::Found(columns.of(values, files)?),
            (None, None) => OfRecord::Found(Vec::new()),
        };
        match &self.function {
            None => self.fill_with(values, &images, None, key, files, samples),
            Some(function) => {
                let number = files.record.to_string();
                let own = if self.columns.is_some() { &*number } else { key };
                function.call(values, own, &images.names(), files, |made, listed| {
                    self.fill_with(made, &images, listed, key, files, samples)
                })
            }
        }
    }

    /// Appends the samples of a record with these values, and those of its images that are listed, or all.
    fn fill_with(
        &self,
        values: &Values<'_>,
        images: &OfRecord<'_>,
        listed: Option<&[Listed]>,
        key: &str,
        files: Files<'_>,
        samples: &mut Samples,
    ) -> Result<(), Missing> {
        let (mut members, mut planned) = (Vec::new(), Vec::new());
        let mut add = |name, image| {
            members.push(name);
            planned.push(image);
        };
        match (listed, images) {
            (None, OfRecord::Members(images)) => {
                for image in self.all(images)? {
                    add(&*image.member, self.plan_of_member(image, files)?);
                }
            }
            (None, OfRecord::Found(found)) => {
                for image in found {
                    add(&*image.name, self.plan_of(image, files)?);
                }
            }
            (Some(listed), _) => {
                for image in listed {
                    match (image, images) {
                        (Listed::Own(at), OfRecord::Members(images)) => {
                            let image = &images.images[*at];
                            add(&*image.member, self.plan_of_member(image, files)?);
                        }
                        (Listed::Own(at), OfRecord::Found(found)) => {
                            add(&*found[*at].name, self.plan_of(&found[*at], files)?);
                        }
                        (Listed::File(found), _) => add(&*found.name, self.plan_of(found, files)?),
                    }
                }
            }
        }
        let halves = match &self.text {
            TextPart::Pair(halves) => &**halves,
            text => std::slice::from_ref(text),
        };
        for text in halves {
            let sample = samples.add();
            sample.images.clone_from(&planned);
            self.write(text, values, key, &members, files, sample)?;
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
        files: Files<'_>,
        sample: &mut Sample,
    ) -> Result<(), Missing> {
        match text {
            TextPart::Text(field) => {
                self.check_has_image(text, values, &sample.images)?;
                Ok(self.place(&[(field.text(values)?, true)], sample)?)
            }
            TextPart::Completion(completions) => {
                self.check_has_image(text, values, &sample.images)?;
                let prompt = completions.prompt.text_of(values, "prompt_field")?;
                let completion = completions.completion.text_of(values, "completion_field")?;
                Ok(self.place(&[(prompt, false), (completion, true)], sample)?)
            }
            TextPart::Chat(conversations) => {
                let messages = conversations.messages(values)?;
                let images_first = conversations.format == MessageFormat::ChatMl;
                let mut messages = conversations.in_memory(messages)?;
                if conversations.columns.is_some() {
                    messages = image_messages::in_front(messages, sample.images.len(), self.tokens.medium)?;
                }
                let are_references = self.columns.is_some();
                let (messages, names) =
                    image_messages::with_parts(messages, images_first, are_references, &self.tokens)?;
                match &self.columns {
                    // The parts are all that leads to the images.
                    Some(columns) if members.is_empty() && names.iter().any(Option::is_some) => {
                        for (number, name) in names.iter().enumerate() {
                            sample.images.push(self.plan_of_part(columns, name.as_ref(), number, files)?);
                        }
                    }
                    _ => {
                        let order = image_messages::order(&names, key, members, self.tokens.medium)?;
                        sample.images = order.into_iter().map(|image| sample.images[image].clone()).collect();
                    }
                }
                self.check_has_image(text, values, &sample.images)?;
                conversations.render_one(&Given::Value(messages), values, sample)?;
                if !self.tokens.template.is_empty() {
                    let Sample { text, trained, data, images, .. } = sample;
                    let texts: Vec<&str> = images.iter().map(|image| self.text_of(image)).collect();
                    expand(&self.tokens, &texts, text, trained, data);
                }
                Ok(())
            }
            TextPart::Pair(_) => Err("expected one text, found a pair inside of a pair".to_owned().into()),
        }
    }

    /// The text that an image is.
    fn text_of<'a>(&'a self, image: &'a Image) -> &'a str {
        image.text.as_deref().unwrap_or(&self.tokens.text)
    }

    /// The plan of an image of a record with keys.
    fn plan_of(&self, found: &Found, files: Files<'_>) -> Result<Image, Missing> {
        let (width, height) = found.size;
        let name = if found.name.is_empty() { String::new() } else { format!(" {:?}", found.name) };
        let file = ImageFile { place: found.place.clone(), width, height };
        if self.model.plans_files() {
            return self.plan_of_file(file, files, &format!("the {}{name}", self.tokens.medium.kind()));
        }
        let plan = self.model.plan(width, height);
        let plan = plan.map_err(|error| format!("the image{name} of {width} x {height} pixels: {error}"))?;
        Ok(Image { token: 0, plan, file, text: None, groups: 1 })
    }

    /// The plan of an image by the bytes of its file. `shown` names it in errors.
    fn plan_of_file(&self, file: ImageFile, files: Files<'_>, shown: &str) -> Result<Image, Missing> {
        let bytes = files.read(&file.place)?;
        match self.model.plan_file(&bytes) {
            Ok(FilePlan { plan, text, groups }) => Ok(Image { token: 0, plan, file, text, groups }),
            Err(Fault::Damaged(reason)) => Err(format!("{shown}: {reason}").into()),
            Err(Fault::Failed(reason)) => {
                Err(Missing::Failed(Error::Argument(format!("{shown}: its plan cannot be made: {reason}"))))
            }
        }
    }

    /// The same for the image that a part of a message names.
    fn plan_of_part(
        &self,
        columns: &ImageColumns,
        name: Option<&Name>,
        number: usize,
        files: Files<'_>,
    ) -> Result<Image, Missing> {
        let kind = self.tokens.medium.kind();
        let of_part = |reason| format!("{kind} {number} of the messages: {reason}");
        let Some(Name::Of(name)) = name else {
            let expected = format!(
                "expected a path, a URL or a data URL, as the record has no {kind}s beside its messages"
            );
            return Err(of_part(format!("{expected}, found none")).into());
        };
        let found = columns.named(name, files).map_err(|missing| match missing {
            Missing::Bad(reason) => Missing::Bad(of_part(reason)),
            failed @ Missing::Failed(_) => failed,
        })?;
        self.plan_of(&found, files).map_err(|missing| match missing {
            Missing::Bad(reason) => Missing::Bad(of_part(reason)),
            failed @ Missing::Failed(_) => failed,
        })
    }

    /// The members of a group that are its images.
    fn all<'a>(&self, images: &'a GroupImages) -> Result<Vec<&'a FoundImage>, Missing> {
        let mut found: Vec<&FoundImage> = images.images.iter().collect();
        if let Some(parts) = &self.first_of {
            let part = parts.iter().find(|part| found.iter().any(|image| image.member == **part));
            found.retain(|image| Some(&image.member) == part);
        } else if let (true, None, Some(missing)) =
            (self.text.needs_images(), &self.function, &images.missing)
        {
            return Err(missing.clone().into());
        } else if let (true, Some(unseen)) = (found.is_empty(), &images.unseen) {
            let medium = self.tokens.medium;
            return Err(format!(
                "expected {}, found none but {unseen:?}: {}, and the text would be trained on alone",
                medium.one(),
                medium.unseen()
            )
            .into());
        }
        Ok(found)
    }

    /// The plan of an image that is a member of a group.
    fn plan_of_member(&self, image: &FoundImage, files: Files<'_>) -> Result<Image, Missing> {
        let FoundImage { member, offset, bytes, size } = image;
        let (offset, bytes) = (*offset, *bytes);
        let (width, height) = match size {
            Ok(size) => *size,
            Err(error) => return Err(format!("the image {member:?}, at byte {offset}: {error}").into()),
        };
        let file = ImageFile { place: Place::Shard { offset, bytes }, width, height };
        if self.model.plans_files() {
            let shown = format!("the {} {member:?}, at byte {offset}", self.tokens.medium.kind());
            return self.plan_of_file(file, files, &shown);
        }
        let plan = self.model.plan(width, height);
        let plan = plan.map_err(|error| {
            format!("the image {member:?} of {width} x {height} pixels, at byte {offset}: {error}")
        })?;
        Ok(Image { token: 0, plan, file, text: None, groups: 1 })
    }

    /// A text of a record or folder whose samples have an image is not trained on without it; a function of the user may have
    /// a record without one.
    fn check_has_image(&self, text: &TextPart, values: &Values<'_>, images: &[Image]) -> Result<(), String> {
        if !images.is_empty() {
            return Ok(());
        }
        if let (Some(columns), None) = (&self.columns, &self.function) {
            return columns.missing(values, text.needs_images()).map_or(Ok(()), Err);
        }
        match &self.first_of {
            Some(parts) if text.needs_images() && !parts.is_empty() => Err(format!(
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
        let Sample { text, trained, images: all, .. } = sample;
        let images = all.len();
        let mut of_images = all.iter().map(|image| self.text_of(image));
        let placeholder = self.tokens.medium.placeholder();
        let mut placeholders = 0;
        for (piece, _) in texts {
            self.tokens.check(piece)?;
            placeholders += piece.matches(placeholder).count();
        }
        if placeholders > 0 && placeholders != images {
            return Err(mismatch(self.tokens.medium, placeholders, images));
        }
        if placeholders == 0 {
            of_images.by_ref().for_each(|of_image| text.push_str(of_image));
        }
        for (piece, is_trained) in texts {
            for (number, part) in piece.split(placeholder).enumerate() {
                if number > 0 {
                    text.push_str(of_images.next().unwrap_or_default());
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
        is_trained: &[bool],
        images: &mut [Image],
        start: usize,
        ids: &mut Vec<u32>,
        trained: &mut Vec<bool>,
    ) -> Result<(), String> {
        let ImageTokens { image: image_token, untrained, words, .. } = &self.tokens;
        let is_image = |id: u32| Some(id) == *image_token;
        let placeholders = text_ids.iter().filter(|id| is_image(**id)).count();
        let expected = images.iter().map(|image| image.groups as usize).sum();
        if image_token.is_some() && placeholders != expected {
            return Err(mismatch(self.tokens.medium, placeholders, expected));
        }
        let mut images = images.iter_mut();
        // The tokens of each of an image's further groups, and how many these are.
        let mut group = (0, 0);
        for (&id, &is_trained) in text_ids.iter().zip(is_trained) {
            if !is_image(id) {
                ids.push(id);
                trained.push(is_trained && !untrained.contains(&id));
                continue;
            }
            let first = ids.len();
            if group.1 > 0 {
                group.1 -= 1;
                ids.extend(std::iter::repeat_n(id, group.0));
            } else {
                let Some(image) = images.next() else { break };
                let (tokens, groups) = (image.plan.tokens, image.groups.max(1));
                group = ((tokens / groups) as usize, groups - 1);
                if groups > 1 {
                    ids.extend(std::iter::repeat_n(id, group.0));
                } else {
                    let ImageFile { width, height, .. } = image.file;
                    for (word, count) in self.model.expansion(width, height, &image.plan) {
                        let word = words.get(word).map_or(&[][..], Vec::as_slice);
                        (0..count).for_each(|_| ids.extend_from_slice(word));
                    }
                }
                let before = ids[first..].iter().take_while(|id| !is_image(**id)).count();
                image.token = (first + before - start) as u32;
            }
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

impl ImageTokens {
    /// A text has no placeholder but the one of its medium. The error says what was expected and found.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let placeholder = self.medium.placeholder();
        for (start, _) in text.match_indices('<') {
            let Some(length) =
                text.as_bytes()[start..].iter().take(LONGEST_TAG).position(|byte| *byte == b'>')
            else {
                continue;
            };
            let tag = &text[start..=start + length];
            let name =
                tag[1..length].trim_matches(['|', '/', ' ']).trim_end_matches(|c: char| c.is_ascii_digit());
            let name = name.trim_end_matches(['_', '-', ' ', ':', '#']).to_ascii_lowercase();
            let Some((kind, _)) = TAGS.iter().find(|(_, names)| names.contains(&&*name)) else { continue };
            if *kind != self.medium.kind() {
                return Err(format!(
                    "expected placeholders of {}s, found {tag:?}: {}",
                    self.medium.kind(),
                    self.medium.unseen()
                ));
            }
            let is_own = tag == placeholder || self.text.contains(tag) || self.template.contains(tag);
            if !is_own {
                return Err(format!(
                    "expected {placeholder:?} where a text has {}, found {tag:?}, which would be trained on as text: \
                     write {placeholder:?}",
                    self.medium.one()
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn mismatch(medium: Medium, placeholders: usize, images: usize) -> String {
    format!("expected a placeholder for each {}, found {placeholders} for {images}", medium.kind())
}

/// Puts what an image is in a text in place of what the template writes for it, wherever no message says that.
fn expand(
    tokens: &ImageTokens,
    texts: &[&str],
    text: &mut String,
    trained: &mut [TrainedSpan],
    data: &mut [Range<usize>],
) {
    let is_data = |at: usize| data.iter().any(|range| range.contains(&at));
    // Placeholders beyond the images have a token, too, so that the count of ids shows them.
    let texts = texts.iter().copied().chain(std::iter::repeat(&*tokens.text));
    let found = text.match_indices(&tokens.template).map(|(at, _)| at).filter(|at| !is_data(*at));
    let starts: Vec<(usize, &str)> = found.zip(texts).collect();
    let old = tokens.template.len();
    let moved = |at: usize| {
        let before = starts.iter().take_while(|(start, _)| start + old <= at);
        before.fold(at, |at, (_, new)| at + new.len() - old)
    };
    let longer: usize = starts.iter().map(|(_, text)| text.len()).sum();
    let mut expanded = String::with_capacity(text.len() + longer);
    let mut start = 0;
    for (at, new) in &starts {
        expanded.push_str(&text[start..*at]);
        expanded.push_str(new);
        start = at + old;
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
