"""Levanter over gristmill: the tokenizer of its caches, and a stream in place of a cache."""

from gristmill.integrations.levanter.stream import StreamDataset
from gristmill.integrations.levanter.tokenizer import GristmillTokenizer, load_tokenizer, with_gristmill

__all__ = ["GristmillTokenizer", "StreamDataset", "load_tokenizer", "with_gristmill"]
