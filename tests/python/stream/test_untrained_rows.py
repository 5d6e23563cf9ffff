"""Rows that train nothing: left out, or an error. `test_samples` compares whole streams with the naive model."""

import itertools
import json
import logging

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml
from gristmill import _core
from gristmill._cli import main
from gristmill._state import states
from helpers import assert_resumes, assert_same_batches
from mixture_rule import turn

LENGTH = 32
PACKINGS = [{"packing": "concat"}, {"packing": "best_fit"}, {"packing": "pad", "truncation": "split"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def chat(question, answer="the ant"):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Long questions with short answers: most rows have no part of an answer. Each shard ends with such rows."""
    folder = tmp_path_factory.mktemp("shards")
    end = {"messages": [*chat("er")["messages"], {"role": "user", "content": "us er " * 60}]}
    records = [[chat("us er " * ((7 * n + 11 * shard) % 40)) for n in range(20)] + [end] for shard in range(4)]
    return [write(folder / f"{number}.jsonl", own) for number, own in enumerate(records)]


@pytest.fixture
def dataset(shards, folder):
    def dataset(on_untrained="drop", **arguments):
        sample = gm.Chat(on_untrained=on_untrained)
        defaults = {"sequence_length": LENGTH, "batch_size": 4, "lanes": 4, "threads": 2}
        if arguments.get("layout") == "hf":
            defaults["attention_mask"] = True  # `labels` looks for rows of padding
        return gm.PackedDataset(shards, tokenizer=folder, sample=sample, **defaults | arguments)

    return dataset


def labels(batch):
    """How many labels each row of a batch has, as a trainer counts them; -1 for rows of nothing but padding."""
    if "labels" in batch:
        return np.where(batch["attention_mask"].any(1), (batch["labels"][:, 1:] != -100).sum(1), -1)
    if "tokens_loss_mask" in batch:
        segments = batch["tokens_segment_ids"]
        within = segments[:, 1:] == segments[:, :-1]
        return np.where(segments.any(1), (batch["tokens_loss_mask"][:, 1:] & within).sum(1), -1)
    if "targets_loss_mask" in batch:
        return np.where(batch["seq_lens"].any(1), batch["targets_loss_mask"].astype(int).sum(1), -1)
    return np.where(batch["inputs_segmentation"].any(1), (batch["targets_segmentation"] > 0).sum(1), -1)


@pytest.mark.parametrize("layout", _core.LAYOUTS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_no_row_and_no_batch_is_without_a_label(dataset, packing, layout):
    iterator = iter(dataset(layout=layout, **packing))
    found = [labels(batch) for batch in iterator]
    assert all((own != 0).all() and own.max() > 0 for own in found)
    stats = iterator.stats()
    whole = iter(dataset(layout=layout, sequence_length=1024, packing="pad"))
    rows = sum(1 for _ in whole)
    assert rows > 0
    everything = whole.stats()
    assert stats["dropped_tokens"] > everything["tokens"] / 2
    assert stats["tokens"] + stats["dropped_tokens"] == everything["tokens"]
    assert stats["documents"] == everything["documents"] == 84
    assert stats["rows"] * LENGTH == stats["tokens"] + stats["padding_tokens"]
    cursors = [states.cursor_numbers(cursor) for cursor in iterator.get_state()["lanes"].values()]
    rows_with_tokens = sum((own >= 0).sum() for own in found)
    assert sum(own["tokens"] + own["padding"] for own in cursors) == rows_with_tokens * LENGTH
    assert sum(own["records"] for own in cursors) == 84


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "seed"), [("maxtext", None), ("hf", 3)])
@pytest.mark.parametrize("packing", PACKINGS)
def test_stream_is_the_same_on_any_threads_hosts_and_after_restores(dataset, packing, layout, seed):
    arguments = {"layout": layout, "seed": seed, "epochs": 2, "provenance": True, **packing}
    whole = list(dataset(**arguments))
    assert_same_batches(dataset(**arguments, threads=1, prefetch=1), whole)
    for step in range(0, len(whole), 7):
        assert_resumes(dataset(**arguments), step)
    hosts = [iter(dataset(**arguments, shard_index=host, shard_count=2)) for host in range(2)]
    for step in range(3):
        rows = [next(host) for host in hosts]
        assert_same_batches([{name: np.concatenate([own[name] for own in rows]) for name in rows[0]}], [whole[step]])
    restored = iter(dataset(**arguments))
    restored.set_state(gm.merge_states([host.get_state() for host in hosts]))
    assert_same_batches(restored, whole[3:])
    equal = [list(dataset(**arguments, equal_steps=True, shard_index=host, shard_count=4)) for host in range(4)]
    together = [
        {name: np.concatenate([own[name] for own in rows]) for name in rows[0]} for rows in zip(*equal, strict=True)
    ]
    assert_same_batches(together, whole)
    one_by_one = dataset(**arguments | {"batch_size": None})
    iterator = iter(one_by_one)
    found = [row for row in iterator if row["provenance"].any()]
    rows = [{name: array[row] for name, array in batch.items()} for batch in whole for row in range(4)]
    assert_same_batches(found, [row for row in rows if row["provenance"].any()])


@pytest.mark.parametrize("packing", PACKINGS)
def test_streams_without_such_rows_stay_as_they_are(tmp_path, folder, packing):
    """All is trained on, but for the prompt: then rows are those of the other choice, where they are an error."""
    path = write(tmp_path / "a.jsonl", [{"prompt": "us", "completion": " er ant" * (n % 23)} for n in range(60)])
    found = [
        gm.PackedDataset(
            path,
            tokenizer=folder,
            sample=gm.Completion(on_untrained=choice),
            sequence_length=8,
            batch_size=2,
            **packing,
        )
        for choice in ("drop", "error")
    ]
    assert_same_batches(*found)


@pytest.mark.parametrize("packing", PACKINGS)
def test_provenance_says_which_tokens_were_left_out(dataset, packing, folder):
    """The tokens of rows are those that provenance names, and those that no row has train nothing."""
    made = dataset(layout="hf", provenance=LENGTH, **packing)
    whole = {}
    for row in dataset(layout="grain", packing="pad", sequence_length=1024, batch_size=None, provenance=True, lanes=1):
        shard, record, _, length = row["provenance"][0].tolist()
        if length:
            whole[shard, record] = (row["tokens"][:length], row["tokens_loss_mask"][:length].astype(bool))
    seen = {place: np.zeros(len(ids), bool) for place, (ids, _) in whole.items()}
    for batch in made:
        for row, entries in zip(batch["input_ids"], batch["provenance"], strict=True):
            at = 0
            for shard, record, offset, length in entries.tolist():
                part = slice(offset, offset + length)
                if length:
                    np.testing.assert_array_equal(row[at : at + length], whole[shard, record][0][part])
                    assert not seen[shard, record][part].any()
                    seen[shard, record][part] = True
                at += length
    lost = [mask & ~seen[place] for place, (_, mask) in whole.items()]
    # At most the first token of each row that is left out is trained on: a label of which no model sees.
    assert sum(own.sum() for own in lost) <= 4
    assert not all(own.all() for own in seen.values())


def test_rows_of_a_mixture_are_filled_again_by_the_same_source(tmp_path, shards, folder):
    text = write(tmp_path / "text.jsonl", [{"text": "the ant " * (n % 30)} for n in range(400)])
    sources = {
        "chat": gm.Source(list(map(str, shards)), weight=2, sample=gm.Chat(on_untrained="drop")),
        "text": gm.Source(text, weight=1),
    }
    made = gm.PackedDataset(
        gm.Mixture(sources),
        tokenizer=folder,
        sequence_length=LENGTH,
        batch_size=6,
        lanes=1,
        layout="hf",
        attention_mask=True,
        source_arrays=True,
    )
    steps = 12
    batches = list(itertools.islice(made, steps))
    found = {name: [] for name in sources}
    for step, batch in enumerate(batches):
        assert (labels(batch) != 0).all()
        for row in range(6):
            name = list(sources)[batch["source"][row]]
            assert name == turn(step, row, 6, {"chat": 2, "text": 1})
            found[name].append(batch["input_ids"][row])
    for name, rows in found.items():
        alone = (row for batch in made.sources[name] for row in batch["input_ids"])
        np.testing.assert_array_equal(rows, list(itertools.islice(alone, len(rows))))
    iterator, restored = iter(made), iter(made)
    list(itertools.islice(iterator, 5))
    restored.set_state(iterator.get_state())
    assert_same_batches(itertools.islice(restored, steps - 5), itertools.islice(iterator, steps - 5))
    stats = iterator.stats()["sources"]
    assert {name: own["rows"] for name, own in stats.items()} == {name: len(rows) for name, rows in found.items()}


@pytest.mark.parametrize("weights_by", ["tokens", "samples"])
def test_shares_count_delivered_rows(tmp_path, shards, folder, weights_by):
    text = write(tmp_path / "text.jsonl", [{"text": "the ant " * (n % 30)} for n in range(400)])
    sample = gm.Chat(on_untrained="drop")
    sources = {
        "chat": gm.Source(list(map(str, shards)), weight=1, epochs=None, sample=sample),
        "text": gm.Source(text, weight=1, epochs=None),
    }
    made = gm.PackedDataset(
        gm.Mixture(sources, weights_by=weights_by), tokenizer=folder, sequence_length=LENGTH, batch_size=6, lanes=1
    )
    iterator = iter(made)
    list(itertools.islice(iterator, 40))
    stats = iterator.stats()["sources"]
    counted = {"tokens": "tokens", "samples": "documents"}[weights_by]
    difference = abs(stats["chat"][counted] - stats["text"][counted])
    assert difference <= {"tokens": LENGTH, "samples": 9}[weights_by]  # a row may end as many samples
    restored = iter(made)
    restored.set_state(iterator.get_state())
    assert_same_batches(itertools.islice(restored, 8), itertools.islice(iterator, 8))


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_follows_a_batch_is_known_before_it_is_asked_for(dataset, packing):
    """Hosts vote on whether any has another row: one that is left out is none."""
    for host in range(4):
        iterator = iter(dataset(layout="hf", batch_size=8, shard_index=host, shard_count=4, **packing))
        core = iterator._stream.core
        known = []
        for _ in iterator:
            known.append(core.has_more())
            assert core.has_more() == known[-1]
        assert known == [True] * (len(known) - 1) + [False]


def test_endless_lane_without_a_trained_row_is_refused(tmp_path, folder):
    """Each document is two rows of two tokens, and what is trained on is the first of a row."""
    template = (
        "{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
        "{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}"
    )
    parts = [("user", "er1"), ("assistant", "ant"), ("user", "1")]
    path = write(tmp_path / "a.jsonl", [{"messages": [{"role": role, "content": text} for role, text in parts]}] * 3)
    assert len(gm.Encoder.from_file(folder).encode("er1ant1")) == 4
    arguments = {"tokenizer": folder, "sample": gm.Chat(template=template, train_on="template", on_untrained="drop")}
    ended = iter(gm.PackedDataset(path, **arguments, sequence_length=2, layout="hf"))
    assert list(ended) == []
    assert (ended.stats()["dropped_tokens"], ended.stats()["tokens"], ended.stats()["documents"]) == (12, 0, 3)
    assert len(list(gm.PackedDataset(path, **arguments, sequence_length=2, layout="maxtext"))) == 3
    endless = iter(gm.PackedDataset(path, **arguments, sequence_length=2, layout="hf", epochs=None))
    with pytest.raises(gm.ArgumentError, match=r"lane 0 has no row with a token to train on in epoch 1: .*would loop"):
        next(endless)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"packing": "best_fit"}, r"this document of 60 is cut into, found none among the tokens 0 to 31; raise"),
        ({"packing": "pad", "truncation": "split"}, r"found none among the tokens 0 to 31; raise sequence_length="),
        ({"packing": "pad"}, r"found none among the 32 tokens that truncation leaves of 60; set on_untrained="),
        ({"packing": "best_fit", "truncation": "right"}, "found none among the 32 tokens that truncation leaves of 60"),
        ({"packing": "concat", "truncation": "right"}, "found none among the 32 tokens that truncation leaves of 60"),
    ],
)
def test_document_of_which_a_row_trains_nothing_is_bad(tmp_path, folder, arguments, reason):
    path = write(tmp_path / "a.jsonl", [chat("er"), chat("us er " * 10), chat("er")])

    def made(**more):
        defaults = {"sequence_length": LENGTH, "layout": "hf", "provenance": True, "sample": gm.Chat()}
        return iter(gm.PackedDataset(path, tokenizer=folder, **defaults | arguments | more))

    with pytest.raises(gm.ShardError, match=reason) as raised:
        list(made())
    assert (raised.value.record, 'set on_error="quarantine" to skip it' in str(raised.value)) == (1, True)
    iterator = made(on_error="quarantine", max_error_rate=1.0)
    records = {entry[1] for row in iterator for entry in row["provenance"].tolist() if entry[3]}
    assert (records, iterator.stats()["quarantined"]) == ({0, 2}, 1)
    # The advice of the message helps.
    for more in ({"sequence_length": 128}, {"sample": gm.Chat(on_untrained="drop")}, {"truncation": "left"}):
        assert list(made(**more))


def test_row_of_concat_that_trains_nothing_stops_the_run_or_is_left_out(tmp_path, folder, caplog):
    path = write(tmp_path / "a.jsonl", [chat("er"), chat("us er " * 30), chat("er"), chat("us")])

    def made(**more):
        arguments = {"sequence_length": LENGTH, "layout": "hf", "sample": gm.Chat()} | more
        return gm.PackedDataset(path, tokenizer=folder, **arguments)

    iterator = iter(made())
    rows = [next(iterator)]
    state = iterator.get_state()
    for _ in range(2):
        with pytest.raises(
            gm.ShardError, match=r"none among the 32 tokens of the one that begins with token \d+ of"
        ) as raised:
            next(iterator)
        assert (raised.value.shard, raised.value.record) == (str(path), 1)
    assert iterator.get_state() == state
    # It continues where bad records are left out, and delivers what "drop" does.
    resumed = iter(made(on_error="quarantine"))
    resumed.set_state(state)
    with caplog.at_level(logging.WARNING, "gristmill"):
        rows += list(resumed)
    stats = resumed.stats()
    assert_same_batches(rows, made(sample=gm.Chat(on_untrained="drop")))
    assert (stats["quarantined"], stats["documents"], stats["dropped_tokens"] % LENGTH) == (0, 4, 0)
    message = next(message for message in caplog.messages if "dropped" in message)
    assert message.endswith("by truncation=, or with rows that train nothing")


def test_first_token_of_a_document_is_no_label(tmp_path, folder):
    """A completion of one token without a prompt: nothing predicts it."""
    path = write(tmp_path / "a.jsonl", [{"prompt": "", "completion": "us"}, {"prompt": "us", "completion": " er"}])
    arguments = {"tokenizer": folder, "eos": False, "sequence_length": 16, "packing": "pad"}
    for layout in _core.LAYOUTS:
        with pytest.raises(gm.ShardError, match="found only ones without a token before them in their row among the 1"):
            list(gm.PackedDataset(path, sample=gm.Completion(), layout=layout, **arguments))
        iterator = iter(gm.PackedDataset(path, sample=gm.Completion(on_untrained="drop"), layout=layout, **arguments))
        assert (len(list(iterator)), iterator.stats()["filtered"]) == (1, 1)
    # The target of the token before it, where documents have such targets.
    arguments |= {"packing": "concat", "boundary_targets": True}
    assert len(list(gm.PackedDataset(path, sample=gm.Completion(), **arguments))) == 1


@pytest.mark.parametrize("layout", ["maxtext", "hf"])
def test_commands_show_and_write_the_rows_that_are_delivered(dataset, shards, folder, tmp_path, capsys, layout):
    made = dataset(layout=layout, packing="best_fit")
    batches = list(made)
    ids = {"maxtext": "inputs", "hf": "input_ids"}[layout]
    rows = [row for batch in batches for row in batch[ids].tolist()]
    iterator = iter(made)
    for _ in range(2):
        next(iterator)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.get_state()))
    sample = ["--sample", "chat", "--sample", "on_untrained=drop"]
    of_run = ["--tokenizer", folder, *itertools.chain(*(("--shards", shard) for shard in shards)), *sample]
    for row in range(4):
        found = printed(capsys, "inspect", state, "--row", row, "--step", 3, *of_run, "--json")
        texts = "".join(part["text"] for part in json.loads(found)["segments"])
        tokens = rows[3 * 4 + row]
        assert made.encoder.decode(tokens[: found_tokens(found)]) == texts
    page = tmp_path / "page.html"
    printed(capsys, "view", state, *of_run, "--output", page)
    options = [
        "--packing",
        "best_fit",
        "--layout",
        layout,
        "--sequence-length",
        LENGTH,
        "--batch-size",
        4,
        "--lanes",
        4,
    ]
    output = tmp_path / "packed"
    printed(capsys, "pack", *shards, "--tokenizer", folder, "--output", output, *sample, *options)
    packed = gm.PackedRows(output)
    written = [packed[number][ids].tolist() for number in range(len(packed))]
    assert sorted(written) == sorted(row for batch in batches for row in batch[ids][labels(batch) > 0].tolist())
    assert json.loads(printed(capsys, "verify", output, "--json"))["equal"]
    overview = json.loads(printed(capsys, "inspect", output, "--json"))
    last = iter(made)
    list(last)
    assert {name: overview[name] for name in ("documents", "tokens", "dropped_tokens")} == {
        name: last.stats()[name] for name in ("documents", "tokens", "dropped_tokens")
    }


def found_tokens(found):
    return json.loads(found)["tokens"]


def printed(capsys, *arguments):
    assert main.run(list(map(str, arguments))) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("on_untrained", ["drop", "error"])
def test_inspected_conversation_is_whole(tmp_path, folder, capsys, on_untrained):
    """However long it is, and whatever a part of it trains."""
    path = write(tmp_path / "a.jsonl", [chat("us er " * 10_000)])
    arguments = ["inspect", path, "--chat", "--tokenizer", folder, "--set", f"on_untrained={on_untrained}", "--json"]
    (found,) = json.loads(printed(capsys, *arguments))["conversations"]
    assert found["tokens"] > 2 * 2**14
    assert [part["text"] for part in found["parts"] if part["trained"]] == ["the ant<|im_end|>"]
    row = ["inspect", path, "--tokenizer", folder, "--row", 0, "--full", "--json", "--sample", "chat"]
    row += ["--sample", "on_untrained=drop", "--set", "sequence_length=64"]
    (segment,) = json.loads(printed(capsys, *row))["segments"]
    assert segment["document"]["text"].count("us er") == 10_000


def test_part_whose_only_trained_token_opens_its_row_is_not_said_to_have_none(tmp_path, folder):
    """The EOS token of a document that is one token longer than a row is trained on, and no token predicts it."""
    path = write(tmp_path / "a.jsonl", [{"prompt": "ant", "completion": "1" * 40}])
    sample = gm.Completion("prompt", "completion")
    whole = next(iter(gm.PackedDataset(path, tokenizer=folder, sample=sample, sequence_length=128, packing="best_fit")))
    tokens = int((whole["inputs_segmentation"] > 0).sum())
    made = gm.PackedDataset(path, tokenizer=folder, sample=sample, sequence_length=tokens - 1, packing="best_fit")
    reason = rf"found only ones without a token before them in their row among the tokens {tokens - 1} to {tokens - 1};"
    with pytest.raises(gm.ShardError, match=reason):
        next(iter(made))
