"""`truncation="turns"`: conversations longer than a row lose their earliest turns, as a naive model drops them."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import REASONING, write_chatml
from command_line import run_json
from helpers import assert_same_batches

LENGTH = 60
# Demands that user and assistant take turns, beginning with the user, behind a system prompt.
STRICT = (
    "{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{%- if rest[0].role != 'user' %}{{ raise_exception('the first message must be of the user') }}{%- endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_chatml(tmp_path_factory.mktemp("models") / "chatml")
    (path / "chat_template.jinja").write_text(STRICT)
    return path


def conversation(number):
    """One of different numbers and lengths of turns, with and without a system prompt and tools."""
    rng = random.Random(number)
    messages = [{"role": "system", "content": "Short."}] * rng.randrange(2)
    for turn in range(rng.randrange(1, 9)):
        messages.append({"role": "user", "content": f"{number}.{turn} " + "ant " * rng.randrange(6)})
        if rng.random() < 0.3:
            messages += [{"role": "assistant", "content": "call"}, {"role": "tool", "content": "the ant"}]
        messages.append({"role": "assistant", "content": "an ant " * rng.randrange(1, 6)})
    return messages


CONVERSATIONS = [conversation(number) for number in range(80)]


def write(path, conversations=CONVERSATIONS):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([{"messages": messages} for messages in conversations]), path)
    else:
        path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    return path


def samples_of(messages, kind):
    """The messages of each sample, and what is trained of it."""
    if kind == "conversation":
        return [(messages, "assistant")]
    ends = [n + 1 for n, message in enumerate(messages) if message["role"] == "assistant"]
    if kind == "turns":
        return [(messages[:end], "last") for end in ends]
    rounds = [n for n, message in enumerate(messages) if message["role"] == "user"] + [len(messages)]
    return [(messages[:end], "final") for end in rounds[1:]]


def naive(template, messages, train_on, length):
    """Drops turns until the rest fits: ids, mask, and how many messages and tokens are gone; None if it never does."""
    system = [message for message in messages if message["role"] in ("system", "developer")]
    turns = messages[len(system) :]
    whole = None
    while turns:
        if turns[0]["role"] == "user" or whole is None:
            ids, mask = template.encode(system + turns, train_on=train_on)
            whole = len(ids) if whole is None else whole
            if len(ids) <= length:
                left_out = len(messages) - len(system) - len(turns)
                return ids.tolist(), mask.tolist(), left_out, whole - len(ids)
        turns = turns[1:]
    return None


def expected_of(folder, kind, length=LENGTH, conversations=CONVERSATIONS):
    template = gm.ChatTemplate.from_pretrained(folder)
    return [naive(template, *sample, length) for messages in conversations for sample in samples_of(messages, kind)]


def segments(rows):
    """The ids and the mask of each document of some rows."""
    found = []
    for row in rows:
        ids = row["tokens_segment_ids"]
        for number in range(1, ids.max() + 1):
            own = ids == number
            found.append((row["tokens"][own].tolist(), (row["tokens_loss_mask"][own] == 1).tolist()))
    return found


def dataset(path, folder, samples="conversation", **more):
    given = {"sequence_length": LENGTH, "packing": "pad", "layout": "grain", "truncation": "turns"} | more
    own = {name: given.pop(name) for name in ("template", "train_on", "on_untrained") if name in given}
    return gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(samples=samples, **own), **given)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("kind", ["conversation", "turns", "rounds"])
def test_rest_is_that_of_a_naive_model(tmp_path, folder, kind, name):
    iterator = iter(dataset(write(tmp_path / name), folder, kind))
    found = segments(iterator)
    expected = expected_of(folder, kind)
    kept = [one for one in expected if one]
    assert found == [(ids, mask) for ids, mask, *_ in kept]
    assert sum(one is None for one in expected) > 3 < sum(left_out > 0 for *_, left_out, _ in kept)
    stats = iterator.stats()
    assert stats["dropped_messages"] == sum(left_out for *_, left_out, _ in kept)
    assert stats["dropped_tokens"] == sum(tokens for *_, tokens in kept)
    assert stats["documents"] == len(kept)
    records = iter(expected)
    by_record = [[next(records) for _ in samples_of(messages, kind)] for messages in CONVERSATIONS]
    assert stats["filtered"] == sum(not any(own) for own in by_record)
    assert stats["filtered_samples"] == sum(own.count(None) for own in by_record if any(own))
    assert stats["records"] == len(CONVERSATIONS)


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_every_packing_has_the_same_documents(tmp_path, folder, packing):
    path = write(tmp_path / "a.jsonl")
    iterator = iter(dataset(path, folder, packing=packing, layout="maxtext", provenance=40, on_untrained="drop"))
    rows = list(iterator)
    kept = {number: one for number, one in enumerate(expected_of(folder, "conversation")) if one is not None}
    found = {}
    for row in rows:
        start = 0
        for _, record, offset, count in row["provenance"].tolist():
            if count:
                found.setdefault(record, {})[offset] = row["inputs"][start : start + count].tolist()
                start += count
    joined = {record: [token for _, ids in sorted(parts.items()) for token in ids] for record, parts in found.items()}
    assert joined == {record: ids for record, (ids, *_) in kept.items()}
    assert iterator.stats()["dropped_messages"] == sum(left_out for *_, left_out, _ in kept.values())
    if packing == "best_fit":
        assert all(len(parts) == 1 for parts in found.values())


def test_positions_and_labels_are_those_of_a_whole_document(tmp_path, folder):
    """Nothing is cut inside of a row, as of other truncations."""
    path = write(tmp_path / "a.jsonl")
    for row, one in zip(dataset(path, folder), filter(None, expected_of(folder, "conversation")), strict=True):
        count = len(one[0])
        assert row["tokens_positions"][:count].tolist() == list(range(count))
    for row in dataset(path, folder, layout="maxtext", on_untrained="drop"):
        count = int((row["inputs_segmentation"] > 0).sum())
        trained = np.flatnonzero(row["targets_segmentation"])
        assert row["targets"][trained].tolist() == row["inputs"][trained + 1].tolist()
        assert trained.max() < count


def test_run_resumes_between_samples(tmp_path, folder):
    def made():
        return dataset(write(tmp_path / "a.jsonl"), folder, "turns", packing="best_fit", batch_size=2, seed=3)

    whole = list(made())
    iterator = iter(made())
    for step in range(len(whole)):
        state = json.loads(json.dumps(iterator.get_state()))
        again = iter(made())
        again.set_state(state)
        assert_same_batches(list(again), whole[step:])
        next(iterator)
    assert iterator.stats()["dropped_messages"] > 0


def test_state_counts_the_messages(tmp_path, folder):
    iterator = iter(dataset(write(tmp_path / "a.jsonl"), folder))
    list(iterator)
    dropped = iterator.stats()["dropped_messages"]
    again = iter(dataset(tmp_path / "a.jsonl", folder))
    again.set_state(iterator.get_state())
    assert again.stats()["dropped_messages"] == dropped > 0


def test_what_fits_is_as_without(tmp_path, folder):
    path = write(tmp_path / "a.jsonl")
    longest = max(len(gm.ChatTemplate.from_pretrained(folder).encode(messages)[0]) for messages in CONVERSATIONS)
    options = {"sequence_length": longest, "batch_size": 4, "packing": "best_fit", "verify": 1.0}
    iterator = iter(dataset(path, folder, **options))
    assert_same_batches(list(iterator), list(dataset(path, folder, **options, truncation="split")))
    stats = iterator.stats()
    assert (stats["dropped_messages"], stats["filtered"], stats["verified"]) == (0, 0, len(CONVERSATIONS))


def test_completions_keep_what_is_trained(tmp_path, folder):
    prompt = [{"role": "user", "content": "ant " * 9}, {"role": "assistant", "content": "not trained"}] * 3
    completion = [{"role": "assistant", "content": "an ant"}]
    path = tmp_path / "a.jsonl"
    asked = [{"role": "user", "content": "Q"}]
    path.write_text(json.dumps({"prompt": prompt + asked, "completion": completion}))
    (row,) = gm.PackedDataset(
        path, tokenizer=folder, sample=gm.Completion(), sequence_length=LENGTH, packing="pad", layout="grain",
        truncation="turns",
    )  # fmt: skip
    template = gm.ChatTemplate.from_pretrained(folder)
    ids, mask, *_ = naive(template, prompt + asked + completion, "last", LENGTH)
    assert segments([row]) == [(ids, mask)]


def test_rest_without_a_trained_token_follows_on_untrained(tmp_path, folder):
    messages = [
        {"role": "user", "content": "Q1"},
        {"role": "assistant", "content": "A1 " * 9},
        {"role": "user", "content": "ant " * 12},
        {"role": "assistant", "content": "A2", "train": False},
    ]
    path = write(tmp_path / "a.jsonl", [messages, messages[:2]])
    with pytest.raises(gm.ShardError, match=r"found none among the \d+ tokens that truncation leaves of \d+"):
        list(dataset(path, folder))
    iterator = iter(dataset(path, folder, on_untrained="drop"))
    assert len(list(iterator)) == 1
    assert iterator.stats()["filtered"] == 1


def test_lost_reasoning_of_the_rest_is_none(tmp_path, folder):
    """Turns alone keep the reasoning that this template writes behind the last question only."""
    messages = []
    for turn in range(6):
        messages += [
            {"role": "user", "content": f"Q{turn}"},
            {"role": "assistant", "content": "an ant " * 3, "reasoning_content": f"R{turn}"},
        ]
    path = write(tmp_path / "a.jsonl", [messages])
    template = gm.ChatTemplate.from_string(REASONING, tokenizer=gm.Encoder.from_file(folder), eos_token="<|im_end|>")
    expected = [naive(template, *sample, LENGTH) for sample in samples_of(messages, "turns")]
    assert sum(one[2] for one in expected) > 0
    found = segments(dataset(path, folder, "turns", template=REASONING))
    assert found == [(ids, mask) for ids, mask, *_ in expected]


def test_other_samples_are_refused(tmp_path, folder):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "prompt": "b", "completion": "c"}')
    for sample in (None, gm.Text("text"), gm.Text("text", fim=None), gm.Completion()):
        with pytest.raises(gm.ArgumentError, match="truncation='turns': only conversations have turns"):
            gm.PackedDataset(path, tokenizer=folder, sample=sample, truncation="turns")
    mixture = gm.Mixture({"a": gm.Source(path, weight=1, text_field="text")})
    with pytest.raises(gm.ArgumentError, match="source 'a': truncation='turns': only conversations"):
        gm.PackedDataset(mixture, tokenizer=folder, truncation="turns", batch_size=1)


def test_row_shows_what_the_run_has(tmp_path, folder, capsys):
    path = write(tmp_path / "a.jsonl", CONVERSATIONS[:20])
    expected = [one for one in expected_of(folder, "conversation", conversations=CONVERSATIONS[:20]) if one]
    cut = next(number for number, one in enumerate(expected) if one[2])
    found = run_json(
        capsys, "inspect", "row", path, "--row", 0, "--step", cut, "--full", "--tokenizer", folder, "--sample", "chat",
        "--set", f"sequence_length={LENGTH}", "--set", "packing=pad", "--set", "truncation=turns",
        "--set", "layout=grain", "--set", "batch_size=1", "--set", "lanes=1",
    )  # fmt: skip
    assert found["segments"][0]["document"]["text"] == gm.Encoder.from_file(folder).decode(expected[cut][0])
