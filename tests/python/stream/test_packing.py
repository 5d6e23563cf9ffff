"""Packings, layouts and shuffling: the whole stream compared with the naive model of `oracle`."""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gristmill as gm
from gristmill import _core
from gristmill._demo import sample_text
from gristmill._spec.arguments import ARGUMENTS
from gristmill._state import states
from helpers import assert_same_batches
from oracle import Model

TRAINING_TEXT = [
    "the mill grinds the grain",
    "grain is ground into flour",
    "naïve Füße 日本語 🧑‍🚀",
    "a b c d e f g h",
]
WORDS = ["the ", "mill ", "grain", " flour", "naïve", "日本", "🧑‍🚀", "\n", "a", " b ", "zzz", "0"]


@cache
def trained() -> str:
    """The tokenizer.json of a byte-level BPE of 300 tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer.to_str()


@cache
def deepseek() -> str:
    """The tokenizer.json of a real tokenizer with 128 thousand tokens."""
    return sample_text.tokenizer().read_text(encoding="utf-8")


@cache
def both(source) -> tuple[gm.Encoder, tokenizers.Tokenizer]:
    return gm.Encoder.from_bytes(source().encode()), tokenizers.Tokenizer.from_str(source())


def write_shards(folder: Path, shards, suffix: str = ".json.gz") -> list[Path]:
    """Writes shards of texts. A record that is not a string is written too, and is bad."""
    paths = []
    for number, records in enumerate(shards):
        path = folder / f"{number:02}{suffix}"
        lines = [json.dumps({"text": r}, ensure_ascii=False) + "\n" for r in records]
        content = "".join(lines).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
        paths.append(path)
    return paths


def expected(dataset: gm.PackedDataset, tokenizer, epochs: int, **arguments):
    """The model's batches and totals for a dataset's plan and arguments."""
    batch_size = arguments.pop("batch_size")
    if arguments["provenance"]:
        arguments["provenance"] = dataset._element_spec["provenance"].shape[1]
    model = Model(tokenizer, manifest=dataset.manifest.paths, **arguments)
    plans = [dataset.plan(epoch) for epoch in range(epochs)]
    return model.batches(plans, batch_size // dataset.lanes), model.totals


texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=8).map("".join),
    st.lists(st.sampled_from(WORDS), min_size=20, max_size=60).map("".join),
    st.text(max_size=10).filter(lambda text: text.isprintable()),
)
packings = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["concat", "best_fit", "pad"]),
        "truncation": st.sampled_from([None, None, "right", "left", "middle", "split", "drop"]),
        "fit_window": st.integers(1, 12),
    }
)


@st.composite
def arguments(draw):
    eos, bos = draw(st.sampled_from([(1, None), (1, 0), (None, None)]))
    seed = draw(st.none() | st.integers(0, 2**64 - 1))
    length = draw(st.integers(1, 40))
    packing, layout = draw(packings), draw(st.sampled_from(_core.LAYOUTS))
    if layout == "varlen" and packing["truncation"] == "middle":
        packing["truncation"] = "left"
    return packing | {
        "sequence_length": length,
        "provenance": draw(st.booleans() | st.integers(1, length)),
        "layout": layout,
        "boundary_targets": draw(st.booleans()),
        "max_segments": draw(st.none() | st.integers(1, 4)),
        "eos": eos,
        "bos": bos,
        "seed": seed,
        "shuffle_window": draw(st.integers(1, 10)),
        "batch_size": draw(st.sampled_from([1, 2, 4, 6])),
    }


def check_against_model(folder, source, shards, arguments, epochs, threads):
    encoder, tokenizer = both(source)
    dataset = gm.PackedDataset(
        write_shards(folder, shards),
        tokenizer=encoder,
        epochs=epochs,
        threads=threads,
        on_error="quarantine",
        max_error_rate=1.0,
        # `eos=None` means the tokenizer's own to the dataset, and no EOS to the model.
        **{name: False if name in ("eos", "bos") and value is None else value for name, value in arguments.items()},
    )
    iterator = iter(dataset)
    batches = list(iterator)
    wanted, totals = expected(dataset, tokenizer, epochs, **arguments)
    assert_same_batches(batches, wanted)
    stats = iterator.stats()
    assert (stats["documents"], stats["tokens"], stats["dropped_tokens"]) == (
        totals["documents"],
        totals["tokens"],
        totals["dropped"],
    )
    cursors = iterator.get_state()["lanes"].values()
    assert sum(states.cursor_numbers(cursor)["padding"] for cursor in cursors) == totals["padding"]
    iterator.close()


any_shards = st.lists(st.lists(st.one_of(texts, texts, texts, st.none()), max_size=10), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_shards, arguments(), st.integers(1, 3), st.integers(1, 3))
def test_stream_matches_the_model(tmp_path_factory, shards, arguments, epochs, threads):
    check_against_model(tmp_path_factory.mktemp("shards"), trained, shards, arguments, epochs, threads)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_shards, arguments(), st.integers(1, 2))
def test_stream_matches_the_model_on_a_real_tokenizer(tmp_path_factory, shards, arguments, epochs):
    check_against_model(tmp_path_factory.mktemp("shards"), deepseek, shards, arguments, epochs, 2)


def growing_windows(tmp_path, **arguments):
    """A dataset of two lanes with 300 KiB of text each, whose windows have up to 64, 128 and 256 KiB, and its model."""
    encoder, tokenizer = both(deepseek)
    texts = [f"{number} " + "the mill grinds grain into flour " * (number % 70) for number in range(520)]
    dataset = gm.PackedDataset(
        write_shards(tmp_path, [texts[:260], texts[260:]]),
        tokenizer=encoder,
        **{"epochs": 2, "threads": 2, "batch_size": 4, "sequence_length": 512, "eos": 1} | arguments,
    )
    plans = [dataset.plan(epoch) for epoch in range(2)]

    def model(**changes):
        return Model(tokenizer, 512, **arguments, eos=1, manifest=dataset.manifest.paths, **changes).batches(plans, 2)

    return dataset, model


@pytest.mark.parametrize("arguments", [{"seed": 5}, {"packing": "best_fit"}, {"packing": "best_fit", "seed": 5}])
def test_first_windows_of_a_run_are_small(tmp_path, arguments):
    dataset, model = growing_windows(tmp_path, **arguments)
    wanted = model()
    assert_same_batches(list(dataset), wanted)
    pairs = zip(wanted, model(window_bytes=[2**24]), strict=False)
    assert any((one["inputs"] != other["inputs"]).any() for one, other in pairs), "the text fills no small window"
    iterator = iter(dataset)
    for step in range(0, len(wanted), 13):
        state = iterator.get_state()
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(state)))
        for expected in wanted[step : step + 13]:
            assert_same_batches([next(iterator), next(restored)], [expected, expected])


@pytest.mark.parametrize("arguments", [{"seed": 5}, {"packing": "best_fit"}, {"packing": "best_fit", "seed": 5}])
def test_state_from_before_windows_grew_continues_in_its_order(tmp_path, arguments):
    """These states have no size of windows."""
    dataset, model = growing_windows(tmp_path, **arguments)
    wanted = model(window_bytes=[2**24])
    iterator = iter(dataset)
    start = iterator.get_state()
    start["lanes"] = dict.fromkeys(start["lanes"], "window_size=10")
    iterator.set_state(start)
    for step in range(0, len(wanted), 13):
        state = iterator.get_state()
        old = {lane: cursor.replace(" window_size=10", "") for lane, cursor in state["lanes"].items()}
        iterator.set_state(state | {"lanes": old} if step else state)
        assert states.start_of(iterator.get_state()) == start
        assert_same_batches([next(iterator) for _ in wanted[step : step + 13]], wanted[step : step + 13])


def without_sizes(state):
    """The state as it was saved before windows grew: with nothing of what was not begun."""
    lanes = {
        lane: "; ".join(own.replace(" window_size=10", "") for own in text.split("; ") if "window_hash" in own)
        for lane, text in state["lanes"].items()
    }
    return state | {"lanes": lanes}


@pytest.mark.parametrize("rows", [False, True])
def test_old_order_holds_for_what_the_state_has_nothing_of(tmp_path, rows):
    """Sources of a later stage, and where rows are the elements lanes that have none yet."""
    texts = [f"{number} " + "the mill grinds grain into flour " * 40 for number in range(300)]
    encoder = both(deepseek)[0]
    sources = {name: gm.Source(write_shards(tmp_path, [texts, texts], f".{name}.jsonl")) for name in "ab"}
    dataset = gm.PackedDataset(
        gm.Mixture(sources, stages=[(0, {"a": 1, "b": 0}), (6, {"a": 1, "b": 1})]),
        tokenizer=encoder,
        seed=5,
        sequence_length=512,
        eos=1,
        lanes=2,
        **({} if rows else {"batch_size": 4}),
    )
    iterator = iter(dataset)
    start = iterator.get_state()
    large = dict.fromkeys(start["lanes"], "a: window_size=10; b: window_size=10")
    iterator.set_state(start | {"lanes": large})
    seen = [(iterator.get_state(), next(iterator)) for _ in range(40 if rows else 16)]
    for step in (1, 4, 8, 11):
        iterator.set_state(without_sizes(seen[step][0]))
        expected = [batch for _, batch in seen[step:]]
        assert_same_batches([next(iterator) for _ in expected], expected)


def one_lane(tmp_path, texts, **arguments):
    """The rows of one lane of texts, with a tokenizer that merges only bytes of its training text."""
    paths = write_shards(tmp_path, [texts], ".jsonl")
    encoder, _ = both(trained)
    return list(gm.PackedDataset(paths, tokenizer=encoder, **{"eos": "<eos>"} | arguments))


def spelled(ids) -> str:
    encoder, _ = both(trained)
    return encoder.decode([int(i) for i in ids]).replace("<eos>", "/").replace("<bos>", "")


def test_best_fit_makes_the_rows_of_its_documentation(tmp_path):
    # 7, 6, 3, 13 and 2 tokens.
    texts = ["z" * 6, "y" * 5, "x" * 2, "w" * 12, "v"]
    rows = one_lane(tmp_path, texts, packing="best_fit", sequence_length=8, layout="grain")
    kept = [spelled(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows]
    assert kept == ["zzzzzz/", "yyyyy/v/", "xx/wwww/", "wwwwwwww"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({}, ["0123456", "789/ab/"]),
        ({"truncation": "right"}, ["0123456", "ab/cd/"]),
        ({"truncation": "left"}, ["456789/", "ab/cd/"]),
        ({"truncation": "middle"}, ["012789/", "ab/cd/"]),
        ({"truncation": "drop"}, ["ab/cd/"]),
        ({"packing": "concat"}, ["0123456", "789/ab/", "cd/"]),
        ({"packing": "concat", "truncation": "right"}, ["0123456", "ab/cd/"]),
        ({"packing": "concat", "truncation": "left"}, ["456789/", "ab/cd/"]),
        ({"packing": "concat", "truncation": "drop"}, ["ab/cd/"]),
    ],
)
def test_document_is_cut_before_it_is_packed(tmp_path, arguments, kept):
    arguments = {"packing": "best_fit", "sequence_length": 7, "layout": "grain", **arguments}
    rows = one_lane(tmp_path, ["0123456789", "ab", "cd"], **arguments)
    found = [spelled(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows]
    assert found[: len(kept)] == kept


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_nothing_is_trained_over_a_cut_unless_documents_are_targets_of_each_other(tmp_path, packing):
    def targets(**arguments):
        rows = one_lane(tmp_path, ["a", "0123456789", "b"], packing=packing, sequence_length=6, **arguments)
        pairs = {}
        for row in rows:
            spellings = [[spelled([token]) for token in row[name]] for name in ("inputs", "targets")]
            pairs |= {one: other for one, other, on in zip(*spellings, row["targets_segmentation"], strict=True) if on}
        return pairs

    right, left, middle = (targets(truncation=cut) for cut in ("right", "left", "middle"))
    assert (right["4"], "5" in right, "5" in right.values()) == ("5", False, True)
    assert ("5" in left.values(), left["9"]) == (False, "/")
    assert ("2" in middle, "8" in middle.values(), middle["8"]) == (False, False, "9")
    if packing == "concat":  # "a/" comes first, so that the row ends inside of the document that is cut
        across = targets(truncation="right", boundary_targets=True)
        assert (across["/"], across["5"]) == ("0", "b")
        assert "2" not in targets(truncation="middle", boundary_targets=True)


def test_document_longer_than_a_row_stops_the_run_in_any_packing(tmp_path):
    for packing in ("concat", "best_fit", "pad"):
        arguments = {"packing": packing, "truncation": "error", "sequence_length": 4, "on_error": "quarantine"}
        with pytest.raises(gm.ShardError, match=r"at most sequence_length=4 tokens.* found one of 11; raise") as raised:
            one_lane(tmp_path, ["ab", "c", "0123456789", "d"], **arguments)
        assert raised.value.record == 2


def test_default_truncation_is_in_no_fingerprint(tmp_path):
    """Neither None nor what it stands for: states of earlier releases restore, which had `right` as the default."""
    paths = write_shards(tmp_path, [["a"]])

    def fingerprint(**arguments):
        return gm.PackedDataset(paths, tokenizer=both(trained)[0], eos=1, **arguments).fingerprint

    for packing, default in (("concat", "split"), ("best_fit", "split"), ("pad", "right")):
        found = {cut: fingerprint(packing=packing, truncation=cut) for cut in (None, "right", "left", "split", "drop")}
        assert "truncation" not in found[None]
        assert found[default] == found[None]
        assert len(set(found.values())) == 4
        assert found["drop"] == f"{found[None].replace(' lanes=', ' truncation=drop lanes=')}"


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ("right", ["0123456", "ab/"]),
        ("left", ["456789/", "ab/"]),
        ("middle", ["012789/", "ab/"]),
        ("split", ["0123456", "789/", "ab/"]),
    ],
)
def test_pad_drops_tokens_as_truncation_says(tmp_path, truncation, kept):
    rows = one_lane(
        tmp_path,
        ["0123456789", "", "ab"],
        packing="pad",
        truncation=truncation,
        sequence_length=7,
        eos="<eos>",
    )
    found = [spelled(row["inputs"][row["inputs_segmentation"] > 0]) for row in rows]
    # The empty document has its EOS.
    assert found == [*kept[:-1], "/", kept[-1]]


def test_document_without_tokens_is_counted_without_a_row(tmp_path):
    paths = write_shards(tmp_path, [["a", "", "b"]])
    for packing in ("concat", "best_fit", "pad"):
        dataset = gm.PackedDataset(paths, tokenizer=both(trained)[0], eos=False, packing=packing, sequence_length=1)
        iterator = iter(dataset)
        assert len(list(iterator)) == 2
        assert iterator.stats()["documents"] == 3


def test_truncation_error_comes_after_all_earlier_rows(tmp_path):
    paths = write_shards(tmp_path, [["ab", "c", "0123456789", "d"]])
    dataset = gm.PackedDataset(
        paths, tokenizer=both(trained)[0], eos="<eos>", packing="pad", truncation="error", sequence_length=4
    )
    iterator = iter(dataset)
    assert [spelled(next(iterator)["inputs"][:2]) for _ in range(2)] == ["ab", "c/"]
    before = iterator.get_state()
    for _ in range(2):
        with pytest.raises(gm.ShardError, match=r"at most sequence_length=4 tokens.* found one of 11; raise") as raised:
            next(iterator)
        assert (raised.value.shard, raised.value.record) == (str(paths[0]), 2)
    assert iterator.get_state() == before


def test_max_segments_closes_rows(tmp_path):
    rows = one_lane(tmp_path, ["a", "b", "c", "d"], max_segments=3, sequence_length=10, layout="grain")
    assert [spelled(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows] == ["a/b/c/", "d/"]
    rows = one_lane(tmp_path, ["a", "b", "c"], max_segments=2, sequence_length=10, packing="best_fit", layout="grain")
    assert [spelled(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows] == ["a/b/", "c/"]


# Any lines that are no records.
LIST = Path(__file__).parents[3] / "LICENSE"

# The arguments that define a stream: for each a value other than the default, and arguments that it needs.
ALTERNATIVES = {
    "text_field": ("content", {}),
    "sample": (gm.Completion("text", "text"), {}),
    "keep": ("text != 'a'", {}),
    "sidecars": ("signals=:nowhere:missing=keep", {"keep": "text"}),
    "drop": (gm.RowList(LIST, key="id"), {}),
    "split_bytes": (1000, {}),
    "sequence_length": (512, {}),
    "batch_size": (4, {}),
    "lanes": (1, {}),
    "packing": ("best_fit", {}),
    "fit_window": (7, {"packing": "best_fit"}),
    "truncation": ("left", {}),
    "max_segments": (3, {}),
    "pad_segments_to": (2, {}),
    "balance": (gm.Cost(1, 0.5), {"packing": "best_fit"}),
    "layout": ("hf", {}),
    "boundary_targets": (True, {}),
    "eos": (False, {}),
    "bos": (2, {}),
    "seed": (1, {}),
    "skip": ([(0, 5)], {}),
    "stages": ([gm.Stage(0, batch_size=4)], {}),
    "edits": ([gm.Edit(3, drop=gm.RowList(LIST, key="id"))], {}),
    "shuffle_window": (7, {"seed": 1}),
    "epochs": (2, {}),
    "on_error": ("quarantine", {}),
    "max_error_rate": (0.5, {"on_error": "quarantine"}),
    "max_document_bytes": (100, {}),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_argument_of_the_stream_changes_the_fingerprint(tmp_path, name):
    value, needed = ALTERNATIVES[name]
    base = {"tokenizer": both(trained)[0], "eos": 1}
    paths = write_shards(tmp_path, [["a"], ["b"]])
    one = gm.PackedDataset(paths, **base | needed)
    other = gm.PackedDataset(paths, **base | needed | {name: value})
    assert one.fingerprint != other.fingerprint
    iterator = iter(other)
    if ARGUMENTS[name].may_change in ("no", "if larger"):
        with pytest.raises(gm.StateError, match=f"saved by another dataset: .*{name} was"):
            iterator.set_state(iter(one).get_state())
    if needed:  # without them it has no effect
        assert (
            gm.PackedDataset(paths, **base).fingerprint == gm.PackedDataset(paths, **base, **{name: value}).fingerprint
        )


def test_every_argument_is_tried_for_the_fingerprint():
    defining = {name for name, argument in ARGUMENTS.items() if argument.defines_stream}
    assert defining == {*ALTERNATIVES, "shards", "tokenizer"}
    assert {name for name, (_, needed) in ALTERNATIVES.items() if needed} == {
        name for name in ALTERNATIVES if ARGUMENTS[name].unmet({name: row.default for name, row in ARGUMENTS.items()})
    }


@pytest.mark.parametrize(
    ("name", "without_effect"),
    [
        ("max_segments", {"packing": "pad"}),
        ("boundary_targets", {"packing": "pad"}),
        ("boundary_targets", {"layout": "hf"}),
        ("boundary_targets", {"layout": "grain"}),
    ],
)
def test_argument_without_effect_keeps_the_fingerprint(tmp_path, name, without_effect):
    base = {"tokenizer": both(trained)[0], "eos": 1, **without_effect}
    paths = write_shards(tmp_path, [["a"]])
    value = ALTERNATIVES[name][0]
    assert gm.PackedDataset(paths, **base).fingerprint == gm.PackedDataset(paths, **base, **{name: value}).fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"packing": "tight"}, "packing='tight': expected one of 'concat', 'best_fit', 'pad'"),
        (
            {"truncation": "centre"},
            "truncation='centre': expected one of 'right', 'left', 'middle', 'error', 'split'",
        ),
        ({"layout": "torch"}, "layout='torch': expected one of 'maxtext', 'grain', 'hf', 'varlen'"),
        (
            {"layout": "varlen", "packing": "pad", "truncation": "middle"},
            "truncation='middle': layout='varlen' has lengths of segments, .* use 'right', 'left' or 'split'",
        ),
        ({"fit_window": 0}, "fit_window=0: expected an integer from 1 to"),
        ({"max_segments": 0}, "max_segments=0: expected an integer from 1 to"),
        ({"shuffle_window": 0}, "shuffle_window=0: expected an integer from 1 to"),
        ({"fit_window": 2**20 + 1}, "fit_window=1048577: expected an integer from 1 to 1048576$"),
        ({"shuffle_window": 2**20 + 1}, "shuffle_window=1048577: expected an integer from 1 to 1048576$"),
    ],
)
def test_packing_arguments_are_checked(tmp_path, arguments, message):
    paths = write_shards(tmp_path, [["a"]])
    with pytest.raises(gm.ArgumentError, match=message):
        gm.PackedDataset(paths, tokenizer=both(trained)[0], eos=1, **arguments)


@pytest.mark.parametrize(
    ("arguments", "has_mask"),
    [
        ({}, False),
        ({"packing": "best_fit"}, False),
        ({"packing": "pad"}, True),
        ({"packing": "best_fit", "max_segments": 1}, True),
        ({"attention_mask": True}, True),
        ({"packing": "pad", "attention_mask": False}, False),
    ],
)
def test_rows_of_several_documents_have_a_mask_only_if_asked_for(tmp_path, arguments, has_mask):
    paths = write_shards(tmp_path, [["a", "bb", "ccc"]])
    base = {"tokenizer": both(trained)[0], "eos": 1, "layout": "hf", "sequence_length": 4}
    found, other = (gm.PackedDataset(paths, **base | arguments | own) for own in ({}, {"attention_mask": True}))
    rows, masked = list(found), list(other)
    assert all(("attention_mask" in row) == has_mask for row in rows)
    assert found.fingerprint == other.fingerprint
    for row, wanted in zip(rows, masked, strict=True):
        assert wanted["attention_mask"].any()
        assert all((row[name] == wanted[name]).all() for name in row)
    iterator, restored = iter(found), iter(other)
    next(iterator)
    restored.set_state(iterator.get_state())
    assert (next(restored)["input_ids"] == next(iterator)["input_ids"]).all()


def test_element_spec_matches_the_layout(tmp_path):
    paths = write_shards(tmp_path, [["a"]])
    for layout in _core.LAYOUTS:
        dataset = gm.PackedDataset(paths, tokenizer=both(trained)[0], eos=1, layout=layout, batch_size=2)
        batch = next(iter(dataset))
        spec = dataset._element_spec
        assert {name: array.shape for name, array in batch.items()} == {n: s.shape for n, s in spec.items()}
