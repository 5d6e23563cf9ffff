//! Remedies for a mask that cannot be derived: settings with which it can be, each of them tried.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::finder::{Finder, token_ranges, words_of};
use super::messages::ASSISTANT;
use super::{TrainOn, Training};
use crate::ast::NameId;
use crate::chat::{Chat, ChatTemplate, Session, with_memory};
use crate::error::{Error, Result};
use crate::text::Origin;
use crate::value::Val;

/// Variables by which templates let their generation prompt begin a reasoning, or end it.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

impl ChatTemplate {
    /// An error with the settings that avoid it.
    pub(super) fn with_remedies(&self, chat: &Chat<'_>, training: &Training, error: &Error) -> Error {
        let found = self.remedies(chat, training);
        let mut message = error.message().to_owned();
        if !found.is_empty() {
            let _ = write!(message, "; the mask can be derived with {}", found.join(", or with "));
        } else if !message.contains("stop_tokens") {
            message.push_str(
                "; leave the message out by its own \"train\": false, or change the template so that it writes each message \
                 once, begins answers as its generation prompt, and ends them in a token",
            );
        }
        Error::new(error.kind(), message)
    }

    fn remedies(&self, chat: &Chat<'_>, training: &Training) -> Vec<String> {
        let helps = |training: &Training, variable: Option<(NameId, bool)>| {
            let trained = with_memory(|bump| {
                let mut session = Session::open(self, bump, chat)?;
                if let Some((id, value)) = variable {
                    session.set(id, Val::Bool(value, Origin::TEMPLATE));
                }
                self.train(&mut session, training)
            });
            trained.is_ok_and(|trained| !trained.ranges.is_empty())
        };
        let mut found = Vec::new();
        let switches = SWITCHES.into_iter().filter_map(|name| Some((name, self.program.names.find(name)?)));
        for (name, id) in switches {
            for (value, text) in [(true, "True"), (false, "False")] {
                if helps(training, Some((id, value))) {
                    found.push(format!("template_kwargs={{{name:?}: {text}}}"));
                }
            }
        }
        let stop_tokens = self.tokens_behind_answers(chat).unwrap_or_default();
        for stop_tokens in [Vec::new(), stop_tokens] {
            let other = Training { stop_tokens, ..training.clone() };
            if other.stop_tokens != training.stop_tokens && helps(&other, None) {
                found.push(match &*other.stop_tokens {
                    [] => "no stop_tokens".to_owned(),
                    tokens => format!("stop_tokens={tokens:?}, if the model stops there"),
                });
            }
        }
        let others = [(TrainOn::Last, "last"), (TrainOn::Template, "template")];
        for (on, text) in others.into_iter().filter(|_| chat.messages_end == usize::MAX) {
            let other = Training { on, ..training.clone() };
            if other.on != training.on && helps(&other, None) {
                found.push(format!("train_on={text:?}"));
            }
        }
        found
    }

    /// The special tokens that the template writes first behind the words of assistant messages.
    fn tokens_behind_answers(&self, chat: &Chat<'_>) -> Result<Vec<String>> {
        with_memory(|bump| {
            let mut session = Session::open(self, bump, chat)?;
            let rendered = session.render(session.messages, false)?;
            let rendering = session.finish(rendered)?;
            let training = Training::on(TrainOn::Assistant);
            let finder = Finder::new(self, &mut session, &rendering, &training)?;
            let answers =
                finder.messages.iter().zip(&finder.traces).filter(|(message, _)| message.role == ASSISTANT);
            let mut tokens = BTreeSet::new();
            for (own, _) in answers.filter_map(|(_, trace)| trace.own.last()) {
                let text = &rendering.text()[own.end..finder.next_words(own.end)];
                let token = token_ranges(self.special_tokens()?, text).into_iter().next();
                tokens.extend(token.map(|token| text[token].to_owned()));
            }
            Ok(tokens.into_iter().collect())
        })
    }
}

impl Finder<'_, '_> {
    /// Where the first words of a message begin behind an index, or the text ends.
    pub(super) fn next_words(&self, behind: usize) -> usize {
        let mut start = 0;
        for run in self.rendering.runs() {
            if start >= behind && words_of(self.rendering, run).is_some() {
                return start;
            }
            start = run.end as usize;
        }
        self.rendering.text().len()
    }
}
