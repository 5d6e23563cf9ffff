//! The fast engine: the way of a text from added tokens over normalizer, pieces and cache to its ids.

use std::sync::Arc;

use super::added::{AddedTokens, Part, Rules};
use super::bytes::{Bytes, Workspace};
use super::cut::Cutter;
use super::file::TokenizerFile;
use super::kernel::Kernel;
use super::merge::MergeTable;
use super::normalize::{Nfc, nfc};
use super::pieces::{PieceWorker, Pieces};
use super::recognise::{Prefix, Style, recognise};
use super::rules::MergeRules;
use super::seed::Seeds;
use super::split::{PADDING, SplitScratch, Splitter};
use super::spm::{Characters, MARKER, MARKER_TEXT};
use super::vocab::Vocab;
use super::{EncoderOptions, SpecialTokens};
use crate::error::{Error, Result};

/// What all workers of one tokenizer share.
pub struct FastEncoder {
    pub vocab: Vocab,
    pub added: AddedTokens,
    pub description: String,
    table: MergeTable,
    text: TextRules,
    pieces: Pieces,
    kernel: Kernel,
    /// What each worker's cache begins with.
    seeds: Seeds,
    cache_bytes: usize,
}

/// How text becomes pieces.
enum TextRules {
    ByteLevel { cut: ByteCut, add_prefix_space: bool, nfc: Option<&'static Nfc> },
    SentencePiece { prefix: Prefix, normalizer_marks: bool, cutter: Cutter },
}

/// How byte-level text is cut before pieces are looked up.
enum ByteCut {
    /// Into what is merged.
    Pieces(Splitter),
    /// Between characters that no piece joins, where the splitter is slow: it only sees what the cache lacks.
    Words(Cutter),
}

/// What one thread changes while it encodes.
pub struct FastWorker {
    shared: Arc<FastEncoder>,
    pieces: PieceWorker,
    buffers: Buffers,
    normalized: String,
}

#[derive(Default)]
struct Buffers {
    /// The stretch of text in hand, padded.
    text: Vec<u8>,
    ends: Vec<u32>,
    split: SplitScratch,
}

impl FastEncoder {
    /// Takes a file that parses, or says in one clause what is not for the fast engine.
    pub fn new(file: TokenizerFile, options: &EncoderOptions) -> std::result::Result<Self, String> {
        let model = &file.model;
        let plan = recognise(&file.normalizer, &file.pre_tokenizer, model)?;
        let kernel = if options.portable { Kernel::Portable } else { Kernel::detect() };
        let (vocab, ids) = Vocab::new(model.vocab())?;
        let rules = MergeRules::new(model.merges(), &vocab, &ids)?;
        drop(ids);
        let table = MergeTable::new(&rules.live, kernel);
        let mut description = plan.description;
        let (text, pieces) = match plan.style {
            Style::ByteLevel { splitter, nfc } => {
                let splitter = if options.portable { splitter.portable() } else { splitter };
                let mut bytes = Bytes::new(&vocab, &rules, &table, model)?;
                let add_prefix_space = splitter.add_prefix_space();
                let words =
                    splitter.is_stepwise().then(|| Cutter::new(&splitter.joined_pairs(), false, kernel));
                let cut = match words.filter(Cutter::ends_words) {
                    Some(words) => {
                        description.push_str(", cut into words first");
                        bytes.split_first(splitter);
                        ByteCut::Words(words)
                    }
                    None => ByteCut::Pieces(splitter),
                };
                let text = TextRules::ByteLevel { cut, add_prefix_space, nfc: nfc.then(Nfc::get) };
                (text, Pieces::Bytes(Box::new(bytes)))
            }
            Style::SentencePiece { prefix, normalizer_marks, before_each_space } => {
                let characters = Characters::new(
                    &vocab,
                    &rules,
                    &table,
                    model.byte_fallback(),
                    model.unk_token.as_deref(),
                    model.fuse_unk(),
                )?;
                let cutter = if characters.can_cut() {
                    Cutter::new(&characters.pairs, before_each_space, kernel)
                } else {
                    Cutter::whole(before_each_space, kernel)
                };
                (
                    TextRules::SentencePiece { prefix, normalizer_marks, cutter },
                    Pieces::Characters(Box::new(characters)),
                )
            }
        };
        let added = AddedTokens::new(
            file.added_tokens,
            &vocab,
            &Rules {
                normalize: &|content| text.normalize_token(content),
                spaces_are_markers: text.normalizes_spaces(),
                special_as_text: options.special_tokens_in_text == SpecialTokens::Text,
            },
        )?;
        let mut encoder = Self {
            vocab,
            added,
            description,
            table,
            text,
            pieces,
            kernel,
            seeds: Seeds::default(),
            cache_bytes: options.cache_bytes,
        };
        encoder.seeds = Seeds::new(&encoder, &rules);
        Ok(encoder)
    }

    /// Bytes that all workers share.
    pub fn bytes(&self) -> usize {
        let text = match &self.text {
            TextRules::ByteLevel { nfc, .. } => nfc.map_or(0, Nfc::bytes),
            TextRules::SentencePiece { .. } => 0,
        };
        self.vocab.bytes()
            + self.added.bytes()
            + self.table.bytes()
            + self.pieces.bytes()
            + self.seeds.bytes()
            + text
    }

    /// What a worker takes before its first text.
    pub fn worker_bytes(&self) -> usize {
        PieceWorker::new(self.seeds.empty_cache(self.cache_bytes)).bytes()
    }

    /// The ids of one piece, by its merges alone.
    pub(super) fn encode_piece(
        &self,
        text: &[u8],
        piece: (usize, usize),
        workspace: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        self.pieces.encode(&self.table, text, piece, workspace, ids);
    }

    /// A token's bytes as they stand in pieces, none if no piece of text can be that.
    pub(super) fn token_as_piece(&self, token: &str) -> Option<Vec<u8>> {
        self.pieces.token_as_piece(token)
    }

    /// Appends the ends of the pieces of a padded text, as they are looked up.
    fn cut(&self, text: &[u8], n: usize, split: &mut SplitScratch, ends: &mut Vec<u32>) {
        match &self.text {
            TextRules::ByteLevel { cut: ByteCut::Pieces(splitter), .. } => {
                splitter.split(text, n, split, ends);
            }
            TextRules::ByteLevel { cut: ByteCut::Words(cutter), .. }
            | TextRules::SentencePiece { cutter, .. } => cutter.cut(text, n, ends),
        }
    }

    /// Whether a padded text is cut nowhere, so that it is merged as a whole.
    pub(super) fn is_piece(
        &self,
        text: &[u8],
        n: usize,
        split: &mut SplitScratch,
        ends: &mut Vec<u32>,
    ) -> bool {
        ends.clear();
        self.cut(text, n, split, ends);
        *ends == [n as u32] && self.pieces.is_one(text, n, split)
    }
}

impl TextRules {
    /// An added token's content after the normalizer; markers are spaces.
    fn normalize_token(&self, content: &str) -> String {
        match self {
            Self::ByteLevel { nfc: Some(_), .. } => nfc(content),
            Self::SentencePiece { prefix: Prefix::Prepend, .. } => {
                format!(" {}", content.replace(MARKER, " "))
            }
            Self::SentencePiece { normalizer_marks: true, .. } => content.replace(MARKER, " "),
            _ => content.to_owned(),
        }
    }

    /// Whether the normalizer, not the pre-tokenizer, turns spaces into markers.
    fn normalizes_spaces(&self) -> bool {
        matches!(self, Self::SentencePiece { normalizer_marks: true, .. })
    }
}

/// A longer text, of which there are few, does not leave its buffers behind, which take a few times its size.
const KEPT_TEXT: usize = 16 << 20;

impl FastWorker {
    pub fn new(shared: Arc<FastEncoder>) -> Self {
        let pieces = PieceWorker::new(shared.seeds.cache(shared.kernel, shared.cache_bytes));
        Self { shared, pieces, buffers: Buffers::default(), normalized: String::new() }
    }

    /// Appends the ids of a text.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        // Places in a text are 32-bit numbers in the hot loops. A normalizer may make it three times as long.
        const LONGEST: usize = (u32::MAX as usize - 2 * PADDING) / 3;
        if text.len() > LONGEST {
            return Err(Error::Tokenizer(format!(
                "a text has {} bytes; the fast engine takes up to {LONGEST}",
                text.len()
            )));
        }
        let shared = Arc::clone(&self.shared);
        shared.added.raw.split(text, |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(stretch, offset) => self.encode_stretch(&shared, stretch, offset, ids),
        });
        if self.buffers.text.capacity() > KEPT_TEXT {
            (self.buffers, self.normalized) = Default::default();
            self.pieces.shrink();
        }
        Ok(())
    }

    /// A stretch between added tokens that are not normalized: normalize it, and search the others.
    fn encode_stretch(&mut self, shared: &FastEncoder, stretch: &str, offset: usize, ids: &mut Vec<u32>) {
        let mut buffer = std::mem::take(&mut self.normalized);
        let mut put_in_front = false;
        let normalized = match &shared.text {
            TextRules::ByteLevel { nfc: Some(nfc), .. } => {
                nfc.normalize(stretch, &mut buffer).unwrap_or(stretch)
            }
            // Without tokens to search in normalized text the marker need not be there yet.
            TextRules::SentencePiece { prefix: Prefix::Prepend, .. }
                if shared.added.normalized.is_empty() =>
            {
                put_in_front = true;
                stretch
            }
            rules if rules.normalizes_spaces() && !shared.added.normalized.is_empty() => {
                buffer.clear();
                buffer.push_str(&rules.normalize_token(stretch));
                &buffer
            }
            _ => stretch,
        };
        shared.added.normalized.split(normalized, |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text, at) => {
                let in_front = put_in_front || shared.text.puts_in_front(text, offset + at);
                self.encode_text(shared, text, in_front, ids);
            }
        });
        self.normalized = buffer;
    }

    /// Text without added tokens: pad it, cut it, look the pieces up.
    fn encode_text(&mut self, shared: &FastEncoder, text: &str, in_front: bool, ids: &mut Vec<u32>) {
        let Buffers { text: padded, ends, split } = &mut self.buffers;
        padded.clear();
        padded.reserve(text.len() + 1 + PADDING);
        if in_front {
            padded.push(b' ');
        }
        match &shared.text {
            TextRules::ByteLevel { .. } => padded.extend_from_slice(text.as_bytes()),
            TextRules::SentencePiece { .. } => push_markers_as_spaces(text, padded),
        }
        let n = padded.len();
        padded.resize(n + PADDING, 0);
        ends.clear();
        shared.cut(padded, n, split, ends);
        self.pieces.encode(&shared.table, &shared.pieces, shared.kernel, padded, ends, ids);
    }

    /// Bytes that this worker owns.
    pub fn bytes(&self) -> usize {
        self.pieces.bytes()
            + self.buffers.text.capacity()
            + self.buffers.ends.capacity() * size_of::<u32>()
            + self.normalized.capacity()
    }
}

impl TextRules {
    /// Whether the pre-tokenizer puts a space or a marker in front of a stretch at this offset.
    fn puts_in_front(&self, text: &str, offset: usize) -> bool {
        match self {
            Self::ByteLevel { add_prefix_space, .. } => *add_prefix_space && !text.starts_with(' '),
            Self::SentencePiece { prefix, .. } => match prefix {
                Prefix::Never | Prefix::Prepend => false,
                Prefix::Always => !text.starts_with([' ', MARKER]),
                Prefix::First => offset == 0 && !text.starts_with([' ', MARKER]),
            },
        }
    }
}

/// Appends text with a space for each marker.
fn push_markers_as_spaces(text: &str, padded: &mut Vec<u8>) {
    let mut done = 0;
    for place in memchr::memmem::find_iter(text.as_bytes(), MARKER_TEXT) {
        padded.extend_from_slice(&text.as_bytes()[done..place]);
        padded.push(b' ');
        done = place + MARKER_TEXT.len();
    }
    padded.extend_from_slice(&text.as_bytes()[done..]);
}
