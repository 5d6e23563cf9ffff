"""`ExternalLoader` beside the rows of the stream; `make test-torch`."""

import itertools
import json

import numpy as np
import pytest

import gristmill as gm
from helpers import write_shard
from run_hosts import run_hosts

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
megatron = pytest.importorskip("gristmill.integrations.megatron")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def dataset(tmp_path, texts, tokenizer_file):
    for number in range(4):
        write_shard(tmp_path / f"{number}.json.gz", [text[:700] for text in texts[number * 12 : number * 12 + 12]])

    def make(**more):
        return gm.PackedDataset(
            str(tmp_path / "*.json.gz"), tokenizer=str(tokenizer_file.parent), text_field="raw_content",
            sequence_length=64, batch_size=8, lanes=4, seed=5, packing="best_fit", **{"epochs": None, **more},
        )  # fmt: skip

    return make


def rows(loader, count):
    """The tokens of so many steps of a rank."""
    return [batch["tokens"].numpy() for batch in itertools.islice(loader, count)]


def test_batches_have_megatrons_names_and_types(dataset):
    """`get_batch_on_this_tp_rank` of Megatron-LM takes these, and broadcasts into tensors of these types."""
    loader = megatron.ExternalLoader(dataset(), 2, 0, 2)
    first = next(iter(dataset()))
    for part in range(2):
        batch = next(loader)
        own = {name: array[2 * part : 2 * part + 2] for name, array in first.items()}
        assert {name: value.dtype for name, value in batch.items()} == {
            "tokens": torch.int64, "labels": torch.int64, "loss_mask": torch.float32, "position_ids": torch.int64,
        }  # fmt: skip
        np.testing.assert_array_equal(batch["tokens"], own["inputs"])
        np.testing.assert_array_equal(batch["labels"], own["targets"])
        np.testing.assert_array_equal(batch["loss_mask"], own["targets_segmentation"] > 0)
        np.testing.assert_array_equal(batch["position_ids"], own["inputs_position"])


def test_weights_are_the_loss_mask_and_fields_go_along(tmp_path, tokenizer_file):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c d", "w": 0.5}]
    (tmp_path / "0.jsonl").write_text(json.dumps({"messages": messages, "reward": 3.0}))
    turns = "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    template = turns + "{% if add_generation_prompt %}<s>assistant: {% endif %}"
    sample = gm.Chat(template=template, train_key="w", fields={"reward": gm.Field(per="sample")})
    dataset = gm.PackedDataset(
        str(tmp_path / "0.jsonl"), tokenizer=str(tokenizer_file.parent), sample=sample, sequence_length=64,
        batch_size=1, packing="best_fit", epochs=None,
    )  # fmt: skip
    batch = next(megatron.ExternalLoader(dataset, 1, 0, 1))
    assert batch["loss_mask"].unique().tolist() == [0.0, 0.5]
    np.testing.assert_array_equal(batch["loss_mask"], next(iter(dataset))["targets_weight"])
    assert batch["reward"][0, 0] == 3.0


def test_segments_for_attention(dataset):
    loader = megatron.ExternalLoader(dataset(), 1, 0, 1, cu_seqlens=True)
    for batch in itertools.islice(loader, 40):
        ends = batch["cu_seqlens"]
        assert ends.dtype == batch["max_seqlen"].dtype == torch.int32
        assert ends.shape[0] == 1
        assert batch["max_seqlen"].tolist() == [int(ends.diff().max())]
        begins = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        is_padding = batch["tokens"][0, int(ends[0, -2]) :].any().item() is False
        assert ends[0, 0] == 0
        assert ends[0, -1] == 64
        assert ends[0, : -1 - is_padding].tolist() == [start for start in begins if start < ends[0, -1 - is_padding]]


def test_segments_with_their_filling(dataset):
    loader = megatron.ExternalLoader(dataset(pad_segments_to=8), 1, 0, 1, cu_seqlens=True)
    rows = ({name: array[n] for name, array in step.items()} for step in dataset(pad_segments_to=8) for n in range(8))
    for batch, row in zip(itertools.islice(loader, 40), rows, strict=False):
        ends = batch["cu_seqlens"][0]
        assert (ends % 8 == 0).all()
        assert torch.equal(batch["cu_seqlens_padded"], batch["cu_seqlens"])
        segments = row["inputs_segmentation"]
        np.testing.assert_array_equal(batch["tokens"][0], row["inputs"])
        for number, (start, end) in enumerate(itertools.pairwise(ends.tolist()), 1):
            inside = set(segments[start:end].tolist())
            assert inside <= {0, number} if segments[start] else inside == {0}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "cu_seqlens", "cp_size"), [(2, False, 1), (1, True, 1), (1, True, 2)])
def test_megatrons_own_function_broadcasts_it(dataset, tmp_path, rows, cu_seqlens, cp_size):
    utils = pytest.importorskip("megatron.core.utils", reason="megatron-core is not installed: make test-torch")
    if not hasattr(utils, "get_batch_on_this_tp_rank"):
        pytest.skip("this megatron-core has no get_batch_on_this_tp_rank")
    made = dataset(pad_segments_to=2 * cp_size if cp_size > 1 else None)
    given = {
        "shards": str(tmp_path / "*.json.gz"), "tokenizer": made.encoder, "text_field": "raw_content", "epochs": None,
        "sequence_length": 64, "batch_size": 8, "lanes": 4, "seed": 5, "packing": "best_fit",
        "pad_segments_to": made.pad_segments_to,
    }  # fmt: skip
    one, other = run_hosts(
        tmp_path / "ranks", "megatron", {"dataset": given, "rows": rows, "cu_seqlens": cu_seqlens, "cp_size": cp_size},
        hosts=2, programs="torch_programs.py",
    )  # fmt: skip
    wanted = {"tokens", "labels", "loss_mask", "position_ids"} | ({"cu_seqlens", "max_seqlen"} if cu_seqlens else set())
    assert other.keys() == wanted | ({"cu_seqlens_padded"} if cp_size > 1 else set())
    for name, array in other.items():
        np.testing.assert_array_equal(array, one[name])
    np.testing.assert_array_equal(other["tokens"], next(iter(made))["inputs"][:rows])


@pytest.mark.parametrize("epochs", [None, 1])
def test_states_of_four_ranks_restore_on_two_and_one(dataset, epochs):
    made = dataset(epochs=epochs)
    wanted = [batch["inputs"] for batch in itertools.islice(made, 9)]
    found, saved = [], None
    for ranks in (4, 2, 1):
        loaders = [megatron.ExternalLoader(made, 2, rank, ranks) for rank in range(ranks)]
        for loader in loaders if saved else ():
            loader.restore_state(saved)
        parts = 8 // ranks // 2
        own = [rows(loader, 3 * parts) for loader in loaders]
        found += [
            np.concatenate([part for one in own for part in one[step * parts : (step + 1) * parts]])
            for step in range(3)
        ]
        saved = [loader.save_state() for loader in loaders]
    np.testing.assert_array_equal(found, wanted)


def test_state_within_a_global_batch_restores_on_the_same_ranks(dataset):
    loader = megatron.ExternalLoader(dataset(), 2, 0, 1)
    rows(loader, 6)
    state = loader.save_state()
    again = megatron.ExternalLoader(dataset(), 2, 0, 1)
    again.restore_state(state)
    assert again.save_state() == state
    np.testing.assert_array_equal(rows(again, 5), rows(loader, 5))
    with pytest.raises(gm.StateError, match="after 2 micro-batches of 2 rows"):
        megatron.ExternalLoader(dataset(), 4, 0, 1).restore_state(state)


def test_arguments_that_do_not_fit_are_refused(dataset):
    with pytest.raises(gm.ArgumentError, match="micro_batch_size=1"):
        megatron.ExternalLoader(dataset(), 2, 0, 1, cu_seqlens=True)
    with pytest.raises(gm.ArgumentError, match="multiple of micro_batch_size=3"):
        megatron.ExternalLoader(dataset(), 3, 0, 1)
    with pytest.raises(gm.ArgumentError, match="expected 'maxtext'"):
        megatron.ExternalLoader(dataset(layout="hf"), 2, 0, 1)
    with pytest.raises(gm.StateError, match="expected a state_dict of ExternalLoader"):
        megatron.ExternalLoader(dataset(), 2, 0, 1).restore_state({})
