"""The expressions of filters: what is accepted, in which form it is saved, and which value it has."""

import json
import os
import random

import pytest

import filter_cases
import filter_oracle
import gristmill as gm
from gristmill._core import Records
from gristmill._filter.compiler import compile_filter
from helpers import PATIENCE

CASES = int(os.environ.get("GRISTMILL_CASES", "300"))
SEED = int(os.environ.get("GRISTMILL_SEED", "1"))


def evaluate(path, lines, *expressions):
    """For each line the kinds and values of the expressions, as the core finds them."""
    path.write_text("".join(line + "\n" for line in lines))
    filters = [compile_filter("keep", expression) for expression in expressions]
    found = []
    for keep in filters:
        records = Records(str(path), path.stat().st_size, 2**27, keep.paths, [keep.program])
        found.append([records.next_values()[0][0] for _ in lines])
        assert records.next_values() is None
    return list(zip(*found, strict=True))


FORMS = [
    ("score>=3", "score >= 3"),
    ("((score)) >= (3)", "score >= 3"),
    ('a["b"]["c d"][ -1 ] == "it\'s"', "a.b['c d'][-1] == 'it\\'s'"),
    ('["class"] in ["x"]', "key('class') in ('x',)"),
    ('"x" in key("my key") and key("my key")[0].b', "'x' in key('my key') and key('my key')[0].b"),
    ("ü > key('a')", "key('ü') > a"),
    ("a and (b and c) or (d or not e)", "a and b and c or d or not e"),
    ("a and (b or c)", "a and (b or c)"),
    ("not (a and b)", "not (a and b)"),
    ("(a - b) - (c - d) * 2", "a - b - (c - d) * 2"),
    ("-(a + 1) // -2 % (b % c)", "-(a + 1) // -2 % (b % c)"),
    ("(1 < x) == (y > 2)", "(1 < x) == (y > 2)"),
    ("1 < x <= 1e3", "1 < x <= 1000"),
    ("x > 1_000 and x < 0x10", "x > 1000 and x < 16"),
    ("x == 0.10", "x == 0.1"),
    ("x == 1e300", "x == 1e+300"),
    ("sum(x) > 1", "sum(x[*]) > 1"),
    ("count(x[ * ][2]>3) / len(x) > .5", "count(x[*][2] > 3) / len(x) > 0.5"),
    ("max(a,b, 1)", "max(a, b, 1)"),
    ("x in (1, -2, True)", "x in (1, -2, True)"),
    ("x not in ['a', 'b']", "x not in ('a', 'b')"),
    ("x is not None", "x is not None"),
    ("'é\\n' in url", "'é\\x0a' in url"),
    ("a  # a comment [*]\n\n  and b", "a and b"),
    ("a\r\nand b", "a and b"),
    ("'[*]' in x['[*]']", "'[*]' in x['[*]']"),
    ("json( meta ).a['b c'][0]>1", "json(meta).a['b c'][0] > 1"),
    ("sum(json(json(key('m x')).y).z)", "sum(json(json(key('m x')).y).z[*])"),
    ("count(json(a[*].b)['c'] == 1)", "count(json(a[*].b).c == 1)"),
    ('hive("my key")=="en" and json.caption is None', "hive('my key') == 'en' and json.caption is None"),
]


@pytest.mark.parametrize(("expression", "form"), FORMS)
def test_expression_has_one_form(expression, form):
    keep = compile_filter("keep", expression)
    assert keep.text == form
    again = compile_filter("keep", form)
    assert (again.text, again.paths, again.program) == (keep.text, keep.paths, keep.program)


ERRORS = [
    ("", "keep='': expected a non-empty string"),
    ("  ", "expected an expression, found nothing at character 0"),
    ("a b", "expected an expression, found invalid syntax"),
    ("a &&b", "found invalid syntax at character 3: '&b'; write `and`"),
    ("a == 1 or !b", "at character 10: '!b'; write `not`"),
    ("a.class == 1", "at character 2: 'class == 1'; a key that is a word of Python is written as a string"),
    ("(a", "'(' was never closed at character 0"),
    ("a) or (b", "found a bracket that closes nothing at character 1: ') or (b'"),
    ("a\n  and b..c", "at character 10: '.c'"),
    ("a\x00", "found the control character '\\x00' at character 1"),
    ("a & b", "expected one of + - * / // %, found another operation at character 0: 'a & b'; write `and`, `or`"),
    ("a ** 2", "expected one of + - * / // %"),
    ("~a", "expected keys, constants, comparisons"),
    ("a if b else c", "found a conditional expression at character 0"),
    ("x > 1 and (lambda: 1)", "found a function at character 11: 'lambda: 1)'"),
    ("[x for x in y]", "found a ListComp"),
    ("f'{a}' == b", "found an f-string"),
    ("(a, b)", "found a tuple"),
    ("{'a': 1}", "found a dict"),
    ("(a := 1)", "found an assignment"),
    ("b'x' == a", "expected a number, a string, True or False, found b'x' at character 0"),
    ("1j == a", "expected a number, a string, True or False, found 1j"),
    ("... == a", "found Ellipsis"),
    ("'\\ud800' == a", "expected a string without lone surrogates"),
    ("a['\\ud800']", "expected a string without lone surrogates, found one at character 2"),
    ("a == 9007199254740993", "the nearest that it can hold is 9007199254740992"),
    ("a == 1" + "0" * 400, "expected a number below 1.8e308"),
    ("a < 1e999", "expected a number below 1.8e308"),
    ("-'a' == b", "expected a number after -, found 'a'"),
    ("a == None", "expected a value, found None at character 5: 'None'; write `is None` or `is not None`"),
    ("None != a", "write `is None` or `is not None`"),
    ("a in (None, 1)", "write `is None` or `is not None`"),
    ("a is 1", "expected None after is, found another value at character 5: '1'; compare values with == or !="),
    ("a in b in c", "expected in, not in and is without another comparison, found a chain of them"),
    ("a in ()", "expected constants in the list, found an empty list at character 5: '()'"),
    ("a in (b, 1)", "expected constants in the list, found another value at character 6: 'b, 1)'"),
    ("a[1:2]", "expected an index, a string or * in brackets, found a slice at character 2"),
    ("a[:]", "expected an index, a string or * in brackets, found a slice at character 2"),
    ("a[b]", "expected an index, a string or * in brackets"),
    ("a[0.5]", "expected an index, a string or * in brackets"),
    ("a[True]", "expected an index, a string or * in brackets"),
    ("a[4294967296]", "expected an index below 2147483648"),
    ("len(a)[0]", "expected a key before what is in brackets or behind a point, found a function at character 0"),
    ("key(a) > 1", "expected one of the functions"),
    ("'a'.b", "expected a key before what is in brackets or behind a point"),
    ("ﬁeld > 1", "Python reads it as 'field': write the key as a string in brackets"),
    ("a.ﬁeld > 1", "Python reads it as 'field'"),
    ("a[*] > 1", "expected one value, found all items of an array at character 0: 'a[*] > 1'; sum, mean, min, max"),
    ("lower(a) == 1", "expected one of the functions len, sum, mean, min, max, count, json, hive, found another"),
    ("a in (not 1, 2)", "expected constants in the list, found another value at character 6"),
    ("a in (--1, 2)", "expected constants in the list"),
    ("a.lower() == 1", "expected one of the functions"),
    ("sum(a, b)", "expected one argument of sum, found 2"),
    ("sum()", "expected one argument of sum, found 0"),
    ("sum(*a)", "expected plain arguments of sum"),
    ("max(a, key=b)", "expected plain arguments of max"),
    ("sum(a + b)", "expected [*] in the argument of sum, found none at character 4"),
    ("count(a > 1)", "expected [*] in the argument of count"),
    ("count(a)", "expected [*] in the argument of count"),
    ("sum(a[*] + b[*])", "expected items of a[*], found b[*] at character 11: 'b[*])'"),
    ("count(a[*] > mean(a))", "expected no function of all items inside another one, found mean at character 13"),
    ("len(a[*] + 1)", "expected a path as the argument of len"),
    ("json(1) == a", "expected a path as the argument of json, found another one at character 0"),
    ("json(a, b) == a", "expected a path as the argument of json"),
    ("json(len(a)).b", "expected a key before what is in brackets or behind a point, found a function at"),
    ("sum(json(a[*]).b[*])", "expected json() before the first [*] or behind the last one, found one between two"),
    ("hive(a) == 1", 'expected one key as a string, such as hive("lang"), found another argument at character 0'),
    ("hive('a').b == 1", "expected a key before what is in brackets or behind a point, found a function"),
    ("not " * 5000 + "a", "expected fewer operations inside each other"),
    ("a" + " + a" * 5000, "expected fewer operations inside each other"),
    ("a or " * 300_000 + "a", "expected at most 1048576 characters, found 1500001"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize(("expression", "expected"), ERRORS, ids=[case[0][:30] for case in ERRORS])
def test_error_has_position_finding_and_advice(expression, expected):
    with pytest.raises(gm.ArgumentError) as error:
        compile_filter("keep", expression)
    message = str(error.value)
    assert expected in message
    assert message.startswith("keep=")
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize("value", [3, b"a", ["a"], lambda record: True])
def test_filter_is_a_string(value):
    with pytest.raises(gm.ArgumentTypeError, match=r"keep=.*: expected a string"):
        compile_filter("keep", value)


RECORD = {
    "score": 3.5, "n": 9007199254740993, "language": "en", "url": "https://en.example.org/a", "empty": "", "null": None,
    "flag": True, "tags": ["a", "b", 3], "nothing": [], "meta": {"class": "x", "my key": {"deep": [1, [2, 3]]}},
    "packed": '{"lang": "de", "n": 2, "list": [1, 2, 3], "inner": "[\\"x\\"]"}',
    "strings": ['{"n": 1}', '{"n": 2}', "{", '{"n": null}'],
    "lines": [[0, 5, 1.0], [6, 9, None], [10, 12, 4.0]], "words": [{"n": 3, "text": "abc"}, {"n": 5}, {"text": "é"}],
}  # fmt: skip

# The rules of docs/filters.md, by example.
VALUES = [
    ("score >= 3", True),
    ("3 < score < 4", True),
    ("3 < score < 3.5", False),
    # A missing or null value makes a comparison false.
    ("missing < 1 or missing >= 1 or missing != 1", False),
    ("null == 0 or null != 0", False),
    ("not missing > 1", True),
    ("missing is None and null is None and empty is not None", True),
    ("meta.none[3].deeper is None", True),
    # And so do different types.
    ("language < 3 or language >= 3 or language == 3 or language != 3", False),
    ("tags == tags or meta == meta", False),
    # Numbers.
    ("flag == 1 and flag + 1 == 2", True),
    ("n == 9007199254740992", True),
    ("1 / 0", None),
    ("score // 2 + score % 2", 2.5),
    ("-7 // 2", -4.0),
    ("-7 % 2", 1.0),
    ("1 / 3", 1 / 3),
    ("language + 1", None),
    ("missing * 0", None),
    ("min(score, 9, flag)", 1.0),
    ("max(score, missing)", None),
    # Strings and arrays.
    ("'example.org' in url", True),
    ("'' in empty", True),
    ("'a' in tags and 3 in tags and 'c' not in tags", True),
    ("'a' in nothing", False),
    ("'a' not in nothing", True),
    ("'a' in missing or 'a' not in missing", False),
    ("missing in tags or missing not in tags", False),
    ("language in ('de', 'en')", True),
    ("score in ('de', 'en')", False),
    ("score not in ('de', 'en')", True),
    ("missing not in ('de',)", False),
    ("len(url)", 24.0),
    ("len(words[2].text)", 1.0),
    ("len(tags)", 3.0),
    ("len(meta)", None),
    ("len(score)", None),
    # Paths.
    ('meta["class"] == "x" and meta["my key"].deep[1][-1] == 3', True),
    ("tags[-3] == 'a' and tags[-4] is None and tags[3] is None", True),
    # All items.
    ("sum(lines[*][2])", 5.0),
    ("mean(lines[*][2])", 2.5),
    ("len(lines[*][2])", 2.0),
    ("len(lines)", 3.0),
    ("min(lines[*][1])", 5.0),
    ("max(lines[*][1] - lines[*][0])", 5.0),
    ("count(lines[*][2] > 0.5) / len(lines)", 2 / 3),
    ("count(lines[*][2] is None)", 1.0),
    ("count(words[*].n > 3 and len(words[*].text) >= 0)", 0.0),
    ("count(lines[*][1] > score + 2)", 2.0),
    ("sum(tags)", None),
    ("count(tags[*] == 'a')", 1.0),
    ("sum(nothing)", 0.0),
    ("len(nothing[*])", 0.0),
    ("mean(nothing)", None),
    ("max(nothing)", None),
    ("sum(missing)", None),
    ("count(missing[*] > 1) == 0", False),
    ("sum(score)", None),
    # JSON in strings.
    ("json(packed).lang == 'de' and json(packed).n + 1 == 3", True),
    ("sum(json(packed).list)", 6.0),
    ("count(json(packed).list[*] > 1) == 2 and 3 in json(packed).list", True),
    ("json(json(packed).inner)[0]", "x"),
    ("sum(json(strings[*]).n)", 3.0),
    ("json(meta)['class'] == 'x' and json(score) == 3.5", True),
    ("json(language) is None and json(url).a is None and json(missing) is None", True),
    ("packed.lang is None", True),
    # Conditions.
    ("score and language", "en"),
    ("missing or 0", 0.0),
    ("(missing or 5) > 3", True),
    ("not empty and not nothing and not null", True),
    ("True", True),
]


def test_values_are_those_of_the_documentation(tmp_path):
    expressions = [expression for expression, _ in VALUES]
    (found,) = evaluate(tmp_path / "a.jsonl", [json.dumps(RECORD)], *expressions)
    by_hand = {
        expression: value for (expression, value), (_, found) in zip(VALUES, found, strict=True) if value != found
    }
    assert by_hand == {}
    line = json.dumps(RECORD)
    assert {e: v for e, v in VALUES if filter_oracle.value(e, line) != v} == {}


def test_values_of_each_kind_are_those_of_the_oracle(tmp_path):
    lines = ['{"a": 1, "a": 2}', '{"a": {"b": 1}, "a": {}}', '{"\\u0061": 1e999}', '{"a": "\\ud800"}', "{}"]
    found = [kinds for (kinds,) in evaluate(tmp_path / "a.jsonl", lines, "a")]
    assert found == [("number", 2), ("object", None), ("number", float("inf")), ("missing", None), ("missing", None)]
    assert [kinds for (kinds,) in evaluate(tmp_path / "a.jsonl", lines[:2], "a.b")] == [("missing", None)] * 2


@pytest.mark.timeout(3 * PATIENCE + CASES)
def test_random_filters_keep_the_same_records_as_the_oracle(tmp_path):
    outcomes = {True: 0, False: 0}
    for seed in range(SEED, SEED + CASES):
        rng = random.Random(seed)
        lines = [filter_cases.record(rng) for _ in range(20)]
        expressions = [filter_cases.expression(rng) for _ in range(5)]
        forms = [compile_filter("keep", expression).text for expression in expressions]
        found = evaluate(tmp_path / "a.jsonl", lines, *expressions, *forms)
        for line, values in zip(lines, found, strict=True):
            half = len(expressions)
            assert str(values[:half]) == str(values[half:]), f"seed {seed}: the form has another value: {forms}"
            for expression, (kind, value) in zip(expressions, values[:half], strict=True):
                expected = filter_oracle.value(expression, line)
                if isinstance(expected, (list, dict)):
                    expected = {list: "array", dict: "object"}[type(expected)]
                    value = kind
                if isinstance(expected, str):
                    expected = expected[:80]  # as much as is shown
                assert value == expected, f"seed {seed}: {expression!r} of {line}"
                outcomes[bool(expected)] += 1
    assert min(outcomes.values()) > CASES * 10, outcomes


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_random_text_is_a_filter_or_an_error():
    parts = [
        "a", ".b", "[*]", "[0]", "(", ")", " and ", " or ", "not ", "==", "<", " in ", " is None", "'x'", "3", "-", "*",
        "len", "sum(", "count(", ",", "[", "]", "#", "\n", "'", '"', "\\", "f'", "{", "}", ":=", "lambda ", "\ud800",
        "é", "ﬁ", "1e9", "**", "[:]", "\x00", " if ", " for ", "...", "@", "`", "?", "0x", "\t", "\r",
    ]  # fmt: skip
    outcomes = {"filters": 0, "errors": 0}
    for seed in range(SEED, SEED + 10 * CASES):
        rng = random.Random(seed)
        if rng.random() < 0.5:
            text = "".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        else:
            valid = filter_cases.expression(rng)
            at = rng.randrange(len(valid) + 1)
            text = valid[:at] + rng.choice(parts) + valid[at + rng.randrange(3) :]
        try:
            keep = compile_filter("keep", text)
        except gm.ArgumentError:
            outcomes["errors"] += 1
            continue
        assert compile_filter("keep", keep.text).program == keep.program
        outcomes["filters"] += 1
    assert min(outcomes.values()) > CASES / 10, outcomes


def signals(rng):
    """Quality signals of a record of RedPajama-v2, some of them at the border of a rule."""

    def document(*scores):
        return [[0, 100, rng.choice(scores)]]

    found = {
        "rps_doc_word_count": document(49, 50, 1000, 10_000, 10_001),
        "rps_doc_mean_word_length": document(2.9, 3, 5.5, 10, 10.5),
        "rps_doc_symbol_to_word_ratio": document(0, 0.1, 0.11),
        "rps_lines_start_with_bulletpoint": [[0, 9, rng.choice([0.0, 1.0, 1.0, 1.0])] for _ in range(10)],
        "ccnet_nlines": [[0, 100, 10]],
        "rps_doc_frac_chars_top_2gram": document(0.05, 0.2, 0.21),
        "rps_doc_num_sentences": document(2, 3, 30),
        "rps_doc_ldnoobw_words": document(0, 0, 1),
        "rps_doc_lorem_ipsum": document(0.0, 0.0, 0.1),
        "rps_doc_ml_wikiref_score": document(0.2, 0.25, 0.9),
    }
    if rng.random() < 0.2:
        del found[rng.choice(list(found))]
    if rng.random() < 0.2:
        found[rng.choice([name for name in found if "lines_start" not in name])] = [[0, 100, None]]
    return found


def gopher(s):
    lines = sum(line[2] for line in s["rps_lines_start_with_bulletpoint"])
    return (
        50 <= s["rps_doc_word_count"][0][2] <= 10_000
        and 3 <= s["rps_doc_mean_word_length"][0][2] <= 10
        and s["rps_doc_symbol_to_word_ratio"][0][2] <= 0.1
        and lines / s["ccnet_nlines"][0][2] <= 0.9
        and s["rps_doc_frac_chars_top_2gram"][0][2] <= 0.2
    )


def c4(s):
    no_sentences = s["rps_doc_num_sentences"][0][2] < 3
    return not (no_sentences or s["rps_doc_ldnoobw_words"][0][2] > 0 or s["rps_doc_lorem_ipsum"][0][2] > 0)


def rpv1(s):
    return s["rps_doc_ml_wikiref_score"][0][2] >= 0.25


@pytest.mark.parametrize("name", ["gopher", "c4", "rpv1"])
def test_presets_follow_their_rules(name, tmp_path):
    preset, rule = getattr(gm.filters, name), {"gopher": gopher, "c4": c4, "rpv1": rpv1}[name]

    def keeps(found):
        try:
            return rule(found)
        except (KeyError, TypeError):  # missing or null
            return False

    rng = random.Random(4)
    records = [signals(rng) for _ in range(3000)]
    lines = [
        json.dumps({"signals": {"id": "x", "quality_signals": found}, "quality_signals": found}) for found in records
    ]
    found = evaluate(tmp_path / "a.jsonl", lines, preset, preset.under("quality_signals"), preset.under('x["y z"]'))
    kept = [keeps(record) for record in records]
    assert [(there[1], elsewhere[1]) for there, elsewhere, _ in found] == [(one, one) for one in kept]
    assert 10 < sum(kept) < 2990
    assert not any(nowhere for _, _, (_, nowhere) in found)


def test_presets_are_strings_that_go_together():
    both = compile_filter("keep", f"({gm.filters.gopher}) and ({gm.filters.c4}) and not ({gm.filters.rpv1})")
    assert len(both.clauses) == 9
    assert isinstance(gm.filters.gopher, str)


def test_presets_may_be_named_in_an_expression():
    named = compile_filter("keep", "gm.filters.gopher and not (gm.filters.rpv1) and x == 'gm.filters.c4'")
    written = compile_filter("keep", f"({gm.filters.gopher}) and not ({gm.filters.rpv1}) and x == 'gm.filters.c4'")
    assert named == written
    with pytest.raises(
        gm.ArgumentError, match=r"expected one of gm.filters: gopher, c4, rpv1, found .*gm.filters.goffer"
    ):
        compile_filter("keep", "x > 1 and gm.filters.goffer")
    assert compile_filter("keep", "a.gm.filters.gopher").paths == (("a", "gm", "filters", "gopher"),)
