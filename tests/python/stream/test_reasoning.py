"""Reasoning that a template does not write, and the token that ends a last turn, in datasets."""

import json
import logging

import numpy as np
import pytest

import gristmill as gm
from chat_models import REASONING, trained_texts, turns, write_chatml, write_vision
from helpers import assert_same_batches, tar_of

# Ends turns with the first token of the next one.
NEXT = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + ': ' + m.content }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}{%- endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write_chatml(tmp_path_factory.mktemp("models") / "chatml")
    (path / "chat_template.jinja").write_text(REASONING)
    return path


@pytest.fixture
def shard(tmp_path):
    """Four conversations, of which the second and the third lose reasoning."""
    path = tmp_path / "a.jsonl"
    counts = (1, 2, 3, 1)
    path.write_text("".join(json.dumps({"messages": turns(count)}) + "\n" for count in counts))
    return path


def dataset(path, folder, sample, **more):
    given = {"sequence_length": 256, "packing": "pad", "layout": "grain", "provenance": True} | more
    return gm.PackedDataset(path, tokenizer=folder, sample=sample, **given)


def test_conversation_that_loses_reasoning_is_a_bad_record(shard, folder):
    with pytest.raises(gm.ShardError, match=r"messages\[1\]: expected its \"reasoning_content\" in the text") as raised:
        list(dataset(shard, folder, gm.Chat()))
    assert raised.value.record == 1
    for help_of_it in ('{"preserve_thinking": True}', 'train_on="last"', 'samples="rounds"', '"ignore"'):
        assert help_of_it in str(raised.value)
    iterator = iter(dataset(shard, folder, gm.Chat(), on_error="quarantine", max_error_rate=1.0))
    assert [row["provenance"][0][1] for row in iterator] == [0, 3]
    assert iterator.stats()["quarantined"] == 2


def test_each_advice_leads_to_what_it_says(shard, folder):
    one = "<think>R1</think>A1<|im_end|>"
    kept = trained_texts(folder, dataset(shard, folder, gm.Chat(template_kwargs={"preserve_thinking": True})))
    assert kept[1] == one + "<think>R2</think>A2<|im_end|>"
    last = trained_texts(folder, dataset(shard, folder, gm.Chat(train_on="last")))
    assert last == [one, "<think>R2</think>A2<|im_end|>", "<think>R3</think>A3<|im_end|>", one]
    ignored = trained_texts(folder, dataset(shard, folder, gm.Chat(on_lost_reasoning="ignore")))
    assert ignored == [
        one, "A1<|im_end|><think>R2</think>A2<|im_end|>", "A1<|im_end|>A2<|im_end|><think>R3</think>A3<|im_end|>", one,
    ]  # fmt: skip
    assert (
        trained_texts(folder, dataset(shard, folder, gm.Chat(train_reasoning=False)))[1] == "A1<|im_end|>A2<|im_end|>"
    )


def test_state_restores_under_either_policy(shard, folder):
    plain, ignoring = (dataset(shard, folder, sample) for sample in (gm.Chat(), gm.Chat(on_lost_reasoning="ignore")))
    assert "on_lost_reasoning" not in plain.fingerprint
    assert "on_lost_reasoning" in ignoring.fingerprint
    iterator = iter(ignoring)
    expected = list(ignoring)
    next(iterator)
    state = iterator.get_state()
    before = state | {"fingerprint": plain.fingerprint}  # as a release without the argument saved it
    for saved in (state, before):
        resumed = iter(ignoring)
        resumed.set_state(saved)
        assert_same_batches(list(resumed), expected[1:])
        resumed = iter(plain)
        resumed.set_state(saved)
        with pytest.raises(gm.ShardError, match="on_lost_reasoning"):
            next(resumed)
    other = iter(dataset(shard, folder, gm.Chat(train_on="last", on_lost_reasoning="ignore")))
    with pytest.raises(gm.StateError, match=r"sample was Chat\(template="):
        other.set_state(state)


def test_state_of_a_mixture_restores_under_either_policy(shard, folder):
    def mixture(sample):
        sources = {"chats": gm.Source(shard, sample=sample, weight=1.0)}
        return gm.PackedDataset(
            gm.Mixture(sources), tokenizer=folder, sequence_length=256, packing="pad", layout="grain"
        )

    plain, ignoring = mixture(gm.Chat()), mixture(gm.Chat(on_lost_reasoning="ignore"))
    iterator = iter(ignoring)
    first, second = next(iterator), None
    state = iterator.get_state()
    second = next(iterator)
    assert not np.array_equal(first["tokens"], second["tokens"])
    for saved in (state, state | {"fingerprint": plain.fingerprint}):
        resumed = iter(ignoring)
        resumed.set_state(saved)
        assert_same_batches([next(resumed)], [second])


def test_prompts_have_a_policy_where_they_must_be_trained_on(shard, folder):
    def prompts(**chat):
        return gm.PromptDataset(shard, tokenizer=folder, prompt=gm.Chat(**chat), batch_size=1, prompt_length=256)

    plain = prompts(add_generation_prompt=True)
    assert len(plain) == 4
    assert plain.fingerprint == prompts(add_generation_prompt=True, on_lost_reasoning="ignore").fingerprint
    with pytest.raises(gm.ShardError, match=r'record 1, .*expected its "reasoning_content" in the text'):
        prompts(on_untrained="drop")
    assert len(prompts()) == len(prompts(on_lost_reasoning="ignore", on_untrained="drop")) == 4
    assert prompts(on_lost_reasoning="ignore", final_stop="<|im_end|>").counts()["kept"] == 4


def test_conversations_with_images_lose_reasoning_too(tmp_path):
    folder = write_vision(tmp_path / "model")
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "reasoning": "R"}]
    shard = tmp_path / "a.tar"
    shard.write_bytes(tar_of([("0", {"json": json.dumps(messages).encode()})]))

    def rows(**chat):
        sample = gm.ImageText("qwen3-vl", text=gm.Chat("json", **chat))
        return list(
            gm.PackedDataset(shard, tokenizer=folder, sample=sample, sequence_length=256, packing="pad", layout="grain")
        )

    with pytest.raises(gm.ShardError, match=r"expected its \"reasoning\" in the text"):
        rows()
    assert trained_texts(folder, rows(on_lost_reasoning="ignore")) == ["A<|im_end|>"]
    sample = gm.ImageText("qwen3-vl", text=gm.Chat("json", on_lost_reasoning="ignore"))
    ignoring = gm.PackedDataset(shard, tokenizer=folder, sample=sample, packing="pad")
    plain = gm.PackedDataset(
        shard, tokenizer=folder, sample=gm.ImageText("qwen3-vl", text=gm.Chat("json")), packing="pad"
    )
    assert ignoring.fingerprint != plain.fingerprint
    iter(ignoring).set_state(iter(plain).get_state())


def test_final_stop_is_trained_behind_the_last_turn(tmp_path, folder, caplog):
    shard = tmp_path / "a.jsonl"
    shard.write_text(json.dumps({"messages": turns(2, reasoning=False)}) + "\n")
    stop = "<|im_start|>"
    with pytest.raises(gm.ShardError, match=r"\(stop_tokens\), and .* last turn \(final_stop\)"):
        list(dataset(shard, folder, gm.Chat(template=NEXT)))
    with caplog.at_level(logging.WARNING, "gristmill"):
        half = dataset(shard, folder, gm.Chat(template=NEXT, stop_tokens=[stop]))
    assert "final_stop= of gm.Chat writes one there" in caplog.text
    assert trained_texts(folder, half) == [f"A1{stop}A2"]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gristmill"):
        both = dataset(shard, folder, gm.Chat(template=NEXT, stop_tokens=[stop], final_stop=stop))
        written = dataset(shard, folder, gm.Chat(stop_tokens=["<|im_end|>"]))
    assert not caplog.text
    assert trained_texts(folder, both) == [f"A1{stop}A2{stop}"]
    assert half.fingerprint != both.fingerprint
    [row] = both
    assert (
        gm.Encoder.from_pretrained(str(folder))
        .decode(row["tokens"][row["tokens_segment_ids"] > 0])
        .endswith(f"assistant: A2{stop}")
    )
    assert trained_texts(folder, dataset(shard, folder, gm.Chat(final_stop=stop))) == trained_texts(folder, written)
    protected = gm.Chat(template=NEXT, stop_tokens=[stop], final_stop=stop, special_tokens_in_content="text")
    assert trained_texts(folder, dataset(shard, folder, protected)) == [f"A1{stop}A2{stop}"]


def test_final_stop_is_an_added_token_of_turns(shard, folder):
    with pytest.raises(gm.ArgumentError, match=r"final_stop='user': expected an added token .* '<\|im_start\|>'"):
        dataset(shard, folder, gm.Chat(final_stop="user"))
    with pytest.raises(gm.ArgumentError, match="add_generation_prompt=True the text ends with the start of an answer"):
        gm.Chat(final_stop="<|im_end|>", add_generation_prompt=True)
    with pytest.raises(gm.ArgumentTypeError, match="final_stop"):
        gm.Chat(final_stop=3)
    with pytest.raises(gm.ArgumentError, match="'error', 'ignore'"):
        gm.Chat(on_lost_reasoning="drop")
