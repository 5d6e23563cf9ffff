//! What a record becomes, as `gristmill._sample` says it.

use gristmill_chat_template::NoneFields;
use pyo3::prelude::*;

use super::chat_template::{ChatTemplate, TrainOptions, parse_date};
use crate::error::Error;
use crate::format::{Path, Projection};
use crate::prepare::Prepare;
use crate::prepare::chat::{Conversations, MessageFormat, Tools};
use crate::prepare::completion::Completions;
use crate::prepare::field::Field;
use crate::prepare::fill_in_the_middle::{FillInTheMiddle, Sentinels};

/// A sample other than a plain text. The fields are those of the classes in `gristmill._sample`.
#[derive(FromPyObject)]
pub enum Sample {
    FillInTheMiddle(FillPlan),
    Masked(Masked),
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

/// A sample with a mask of the tokens that are trained on.
#[derive(FromPyObject)]
pub enum Masked {
    Chat(ChatPlan),
    Completion(CompletionPlan),
}

/// A conversation. Tools are JSON, or the key of a record that holds them.
#[derive(FromPyObject)]
#[allow(clippy::struct_excessive_bools)] // as many as the class has
pub struct ChatPlan {
    template: Py<ChatTemplate>,
    field: String,
    fixed_tools: Option<Vec<u8>>,
    tools_field: Option<String>,
    training: TrainOptions,
    add_generation_prompt: bool,
    kwargs: Option<Vec<u8>>,
    date: Option<String>,
    keep_none: bool,
    is_share_gpt: bool,
    protects_content: bool,
    drops_untrained: bool,
}

#[derive(FromPyObject)]
pub struct CompletionPlan {
    prompt_field: String,
    completion_field: String,
    drops_untrained: bool,
}

impl FillPlan {
    /// How records are prepared in a stream with this seed.
    pub fn prepare(self, seed: Option<u64>) -> Prepare {
        let Self { rate, spm_rate, prefix, middle, suffix } = self;
        let sentinels = Sentinels { prefix, middle, suffix };
        Prepare::FillInTheMiddle(FillInTheMiddle::new(seed.unwrap_or(0), rate, spm_rate, sentinels))
    }
}

impl Masked {
    /// How records are prepared, and what is wanted of each beside the values of `paths`, which are the filter's, and
    /// these columns.
    pub fn plan(
        self,
        mut paths: Vec<Path>,
        mut columns: Vec<String>,
    ) -> Result<(Prepare, Projection), Error> {
        let filter_paths = paths.len();
        let mut wanted = |key: &str| Field::add(key, &mut paths, &mut columns);
        let prepare = match self {
            Self::Chat(plan) => Prepare::Chat(plan.conversations(filter_paths, true, wanted)?.into()),
            Self::Completion(plan) => Prepare::Completion(Completions {
                filter_paths,
                prompt: wanted(&plan.prompt_field),
                completion: wanted(&plan.completion_field),
                drops_untrained: plan.drops_untrained,
            }),
        };
        Ok((prepare, Projection::named(columns).with_paths(paths)))
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
        let tools = match &self.tools_field {
            None => Tools::Fixed(self.fixed_tools),
            Some(key) => Tools::Record(wanted(key)),
        };
        let training = if has_mask { self.training.training()? } else { None };
        if has_mask && training.is_none() {
            return Err(Error::Argument("train_on=None: expected what is trained on".to_owned()));
        }
        Ok(Conversations {
            filter_paths,
            template: self.template.get().inner().clone(),
            messages,
            tools,
            kwargs: self.kwargs,
            add_generation_prompt: self.add_generation_prompt,
            date: self.date.as_deref().map(parse_date).transpose()?,
            none_fields: if self.keep_none { NoneFields::Keep } else { NoneFields::Drop },
            training,
            format: if self.is_share_gpt { MessageFormat::ShareGpt } else { MessageFormat::Messages },
            protects_content: self.protects_content,
            drops_untrained: self.drops_untrained,
        })
    }
}
