"""Expressions for `keep=` of `PackedDataset` that are in wide use.

They are strings: print them, and change what you need. All are about the quality signals of RedPajama-v2, after its
data card, and expect the record of a signals file under the key `signals`:

    {"signals": {"quality_signals": {"rps_doc_word_count": [[0, 7344, 1157]], ...}}, ...}

A signal is a list of spans of the text, each with start, end and score: a single span for the document, or one for each
line. A record that lacks a signal is left out. Where the signals are elsewhere, `under` gives the same rules for there:

    gm.filters.gopher.under("quality_signals")
"""

from typing import Final

_PLACE = "signals.quality_signals"


class QualityFilter(str):
    """An expression about the quality signals of RedPajama-v2."""

    __slots__ = ()

    def under(self, path: str) -> "QualityFilter":
        """The same rules for signals under another path, such as `"quality_signals"`."""
        return QualityFilter(self.replace(f"{_PLACE}.", f"{path}."))


gopher: Final = QualityFilter(
    """
    50 <= signals.quality_signals.rps_doc_word_count[0][2] <= 10_000
    and 3 <= signals.quality_signals.rps_doc_mean_word_length[0][2] <= 10
    and signals.quality_signals.rps_doc_symbol_to_word_ratio[0][2] <= 0.1
    # at least a tenth of the lines begins without a bullet point
    and sum(signals.quality_signals.rps_lines_start_with_bulletpoint[*][2])
        / signals.quality_signals.ccnet_nlines[0][2] <= 0.9
    and signals.quality_signals.rps_doc_frac_chars_top_2gram[0][2] <= 0.2
    """
)
"""The data card's subset of the rules of Gopher: length, words, symbols, bullet points, repetition."""

c4: Final = QualityFilter(
    """
    signals.quality_signals.rps_doc_num_sentences[0][2] >= 3
    and signals.quality_signals.rps_doc_ldnoobw_words[0][2] == 0
    and signals.quality_signals.rps_doc_lorem_ipsum[0][2] == 0
    """
)
"""The data card's subset of the rules of C4: sentences, bad words, placeholder text."""

rpv1: Final = QualityFilter(
    """
    signals.quality_signals.rps_doc_ml_wikiref_score[0][2] >= 0.25
    """
)
"""The rule of RedPajama-v1: the page looks like one that Wikipedia refers to."""
