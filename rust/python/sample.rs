//! The plan that turns a record into a sample, as `gristmill._sample` describes it.

use std::collections::HashMap;
use std::sync::Arc;

use gristmill_chat_template::NoneFields;
use pyo3::prelude::*;

use super::chat_template::{ChatTemplate, TrainOptions, parse_date};
use super::choices::{SAMPLE_UNITS, STRING_ARGUMENTS, find};
use super::image_function::ImageFunction;
use super::images::ImageModel;
use super::record_function::FunctionPlan;
use crate::error::Error;
use crate::format::{IdFiles, IdKind, ImageParts, Medium, Path, Projection, SizeOf};
use crate::image::{self, ImageRows, PixelShape};
use crate::prepare::chat::{Conversations, MessageFormat, Own};
use crate::prepare::completion::Completions;
use crate::prepare::field::Field;
use crate::prepare::fill_in_the_middle::{FillInTheMiddle, Sentinels};
use crate::prepare::image_columns::{ImageColumns, ImageKind};
use crate::prepare::image_text::{ImageTexts, ImageTokens, TextPart};
use crate::prepare::instruction::Columns;
use crate::prepare::record_function::RecordFunction;
use crate::prepare::tokens::{Mask, ReadyTokens};
use crate::prepare::{Pair, Prepare, TextWithFields};

/// A sample other than a plain text. The fields are those of the classes in `gristmill._sample`.
#[derive(FromPyObject)]
#[expect(clippy::large_enum_variant, reason = "a dataset has one")]
pub enum Sample {
    FillInTheMiddle(FillPlan),
    Keyed(Keyed),
    #[expect(dead_code, reason = "it says nothing but that it is one")]
    WithFields(FieldsPlan),
}

/// A text with fields.
#[derive(FromPyObject)]
pub struct FieldsPlan {
    #[expect(dead_code, reason = "tells the class from others")]
    has_only_fields: bool,
}

/// A text that may be cut. Rates are from 0 to 1, the others are ids.
#[derive(FromPyObject)]
pub struct FillPlan {
    rate: f64,
    spm_rate: f64,
    prefix: u32,
    middle: u32,
    suffix: u32,
}

/// A sample of the values of some keys.
#[derive(FromPyObject)]
#[expect(clippy::large_enum_variant, reason = "a dataset has one")]
pub enum Keyed {
    Chat(ChatPlan),
    Completion(CompletionPlan),
    ImageText(ImageTextPlan),
    Tokens(TokensPlan),
    Pair(PairPlan),
}

/// Two samples that stay together.
#[derive(FromPyObject)]
pub struct PairPlan {
    chosen: HalfPlan,
    rejected: HalfPlan,
}

#[derive(FromPyObject)]
#[expect(clippy::large_enum_variant, reason = "a dataset has two")]
enum HalfPlan {
    Chat(ChatPlan),
    Completion(CompletionPlan),
}

/// Ready ids.
#[derive(FromPyObject)]
pub struct TokensPlan {
    ids_field: String,
    loss_mask: Option<String>,
    labels: Option<String>,
    dtype: Option<String>,
    on_untrained: String,
}

/// A conversation. Tools are JSON, or the key of a record that holds them; columns are those of an instruction's input, of
/// the output and of the system prompt, beside that of the instruction.
#[derive(FromPyObject)]
pub struct ChatPlan {
    template: Py<ChatTemplate>,
    field: String,
    completion_field: Option<String>,
    columns: Option<[Option<String>; 3]>,
    fixed_tools: Option<Vec<u8>>,
    tools_field: Option<String>,
    training: TrainOptions,
    add_generation_prompt: bool,
    template_kwargs: Option<Vec<u8>>,
    kwargs_field: Option<String>,
    system_field: Option<String>,
    string_arguments: String,
    date: Option<String>,
    none_fields: String,
    samples: String,
    format: String,
    special_tokens_in_content: String,
    on_untrained: String,
}

#[derive(FromPyObject)]
pub struct CompletionPlan {
    prompt_field: String,
    completion_field: String,
    on_untrained: String,
}

/// The model or function that turns images into arrays.
#[derive(FromPyObject)]
enum AnyModel {
    Rules(Py<ImageModel>),
    Function(Py<ImageFunction>),
}

/// The text beside images: of one key, or a conversation or completion.
#[derive(FromPyObject)]
#[expect(clippy::large_enum_variant, reason = "a dataset has one or two")]
enum TextPlan {
    Key(String),
    Half(HalfPlan),
}

/// Images with a text, or with two that are a pair.
#[derive(FromPyObject)]
pub struct ImageTextPlan {
    texts: Vec<TextPlan>,
    record_function: Option<FunctionPlan>,
    parts: Vec<String>,
    first_of: Option<Vec<String>>,
    paths: HashMap<String, Vec<Vec<String>>>,
    names_parts: bool,
    image_keys: Option<Vec<String>>,
    unseen_keys: Vec<String>,
    image_root: Option<String>,
    image_model: AnyModel,
    image_token: Option<u32>,
    template_text: String,
    image_text: String,
    untrained: Vec<u32>,
    words: Vec<Vec<u32>>,
    are_videos: bool,
    max_images: usize,
    max_patches: Option<usize>,
    images: String,
    mrope: bool,
}

impl FillPlan {
    /// How records are prepared in a stream with this seed.
    pub fn fill(self, seed: Option<u64>) -> FillInTheMiddle {
        let Self { rate, spm_rate, prefix, middle, suffix } = self;
        let sentinels = Sentinels { prefix, middle, suffix };
        FillInTheMiddle::new(seed.unwrap_or(0), rate, spm_rate, sentinels)
    }
}

impl TokensPlan {
    /// How files of ids are read, whose documents end with `eos`. `are_alone`: whether nothing else is wanted of records.
    pub fn id_files(&self, eos: Option<u32>, are_alone: bool) -> Result<IdFiles, Error> {
        let kind = self.dtype.as_deref().map(|name| find("dtype", name, &IdKind::ALL)).transpose()?;
        let are_alone = are_alone && self.loss_mask.is_none() && self.labels.is_none();
        Ok(IdFiles { kind, border: eos, are_alone })
    }
}

/// The values that are wanted of each record, behind those of the filter.
pub struct Wanted {
    filter_paths: usize,
    paths: Vec<Path>,
    columns: Vec<String>,
    images: Option<ImageParts>,
}

impl Wanted {
    /// The values of the filter's paths, and these columns.
    pub fn new(paths: Vec<Path>, columns: Vec<String>) -> Self {
        Self { filter_paths: paths.len(), paths, columns, images: None }
    }

    /// The value of a key.
    pub fn add(&mut self, key: &str) -> Field {
        Field::add(key, &mut self.paths, &mut self.columns)
    }

    /// The value of the first of some members that a record has.
    fn first_of(&mut self, key: &str, members: &[Vec<String>]) -> Field {
        Field::first_of(key, members, &mut self.paths, &mut self.columns)
    }

    /// How records become the text under a key, which may be cut.
    pub fn text(&mut self, key: &str, fill: Option<FillInTheMiddle>) -> Prepare {
        let text = self.add(key);
        Prepare::TextWithFields(TextWithFields { filter_paths: self.filter_paths, text, fill })
    }

    /// The columns that are read.
    pub fn projection(self) -> Projection {
        let projection = Projection::named(self.columns).with_paths(self.paths);
        match self.images {
            Some(parts) => projection.with_images(parts),
            None => projection,
        }
    }
}

impl Keyed {
    /// How records are prepared for rows of so many tokens.
    pub fn prepare(self, wanted: &mut Wanted, sequence_length: usize) -> Result<Prepare, Error> {
        let filter_paths = wanted.filter_paths;
        Ok(match self {
            Self::Chat(plan) => HalfPlan::Chat(plan).prepare(wanted)?,
            Self::Completion(plan) => HalfPlan::Completion(plan).prepare(wanted)?,
            Self::Pair(PairPlan { chosen, rejected }) => {
                let halves = [chosen.prepare(wanted)?, rejected.prepare(wanted)?];
                Prepare::Pair(Box::new(Pair { filter_paths, halves }))
            }
            Self::Tokens(plan) => Prepare::Tokens(Box::new(ReadyTokens {
                filter_paths,
                ids: wanted.add(&plan.ids_field),
                mask: match (plan.loss_mask, plan.labels) {
                    (Some(key), _) => Some(Mask::Loss(wanted.add(&key))),
                    (None, key) => key.map(|key| Mask::Labels(wanted.add(&key))),
                },
                drops_untrained: plan.on_untrained == "drop",
            })),
            Self::ImageText(mut plan) => {
                let size = plan.image_model.size_of();
                let parts = std::mem::take(&mut plan.parts);
                let parts = ImageModel::parts(
                    parts,
                    plan.names_parts,
                    plan.image_keys.is_some(),
                    plan.medium(),
                    size,
                );
                let kind = ImageKind { medium: plan.medium(), size: parts.size };
                let columns = plan.image_keys.take().map(|keys| ImageColumns {
                    keys: keys.iter().map(|key| wanted.add(key)).collect(),
                    unseen: plan.unseen_keys.iter().map(|key| wanted.add(key)).collect(),
                    are_named: plan.names_parts,
                    kind,
                    root: plan.image_root.take(),
                });
                wanted.images = Some(parts);
                let named = std::mem::take(&mut plan.paths);
                let Some(function) = plan.record_function.take() else {
                    let field = |key: &str| match named.get(key) {
                        Some(members) => wanted.first_of(key, members),
                        None => wanted.add(key),
                    };
                    let samples = plan.samples(filter_paths, sequence_length, field)?;
                    return Ok(Prepare::ImageText(Arc::new(ImageTexts { columns, ..samples })));
                };
                let (function, given) = function.function();
                let given = given.into_iter().map(|(name, members)| {
                    let field = wanted.first_of(&name, &members);
                    (name, field)
                });
                let given = given.collect();
                let mut made = Wanted::new(Vec::new(), Vec::new());
                let samples = plan.samples(filter_paths, sequence_length, |key| made.add(key))?;
                let images = made.add("images");
                let projection = made.projection();
                let function = RecordFunction { function, given, projection, images, kind };
                Prepare::ImageText(Arc::new(ImageTexts { function: Some(function), columns, ..samples }))
            }
        })
    }
}

impl HalfPlan {
    /// How records are prepared.
    fn prepare(self, wanted: &mut Wanted) -> Result<Prepare, Error> {
        let filter_paths = wanted.filter_paths;
        Ok(match self {
            Self::Chat(plan) => {
                Prepare::Chat(plan.conversations(filter_paths, true, |key| wanted.add(key))?.into())
            }
            Self::Completion(plan) => {
                Prepare::Completion(plan.completions(filter_paths, |key| wanted.add(key)))
            }
        })
    }
}

impl AnyModel {
    fn core(&self) -> Arc<dyn image::ImageModel> {
        match self {
            Self::Rules(model) => model.get().core(),
            Self::Function(function) => function.get().core(),
        }
    }

    fn pixel_shape(&self, sequence_length: usize, max_patches: Option<usize>) -> PixelShape {
        match self {
            Self::Rules(model) => model.get().pixel_shape(sequence_length, max_patches),
            Self::Function(function) => function.get().pixel_shape(sequence_length, max_patches),
        }
    }

    /// The function that finds the sizes of images.
    fn size_of(&self) -> SizeOf {
        match self {
            Self::Function(function) if function.get().takes_any_size() => image::model::any_size,
            Self::Rules(model) if model.get().inner().settings().applies_exif => image::model::oriented_size,
            Self::Function(_) | Self::Rules(_) => image::model::size,
        }
    }
}

impl ImageTextPlan {
    fn medium(&self) -> Medium {
        if self.are_videos { Medium::Video } else { Medium::Image }
    }

    /// The arrays that rows hold of images.
    pub fn rows(&self, sequence_length: usize) -> ImageRows {
        ImageRows {
            max_images: self.max_images,
            shape: self.image_model.pixel_shape(sequence_length, self.max_patches),
            normalized: self.images == "float32",
            rotary: self.mrope,
        }
    }

    fn samples(
        self,
        filter_paths: usize,
        sequence_length: usize,
        mut wanted: impl FnMut(&str) -> Field,
    ) -> Result<ImageTexts, Error> {
        let (rows, medium) = (self.rows(sequence_length), self.medium());
        let mut texts = Vec::with_capacity(2);
        for text in self.texts {
            texts.push(match text {
                TextPlan::Key(key) => TextPart::Text(wanted(&key)),
                TextPlan::Half(HalfPlan::Completion(plan)) => {
                    TextPart::Completion(plan.completions(filter_paths, &mut wanted))
                }
                TextPlan::Half(HalfPlan::Chat(plan)) => {
                    let conversations = plan.conversations(filter_paths, true, &mut wanted)?;
                    TextPart::Chat(Box::new(Conversations { has_images: true, ..conversations }))
                }
            });
        }
        let text = match <[TextPart; 2]>::try_from(texts) {
            Ok(pair) => TextPart::Pair(Box::new(pair)),
            Err(mut texts) => {
                texts.pop().ok_or_else(|| Error::Argument("text=None: expected one".to_owned()))?
            }
        };
        Ok(ImageTexts {
            filter_paths,
            rows,
            model: self.image_model.core(),
            first_of: self.first_of,
            columns: None,
            function: None,
            text,
            tokens: ImageTokens {
                template: self.template_text,
                text: self.image_text,
                image: self.image_token,
                untrained: self.untrained,
                words: self.words,
                medium,
            },
        })
    }
}

impl CompletionPlan {
    /// How records become prompts with completions. `wanted` is called with the keys of a record that are needed.
    pub fn completions(self, filter_paths: usize, mut wanted: impl FnMut(&str) -> Field) -> Completions {
        Completions {
            filter_paths,
            prompt: wanted(&self.prompt_field),
            completion: wanted(&self.completion_field),
            drops_untrained: self.on_untrained == "drop",
        }
    }
}

impl ChatPlan {
    /// How records become conversations, with a mask of trained tokens or without. `wanted` is called with the keys of a
    /// record that are needed.
    pub fn conversations(
        self,
        filter_paths: usize,
        has_mask: bool,
        mut wanted: impl FnMut(&str) -> Field,
    ) -> Result<Conversations, Error> {
        let messages = wanted(&self.field);
        let columns = self.columns.map(|keys| {
            let [input, output, system] = keys.map(|key| key.map(|key| wanted(&key)));
            Columns { instruction: messages.clone(), input, output, system }
        });
        let completion = self.completion_field.map(|key| wanted(&key));
        let beside = self.field.rfind('.').map_or("", |dot| &self.field[..=dot]);
        let beside = (self.format != "messages").then(|| format!("{beside}system"));
        let system = self.system_field.or(beside).map(|key| wanted(&key));
        let mut own = |fixed, key: Option<String>| match key {
            None => Own::Fixed(fixed),
            Some(key) => Own::Record(wanted(&key)),
        };
        let tools = own(self.fixed_tools, self.tools_field);
        let kwargs = own(self.template_kwargs, self.kwargs_field);
        let training = if has_mask { self.training.training()? } else { None };
        if has_mask && training.is_none() {
            return Err(Error::Argument("train_on=None: expected what is trained on".to_owned()));
        }
        Ok(Conversations {
            filter_paths,
            template: self.template.get().inner().clone(),
            messages,
            completion,
            columns,
            tools,
            kwargs,
            string_arguments: find("string_arguments", &self.string_arguments, &STRING_ARGUMENTS)?,
            add_generation_prompt: self.add_generation_prompt,
            date: self.date.as_deref().map(parse_date).transpose()?,
            none_fields: if self.none_fields == "keep" { NoneFields::Keep } else { NoneFields::Drop },
            training,
            unit: find("samples", &self.samples, &SAMPLE_UNITS)?,
            format: match self.format.as_str() {
                "sharegpt" => MessageFormat::ShareGpt,
                "chatml" => MessageFormat::ChatMl,
                _ => MessageFormat::Messages,
            },
            system,
            protects_content: self.special_tokens_in_content == "text",
            drops_untrained: self.on_untrained == "drop",
            has_images: false,
        })
    }
}
