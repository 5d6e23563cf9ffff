"""Conversations that become several samples: turns and rounds. `test_samples` compares whole streams with a model."""

import json

import pytest

import gristmill as gm
from chat_models import REASONING, trained_texts, turns, write_chatml
from command_line import run_json
from helpers import assert_same_batches

# Long enough to be cut, with a round of two calls and a turn that is not trained on.
TOOLS = [
    {"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "C1", "reasoning_content": "R1"},
    {"role": "tool", "content": "T1"},
    {"role": "assistant", "content": "A1", "reasoning_content": "R2"},
    {"role": "user", "content": "Q2"},
    {"role": "assistant", "content": "A2", "reasoning_content": "R3", "train": False},
    {"role": "user", "content": "Q3"},
    {"role": "assistant", "content": "A3", "reasoning_content": "R4"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_chatml(tmp_path_factory.mktemp("models") / "chatml")
    (path / "chat_template.jinja").write_text(REASONING)
    return path


def shard(path, *conversations):
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations))
    return path


def dataset(path, folder, samples="turns", **more):
    given = {"sequence_length": 256, "packing": "pad", "layout": "grain", "provenance": True} | more
    own = {name: given.pop(name) for name in ("on_untrained", "on_lost_reasoning", "template") if name in given}
    return gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(samples=samples, **own), **given)


def texts(folder, rows):
    encoder = gm.Encoder.from_pretrained(str(folder))
    return [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in rows]


def test_turn_is_trained_alone_behind_all_that_the_model_saw(tmp_path, folder):
    rows = list(dataset(shard(tmp_path / "a.jsonl", TOOLS), folder))
    assert trained_texts(folder, rows) == [
        f"<think>R{n}</think>{a}<|im_end|>" for n, a in ((1, "C1"), (2, "A1"), (4, "A3"))
    ]
    assert texts(folder, rows)[1] == (
        "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\n<think>R1</think>C1<|im_end|>\n"
        "<|im_start|>tool\nT1<|im_end|>\n<|im_start|>assistant\n<think>R2</think>A1<|im_end|>\n"
    )
    assert [row["provenance"][0].tolist() for row in rows] == [[0, 0, 0, len(ids), n] for n, ids in numbered(rows)]


def numbered(rows):
    return enumerate(row["tokens"][row["tokens_segment_ids"] > 0] for row in rows)


def test_round_is_trained_on_all_behind_its_question(tmp_path, folder):
    rows = list(dataset(shard(tmp_path / "a.jsonl", TOOLS), folder, "rounds"))
    assert trained_texts(folder, rows) == [
        "<think>R1</think>C1<|im_end|><think>R2</think>A1<|im_end|>", "<think>R4</think>A3<|im_end|>",
    ]  # fmt: skip
    assert texts(folder, rows)[1].count("<think>") == 1


def test_last_round_is_train_on_final(tmp_path, folder):
    path = shard(tmp_path / "a.jsonl", TOOLS[:4], TOOLS)
    [first, second] = gm.PackedDataset(
        path, tokenizer=folder, sample=gm.Chat(train_on="final"), sequence_length=256, packing="pad", layout="grain"
    )
    assert trained_texts(folder, [first]) == ["<think>R1</think>C1<|im_end|><think>R2</think>A1<|im_end|>"]
    assert trained_texts(folder, [second]) == ["<think>R4</think>A3<|im_end|>"]


def test_answers_before_the_first_question_are_a_round(tmp_path, folder):
    greeting = [{"role": "assistant", "content": "Hi"}, *turns(1), {"role": "user", "content": "?"}]
    rows = list(dataset(shard(tmp_path / "a.jsonl", greeting), folder, "rounds"))
    assert trained_texts(folder, rows) == ["Hi<|im_end|>", "<think>R1</think>A1<|im_end|>"]


@pytest.mark.parametrize("packing", ["pad", "concat", "best_fit"])
@pytest.mark.parametrize("seed", [None, 3])
def test_stream_resumes_between_two_turns_of_a_record(tmp_path, folder, packing, seed):
    for number in range(2):
        shard(tmp_path / f"{number}.jsonl", *(turns(count) for count in (3, 1, 4, 2, 5)))
    whole = dataset(
        tmp_path / "*.jsonl", folder, packing=packing, seed=seed, sequence_length=100, shuffle_window=4, fit_window=3,
        epochs=2, batch_size=4, lanes=2,
    )  # fmt: skip
    expected, states, inside = list(whole), [], 0
    iterator = iter(whole)
    for _ in expected:
        states.append(iterator.get_state())
        inside += any("sample=" in lane for lane in states[-1]["lanes"].values())
        next(iterator)
    assert inside > 0
    for step, state in enumerate(states):
        resumed = iter(whole)
        resumed.set_state(state)
        assert_same_batches(list(resumed), expected[step:])
        resumed.close()
    stats = iterator.stats()
    assert (stats["records"], stats["documents"]) == (20, 60)


def test_bad_turn_makes_its_record_bad(tmp_path, folder):
    # The template raises where a system message is not the first.
    template = (
        "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('late') }}{%- endif %}{%- endfor %}"
    )
    late = [*turns(2), {"role": "system", "content": "S"}, *turns(1)]
    path = shard(tmp_path / "a.jsonl", turns(1), late, turns(2))
    more = {"template": template + REASONING}
    iterator = iter(dataset(path, folder, on_error="quarantine", max_error_rate=1.0, **more))
    assert [row["provenance"][0][[1, 4]].tolist() for row in iterator] == [[0, 0], [2, 0], [2, 1]]
    stats = iterator.stats()
    assert (stats["records"], stats["documents"], stats["quarantined"]) == (3, 3, 1)
    with pytest.raises(gm.ShardError, match="late") as raised:
        list(dataset(path, folder, **more))
    assert raised.value.record == 1


def test_overlong_samples_of_a_record_are_counted(tmp_path, folder):
    path = shard(tmp_path / "a.jsonl", turns(3), turns(1), turns(4))
    iterator = iter(dataset(path, folder, sequence_length=60, truncation="drop"))
    assert [row["provenance"][0][[1, 4]].tolist() for row in iterator] == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]
    stats = iterator.stats()
    assert (stats["records"], stats["documents"], stats["filtered"], stats["filtered_samples"]) == (3, 5, 0, 3)
    iterator = iter(dataset(path, folder, sequence_length=40, truncation="drop"))
    assert len(list(iterator)) == 3
    short = iter(dataset(path, folder, sequence_length=20, truncation="drop"))
    assert list(short) == []
    assert (short.stats()["filtered"], short.stats()["filtered_samples"]) == (3, 0)


def test_conversation_without_a_trained_turn_follows_on_untrained(tmp_path, folder):
    untrained = [message | {"train": False} for message in turns(2)]
    path = shard(tmp_path / "a.jsonl", turns(1), untrained)
    with pytest.raises(gm.ShardError, match="expected a message of the assistant to train on, found none") as raised:
        list(dataset(path, folder))
    assert raised.value.record == 1
    iterator = iter(dataset(path, folder, on_untrained="drop"))
    assert len(list(iterator)) == 1
    assert iterator.stats()["filtered"] == 1


def test_state_that_is_behind_the_samples_of_its_record_is_refused(tmp_path, folder):
    path = shard(tmp_path / "a.jsonl", turns(3), turns(3))
    whole = dataset(path, folder)
    iterator = iter(whole)
    next(iterator)
    state = iterator.get_state()
    assert "sample=1" in state["lanes"]["0"]
    state["lanes"]["0"] = state["lanes"]["0"].replace("sample=1", "sample=3")
    resumed = iter(whole)
    resumed.set_state(state)
    with pytest.raises(
        gm.StateError, match=r"a.jsonl: record 0, byte 0: the state is at sample 3 of a record, found that it has 3"
    ):
        next(resumed)
    plain = iter(gm.PackedDataset(path, tokenizer=folder, sample=gm.Chat(on_lost_reasoning="ignore")))
    with pytest.raises(gm.StateError):
        plain.set_state(state)


def test_mixture_counts_samples(tmp_path, folder):
    chats, plain = shard(tmp_path / "a.jsonl", *[turns(3)] * 4), shard(tmp_path / "b.jsonl", *[turns(1)] * 12)
    sources = {
        "turns": gm.Source(chats, sample=gm.Chat(samples="turns"), weight=1.0, epochs=1),
        "plain": gm.Source(plain, sample=gm.Chat(), weight=1.0, epochs=1),
    }
    mixed = gm.PackedDataset(
        gm.Mixture(sources, weights_by="samples"), tokenizer=folder, sequence_length=128, packing="pad",
        layout="grain", provenance=True,
    )  # fmt: skip
    iterator = iter(mixed)
    rows = list(iterator)
    assert len(rows) == 24
    assert {row["provenance"].shape for row in rows} == {(1, 5)}
    stats = iterator.stats()["sources"]
    assert [(stats[name]["documents"]) for name in ("turns", "plain")] == [12, 12]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_on": "last"}, "expected train_on='assistant', as each sample is trained on its own messages"),
        ({"add_generation_prompt": True}, "a sample ends with a message of the assistant"),
        ({"samples": "turn"}, "expected one of 'conversation', 'turns', 'rounds'"),
    ],
)
def test_arguments_that_contradict_are_refused(given, message):
    with pytest.raises(gm.ArgumentError, match=message):
        gm.Chat(**{"samples": "turns"} | given)


def test_what_helps_against_lost_reasoning_names_rounds_or_turns(tmp_path, folder):
    def error(template, messages):
        path = shard(tmp_path / "a.jsonl", messages)
        with pytest.raises(gm.ShardError) as raised:
            list(dataset(path, folder, "conversation", template=template))
        return str(raised.value)

    found = error(REASONING, TOOLS)
    assert 'make a sample of each round (samples="rounds")' in found
    assert "each turn" not in found
    # Writes the reasoning of the last message alone.
    last = REASONING.replace("m.role == 'user' %}", "not loop.last %}")
    found = error(last, TOOLS)
    assert 'make a sample of each turn (samples="turns")' in found
    path = shard(tmp_path / "b.jsonl", TOOLS)
    with pytest.raises(gm.ShardError, match=r"messages\[1\].*samples=\"turns\""):
        list(dataset(path, folder, "rounds", template=last))
    assert len(list(dataset(path, folder, template=last))) == 3


def test_flag_of_another_program_is_judged_by_the_whole_conversation(tmp_path, folder):
    flagged = [message | ({"loss": False} if message["role"] == "assistant" else {}) for message in turns(2)]
    with pytest.raises(gm.ShardError, match='found "loss", which is not followed, and the message is trained on'):
        list(dataset(shard(tmp_path / "a.jsonl", flagged), folder))


def test_prompts_are_one_sample(tmp_path, folder):
    path = shard(tmp_path / "a.jsonl", turns(2))
    with pytest.raises(gm.ArgumentError, match="samples='turns': a record is one prompt"):
        gm.PromptDataset(path, tokenizer=folder, prompt=gm.Chat(samples="turns"))


def test_inspect_names_the_sample(tmp_path, folder, capsys):
    path = shard(tmp_path / "a.jsonl", TOOLS, turns(2), turns(1))
    options = ["--tokenizer", folder, "--set", "samples=turns"]
    found = run_json(capsys, "inspect", "chats", path, *options, "--records", "2")["conversations"]
    assert [(one["record"], one["sample"]) for one in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [part["text"] for part in found[1]["parts"] if part["trained"]] == ["<think>R2</think>A1<|im_end|>"]

    whole = dataset(path, folder, packing="best_fit", sequence_length=128, batch_size=1)
    state, rows = iter(whole).get_state(), list(whole)
    (tmp_path / "state.json").write_text(json.dumps(state))
    arguments = ["--shards", path, "--tokenizer", folder, "--sample", "chat", "--sample", "samples=turns", "--full"]
    for step, row in enumerate(rows):
        command = ["inspect", tmp_path / "state.json", "--row", "0", "--step", step, *arguments]
        segments = run_json(capsys, *command)["segments"]
        entries = row["provenance"][0]
        assert [[part["record"], part["sample"]] for part in segments] == entries[entries[:, 3] > 0][:, [1, 4]].tolist()
        for part in segments:
            assert part["text"] == part["document"]["text"]


def test_inspect_shows_instructions(tmp_path, folder, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"task": "Add.", "input": "2+2", "output": "4"}) + "\n")
    options = ["--tokenizer", folder, "--set", "kind=instruction", "--set", "instruction=task"]
    [found] = run_json(capsys, "inspect", "chats", path, *options)["conversations"]
    assert [part["text"] for part in found["parts"] if part["trained"]] == ["4<|im_end|>"]
