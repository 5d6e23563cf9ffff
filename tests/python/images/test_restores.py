"""Rows with images through random stops, on any number of hosts; `GRISTMILL_CASES` sets the number of cases."""

import os

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_vision
from helpers import assert_same_batches, tar_of
from images import captions

CASES = int(os.environ.get("GRISTMILL_CASES", 4))
MODEL = gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_vision(root / "model")
    for number in range(8):
        (root / f"{number}.tar").write_bytes(tar_of(captions(11 + number, number)))
    return root


def rows_of(folder, random):
    """A function that makes the dataset of a host, and whether it is a mixture."""
    sample = gm.ImageText(MODEL, text=gm.Text("txt"), max_images=6, max_patches=160, mrope=bool(random.integers(2)))
    common = {
        "tokenizer": str(folder / "model"), "sequence_length": 96, "batch_size": 8, "lanes": 4, "eos": False,
        "packing": str(random.choice(["best_fit", "pad"])), "truncation": "drop", "provenance": True,
        "seed": int(random.integers(9)) if random.integers(2) else None,
    }  # fmt: skip
    source = {"sample": sample, "epochs": 2, "shuffle_window": int(random.integers(1, 30))}
    if random.integers(2):
        parts = {
            name: gm.Source(str(folder / f"[{name}].tar"), weight=weight, **source)
            for name, weight in [("0-3", 2), ("4-7", 1)]
        }
        shards = gm.Mixture({f"of-{name}": part for name, part in parts.items()}, weights_by="samples")
    else:
        shards, common = str(folder / "*.tar"), {**common, **source}

    def rows(host, hosts, **more):
        return gm.PackedDataset(shards, shard_index=host, shard_count=hosts, threads=1 + host % 2, **common, **more)

    return rows


@pytest.mark.parametrize("case", range(CASES))
def test_random_restores_on_other_hosts_change_nothing(folder, case):
    random = np.random.default_rng([7, case])
    rows = rows_of(folder, random)
    expected = list(rows(0, 1))
    assert sum(int(batch["image_masks"].sum()) for batch in expected) > 100
    found, states, hosts = [], None, 1
    while len(found) < len(expected):
        hosts = int(random.choice([1, 2, 4, 8]))
        # As many hosts as do not divide the lanes read all of them.
        equal = hosts == 8 or bool(random.integers(2))
        iterators = [iter(rows(host, hosts, equal_steps=equal)) for host in range(hosts)]
        if states is not None:
            for iterator in iterators:
                iterator.set_state(gm.merge_states(states))
        for _ in range(min(int(random.choice([1, 1, 2, 5])), len(expected) - len(found))):
            parts = [next(iterator, None) for iterator in iterators]
            if any(part is None for part in parts):  # hosts with lanes of their own end by themselves
                return
            found.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        states = [iterator.get_state() for iterator in iterators]
        for iterator in iterators:
            iterator.close()
        assert_same_batches(found[-5:], expected[max(0, len(found) - 5) : len(found)])
    assert_same_batches(found, expected)
