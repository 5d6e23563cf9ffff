//! From text to pre-tokens: normalizer, prefix, and cuts.

use memchr::memmem::Finder;
use tokenizers::NormalizedString;

use crate::error::Result;
use crate::normalize::{Normalizer, replace};
use crate::plan::Prefix;
use crate::pretokenize::PADDING;
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::boundaries::class_cutter::ClassCutter;
use crate::pretokenize::patterns::{Pretokenizer, SplitScratch};
use crate::vocab::{MARKER, MARKER_TEXT};

/// How text becomes pre-tokens.
pub enum TextRules {
    /// As it is, by a split pattern.
    Split { cut: Cut, add_prefix_space: bool, normalizer: Option<Normalizer> },
    SentencePiece {
        normalizer: Option<Normalizer>,
        prefix: Prefix,
        normalizer_makes_markers: bool,
        cutter: ClassCutter,
    },
}

/// How text that is split is cut before pre-tokens are looked up.
#[allow(clippy::large_enum_variant)] // a tokenizer has one; how large they are depends on the processor
pub enum Cut {
    /// Into the pre-tokens that are merged.
    Pretokens(Pretokenizer),
    /// Between characters that no pre-token joins: for slow splitters, which then only see what the cache lacks. Or,
    /// where nothing splits text, between those that no merge joins.
    Words(ClassCutter),
}

impl TextRules {
    /// A text after the normalizer, with spaces for markers. The buffer is used if the text changes.
    pub fn normalize<'a>(&self, text: &'a str, buffer: &'a mut String) -> Result<&'a str> {
        let (Self::Split { normalizer, .. } | Self::SentencePiece { normalizer, .. }) = self;
        if !self.normalizes_spaces() {
            return normalizer.as_ref().map_or(Ok(text), |normalizer| normalizer.normalize(text, buffer));
        }
        let mut unmarked = String::new();
        let text = match normalizer {
            Some(normalizer) => normalizer.normalize(text, &mut unmarked)?,
            None => text,
        };
        buffer.clear();
        let always_prepends = match self {
            Self::SentencePiece { prefix: Prefix::Prepend, .. } => !text.is_empty(),
            Self::SentencePiece { prefix: Prefix::AlwaysAndDoubleFirst, .. } => {
                text.starts_with([' ', MARKER])
            }
            _ => false,
        };
        if always_prepends {
            buffer.push(' ');
        }
        with_spaces(text, |part| buffer.push_str(part));
        Ok(buffer)
    }

    /// Whether the normalizer, not the pre-tokenizer, turns spaces into markers.
    pub fn normalizes_spaces(&self) -> bool {
        matches!(self, Self::SentencePiece { normalizer_makes_markers: true, .. })
    }

    /// Whether that is all that the normalizer does, but for a marker in front.
    pub fn only_replaces_spaces(&self) -> bool {
        matches!(self, Self::SentencePiece { normalizer: None, normalizer_makes_markers: true, .. })
    }

    /// Whether it changes text other than by markers.
    pub fn has_normalizer(&self) -> bool {
        let (Self::Split { normalizer, .. } | Self::SentencePiece { normalizer, .. }) = self;
        normalizer.is_some()
    }

    /// Whether it is seen at once that pre-tokens are made of a text as it is.
    pub fn keeps(&self, text: &str) -> bool {
        match self {
            Self::Split { add_prefix_space, normalizer, .. } => {
                !add_prefix_space && normalizer.as_ref().is_none_or(|normalizer| normalizer.keeps(text))
            }
            Self::SentencePiece { .. } => false,
        }
    }

    /// A text after the normalizer, with where its bytes come from, if the normalizer is a form of Unicode and all that
    /// changes text.
    pub fn align(&self, text: &str) -> Option<NormalizedString> {
        match self {
            Self::Split { add_prefix_space: false, normalizer, .. } => normalizer.as_ref()?.align(text),
            Self::Split { .. } | Self::SentencePiece { .. } => None,
        }
    }

    /// Whether no space or marker is ever put in front of a stretch.
    pub fn never_puts_in_front(&self) -> bool {
        match self {
            Self::Split { add_prefix_space, .. } => !add_prefix_space,
            Self::SentencePiece { prefix, .. } => matches!(prefix, Prefix::Never),
        }
    }

    /// Whether each stretch gets one marker in front, whatever it begins with, if no added tokens are searched for in
    /// normalized text.
    pub fn always_prepends(&self) -> bool {
        matches!(self, Self::SentencePiece { prefix: Prefix::Prepend | Prefix::AlwaysAndDoubleFirst, .. })
    }

    /// Whether the pre-tokenizer puts a space or a marker in front of a stretch at this offset.
    pub fn prepends_at(&self, text: &str, offset: usize) -> bool {
        match self {
            Self::Split { add_prefix_space, .. } => *add_prefix_space && !text.starts_with(' '),
            Self::SentencePiece { prefix, .. } => match prefix {
                Prefix::Never | Prefix::Prepend => false,
                Prefix::Always | Prefix::AlwaysAndDoubleFirst => !text.starts_with([' ', MARKER]),
                Prefix::First => offset == 0 && !text.starts_with([' ', MARKER]),
            },
        }
    }

    /// Appends the text as it appears in pre-tokens, and its padding; returns its length without that.
    pub fn pad(&self, text: &str, in_front: bool, padded: &mut Vec<u8>) -> usize {
        let start = padded.len();
        padded.reserve(text.len() + 1 + PADDING);
        if in_front {
            padded.push(b' ');
        }
        match self {
            Self::Split { .. } => padded.extend_from_slice(text.as_bytes()),
            Self::SentencePiece { .. } => {
                with_spaces(text, |part| padded.extend_from_slice(part.as_bytes()));
            }
        }
        let end = padded.len();
        padded.resize(end + PADDING, 0);
        end - start
    }

    /// Replaces `cuts` by those between the pre-tokens of a padded text.
    pub fn cut(&self, text: &[u8], n: usize, split: &mut SplitScratch, boundaries: &mut Boundaries) {
        match self {
            Self::Split { cut: Cut::Pretokens(pretokenizer), .. } => {
                pretokenizer.split(text, n, split, boundaries);
            }
            Self::Split { cut: Cut::Words(cutter), .. } | Self::SentencePiece { cutter, .. } => {
                cutter.cut(text, n, boundaries);
            }
        }
    }

    /// Bytes that all workers share.
    pub fn bytes(&self) -> usize {
        let (Self::Split { normalizer, .. } | Self::SentencePiece { normalizer, .. }) = self;
        let pretokenizer = match self {
            Self::Split { cut: Cut::Pretokens(pretokenizer), .. } => pretokenizer.bytes(),
            _ => 0,
        };
        pretokenizer + normalizer.as_ref().map_or(0, Normalizer::bytes)
    }
}

/// Passes on a text in parts, with a space for each marker.
fn with_spaces(text: &str, mut take: impl FnMut(&str)) {
    if !replace(text, &Finder::new(MARKER_TEXT), " ", &mut take) {
        take(text);
    }
}
