//! The fast engine: from a text, by way of added tokens, normalizer, pre-tokens and cache, to its ids.

use std::ops::Range;
use std::sync::Arc;

use ahash::AHashSet;
use tokenizers::normalizer::Range as TextRange;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::{EncoderOptions, SpecialTokens};
use crate::added_tokens::{AddedTokens, Found, Rules};
use crate::error::{Error, Result};
use crate::lookup::PretokenWorker;
use crate::lookup::preload::Preload;
use crate::lookup::pretoken_buffer::PretokenBuffer;
use crate::merge::rules::{MergeRules, PRODUCTS};
use crate::model::Model;
use crate::model::bytes::ByteModel;
use crate::model::characters::{CharModel, Spaces};
use crate::model::unigram::{Unigram, Words};
use crate::model::word_piece::WordPieces;
use crate::normalize_and_cut::{Cut, TextRules};
use crate::offsets::Spelling;
use crate::plan::{Plan, Style, plan_engine};
use crate::pretokenize::PADDING;
use crate::pretokenize::boundaries::class_cutter::ClassCutter;
use crate::reference::library_call;
use crate::simd::Simd;
use crate::tokenizer_json::{BpeModel, ModelJson, TokenizerJson, UnigramModel, WordPieceModel};
use crate::vocab::{Ids, Vocab};

/// The parts that all workers of one tokenizer share.
pub struct FastEncoder {
    pub vocab: Vocab,
    pub added: AddedTokens,
    pub description: String,
    text: TextRules,
    model: Model,
    /// The initial content of each worker's cache.
    preload: Preload,
    simd: Simd,
    cache_bytes: usize,
}

/// The state that one thread changes while it encodes.
pub struct FastWorker {
    shared: Arc<FastEncoder>,
    pretokens: PretokenWorker,
    /// The pre-tokens that are not looked up yet.
    text: PretokenBuffer,
    normalized: String,
}

impl FastEncoder {
    /// Takes a file that parses, or says in one clause what the fast engine does not support.
    pub fn new(file: TokenizerJson, options: &EncoderOptions) -> Result<Self, String> {
        let simd = options.simd;
        let plan = plan_engine(&file, simd)?;
        let (vocab, ids) = Vocab::new(file.model.vocab())?;
        let parts = match &file.model {
            ModelJson::Bpe(model) => Parts::bpe(plan, model, &vocab, &ids, simd)?,
            ModelJson::WordPiece(model) => Parts::word_piece(plan, model, &vocab, &ids)?,
            ModelJson::Unigram(model) => Parts::unigram(plan, model, &vocab, &ids, simd)?,
        };
        let Parts { description, text, model, rules } = parts;
        let added = AddedTokens::new(
            file.added_tokens,
            &vocab,
            &ids,
            &Rules {
                normalize: &|content| {
                    let mut buffer = String::new();
                    text.normalize(content, &mut buffer).map(str::to_owned).map_err(|error| error.to_string())
                },
                simd,
                spaces_are_markers: text.normalizes_spaces(),
                special_as_text: options.special_tokens_in_text == SpecialTokens::Text,
            },
        )?;
        let makes = |id| rules.as_ref().is_some_and(|rules| rules.makes(id));
        let preload = Preload::new(&vocab, makes, &text, &model);
        let cache_bytes = options.cache_bytes;
        Ok(Self { vocab, added, description, text, model, preload, simd, cache_bytes })
    }

    /// The type of the model.
    pub fn model(&self) -> &'static str {
        self.model.name()
    }

    /// Why no text can be encoded [around](FastWorker::encode_around) data, if it cannot.
    pub fn recognises_special_everywhere(&self) -> Option<&'static str> {
        self.added
            .normalized
            .has_special()
            .then_some("its special tokens are searched for in normalized text")
    }

    /// The ids of these added tokens, and of those that a text has outside of the ranges `data`.
    fn guarded(&self, text: &str, data: &[Range<usize>], tokens: &[String]) -> Result<AHashSet<u32>> {
        let mut guarded: AHashSet<u32> = tokens.iter().filter_map(|token| self.added.id(token)).collect();
        // One more may be found where a guarded one is none.
        let mut before = usize::MAX;
        while guarded.len() != before {
            before = guarded.len();
            self.added.raw.guard_written(text, data, &mut guarded);
            if self.added.normalized.is_empty() {
                continue;
            }
            let (mut stretches, mut buffer) = (Vec::new(), String::new());
            self.added.raw.split_around(text, data, &guarded, |part| {
                stretches.extend(if let Found::Text(stretch, at) = part {
                    Some((stretch, at))
                } else {
                    None
                });
            });
            for (stretch, at) in stretches {
                let normalized = self.text.normalize(stretch, &mut buffer)?;
                let data = self.normalized_ranges(data, stretch, at, normalized)?;
                self.added.normalized.guard_written(normalized, &data, &mut guarded);
            }
        }
        Ok(guarded)
    }

    /// Ranges of a text, as far as they are in a stretch of it, in the normalized stretch.
    fn normalized_ranges(
        &self,
        ranges: &[Range<usize>],
        stretch: &str,
        offset: usize,
        normalized: &str,
    ) -> Result<Vec<Range<usize>>> {
        let end = offset + stretch.len();
        let inside = ranges.iter().filter(|range| range.start < end && offset < range.end);
        let inside = inside.map(|range| range.start.max(offset) - offset..range.end.min(end) - offset);
        let in_front = normalized.len().wrapping_sub(stretch.len());
        if in_front <= 1 && normalized.ends_with(stretch) {
            return Ok(inside.map(|range| range.start + in_front..range.end + in_front).collect());
        }
        let mut buffer = String::new();
        let mut moved = |at: usize| {
            let before = self.text.normalize(&stretch[..at], &mut buffer)?;
            normalized.starts_with(before).then_some(before.len()).ok_or_else(|| {
                let message = "the normalizer joins what a message says with the text around it, so that it could not be \
                               told from control tokens";
                Error::Tokenizer(message.into())
            })
        };
        inside.map(|range| Ok(moved(range.start)?..moved(range.end)?)).collect()
    }

    /// How the tokens of the vocabulary spell a text, if those that cover one are sure to be in their right positions: not
    /// where a normalizer or an added token may remove a space, and the pre-tokenizer then puts one in front.
    pub fn spelling(&self) -> Option<Spelling> {
        let spelling = match (&self.model, &self.text) {
            (Model::Bytes(_), _) => Spelling::Bytes,
            (Model::Characters(_), TextRules::Split { .. }) => Spelling::Characters,
            (Model::Characters(_), TextRules::SentencePiece { .. }) => Spelling::Markers,
            (Model::WordPiece(_) | Model::Unigram(_), _) => return None,
        };
        let covers =
            self.text.never_puts_in_front() || !self.text.has_normalizer() && !self.added.strip_space();
        covers.then_some(spelling)
    }

    /// Whether the tokens of a text are sure to spell it if they have as many bytes. Nothing makes text longer there: no
    /// unknown token, no space in front, and no normalizer. Whatever is removed makes it shorter.
    pub fn spells_by_length(&self, text: &str) -> bool {
        matches!(&self.model, Model::Bytes(bytes) if bytes.lacks_none())
            && (self.added.normalized.is_empty() || !self.text.has_normalizer())
            && self.text.keeps(text)
    }

    /// The text that these ids of a text spell, which a form of Unicode has changed, and for each of its bytes the offset
    /// in the text of what it was made of: as the reference finds it, which normalizes between added tokens. None where that
    /// is left to the reference.
    pub fn normalized_with_offsets(&self, text: &str, ids: &[u32]) -> Option<(String, Vec<usize>)> {
        if !matches!(self.model, Model::Bytes(_))
            || !self.added.normalized.is_empty()
            || self.added.strip_space()
        {
            return None;
        }
        let (mut normalized, mut offsets) = (String::new(), Vec::new());
        let mut left = ids.iter().filter_map(|id| Some((*id, self.added.token(*id)?)));
        let mut end = 0;
        let mut all_found = true;
        self.added.raw.split(text, |part| match part {
            Found::Token(id) => {
                // In what messages say, a token's spelling may be text.
                let Some((_, token)) = left.next().filter(|(other, _)| *other == id) else {
                    all_found = false;
                    return;
                };
                normalized.push_str(token);
                offsets.extend(end..end + token.len());
                end += token.len();
            }
            Found::Text(stretch, offset) => {
                end = offset + stretch.len();
                let Some(aligned) = self.text.align(stretch) else {
                    all_found = false;
                    return;
                };
                normalized.push_str(aligned.get());
                let bytes = (0..aligned.get().len()).map(|at| TextRange::Normalized(at..=at));
                offsets.extend(bytes.filter_map(|at| Some(offset + aligned.convert_offsets(at)?.start)));
            }
        });
        (all_found && left.next().is_none() && offsets.len() == normalized.len())
            .then_some((normalized, offsets))
    }

    /// Bytes that all workers share.
    pub fn bytes(&self) -> usize {
        self.vocab.bytes()
            + self.added.bytes()
            + self.text.bytes()
            + self.model.bytes()
            + self.preload.bytes()
    }

    /// Bytes of a worker before its first text.
    pub fn worker_bytes(&self) -> usize {
        self.preload.empty_cache(self.cache_bytes).bytes()
    }
}

/// The parts that depend on the type of the model.
struct Parts {
    description: String,
    text: TextRules,
    model: Model,
    /// The merges of BPE.
    rules: Option<MergeRules>,
}

impl Parts {
    fn bpe(plan: Plan, bpe: &BpeModel, vocab: &Vocab, ids: &Ids, simd: Simd) -> Result<Self, String> {
        let mut rules = MergeRules::new(bpe.merges(), vocab, ids)?;
        let mut description = plan.description;
        let (text, model) = match plan.style {
            Style::Split { pretokenizer, normalizer } if pretokenizer.is_byte_level() => {
                let mut bytes =
                    ByteModel::new(vocab, ids, &rules, bpe, pretokenizer.removed().cloned(), simd)?;
                let add_prefix_space = pretokenizer.add_prefix_space();
                let words = pretokenizer.joined_pairs().map(|pairs| ClassCutter::new(&pairs, false, simd));
                let cut = match words.filter(ClassCutter::ends_words) {
                    Some(words) => {
                        description.push_str(", cut into words first");
                        bytes.split_first(pretokenizer);
                        Cut::Words(words)
                    }
                    None => Cut::Pretokens(pretokenizer),
                };
                let text = TextRules::Split { cut, add_prefix_space, normalizer };
                (text, Model::Bytes(Box::new(bytes)))
            }
            Style::Split { pretokenizer, normalizer } => {
                let removed = pretokenizer.removed().cloned();
                let characters = CharModel::new(vocab, ids, &rules, bpe, Spaces::Spaces, removed, simd)?;
                let cut = if pretokenizer.is_whole() {
                    Cut::Words(cutter(&characters, false, simd, &mut description))
                } else {
                    Cut::Pretokens(pretokenizer)
                };
                let text = TextRules::Split { cut, add_prefix_space: false, normalizer };
                (text, Model::Characters(Box::new(characters)))
            }
            Style::SentencePiece {
                normalizer,
                prefix,
                normalizer_makes_markers,
                before_each_space,
                separators,
            } => {
                if let Some(separators) = &separators {
                    keep_whole(&mut rules, vocab, separators)?;
                }
                let characters = CharModel::new(vocab, ids, &rules, bpe, Spaces::Markers, None, simd)?;
                if separators.is_some()
                    && let Some(why) = characters.uncut
                {
                    return Err(format!("its pre-tokenizer splits text, and {why}"));
                }
                let cutter = cutter(&characters, before_each_space, simd, &mut description);
                let text = TextRules::SentencePiece { normalizer, prefix, normalizer_makes_markers, cutter };
                (text, Model::Characters(Box::new(characters)))
            }
        };
        Ok(Self { description, text, model, rules: Some(rules) })
    }

    fn word_piece(plan: Plan, pieces: &WordPieceModel, vocab: &Vocab, ids: &Ids) -> Result<Self, String> {
        let Style::Split { pretokenizer, normalizer } = plan.style else {
            return Err("its pre-tokenizer turns spaces into markers".into());
        };
        let removed = pretokenizer.removed().cloned();
        let cut = Cut::Pretokens(pretokenizer);
        let text = TextRules::Split { cut, add_prefix_space: false, normalizer };
        let model = Model::WordPiece(Box::new(WordPieces::new(vocab, ids, pieces, removed)?));
        Ok(Self { description: plan.description, text, model, rules: None })
    }

    fn unigram(
        plan: Plan,
        unigram: &UnigramModel,
        vocab: &Vocab,
        ids: &Ids,
        simd: Simd,
    ) -> Result<Self, String> {
        let (text, words, removed) = match plan.style {
            Style::Split { pretokenizer, normalizer } => {
                let words = match plan.metaspace {
                    Some((prefix, split)) => Words::Marked { prefix, split },
                    None => Words::Whole(Spaces::Spaces),
                };
                let removed = pretokenizer.removed().cloned();
                let cut = Cut::Pretokens(pretokenizer);
                (TextRules::Split { cut, add_prefix_space: false, normalizer }, words, removed)
            }
            Style::SentencePiece {
                normalizer, prefix, normalizer_makes_markers, before_each_space, ..
            } => {
                let cutter = ClassCutter::whole(before_each_space, simd);
                let text = TextRules::SentencePiece { normalizer, prefix, normalizer_makes_markers, cutter };
                (text, Words::Whole(Spaces::Markers), None)
            }
        };
        let model = Model::Unigram(Box::new(Unigram::new(vocab, ids, unigram, words, removed)?));
        Ok(Self { description: plan.description, text, model, rules: None })
    }
}

/// Cuts text that nothing splits where no merge joins it; or not at all, as its description then says.
fn cutter(
    characters: &CharModel,
    before_each_space: bool,
    simd: Simd,
    description: &mut String,
) -> ClassCutter {
    let Some(why) = characters.uncut else {
        return ClassCutter::new(&characters.pairs, before_each_space, simd);
    };
    if !before_each_space {
        description.extend([", merged uncut (up to ten times slower), as ", why]);
    }
    ClassCutter::whole(before_each_space, simd)
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
        let cache = shared.preload.cache(shared.simd, shared.cache_bytes);
        let pretokens = PretokenWorker::new(shared.simd, cache);
        Self { shared, pretokens, text: PretokenBuffer::default(), normalized: String::new() }
    }

    /// Appends the ids of a text.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut outcome = Ok(());
        shared.added.raw.split(text, |part| self.add(&shared, part, &mut outcome, ids));
        self.finish(&shared, ids);
        outcome
    }

    /// Appends the ids of a text in which no special token is recognised that overlaps the ranges `data`, none of these
    /// tokens, and no other added token that the text has outside of them.
    pub fn encode_around(
        &mut self,
        text: &str,
        data: &[Range<usize>],
        tokens: &[String],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let guarded = shared.guarded(text, data, tokens)?;
        let is_guarded = |id: u32| shared.added.is_special(id) || guarded.contains(&id);
        let around = Some((data, &guarded)).filter(|_| shared.added.normalized.has_any(&guarded));
        let (mut outcome, mut recognised, before) = (Ok(()), 0, ids.len());
        shared.added.raw.split_around(text, data, &guarded, |part| match part {
            Found::Token(id) => {
                recognised += usize::from(is_guarded(id));
                self.add_token(&shared, id, ids);
            }
            Found::Text(stretch, offset) if outcome.is_ok() => {
                match self.add_stretch(&shared, stretch, offset, around, ids) {
                    Ok(found) => recognised += found,
                    Err(error) => outcome = Err(error),
                }
            }
            Found::Text(..) => {}
        });
        self.finish(&shared, ids);
        outcome?;
        let found = ids[before..].iter().filter(|id| is_guarded(**id)).count();
        if found == recognised {
            return Ok(());
        }
        ids.truncate(before);
        Err(Error::Tokenizer(
            "the model makes a special token of ordinary text, so that a text could not be told from a control token"
                .into(),
        ))
    }

    #[inline(always)]
    fn add(&mut self, shared: &FastEncoder, part: Found<'_>, outcome: &mut Result<()>, ids: &mut Vec<u32>) {
        match part {
            Found::Token(id) => self.add_token(shared, id, ids),
            Found::Text(stretch, offset) if outcome.is_ok() => {
                *outcome = self.add_stretch(shared, stretch, offset, None, ids).map(|_| ());
            }
            Found::Text(..) => {}
        }
    }

    fn finish(&mut self, shared: &FastEncoder, ids: &mut Vec<u32>) {
        self.look_up(shared, ids);
        if self.text.capacity().max(self.normalized.capacity()) > KEPT_TEXT {
            (self.text, self.normalized) = Default::default();
            self.pretokens.shrink();
        }
    }

    /// A stretch between added tokens that are not normalized: normalizes it, and searches it for the others, but not for
    /// guarded ones in data. Returns how many of these it has.
    fn add_stretch(
        &mut self,
        shared: &FastEncoder,
        stretch: &str,
        offset: usize,
        around: Option<(&[Range<usize>], &AHashSet<u32>)>,
        ids: &mut Vec<u32>,
    ) -> Result<usize> {
        let mut buffer = std::mem::take(&mut self.normalized);
        // If no tokens are searched for in normalized text, it need not have its markers yet.
        let marks_later = shared.text.only_replaces_spaces() && shared.added.normalized.is_empty();
        let put_in_front = marks_later && shared.text.always_prepends();
        let normalized = if marks_later { stretch } else { shared.text.normalize(stretch, &mut buffer)? };
        if normalized.len() > LONGEST_TEXT {
            return Err(Error::Tokenizer(format!(
                "expected a text of at most {LONGEST_TEXT} bytes, found one of {}: split it, or quarantine it with \
                 max_document_bytes= and on_error=\"quarantine\"",
                normalized.len()
            )));
        }
        let mut recognised = 0;
        let add = |part: Found<'_>| match part {
            Found::Token(id) => {
                recognised += usize::from(around.is_some_and(|(_, guarded)| guarded.contains(&id)));
                self.add_token(shared, id, ids);
            }
            Found::Text(text, at) => {
                let in_front = put_in_front || shared.text.prepends_at(text, offset + at);
                self.pretokens.cut(&shared.model, &shared.text, text, in_front, &mut self.text);
                self.look_up_if_enough(shared, ids);
            }
        };
        match around {
            None => shared.added.normalized.split(normalized, add),
            Some((data, guarded)) => {
                let data = shared.normalized_ranges(data, stretch, offset, normalized)?;
                shared.added.normalized.split_around(normalized, &data, guarded, add);
            }
        }
        self.normalized = buffer;
        Ok(recognised)
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
        self.pretokens.encode(&shared.model, &mut self.text, ids);
    }
}
