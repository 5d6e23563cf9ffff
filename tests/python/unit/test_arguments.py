"""The table of arguments, and everything that derives from it."""

import dataclasses
import inspect
import logging
import pickle
import re
from typing import Literal, get_args, get_origin

import pytest

import gristmill as gm
import options_page
from gristmill import _core
from gristmill._dataset import spec
from gristmill._prompts import arguments as prompt_arguments
from gristmill._spec import arguments, fingerprints, kinds
from gristmill._spec.arguments import ARGUMENTS, REQUIRED, SOURCE_ARGUMENTS
from gristmill._util.named_values import decode


def test_table_has_the_parameters_of_the_dataset():
    parameters = inspect.signature(gm.PackedDataset).parameters
    defaults = {name: REQUIRED if p.default is p.empty else p.default for name, p in parameters.items()}
    assert {name: argument.default for name, argument in ARGUMENTS.items()} == defaults
    assert all(type(argument.default) is type(defaults[name]) for name, argument in ARGUMENTS.items())


def test_sources_have_the_arguments_of_their_scope():
    parameters = dict(inspect.signature(gm.Source).parameters)
    assert parameters.pop("weight").default is None
    of_dataset = inspect.signature(gm.PackedDataset).parameters
    assert list(parameters) == list(SOURCE_ARGUMENTS)
    for name, parameter in parameters.items():
        row = ARGUMENTS[name]
        expected = row.default if row.in_source is ... else row.in_source
        assert (REQUIRED if parameter.default is parameter.empty else parameter.default) == expected
        assert name == "shards" or parameter.annotation == of_dataset[name].annotation


@pytest.mark.parametrize(
    ("kind", "table"), [(gm.PackedDataset, ARGUMENTS), (gm.PromptDataset, prompt_arguments.ARGUMENTS)]
)
def test_docstrings_describe_each_argument(kind, table):
    described = inspect.getdoc(kind).split("\nArgs:\n")[1].split("\nRaises:\n")[0]
    assert sorted(re.findall(r"^  (\w+): ", described, re.MULTILINE)) == sorted(table)


def test_words_match_annotations_and_core():
    parameters = inspect.signature(gm.PackedDataset).parameters
    # The first member of the union counts for those that may also be None.
    kinds_shown = {name: (p.annotation, *get_args(p.annotation)) for name, p in parameters.items()}
    shown = {
        name: get_args(kind) for name, found in kinds_shown.items() for kind in found if get_origin(kind) is Literal
    }
    words = {name: tuple(a.kind.words) for name, a in ARGUMENTS.items() if isinstance(a.kind, kinds.Choice)}
    assert words == shown
    assert words == {
        "packing": tuple(_core.PACKINGS),
        "truncation": tuple(_core.TRUNCATIONS),
        "on_error": tuple(_core.ON_ERRORS),
        "layout": tuple(_core.LAYOUTS),
    }


@pytest.mark.parametrize("name", [name for name, argument in ARGUMENTS.items() if argument.default is not REQUIRED])
def test_default_passes_its_check_and_parses_back(name):
    argument = ARGUMENTS[name]
    assert argument.kind.check(name, argument.default) == argument.default
    if not isinstance(argument.kind, kinds.Other):
        assert argument.kind.parse(str(argument.default)) == argument.default


def test_needs_name_other_arguments_and_their_words():
    for argument in ARGUMENTS.values():
        for other, words in argument.needs.items():
            assert not words or set(words) <= set(ARGUMENTS[other].kind.words)


def test_options_page_is_up_to_date():
    page = options_page.PAGE.read_text()
    assert options_page.write(page) == page, "run `make options`"


@pytest.fixture
def dataset(shards, encoder):
    def dataset(**arguments):
        return gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", sequence_length=64, **arguments)

    return dataset


def add_argument(monkeypatch, default, **more):
    """Adds an argument to the table, as a later release may."""
    added = dataclasses.replace(
        ARGUMENTS["sequence_length"], name="row_padding", default=default, absent=default, help="Not there yet.", **more
    )
    monkeypatch.setitem(ARGUMENTS, "row_padding", added)
    make = fingerprints.make
    monkeypatch.setattr(fingerprints, "make", lambda values: make({**values, "row_padding": default}))
    resolve = spec.resolve
    monkeypatch.setattr("gristmill._dataset.packed.resolve", lambda given: resolve({"row_padding": default, **given}))


def test_state_without_an_added_argument_restores(dataset, monkeypatch):
    before = iter(dataset(batch_size=4, lanes=2))
    next(before)
    state = before.get_state()
    expected = [batch["inputs"].tolist() for batch in before]
    add_argument(monkeypatch, default=7)
    after = iter(dataset(batch_size=4, lanes=2))
    after.set_state(state)
    assert [batch["inputs"].tolist() for batch in after] == expected
    assert after.get_state()["fingerprint"] == state["fingerprint"]


def test_added_argument_with_another_value_is_named(dataset, monkeypatch):
    state = iter(dataset()).get_state()
    add_argument(monkeypatch, default=7)
    other = {**state, "fingerprint": state["fingerprint"] + " row_padding=9"}
    iterator = iter(dataset())
    with pytest.raises(gm.StateError, match=r"row_padding was 9 and is the default \(7\)"):
        iterator.set_state(other)


class FromStep(kinds.Integer):
    """The step from which something holds."""

    def first_difference(self, before, after):
        return None if before == after else min(before, after)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("saved", "steps", "fits"), [(2, 2, True), (2, 3, False), (9, 7, True), (9, 8, False)])
def test_argument_of_steps_may_change_for_those_to_come(dataset, encoder, monkeypatch, mixed, saved, steps, fits):
    add_argument(monkeypatch, default=7, kind=FromStep(0, 100), may_change="ahead")
    made = dataset(batch_size=4, lanes=2, epochs=None)
    if mixed:
        source = gm.Source(made.manifest, weight=1, text_field="raw_content")
        made = gm.PackedDataset(gm.Mixture({"a": source}), tokenizer=encoder, batch_size=4, lanes=2)
    iterator = iter(made)
    for _ in range(steps):
        next(iterator)
    state = iterator.get_state()
    state = {**state, "fingerprint": state["fingerprint"] + f" row_padding={saved}"}
    if fits:
        iterator.set_state(state)
        assert iterator.get_state()["step"] == steps
    else:
        said = (
            rf"row_padding was {saved} and is the default \(7\): the first step that differs is {min(saved, 7)}, which"
        )
        with pytest.raises(gm.StateError, match=said):
            iterator.set_state(state)


def test_argument_of_a_newer_release_is_named(dataset):
    iterator = iter(dataset())
    state = iterator.get_state()
    with pytest.raises(gm.StateError, match="row_padding was 9 and is missing"):
        iterator.set_state({**state, "fingerprint": state["fingerprint"] + " row_padding=9"})


def test_fingerprint_omits_defaults_and_unused_arguments(dataset):
    plain = dataset().fingerprint
    assert dataset(fit_window=9, truncation="split", shuffle_window=9, max_error_rate=0.5).fingerprint == plain
    assert dataset(batch_size=None, packing="concat", epochs=1, seed=None).fingerprint == plain
    assert list(decode(plain)) == [*["manifest", "text_field", "tokenizer", "eos", "sequence_length", "lanes"]]


def test_differences_name_defaults_and_skip_unused_arguments(dataset):
    packed = dataset(packing="best_fit", fit_window=9, seed=3).fingerprint
    assert fingerprints.incompatibilities(packed, dataset(epochs=None, eos=False).fingerprint, False) == (
        "eos was 1 and is none, epochs was the default (1) and is None, packing was best_fit and is the default "
        "(concat), seed was 3 and is the default (None)"
    )


def test_arguments_can_be_read_from_a_fingerprint(dataset):
    given = {"packing": "best_fit", "fit_window": 9, "epochs": None, "bos": 0, "batch_size": 8}
    made = dataset(**given)
    again = fingerprints.arguments_of(made.fingerprint)
    assert again.items() >= given.items()
    assert again.keys() == {name for name, a in ARGUMENTS.items() if a.defines_stream} - {"shards", "tokenizer"}
    other = gm.PackedDataset(made.manifest, tokenizer=made.encoder, **again)
    assert other.fingerprint == made.fingerprint
    assert (
        gm.PackedDataset(
            made.manifest, tokenizer=made.encoder, **fingerprints.arguments_of(dataset(eos=False).fingerprint)
        ).fingerprint
        == dataset(eos=False).fingerprint
    )


def test_each_argument_is_in_one_group():
    names = [name for group in arguments.GROUPS for name in arguments.arguments_of(group)]
    assert len(names) == len(set(names)) == len(ARGUMENTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fit_window": 64}, ["fit_window=64 has no effect without packing='best_fit'"]),
        ({"shuffle_window": 64, "seed": 1}, []),
        ({"shuffle_window": 64}, ["shuffle_window=64 has no effect without seed="]),
        (
            {"packing": "pad", "truncation": "split", "max_segments": 2},
            ["max_segments=2 has no effect without packing"],
        ),
        ({"layout": "hf", "boundary_targets": True}, ["boundary_targets=True has no effect without layout='maxtext'"]),
        # The defaults, as programs pass them whatever the packing is.
        ({"fit_window": 1024, "truncation": None, "max_error_rate": 0.01}, []),
    ],
)
def test_arguments_without_effect_are_warned_of(shards, encoder, caplog, given, said):
    with caplog.at_level(logging.WARNING, "gristmill"):
        gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", sequence_length=64, **given)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(said)
    assert all(text in message for text, message in zip(said, messages, strict=True))


@pytest.mark.parametrize(
    ("arguments", "named"), [({"batch_size": 0}, "batch_size"), ({"lanes": "4"}, "lanes"), ({"layout": "x"}, "layout")]
)
def test_error_says_which_argument_it_is_about(tokenizer_file, shard_folder, arguments, named):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError)) as raised:
        gm.PackedDataset(f"{shard_folder}/*/*.gz", tokenizer=tokenizer_file, **arguments)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.argument, str(again)) == (named, str(raised.value))
    assert gm.ArgumentError("a").argument is None
