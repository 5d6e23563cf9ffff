"""Loss masks of prompts: pairs of answers, completions, and conversations that are trained on."""

import json
import re
import urllib.parse

import grain
import numpy as np
import pytest

import gristmill as gm
import prompt_oracle as oracle
from chat_models import write_chatml

ANSWERS = gm.Chat("chosen", train_on="last"), gm.Chat("rejected", train_on="last")
IMPLICIT = dict(zip(("chosen", "rejected"), ANSWERS, strict=True))
EXPLICIT = {name: gm.Completion("prompt", name) for name in ("chosen", "rejected")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def pair(number):
    """A preference with its prompt apart, which is a conversation of more than one turn."""
    earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}] * (number % 2)
    return {
        "prompt": [*earlier, {"role": "user", "content": f"ant {number}?"}],
        "chosen": [{"role": "assistant", "content": "yes " * (number + 1)}],
        "rejected": [{"role": "assistant", "content": f"no {number}"}],
        "margin": number / 2,
    }


def joined(record):
    """The same with the prompt inside of both answers."""
    return {
        **{name: record["prompt"] + record[name] for name in ("chosen", "rejected")},
        "margin": record["margin"],
    }


PAIRS = [pair(number) for number in range(4)]
JOINED = [joined(record) for record in PAIRS]


def expected_of(folder, name, train_on="last"):
    """The ids and the mask of each answer, encoded alone."""
    template = gm.ChatTemplate.from_pretrained(folder)
    encoded = [template.encode(record[name], train_on=train_on) for record in JOINED]
    return [(ids.tolist(), mask.tolist()) for ids, mask in encoded]


def placed(values, length, side, pad):
    return oracle.padded(values, length, side, pad)[0]


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("layout", ["verl", "hf", "maxtext", "tunix", "ragged"])
@pytest.mark.parametrize(("rows", "prompt"), [(JOINED, IMPLICIT), (PAIRS, EXPLICIT)], ids=["implicit", "explicit"])
def test_each_answer_has_its_mask_in_every_layout(folder, rows, prompt, layout, padding):
    if layout == "ragged" and padding:
        pytest.skip("no padding")
    length = 60
    dataset = gm.PromptDataset(
        rows, tokenizer=folder, prompt=prompt, prompt_length=length, batch_size=4, layout=layout, padding=padding, pad=7
    )
    (batch,) = dataset
    dtype = np.int64 if layout == "verl" else np.int32
    ids_key = {"maxtext": "{}", "tunix": "{}_ids", "ragged": "{}_ids"}.get(layout, "{}_input_ids")
    default = {"maxtext": ("right", "right")}.get(layout, ("left", "right"))
    for name, own in zip(prompt, default, strict=True):
        side, encoded = padding or own, expected_of(folder, name)
        assert all(any(mask) and not all(mask) for _, mask in encoded)
        found_ids, found_mask = batch[ids_key.format(name)], batch[f"{name}_loss_mask"]
        if layout == "ragged":
            assert found_ids.tolist() == [token for ids, _ in encoded for token in ids]
            assert found_mask.tolist() == [int(one) for _, mask in encoded for one in mask]
            continue
        np.testing.assert_array_equal(found_ids, [placed(ids, length, side, 7) for ids, _ in encoded])
        np.testing.assert_array_equal(
            found_mask, [placed([int(m) for m in mask], length, side, 0) for _, mask in encoded]
        )
        assert found_mask.dtype == dtype
        if layout == "hf":
            labels = [
                placed([i if m else -100 for i, m in zip(ids, mask, strict=True)], length, side, -100)
                for ids, mask in encoded
            ]
            np.testing.assert_array_equal(batch[f"{name}_labels"], labels)
            assert batch[f"{name}_labels"].dtype == np.int32
        else:
            assert f"{name}_labels" not in batch
    assert batch["margin"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert "prompt" not in batch
    described = None if layout == "ragged" else grain.experimental.get_element_spec(dataset)
    if described:
        arrays = {key: (array.shape, array.dtype) for key, array in batch.items() if key in described}
        assert arrays == {key: (spec.shape, spec.dtype) for key, spec in described.items()}
    item = dataset[1]
    for key, array in item.items():
        if layout == "ragged" and not key.endswith(("margin", "index")):
            start, stop = batch[f"{key.split('_')[0]}_offsets"][1:3]
            np.testing.assert_array_equal(array, batch[key][start:stop])
        else:
            np.testing.assert_array_equal(array, batch[key][1])


def test_strings_of_a_pair_share_their_prompt(folder):
    encoder = gm.Encoder.from_file(folder)
    rows = [{"prompt": f"{n} + 1 =", "chosen": f" {n + 1}", "rejected": " no idea"} for n in range(3)]
    options = {"tokenizer": folder, "prompt": EXPLICIT, "layout": "ragged", "batch_size": 3}
    (batch,) = gm.PromptDataset(rows, eos=True, **options)
    for name in EXPLICIT:
        ids = [[*encoder.encode(row["prompt"] + row[name]).tolist(), encoder.eos_id] for row in rows]
        prompts = [len(encoder.encode(row["prompt"])) for row in rows]
        assert batch[f"{name}_ids"].tolist() == [token for row in ids for token in row]
        masks = [[0] * prompt + [1] * (len(row) - prompt) for row, prompt in zip(ids, prompts, strict=True)]
        assert batch[f"{name}_loss_mask"].tolist() == [one for mask in masks for one in mask]


def test_completions_of_strings_without_a_stop_are_warned_of(folder, caplog):
    rows = [{"prompt": "a", "completion": "b"}]
    gm.PromptDataset(rows, tokenizer=folder, prompt=gm.Completion(), eos=True, batch_size=1)
    assert "eos=" not in caplog.text
    gm.PromptDataset(rows, tokenizer=folder, prompt=gm.Completion(), batch_size=1)
    assert "no token at which the model stops is trained; set eos=True" in caplog.text


def test_prompts_to_answer_and_texts_have_no_mask(folder):
    prompt = {
        "prompt": gm.Chat("prompt", add_generation_prompt=True),
        "chosen": gm.Chat("chosen"),
        "note": gm.Text("note"),
    }
    rows = [record | {"note": "a note"} for record in PAIRS]
    (batch,) = gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, layout="hf", batch_size=4, columns=False)
    assert [key for key in batch if key.endswith(("loss_mask", "labels"))] == ["chosen_loss_mask", "chosen_labels"]
    assert (batch["chosen_labels"] != -100).sum() == batch["chosen_loss_mask"].sum() > 0


@pytest.mark.parametrize("layout", ["verl", "hf", "maxtext", "ragged"])
def test_a_single_completion_has_a_mask_beside_the_label_of_kto(folder, layout):
    rows = [
        {"prompt": record["prompt"], "completion": record["chosen"], "label": n % 2 == 0}
        for n, record in enumerate(PAIRS)
    ]
    (batch,) = gm.PromptDataset(
        rows, tokenizer=folder, prompt=gm.Completion(), layout=layout, batch_size=4, prompt_length=60
    )
    mask = batch["prompt_loss_mask" if layout == "maxtext" else "loss_mask"]
    encoded = expected_of(folder, "chosen")
    assert mask.sum() == sum(sum(mask) for _, mask in encoded)
    assert batch["label"].tolist() == [True, False, True, False]
    assert ("labels" in batch) == (layout == "hf")
    assert not {"prompt", "completion"} & batch.keys() or layout == "maxtext"


def test_a_conversation_alone_has_a_mask_and_one_without_an_answer_a_warning(folder, caplog):
    sample = gm.Chat("chosen")
    options = {"tokenizer": folder, "prompt": sample, "layout": "hf", "batch_size": 4}
    (batch,) = gm.PromptDataset(JOINED, **options)
    encoded = expected_of(folder, "chosen", "assistant")
    assert batch["loss_mask"].sum(axis=1).tolist() == [sum(mask) for _, mask in encoded]
    assert not caplog.records
    rows = [*JOINED[:3], {"chosen": PAIRS[3]["prompt"][:1]}]
    (batch,) = gm.PromptDataset(rows, **options)
    assert (batch["loss_mask"].sum(axis=1) == 0).tolist() == [False, False, False, True]
    assert (
        "without add_generation_prompt=True: no model is asked to answer, and 1 of 4 records have no token"
        in caplog.text
    )
    dropping = gm.PromptDataset(rows, **options | {"prompt": gm.Chat("chosen", on_untrained="drop"), "batch_size": 1})
    assert (len(dropping), dropping.counts()["filtered"]) == (3, 1)


def test_mask_that_cannot_be_derived_is_bad_of_a_pair_and_empty_of_a_conversation(folder, caplog):
    template = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    options = {"tokenizer": folder, "layout": "hf", "batch_size": 4}
    pair = {name: gm.Chat(name, template=template) for name in IMPLICIT}
    with pytest.raises(gm.ShardError, match=r"record 0, byte 0: messages\[1\]"):
        gm.PromptDataset(JOINED, prompt=pair, **options)
    (batch,) = gm.PromptDataset(JOINED, prompt=pair["chosen"], **options)
    assert not batch["loss_mask"].any()
    assert (batch["labels"] == -100).all()
    assert "4 of 4 records have no token to train on" in caplog.text
    text = gm.ChatTemplate.from_string(template).render(JOINED[1]["chosen"])
    kept = batch["attention_mask"][1] == 1
    assert gm.Encoder.from_file(folder).decode(batch["input_ids"][1][kept]) == text
    with pytest.raises(gm.ShardError, match=r"record 0, byte 0: messages\[1\]"):
        gm.PromptDataset(JOINED, prompt=gm.Chat("chosen", template=template, on_untrained="drop"), **options)
    (batch,) = gm.PromptDataset(JOINED, prompt=gm.Chat("chosen", template=template, train_on="all"), **options)
    np.testing.assert_array_equal(batch["loss_mask"], batch["attention_mask"])


@pytest.mark.parametrize("overlong", ["left", "right", "middle"])
@pytest.mark.parametrize("ends", [{}, {"bos": "<|im_start|>", "eos": True}])
def test_masks_are_cut_with_their_ids(folder, overlong, ends):
    encoder = gm.Encoder.from_file(folder)
    bos = [encoder.token_to_id("<|im_start|>")] if ends else []
    eos = [encoder.eos_id] if ends else []
    rows = [{"prompt": "ant " * n, "completion": "yes " * n} for n in range(1, 9)]
    length = 9
    dataset = gm.PromptDataset(
        rows, tokenizer=folder, prompt=gm.Completion(on_untrained="drop"), layout="ragged", batch_size=1,
        prompt_length=length, overlong=overlong, **ends,
    )  # fmt: skip
    expected = []
    for row in rows:
        words = encoder.encode(row["prompt"] + row["completion"]).tolist()
        prompt = len(encoder.encode(row["prompt"]))
        while prompt and len("".join(encoder.decode(words[:prompt]))) > len(row["prompt"]):
            prompt -= 1
        mask = [0] * prompt + [1] * (len(words) - prompt)
        inner = length - len(bos) - len(eos)
        ids = bos + oracle.cut(words, inner, overlong) + eos
        mask = [0] * len(bos) + oracle.cut(mask, inner, overlong) + [1] * len(eos)
        if any(mask):
            expected.append((ids, mask))
    found = [
        (item["ids"].tolist(), item["loss_mask"].tolist()) for item in map(dataset.__getitem__, range(len(dataset)))
    ]
    assert found == expected
    assert len(dataset) + dataset.counts()["filtered"] == len(rows)
    assert dataset.counts()["filtered"] == (len(rows) - len(expected))
    assert (overlong, bool(ends)) != ("right", False) or len(expected) < len(rows)


def test_pair_without_a_trained_token_is_bad_or_left_out(tmp_path, folder):
    untrained = {**JOINED[1], "rejected": [*JOINED[1]["rejected"][:-1], {**JOINED[1]["rejected"][-1], "train": False}]}
    path = tmp_path / "a.jsonl"
    oracle.write(path, [JOINED[0], untrained, JOINED[2]])
    options = {"tokenizer": folder, "layout": "hf", "batch_size": 1}
    with pytest.raises(gm.ShardError, match=r"a\.jsonl: record 1, byte \d+: expected a token to train on") as raised:
        gm.PromptDataset(path, prompt={name: gm.Chat(name) for name in IMPLICIT} | IMPLICIT, **options)
    assert raised.value.record == 1
    left = gm.PromptDataset(path, prompt=IMPLICIT, on_error="quarantine", max_error_rate=0.5, **options)
    assert (left.counts()["quarantined"], len(left)) == (1, 2)
    assert 'set on_untrained="drop"' in left.dropped()[0]["reason"]
    drop = {name: gm.Chat(name, train_on="last", on_untrained="drop") for name in IMPLICIT}
    dropped = gm.PromptDataset(path, prompt=drop, **options)
    assert (dropped.counts()["filtered"], len(dropped)) == (1, 2)
    # One that is too long is overlong, whatever it trains.
    short = gm.PromptDataset(path, prompt=IMPLICIT, prompt_length=1, **options)
    assert short.counts()["overlong"] == 3


def test_trained_tokens_that_are_cut_off_make_a_record_bad(folder):
    with pytest.raises(gm.ShardError, match=r"found none among the 5 that overlong= leaves of its \d+ tokens"):
        gm.PromptDataset(
            JOINED, tokenizer=folder, prompt=IMPLICIT, prompt_length=5, overlong="right", layout="hf", batch_size=1
        )


def test_names_of_arrays_differ(folder):
    rows = [record | {"note": "ant"} for record in JOINED]
    prompt = {"chosen": gm.Chat("chosen"), "chosen_loss": gm.Text("note")}
    with pytest.raises(gm.ArgumentError, match="the arrays of two prompts have the same name"):
        gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, layout="tunix", batch_size=1)
    assert "chosen_loss_mask" in next(
        iter(gm.PromptDataset(rows, tokenizer=folder, prompt=prompt, layout="hf", batch_size=1))
    )


def test_padding_rows_of_the_last_batch_train_nothing(folder):
    last = list(
        gm.PromptDataset(
            JOINED, tokenizer=folder, prompt=IMPLICIT, layout="hf", batch_size=3, drop_remainder=False, padding="right"
        )
    )[-1]
    assert last["index"].tolist() == [3, -1, -1]
    assert last["chosen_loss_mask"].sum(axis=1).tolist()[1:] == [0, 0]
    assert (last["chosen_labels"][1:] == -100).all()


def test_sources_of_a_mixture_agree_on_masks(folder):
    def mixed(*samples):
        sources = {
            name: gm.Source(JOINED, weight=1, epochs=1, sample=sample)
            for name, sample in zip("ab", samples, strict=True)
        }
        return gm.PromptDataset(
            gm.Mixture(sources), tokenizer=folder, prompt=gm.Chat("chosen"), layout="hf", batch_size=4, columns=False
        )

    with pytest.raises(gm.ArgumentError, match="source 'b': expected prompts that all have a loss mask, or none"):
        mixed(gm.Chat("chosen"), gm.Chat("chosen", add_generation_prompt=True))
    batches = list(mixed(gm.Chat("chosen"), gm.Chat("rejected")))
    found = sorted(sum(mask) for batch in batches for mask in batch["loss_mask"].tolist())
    masks = expected_of(folder, "chosen", "assistant") + expected_of(folder, "rejected", "assistant")
    assert found == sorted(sum(mask) for _, mask in masks)


def test_final_stop_is_written_for_answers(folder):
    plain = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    rows = [{"chosen": JOINED[0]["chosen"]}]
    sample = gm.Chat("chosen", template=plain, stop_tokens=["<|im_end|>"], final_stop="<|im_end|>")
    item = gm.PromptDataset(rows, tokenizer=folder, prompt=sample, layout="ragged", batch_size=1)[0]
    assert (item["ids"][-1], item["loss_mask"][-1]) == (gm.Encoder.from_file(folder).eos_id, 1)


def test_states_and_names_of_pairs_without_masks_stay(folder):
    """A fingerprint names prompts as before."""
    dataset = gm.PromptDataset(JOINED, tokenizer=folder, prompt=IMPLICIT, layout="hf", batch_size=2)
    plain = urllib.parse.unquote(dataset.fingerprint)
    assert re.search(r'chosen: Chat\(field="chosen", template="\w+", train_on="last"\), rejected: Chat', plain)
    iterator = iter(dataset)
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    expected = next(iterator)
    resumed = iter(gm.PromptDataset(JOINED, tokenizer=folder, prompt=IMPLICIT, layout="hf", batch_size=2))
    resumed.set_state(state)
    found = next(resumed)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key])
