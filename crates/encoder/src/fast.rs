//! The fast engine: from a text, by way of added tokens, normalizer, pieces and cache, to its ids.

use std::sync::Arc;

use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::added::{AddedTokens, Found, Rules};
use super::cuts::cutter::Cutter;
use super::file::TokenizerFile;
use super::kernel::Kernel;
use super::merge::rules::{MergeRules, PRODUCTS};
use super::model::Model;
use super::model::bytes::Bytes;
use super::model::characters::{Characters, Spaces};
use super::pieces::PieceWorker;
use super::pieces::cut_text::CutText;
use super::pieces::seed::Seeds;
use super::recognise::{Style, recognise};
use super::reference::library_call;
use super::split::PADDING;
use super::text::{Cut, TextRules};
use super::vocab::Vocab;
use super::{EncoderOptions, SpecialTokens};
use crate::error::{Error, Result};

/// What all workers of one tokenizer share.
pub struct FastEncoder {
    pub vocab: Vocab,
    pub added: AddedTokens,
    pub description: String,
    text: TextRules,
    model: Model,
    /// The initial content of each worker's cache.
    seeds: Seeds,
    cache_bytes: usize,
}

/// The state that one thread changes while it encodes.
pub struct FastWorker {
    shared: Arc<FastEncoder>,
    pieces: PieceWorker,
    /// What is not looked up yet.
    text: CutText,
    normalized: String,
}

impl FastEncoder {
    /// Takes a file that parses, or says in one clause what the fast engine does not support.
    pub fn new(file: TokenizerFile, options: &EncoderOptions) -> Result<Self, String> {
        let bpe = &file.model;
        let kernel = options.kernel;
        let plan = recognise(&file, kernel)?;
        let (vocab, ids) = Vocab::new(bpe.vocab())?;
        let mut rules = MergeRules::new(bpe.merges(), &vocab, &ids)?;
        let mut description = plan.description;
        let (text, model) = match plan.style {
            Style::Split { splitter, normalizer } if splitter.is_byte_level() => {
                let mut bytes = Bytes::new(&vocab, &ids, &rules, bpe, splitter.removed().cloned(), kernel)?;
                let add_prefix_space = splitter.add_prefix_space();
                let words = splitter.joined_pairs().map(|pairs| Cutter::new(&pairs, false, kernel));
                let cut = match words.filter(Cutter::ends_words) {
                    Some(words) => {
                        description.push_str(", cut into words first");
                        bytes.split_first(splitter);
                        Cut::Words(words)
                    }
                    None => Cut::Pieces(splitter),
                };
                let text = TextRules::Split { cut, add_prefix_space, normalizer };
                (text, Model::Bytes(Box::new(bytes)))
            }
            Style::Split { splitter, normalizer } => {
                let removed = splitter.removed().cloned();
                let characters = Characters::new(&vocab, &ids, &rules, bpe, Spaces::Spaces, removed, kernel)?;
                let cut = if splitter.is_whole() {
                    Cut::Words(cutter(&characters, false, kernel, &mut description))
                } else {
                    Cut::Pieces(splitter)
                };
                let text = TextRules::Split { cut, add_prefix_space: false, normalizer };
                (text, Model::Characters(Box::new(characters)))
            }
            Style::SentencePiece { normalizer, prefix, normalizer_marks, before_each_space, separators } => {
                if let Some(separators) = &separators {
                    keep_whole(&mut rules, &vocab, separators)?;
                }
                let characters = Characters::new(&vocab, &ids, &rules, bpe, Spaces::Markers, None, kernel)?;
                if separators.is_some()
                    && let Some(why) = characters.uncut
                {
                    return Err(format!("its pre-tokenizer splits text, and {why}"));
                }
                let cutter = cutter(&characters, before_each_space, kernel, &mut description);
                let text = TextRules::SentencePiece { normalizer, prefix, normalizer_marks, cutter };
                (text, Model::Characters(Box::new(characters)))
            }
        };
        let added = AddedTokens::new(
            file.added_tokens,
            &vocab,
            &ids,
            &Rules {
                normalize: &|content| {
                    let mut buffer = String::new();
                    text.normalize(content, &mut buffer).map(str::to_owned).map_err(|error| error.to_string())
                },
                kernel,
                spaces_are_markers: text.normalizes_spaces(),
                special_as_text: options.special_tokens_in_text == SpecialTokens::Text,
            },
        )?;
        let seeds = Seeds::new(&vocab, &rules, &text, &model);
        Ok(Self { vocab, added, description, text, model, seeds, cache_bytes: options.cache_bytes })
    }

    /// Bytes that all workers share.
    pub fn bytes(&self) -> usize {
        self.vocab.bytes() + self.added.bytes() + self.text.bytes() + self.model.bytes() + self.seeds.bytes()
    }

    /// Bytes of a worker before its first text.
    pub fn worker_bytes(&self) -> usize {
        self.seeds.empty_cache(self.cache_bytes).bytes()
    }
}

/// Cuts text that nothing splits where no merge joins it; or not at all, as its description then says.
fn cutter(
    characters: &Characters,
    before_each_space: bool,
    kernel: Kernel,
    description: &mut String,
) -> Cutter {
    let Some(why) = characters.uncut else {
        return Cutter::new(&characters.pairs, before_each_space, kernel);
    };
    if !before_each_space {
        description.extend([", merged uncut (up to ten times slower), as ", why]);
    }
    Cutter::whole(before_each_space, kernel)
}

/// Keeps the merges that join nothing that some separators split. The others never happen, as what separators split is
/// merged apart; and without them it is all the same whether it is split.
fn keep_whole(rules: &mut MergeRules, vocab: &Vocab, separators: &PreTokenizerWrapper) -> Result<(), String> {
    rules.keep(|product| {
        let mut parts = PreTokenizedString::from(vocab.token(product).expect(PRODUCTS));
        library_call(|| separators.pre_tokenize(&mut parts)).map_err(|error| error.to_string())?;
        Ok(parts.get_splits(OffsetReferential::Original, OffsetType::None).len() == 1)
    })
}

/// Stretches between added tokens are collected until there are so many bytes, to look them up in whole batches while
/// they are in the L1 cache.
const LOOKED_UP: usize = 16 << 10;

/// Offsets are 32-bit in the hot loops, in a stretch together with those collected before it.
const LONGEST_TEXT: usize = u32::MAX as usize - LOOKED_UP - 2 * PADDING;

/// Longer texts are rare, and their buffers, which take a few times their size, are freed after use.
const KEPT_TEXT: usize = 16 << 20;

impl FastWorker {
    pub fn new(shared: Arc<FastEncoder>) -> Self {
        let pieces = PieceWorker::new(shared.seeds.cache(shared.model.table().kernel(), shared.cache_bytes));
        Self { shared, pieces, text: CutText::default(), normalized: String::new() }
    }

    /// Appends the ids of a text.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut outcome = Ok(());
        shared.added.raw.split(text, |part| match part {
            Found::Token(id) => self.add_token(&shared, id, ids),
            Found::Text(stretch, offset) if outcome.is_ok() => {
                outcome = self.add_stretch(&shared, stretch, offset, ids);
            }
            Found::Text(..) => {}
        });
        self.look_up(&shared, ids);
        if self.text.capacity().max(self.normalized.capacity()) > KEPT_TEXT {
            (self.text, self.normalized) = Default::default();
            self.pieces.shrink();
        }
        outcome
    }

    /// A stretch between added tokens that are not normalized: normalizes it, and searches it for the others.
    fn add_stretch(
        &mut self,
        shared: &FastEncoder,
        stretch: &str,
        offset: usize,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.normalized);
        // If no tokens are searched for in normalized text, it need not have its markers yet.
        let marks_later = shared.text.only_marks() && shared.added.normalized.is_empty();
        let put_in_front = marks_later && shared.text.prepends();
        let normalized = if marks_later { stretch } else { shared.text.normalize(stretch, &mut buffer)? };
        if normalized.len() > LONGEST_TEXT {
            return Err(Error::Tokenizer(format!(
                "expected a text of at most {LONGEST_TEXT} bytes, found one of {}: split it, or leave it out with \
                 max_document_bytes= and on_error=\"quarantine\"",
                normalized.len()
            )));
        }
        shared.added.normalized.split(normalized, |part| match part {
            Found::Token(id) => self.add_token(shared, id, ids),
            Found::Text(text, at) => {
                let in_front = put_in_front || shared.text.puts_in_front(text, offset + at);
                self.pieces.cut(&shared.model, &shared.text, text, in_front, &mut self.text);
                self.look_up_if_enough(shared, ids);
            }
        });
        self.normalized = buffer;
        Ok(())
    }

    fn add_token(&mut self, shared: &FastEncoder, id: u32, ids: &mut Vec<u32>) {
        self.text.add_token(id);
        self.look_up_if_enough(shared, ids);
    }

    fn look_up_if_enough(&mut self, shared: &FastEncoder, ids: &mut Vec<u32>) {
        if self.text.len() >= LOOKED_UP {
            self.look_up(shared, ids);
        }
    }

    /// Appends the ids of what has been cut.
    fn look_up(&mut self, shared: &FastEncoder, ids: &mut Vec<u32>) {
        self.pieces.encode(&shared.model, &mut self.text, ids);
    }
}
