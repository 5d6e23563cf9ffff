"""The arguments of `PackedDataset` and `Encoder` as options of commands."""

import inspect
import itertools
import json
import re
import shlex
from typing import get_type_hints

import click
import pytest

import gristmill as gm
from command_line import checked
from gristmill._cli import options as cli_options
from gristmill._spec.arguments import ARGUMENTS
from gristmill._tokenizer import encoder as encoder_module


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lanes", "3"], "--lanes 3: each lane packs .* must divide --batch-size 16; use one of 1, 2, 4, 8"),
        (["--sequence-length", "99999999"], "--sequence-length 99999999: expected an integer from 1 to 16777216\n$"),
        (["--batch-size", "99999999"], "--batch-size 99999999: expected an integer from 1 to 1048576\n$"),
        (
            ["--quarantine-file", "a"],
            "--quarantine-file 'a': --on-error 'raise' quarantines nothing; use 'quarantine'",
        ),
        (["--eos", "<nope>"], "--eos '<nope>': the vocabulary has no such token"),
        (["--eos", "1" * 5000], "--eos '1{198,200}.*: the vocabulary has no such token"),
    ],
)
def test_errors_name_command_line_options(tmp_path, packing, capsys, options, says):
    code, said = checked(capsys, *packing(tmp_path / "new", *options))
    assert code == 2
    assert re.match(f"error: {says}", said), said


@pytest.mark.parametrize("option", ["--eos", "--bos"])
@pytest.mark.parametrize("word", ["False", "None", "true"])
def test_word_of_python_is_no_special_token(tmp_path, packing, capsys, option, word):
    code, said = checked(capsys, *packing(tmp_path / "new", option, word))
    assert (code, f"'{option}': '{word}': expected auto, none, an id or a token" in said) == (2, True)


# For each option: a value, arguments with which it has an effect, and arguments with which it has none.
EFFECTIVE = {
    "fit_window": (2, {"packing": "best_fit"}, {"packing": "pad"}),
    "max_segments": (2, {}, {"packing": "pad"}),
    "pad_segments_to": (2, {}, {"packing": "pad"}),
    "balance": ("1,0.5", {"packing": "best_fit"}, {"packing": "pad"}),
    "boundary_targets": (True, {}, {"layout": "hf"}),
    "shuffle_window": (2, {"seed": 1}, {}),
    "max_error_rate": (0.5, {"on_error": "quarantine"}, {}),
    "sidecars": ("signals=:nowhere:missing=keep", {"keep": "raw_content"}, {}),
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_option_without_effect_is_refused(tmp_path, packing, capsys, shards, encoder, name):
    """An option has no effect where it is not part of the fingerprint."""
    value, effective, idle = EFFECTIVE[name]

    def fingerprint(**arguments):
        return gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", **arguments).fingerprint

    def packed(name, **arguments):
        options = [(cli_options._flag(key), *([] if value is True else [value])) for key, value in arguments.items()]
        return checked(capsys, *packing(tmp_path / name, *itertools.chain(*options)))

    assert fingerprint(**effective) != fingerprint(**effective, **{name: value})
    assert fingerprint(**idle) == fingerprint(**idle, **{name: value})
    assert packed("good", **effective, **{name: value})[0] == 0
    code, said = packed("bad", **idle, **{name: value})
    assert (code, f"{cli_options._flag(name)} has no effect without --" in said) == (2, True)
    assert not (tmp_path / "bad").exists()


def test_error_names_the_option_that_is_needed(tmp_path, packing, capsys):
    assert set(EFFECTIVE) == {
        name for name, argument in ARGUMENTS.items() if argument.needs and argument.defines_stream
    }
    for options, needed in [
        # Also with the value that is the default.
        (["--fit-window", 1024], "--fit-window has no effect without --packing best_fit"),
        (["--shuffle-window", 1024], "--shuffle-window has no effect without --seed"),
        (["--boundary-targets", "--layout", "hf"], "--boundary-targets has no effect without --layout maxtext"),
        (
            ["--max-segments", 2, "--packing", "pad"],
            "--max-segments has no effect without --packing concat or best_fit",
        ),
    ]:
        assert checked(capsys, *packing(tmp_path / "new", *options))[1].endswith(f"Error: {needed}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "--text-field", "a"], "--text-field has no effect without SHARDS"),
        (["bench", "--formats", "--only", "datasets"], "--formats adds contenders, and --only names them"),
        (["bench", "--shards", "a", "--megabytes", 1], "--folder and --megabytes apply to the demo's text"),
        (["bench", "--shards", "a", "--folder", "b"], "--folder and --megabytes apply to the demo's text"),
        (["inspect", "a", "--row", 1, "--records", 5], "No such option"),
        (["inspect", "a", "--row", 1, "--text-field", "b"], "'--text-field'. Use --set text_field=VALUE."),
    ],
)
def test_options_without_effect_in_bench_and_inspect(arguments, says, capsys):
    code, said = checked(capsys, *arguments)
    assert (code, says in said) == (2, True)


@pytest.mark.parametrize("arguments", ["inspect ''", "verify ''", "pack ''", "pack a --output ''", "demo --folder ''"])
def test_empty_path_is_refused(arguments, capsys):
    code, said = checked(capsys, *shlex.split(arguments))
    assert (code, "expected a non-empty path" in said) == (2, True)


def test_records_option_needs_a_shard(tokenizer_file, capsys):
    code, said = checked(capsys, "inspect", tokenizer_file, "--records", 5)
    assert (code, "--records needs a shard, and" in said) == (2, True)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "a/lanes=4/b.gz: raise max_document_bytes= to read it",
            "a/lanes=4/b.gz: raise --max-document-bytes to read it",
        ),
        ("lower batch_size=, sequence_length= or prefetch=", "lower --batch-size, --sequence-length or --prefetch"),
        (
            "eos=None: pass eos= a token or an id, or eos=False for none",
            "--eos auto: pass --eos a token or an id, or --eos none for none",
        ),
        ("bos=True: the key 'seed=1', \"seed=1\"", "--bos auto: the key 'seed=1', \"seed=1\""),
        ('set on_error="quarantine" to', 'set --on-error "quarantine" to'),
        ("verify=-1: expected", "--verify -1: expected"),
        ("threads=0: expected an integer from 1 to 9, or None", "--threads 0: expected an integer from 1 to 9"),
        ("eos='</s>', tokenizer=: its model", "--eos '</s>', tokenizer=: its model"),
    ],
)
def test_argument_names_become_option_names(message, said):
    with pytest.raises(gm.GristmillError) as caught, cli_options.naming_options(cli_options.TYPES):
        raise gm.GristmillError(message)
    assert str(caught.value) == said


def test_options_match_the_arguments_of_the_dataset():
    # The others are positional, or make no sense for files.
    assert ARGUMENTS.keys() - cli_options.TYPES.keys() == {
        "shards", "sample", "tokenizer", "provenance", "source_arrays", "on_stats",
        "equal_steps", "attention_mask", "stages", "edits",
    }  # fmt: skip
    command = cli_options.dataset_options()(lambda **_: None)
    defaults = {option.name: option.default for option in click.command()(command).params}
    assert defaults == {name: ARGUMENTS[name].default for name in defaults} | {"eos": "auto", "bos": "none"}


def test_arguments_are_checked_before_files():
    with pytest.raises(gm.ArgumentError, match="packing='tight': expected one of"):
        gm.PackedDataset("nowhere/*.gz", tokenizer="nowhere", packing="tight")


def test_encoder_constructors_take_the_same_options():
    parameters = inspect.signature(gm.Encoder).parameters.values()
    by_name = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert by_name == get_type_hints(encoder_module.EncoderOptions)


def test_eos_and_bos_options_take_tokens_and_ids(tmp_path, pack, encoder):
    assert pack(tmp_path / "none", "--eos", "none")["tokens"] + 340 == pack(tmp_path / "auto")["tokens"]
    pack(tmp_path / "token", "--eos", "<s>", "--bos", "1")
    stream = json.loads((tmp_path / "token" / "index.json").read_text())["fingerprint"]
    assert f"eos={encoder.token_to_id('<s>')} bos=1" in stream
