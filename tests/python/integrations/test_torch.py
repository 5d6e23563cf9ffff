"""`Loader` in one process, and on 1, 2 and 4 ranks of gloo; `make test-torch` installs torch."""

import itertools
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_vision
from helpers import PATIENCE, ROOT, tar_of, write_shard
from images import captions
from run_hosts import HostFailedError, run_hosts

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch")
loaders = pytest.importorskip("gristmill.integrations.torch.loader")
tensors = pytest.importorskip("gristmill.integrations.torch.tensors")
flattening = pytest.importorskip("gristmill.integrations.torch.flattening")
Loader = loaders.Loader
pytestmark = pytest.mark.filterwarnings("ignore")

LENGTH = 64
BATCH = 8
DOCUMENTS = (40, 10, 3, 25)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, texts):
    """Four shards of very different sizes, so that lanes end at very different steps."""
    folder = tmp_path_factory.mktemp("shards")
    start = 0
    for number, count in enumerate(DOCUMENTS):
        write_shard(folder / f"{number}.json.gz", [text[:700] for text in texts[start : start + count]])
        start += count
    return str(folder / "*.json.gz")


@pytest.fixture(scope="module")
def arguments(shards, tokenizer_file):
    return {
        "shards": shards,
        "tokenizer": str(tokenizer_file.parent),
        "text_field": "raw_content",
        "sequence_length": LENGTH,
        "batch_size": BATCH,
        "lanes": 4,
        "seed": 5,
        "layout": "hf",
    }


@pytest.fixture(scope="module")
def expected(arguments):
    """The global batches, as gristmill's own iterator has them."""
    return list(gm.PackedDataset(**arguments))


def as_arrays(batches):
    return [{name: np.asarray(value) for name, value in batch.items()} for batch in batches]


def joined(ranks):
    """The global batches of those of all ranks."""
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*ranks, strict=True)
    ]


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


class TestBatches:
    @pytest.mark.parametrize("layout", ["hf", "maxtext", "grain", "varlen"])
    def test_tensors_are_the_arrays(self, arguments, layout):
        dataset = gm.PackedDataset(**{**arguments, "layout": layout, "provenance": 4})
        found = list(Loader(dataset))
        assert_same(as_arrays(found), list(dataset))
        names = {"hf": "input_ids labels position_ids", "maxtext": "inputs targets", "grain": "tokens"}
        for name in names.get(layout, "tokens next_token").split():
            assert found[0][name].dtype == torch.int64
        assert found[0]["provenance"].dtype == torch.int32

    def test_memory_is_shared_where_the_dtype_allows(self):
        arrays = {
            "inputs_segmentation": np.ones((2, 3), np.int32),
            "input_ids": np.ones((2, 3), np.int64),
            "weight": np.ones(2, np.float32),
            "labels": np.ones((2, 3), np.int32),
            "columns": np.array([{"a": 1}, None], object),
        }
        found = tensors.on_cpu(arrays)
        shared = {name for name in arrays if name != "columns" and np.shares_memory(found[name].numpy(), arrays[name])}
        assert shared == {"inputs_segmentation", "input_ids", "weight"}
        assert found["columns"] == [{"a": 1}, None]

    def test_values_that_are_no_integers_stay(self):
        arrays = {
            "soft_labels": np.full((1, 2), 0.5, np.float32),
            "fluids": np.full((1, 2), 0.25),
            "uuids": np.array(["a", "b"]),
            "prompt_true_length": np.ones(1, np.int32),
            "prompt": np.full((1, 2), 0.75, np.float16),
        }
        found = tensors.on_cpu(arrays)
        assert found["soft_labels"].tolist() == [[0.5, 0.5]]
        assert (found["fluids"].dtype, found["fluids"].tolist()) == (torch.float64, [[0.25, 0.25]])
        assert found["uuids"] == ["a", "b"]
        assert found["prompt"].tolist() == [[0.75, 0.75]]

    def test_worker_processes_are_refused(self, arguments):
        class Rows(torch.utils.data.IterableDataset):
            def __init__(self, dataset):
                self.dataset = dataset

            def __iter__(self):
                return iter(Loader(self.dataset))

        rows = Rows(gm.PackedDataset(**arguments))
        one = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context="fork")
        wanted = sum(1 for _ in rows.dataset)
        assert sum(1 for _ in one) == wanted
        two = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=2, multiprocessing_context="fork")
        with pytest.raises(gm.ArgumentError, match="has 2 worker processes, each of which would deliver all rows"):
            next(iter(two))

    def test_endless_datasets_do_not_end(self, arguments, expected):
        endless = gm.PackedDataset(**arguments, epochs=None)
        count = 2 * len(expected)
        assert_same(as_arrays(itertools.islice(Loader(endless), count)), list(itertools.islice(endless, count)))

    def test_iter_goes_on_and_begins_again_after_the_end(self, arguments, expected):
        loader = Loader(gm.PackedDataset(**arguments))
        first = as_arrays(itertools.islice(loader, 3))
        assert_same(first + as_arrays(loader), expected)
        assert next(loader, None) is None
        assert_same(as_arrays(loader), expected)

    def test_datasets_without_batches_or_of_one_host_are_refused(self, arguments):
        with pytest.raises(gm.ArgumentError, match="batch_size=None"):
            Loader(gm.PackedDataset(**{**arguments, "batch_size": None}))
        with pytest.raises(gm.ArgumentError, match="as one of several hosts"):
            Loader(gm.PackedDataset(**arguments, shard_index=1, shard_count=2))
        with pytest.raises(gm.ArgumentError, match="rank= is given without world_size="):
            Loader(gm.PackedDataset(**arguments), rank=1)
        with pytest.raises(gm.ArgumentTypeError, match="got list_iterator"):
            Loader(iter([]))
        with pytest.raises(gm.ArgumentError, match=r"as many rows in a batch, found \{'a': 4, 'b': 2\}"):
            Loader([{"a": np.ones((4, 1)), "b": np.ones((2, 1))}], 1, 2)

    def test_length_is_known_of_prompts_alone(self, arguments, prompts):
        with pytest.raises(TypeError):
            len(Loader(gm.PackedDataset(**arguments)))
        assert len(Loader(prompts(epochs=3), 1, 2)) == 3 * (60 // 8)
        with pytest.raises(TypeError):
            len(Loader(prompts(epochs=None)))

    def test_it_is_stateful_for_torch_and_torchdata(self, arguments):
        from torch.distributed.checkpoint.stateful import Stateful

        loader = Loader(gm.PackedDataset(**arguments))
        assert isinstance(loader, Stateful)
        torchdata = pytest.importorskip("torchdata.stateful_dataloader.stateful")
        assert isinstance(loader, torchdata.Stateful)


class TestRanks:
    """Ranks without a process group, one after another in this process."""

    @pytest.mark.parametrize("ranks", [1, 2, 4])
    def test_ranks_have_their_rows_and_end_together(self, arguments, expected, ranks):
        dataset = gm.PackedDataset(**arguments)
        assert_same(joined([as_arrays(Loader(dataset, rank, ranks)) for rank in range(ranks)]), expected)

    @pytest.mark.parametrize("epochs", [1, None])
    def test_states_join_and_restore_on_other_numbers_of_ranks(self, arguments, epochs):
        dataset = gm.PackedDataset(**arguments, epochs=epochs)
        wanted = list(itertools.islice(dataset, 12))
        state, found = None, []
        for ranks in (4, 2, 1, 4):
            loaders = [Loader(dataset, rank, ranks) for rank in range(ranks)]
            for loader in loaders if state is not None else ():
                loader.load_state_dict(json.loads(json.dumps(state)))
            found += joined([as_arrays(itertools.islice(loader, 3)) for loader in loaders])
            state = {}
            for loader in loaders:
                state |= loader.state_dict()
        assert_same(found, wanted)

    def test_states_hold_the_own_lanes_as_plain_values(self, arguments):
        dataset = gm.PackedDataset(**arguments, epochs=None)
        loaders = [Loader(dataset, rank, 2) for rank in range(2)]
        one, other = (loader.state_dict() for loader in loaders)
        assert all(type(value) in (int, str) for value in one.values())
        assert {name for name in one if name.startswith("lane_")} == {"lane_0", "lane_1"}
        assert {name for name in other if name.startswith("lane_")} == {"lane_2", "lane_3"}
        with pytest.raises(gm.StateError, match="also needs 0, 1"):
            loaders[0].load_state_dict(other)

    def test_iterators_refuse_a_state_of_a_loader_by_its_name(self, arguments):
        dataset = gm.PackedDataset(**arguments, epochs=None)
        state = Loader(dataset, 0, 2).state_dict()
        for refuse in (iter(dataset).set_state, lambda state: gm.merge_states([state])):
            with pytest.raises(gm.StateError, match="a state_dict of a Loader: its load_state_dict takes it"):
                refuse(state)
        with pytest.raises(gm.StateError, match=r"merge_states, or those of a Loader with \|$"):
            Loader(dataset, 0, 1).load_state_dict(state)

    def test_states_of_different_steps_are_not_joined(self, arguments):
        dataset = gm.PackedDataset(**arguments, epochs=None)
        loaders = [Loader(dataset, rank, 2) for rank in range(2)]
        for loader in (*loaders, loaders[1]):
            next(loader)
        one, other = (loader.state_dict() for loader in loaders)
        for joined_state, steps in ((one | other, "1 in lane 0 and 2"), (other | one, "2 in lane 2 and 1")):
            with pytest.raises(gm.StateError, match=f"joined of states of different steps, {steps}"):
                Loader(dataset).load_state_dict(joined_state)

    def test_states_of_earlier_builds_restore(self, arguments):
        loader = Loader(gm.PackedDataset(**arguments))
        next(loader)
        state = {
            name: value.partition(" ")[2] if name.startswith("lane_") else value
            for name, value in loader.state_dict().items()
        }
        again = Loader(gm.PackedDataset(**arguments))
        again.load_state_dict(state)
        assert_same(as_arrays(again), as_arrays(loader))

    def test_numbers_of_ranks_that_do_not_divide(self, arguments):
        with pytest.raises(gm.ArgumentError, match=r"world_size=8: the number of ranks must divide .* lanes=4"):
            Loader(gm.PackedDataset(**arguments, epochs=None), 0, 8)
        with pytest.raises(gm.ArgumentError, match=r"world_size=3: the number of ranks must divide .* batch_size=8"):
            Loader(gm.PackedDataset(**arguments), 0, 3)

    def test_devices_that_there_are_not(self, arguments):
        dataset = gm.PackedDataset(**arguments)
        with pytest.raises(gm.ArgumentError, match="device='nope': Expected one of cpu, cuda"):
            Loader(dataset, device="nope")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        with pytest.raises(gm.ArgumentError, match=f"device='cuda:{count}': torch finds {count} GPUs"):
            Loader(dataset, device=f"cuda:{count}")

    @pytest.mark.parametrize("given", ["shard.jsonl", b"", [1, 2]])
    def test_other_things_than_datasets(self, given):
        with pytest.raises(gm.ArgumentTypeError, match=r"dataset: expected .*gm\.PackedDataset"):
            Loader(given)

    def test_data_loaders_around_a_loader_are_refused(self, arguments):
        loader = Loader(gm.PackedDataset(**arguments))
        with pytest.raises(TypeError, match="a DataLoader asks for it and is not needed"):
            next(iter(torch.utils.data.DataLoader(loader, batch_size=None)))

    def test_loaders_are_not_pickled(self, arguments):
        with pytest.raises(gm.ArgumentTypeError, match="neither pickled nor copied: pickle the dataset"):
            pickle.dumps(Loader(gm.PackedDataset(**arguments)))

    def test_mixtures(self, arguments, shards):
        source = {"text_field": "raw_content", "epochs": None}
        shared = {name: arguments[name] for name in ("tokenizer", "sequence_length", "batch_size", "lanes", "seed")}
        mixture = gm.Mixture({"a": gm.Source(shards, weight=2, **source), "b": gm.Source(shards, weight=1, **source)})
        dataset = gm.PackedDataset(mixture, **shared, source_arrays=True)
        wanted = list(itertools.islice(dataset, 8))
        four = [Loader(dataset, rank, 4) for rank in range(4)]
        found = joined([as_arrays(itertools.islice(loader, 5)) for loader in four])
        state = {name: value for loader in four for name, value in loader.state_dict().items()}
        one = Loader(dataset)
        one.load_state_dict(state)
        assert_same(found + as_arrays(itertools.islice(one, 3)), wanted)

    def test_images(self, tmp_path):
        for shard in range(4):
            (tmp_path / f"{shard}.tar").write_bytes(tar_of(captions(12, shard)))
        model = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)
        dataset = gm.PackedDataset(
            str(tmp_path / "*.tar"), tokenizer=write_vision(tmp_path / "vision"), packing="pad", batch_size=8, lanes=4,
            sample=gm.ImageText(model, text=gm.Text("txt")), sequence_length=256, layout="hf",
        )  # fmt: skip
        wanted = list(dataset)
        two = [Loader(dataset, rank, 2) for rank in range(2)]
        found = joined([as_arrays(itertools.islice(loader, 3)) for loader in two])
        one = Loader(dataset)
        one.load_state_dict(two[0].state_dict() | two[1].state_dict())
        assert "image_patches" in found[0]
        assert_same(found + as_arrays(one), wanted)
        with pytest.raises(gm.ArgumentError, match="rows with images keep their padding"):
            Loader(dataset, padding_free=True)

    def test_prompts(self, prompts):
        dataset = prompts(epochs=2, num_generations=2)
        wanted = [{name: array for name, array in batch.items() if array.dtype != object} for batch in dataset]
        two = [Loader(dataset, rank, 2) for rank in range(2)]
        found = joined([as_arrays(itertools.islice(loader, 5)) for loader in two])
        one = Loader(dataset)
        one.load_state_dict(two[0].state_dict() | two[1].state_dict())
        assert_same(found + as_arrays(one), wanted)

    def test_packed_rows_and_batches_of_them(self, arguments, tmp_path):
        import grain

        gm.pack(gm.PackedDataset(**arguments), tmp_path / "packed")
        rows = gm.PackedRows(tmp_path / "packed")
        wanted = [{name: array[None] for name, array in row.items()} for row in rows]
        four = [Loader(rows, rank, 4) for rank in range(4)]
        found = joined([as_arrays(itertools.islice(loader, 5)) for loader in four])
        one = Loader(rows)
        one.load_state_dict(four[3].state_dict())
        found = [{name: array[[row]] for name, array in batch.items()} for batch in found for row in range(4)]
        assert_same(found + as_arrays(one), wanted)
        batches = grain.MapDataset.source(rows).shuffle(seed=3).batch(4, drop_remainder=True)
        two = [as_arrays(Loader(batches, rank, 2)) for rank in range(2)]
        assert_same(joined(two), list(batches))
        assert len(Loader(batches, 0, 2)) == len(batches)
        with pytest.raises(gm.ArgumentError, match="cannot be divided among world_size=3"):
            Loader(batches, 0, 3)
        with pytest.raises(gm.StateError, match="by another dataset"):
            Loader(batches).load_state_dict(Loader(rows).state_dict())

        def made(seed=3, size=4):
            return grain.MapDataset.source(rows).shuffle(seed=seed).batch(size, drop_remainder=True)

        loader = Loader(batches)
        first = as_arrays(itertools.islice(loader, 2))
        again = Loader(made())  # as another process makes it
        again.load_state_dict(loader.state_dict())
        assert_same(first + as_arrays(again), list(batches))
        for other in (made(seed=4), made(size=2), made().repeat(2), made()[:-1]):
            with pytest.raises(gm.StateError, match="by another dataset"):
                Loader(other).load_state_dict(loader.state_dict())

    def test_the_last_rows_are_filled_with_padding(self, arguments, tmp_path):
        gm.pack(gm.PackedDataset(**arguments), tmp_path / "packed", steps=1)
        rows = gm.PackedRows(tmp_path / "packed")
        assert len(rows) == 8
        last = [list(Loader(rows, rank, 3))[-1] for rank in range(3)]
        assert [(batch["labels"] != -100).any().item() for batch in last] == [True, True, False]
        assert not last[2]["input_ids"].any()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "version 2"),
            ({"stream": "{"}, "expected a state_dict of Loader"),
            ({"lane_3": None}, "lane 3 is a string"),
        ],
    )
    def test_damaged_states_are_refused(self, arguments, change, message):
        loader = Loader(gm.PackedDataset(**arguments))
        with pytest.raises(gm.StateError, match=message):
            loader.load_state_dict({**loader.state_dict(), **change})
        another = Loader(gm.PackedDataset(**{**arguments, "seed": 6}))
        with pytest.raises(gm.StateError, match="seed was 5 and is 6"):
            another.load_state_dict(loader.state_dict())


class TestAhead:
    """Batches that are moved to a device ahead, with a mover that stands for a GPU's."""

    @pytest.fixture
    def ahead(self, arguments, monkeypatch):
        class Mover:
            def __init__(self, device):
                self.moved = 0

            def move(self, batch):
                self.moved += 1
                return batch, self.moved

            def ready(self, batch, event):
                return batch

        def make(**more):
            loader = Loader(gm.PackedDataset(**arguments), prefetch=2, **more)
            loader._mover = Mover(None)
            return loader

        return make

    def test_states_count_batches_that_were_yielded(self, ahead, expected):
        loader = ahead()
        first = as_arrays(itertools.islice(loader, 4))
        assert loader._mover.moved == 6
        resumed = ahead()
        resumed.load_state_dict(loader.state_dict())
        assert_same(first + as_arrays(resumed), expected)
        assert_same(as_arrays(loader), expected[4:])
        assert_same(as_arrays(loader), expected)

    def test_errors_come_after_the_batches_before_them(self, arguments, ahead, tmp_path, monkeypatch):
        lines = [json.dumps({"raw_content": f"{number} " * 100}) for number in range(40)]
        (tmp_path / "0.jsonl").write_text("\n".join([*lines, "{", *lines]) + "\n")
        broken = {**arguments, "shards": str(tmp_path / "0.jsonl"), "lanes": 1, "seed": None}
        monkeypatch.setitem(arguments, "shards", broken["shards"])
        monkeypatch.setitem(arguments, "lanes", 1)
        monkeypatch.setitem(arguments, "seed", None)
        found = []
        for loader in (Loader(gm.PackedDataset(**broken)), ahead()):
            batches = []
            with pytest.raises(gm.ShardError, match="record 40"):
                batches.extend(iter(loader))  # keeps the items before an error
            with pytest.raises(gm.ShardError, match="record 40"):
                next(loader)
            found.append(as_arrays(batches))
        assert found[0]
        assert_same(*found)


class TestPaddingFree:
    @pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
    def test_rows_are_flattened_as_an_oracle_does_it(self, arguments, packing):
        dataset = gm.PackedDataset(**arguments, packing=packing, attention_mask=True)
        found = list(Loader(dataset, padding_free=True))
        for batch, wanted in zip(found, dataset, strict=True):
            ids, labels, positions, borders = [], [], [], []
            for row in range(BATCH):
                for column in range(LENGTH):
                    if wanted["attention_mask"][row, column]:
                        begins = wanted["position_ids"][row, column] == 0
                        borders += [len(ids)] if begins else []
                        ids.append(wanted["input_ids"][row, column])
                        labels.append(-100 if begins else wanted["labels"][row, column])
                        positions.append(wanted["position_ids"][row, column])
            assert batch["input_ids"].tolist() == [ids]
            assert batch["labels"].tolist() == [labels]
            assert batch["position_ids"].tolist() == [positions]
            for side in "qk":
                assert batch[f"cu_seq_lens_{side}"].tolist() == [*borders, len(ids)]
                assert batch[f"cu_seq_lens_{side}"].dtype == torch.int32
                assert type(batch[f"max_length_{side}"]) is int
                assert batch[f"max_length_{side}"] == max(np.diff([*borders, len(ids)]))
            assert "attention_mask" not in batch

    @pytest.mark.parametrize("multiple", [1, 8])
    def test_all_layouts_are_the_same(self, arguments, multiple):
        same = {**arguments, "packing": "best_fit", "max_segments": 6, "pad_segments_to": multiple}
        found = {
            layout: list(Loader(gm.PackedDataset(**{**same, "layout": layout}), padding_free=True))
            for layout in ("hf", "maxtext", "grain", "varlen")
        }
        for batches in found.values():
            assert_same(as_arrays(batches), as_arrays(found["hf"]))

    def test_masks_of_conversations_are_kept(self, tokenizer_file, tmp_path, arguments):
        lines = [json.dumps({"p": f"question {n}? ", "c": f"the answer is {n}"}) for n in range(64)]
        (tmp_path / "0.jsonl").write_text("\n".join(lines))
        same = {**arguments, "shards": str(tmp_path / "0.jsonl"), "sample": gm.Completion("p", "c"), "lanes": 1}
        del same["text_field"]
        found = {
            layout: as_arrays(Loader(gm.PackedDataset(**{**same, "layout": layout}, max_segments=9), padding_free=True))
            for layout in ("hf", "maxtext", "grain", "varlen")
        }
        encoder = gm.Encoder.from_file(tokenizer_file)
        labels = np.concatenate([batch["labels"][0] for batch in found["hf"]])
        assert "answer" in encoder.decode(labels[labels != -100])
        assert "question" not in encoder.decode(labels[labels != -100])
        for batches in found.values():
            assert_same(batches, found["hf"])

    @pytest.mark.parametrize(
        ("layout", "more"),
        [
            *itertools.product(("maxtext", "grain", "hf", "varlen"), ({}, {"packing": "concat"}, {"packing": "pad"})),
            *itertools.product(("maxtext", "grain", "hf"), ({"pad_segments_to": 4},)),
        ],
    )
    def test_fields_go_with_their_tokens_and_samples(self, tmp_path, layout, more):
        records, number = [], 1
        for size in (3, 1, 7, 16, 2, 2, 5, 4, 11, 0, 6):
            ids = list(range(number, number + size))
            records.append({"ids": ids, "half": [0.5 * token for token in ids], "reward": float(number)})
            number += size
        (tmp_path / "0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        fields = {"half": gm.Field(), "reward": gm.Field(per="sample", shape=())}
        most = {} if more.get("packing") == "pad" else {"max_segments": 16}  # as many as tokens of a row
        dataset = gm.PackedDataset(
            str(tmp_path / "0.jsonl"), sample=gm.Tokens("ids", fields=fields), sequence_length=16, batch_size=2,
            layout=layout, provenance=16, **{"packing": "best_fit", **most, **more},
        )  # fmt: skip
        first_of = {token: record["ids"][0] for record in records for token in record["ids"]}
        seen = set()
        for batch in Loader(dataset, padding_free=True):
            (ids,), (halves,), (labels,) = (batch[name].tolist() for name in ("input_ids", "half", "labels"))
            borders, rewards = batch["cu_seq_lens_q"].tolist(), batch["reward"][0].tolist()
            assert len(rewards) == len(borders) - 1
            for start, end, reward in zip(borders, borders[1:], rewards, strict=False):
                assert {float(first_of.get(token, 0)) for token in ids[start:end]} == {reward}
            wanted = [
                0.5 * token * (layout != "maxtext" or label >= 0) for token, label in zip(ids, labels, strict=True)
            ]
            assert halves == wanted
            assert batch["provenance"].shape == (2, 16, 4)
            assert not [name for name in batch if name.startswith(("next_", "targets_"))]
            seen |= set(ids)
        assert seen - {0} == set(range(1, number))

    def test_rows_of_padding_are_one_element(self):
        zeros = np.zeros((2, 4), np.int32)
        batch = {"input_ids": zeros, "attention_mask": zeros, "position_ids": zeros, "labels": zeros - 100}
        found = flattening.flattened({**batch, "advantages": zeros.astype(np.float32), "source": np.zeros(2)})
        assert found["labels"].tolist() == [[-100]]
        assert found["cu_seq_lens_q"].tolist() == [0, 1]
        assert found["max_length_k"] == 1
        assert found["advantages"].shape == (1, 1)
        assert found["source"].shape == (2,)

    def test_pairs_are_numbered_through(self, tmp_path, tokenizer_file):
        records = [{"prompt": f"{n}", "good": "a" * (1 + n % 3), "bad": "b"} for n in range(24)]
        (tmp_path / "0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        dataset = gm.PackedDataset(
            str(tmp_path / "0.jsonl"), tokenizer=str(tokenizer_file.parent), sequence_length=32, batch_size=4,
            sample=gm.Preference(gm.Completion("prompt", "good"), gm.Completion("prompt", "bad")),
            packing="best_fit", truncation="drop", layout="hf",
        )  # fmt: skip
        for batch in Loader(dataset, padding_free=True):
            count = len(batch["cu_seq_lens_q"]) - 1
            assert batch["pair"].tolist() == [[1 + segment // 2 for segment in range(count)]]
            assert count > 4

    def test_fields_do_not_replace_other_arrays(self, tmp_path):
        (tmp_path / "0.jsonl").write_text(json.dumps({"ids": [1, 2], "labels": [0.5, 0.5]}))
        dataset = gm.PackedDataset(
            str(tmp_path / "0.jsonl"), sample=gm.Tokens("ids", fields={"labels": gm.Field()}), sequence_length=4,
            batch_size=1, layout="grain",
        )  # fmt: skip
        with pytest.raises(gm.ArgumentError, match=r"fields\['labels'\]: a batch has an array of that name"):
            next(Loader(dataset, padding_free=True))

    def test_arrays_without_a_mask_are_refused(self):
        zeros = np.zeros((2, 4), np.int32)
        with pytest.raises(gm.ArgumentError, match="attention_mask=True"):
            flattening.flattened({"input_ids": zeros, "position_ids": zeros, "labels": zeros})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory, tokenizer_file):
    path = tmp_path_factory.mktemp("prompts") / "0.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"question {number}"}) for number in range(60)))

    def make(**more):
        return gm.PromptDataset(
            str(path), tokenizer=str(tokenizer_file.parent), prompt=gm.Text("prompt"), prompt_length=16,
            batch_size=8, layout="hf", columns=False, seed=3, pad=0, **more,
        )  # fmt: skip

    return make


def run_ranks(folder, ranks, **calls):
    """The results of each call on so many ranks, a list of those of all ranks."""
    results = run_hosts(
        folder / f"{ranks}-{len(list(folder.iterdir()))}",
        "several",
        {"calls": calls},
        hosts=ranks,
        programs="torch_programs.py",
    )
    return {name: [result[name] for result in results] for name in calls}


@pytest.mark.slow
class TestProcesses:
    """Ranks of a process group of gloo."""

    @pytest.fixture(scope="class")
    def four(self, tmp_path_factory, arguments):
        folder = tmp_path_factory.mktemp("four")
        return run_ranks(
            folder,
            4,
            whole=("train", {"dataset": arguments}),
            flat=("train", {"dataset": arguments, "padding_free": True, "steps": 3}),
            late=("train", {"dataset": arguments, "save": (30, f"{folder}/late")}),
            shared=("shared", {"dataset": arguments}),
        ) | {"folder": folder}

    def test_finite_epochs_end_together_and_are_the_stream(self, four, expected):
        assert_same(joined(four["whole"]), expected)
        last = [batches[-1]["labels"] for batches in four["whole"]]
        assert sorted((labels != -100).any() for labels in last) == [False, False, False, True]

    def test_ranks_that_share_rows_have_the_same(self, four, expected):
        assert_same(joined(four["shared"][::2]), expected)
        assert_same(joined(four["shared"][1::2]), expected)

    def test_a_state_after_some_ranks_ended_restores_on_one(self, four, arguments, expected):
        import torch.distributed.checkpoint as dcp

        loader = Loader(gm.PackedDataset(**arguments))
        dcp.load({"loader": loader}, checkpoint_id=f"{four['folder']}/late", no_dist=True)
        assert_same(as_arrays(loader), expected[30:])

    def test_killed_on_four_ranks_resumes_on_two_and_one(self, tmp_path, arguments, expected):
        found, load = [], None
        for ranks, count in ((4, 7), (2, 5)):
            save = (count, f"{tmp_path}/{ranks}")
            (tmp_path / f"killed-{ranks}").mkdir()
            killed = {"dataset": arguments, "load": load, "save": save, "killed": f"{tmp_path}/killed-{ranks}"}
            with pytest.raises(HostFailedError):
                run_ranks(tmp_path, ranks, run=("train", killed))
            parts = [
                pickle.loads((tmp_path / f"killed-{ranks}" / f"rank-{rank}").read_bytes()) for rank in range(ranks)
            ]
            found += joined(parts)
            load = save[1]
        rest = run_ranks(tmp_path, 1, run=("train", {"dataset": arguments, "load": load}))["run"]
        assert_same(found + rest[0], expected)

    def test_ranks_that_disagree_raise_on_all_ranks(self, tmp_path, arguments):
        for found in run_ranks(tmp_path, 2, errors=("disagree", {"dataset": arguments}))["errors"]:
            assert "ranks 0 and 1 have different streams: seed" in found["stream"]
            assert "different steps, [1, 0]" in found["step"]
            assert "load as the ranks [0, 0] of 2" in found["parts"]


@pytest.mark.slow
class TestExample:
    """examples/torch_loop.py, killed and resumed."""

    def start(self, arguments, folder, ranks, *more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [
            sys.executable, "-W", "ignore", str(ROOT / "examples" / "torch_loop.py"), arguments["shards"],
            arguments["tokenizer"], "--folder", str(folder), "--length", "64", "--batch", "8", "--lanes", "4",
            "--save-every", "4", *more,
        ]  # fmt: skip
        return [
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def finish(self, processes):
        try:
            outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
        return steps_of(outputs[0])

    @pytest.mark.parametrize("mode", [[], ["--fsdp"]])
    def test_killed_and_resumed_on_one_two_and_one(self, tmp_path, arguments, mode):
        whole = self.finish(self.start(arguments, tmp_path / "whole", 1, "--steps", "16", *mode))
        folder = tmp_path / "resumed"
        (first,) = self.start(arguments, folder, 1, *mode)
        killed = {}
        for line in first.stdout:
            killed |= steps_of(line)
            if 6 in killed:
                break
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
        two = self.finish(self.start(arguments, folder, 2, "--steps", "8", *mode))
        one = self.finish(self.start(arguments, folder, 1, "--steps", "16", *mode))
        assert (min(two), min(one)) == (5, 9)
        found = {step: killed[step] for step in range(1, 5)} | two | one
        assert {step: tokens for step, (_, tokens) in found.items()} == {
            step: tokens for step, (_, tokens) in whole.items()
        }
        assert all(abs(found[step][0] - whole[step][0]) < 1e-3 for step in whole)
        assert all(found[step] == whole[step] for step in range(1, 5))

    def test_one_process_has_the_same_losses(self, tmp_path, arguments):
        whole = self.finish(self.start(arguments, tmp_path / "whole", 1, "--steps", "12"))
        self.finish(self.start(arguments, tmp_path / "resumed", 1, "--steps", "8"))
        assert self.finish(self.start(arguments, tmp_path / "resumed", 1, "--steps", "12")) == {
            step: whole[step] for step in range(9, 13)
        }


def steps_of(output):
    """The loss and the trained tokens of each step that a run has printed."""
    return {
        int(step): (float(loss), int(tokens))
        for step, loss, tokens in re.findall(r"step (\d+): loss ([\d.]+), (\d+) trained tokens", output)
    }
