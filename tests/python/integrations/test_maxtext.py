"""MaxText's GRPO pipeline by its own names."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import write_chatml
from gristmill.integrations.maxtext import (
    SingleHostDataLoader,
    create_data_iterator,
    make_hf_train_iterator,
    preprocessing_pipeline,
)

datasets = pytest.importorskip("datasets")
TEXTS = [f"Question {n}: what is {n} + {n}? " + "x " * (n % 7 * 3) for n in range(23)]
TEXTS[4], TEXTS[9], TEXTS[11] = "!!! 你好 ü", "  leading\n\nand trailing  ", ""


@pytest.fixture(scope="module")
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_chatml(tmp_path_factory.mktemp("model"))
    names = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return str(folder)


@pytest.fixture(scope="module")
def encoder(model):
    return gm.Encoder.from_pretrained(model)


def shards_of(count):
    rows = [{"prompt": text, "answer": str(number)} for number, text in enumerate(TEXTS)]
    return [rows[shard::count] for shard in range(count)]


def streamed(shards, folder, kind="json"):
    """A streamed data set with a file for each shard, in another order than that of their names."""
    files = []
    for number, rows in enumerate(shards):
        files.append(f"{folder}/{9 - number}.{kind}")
        if kind == "json":
            Path(files[-1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), files[-1])
    return datasets.load_dataset(kind, data_files=files, split="train", streaming=True)


def naive_rows(shards, host, hosts):
    if len(shards) < hosts:
        return [row for shard in shards for row in shard][host::hosts]
    return [row for shard in shards[host::hosts] for row in shard]


def naive_ids(text, encoder, length, bos, eos):
    """BOS + ids + EOS, of which at most `length - 1` are left, EOS among them."""
    most = length - 1 - bos - eos
    ids = encoder.encode(text).tolist()[:most]
    return [encoder.bos_id] * bos + ids + [encoder.eos_id] * eos


def naive_batches(rows, ids_of, length, size, columns=("prompt",), drop=False):
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        if drop and len(part) < size:
            return
        batch = {}
        for column in columns:
            ids = [ids_of(row[column]) for row in part]
            batch[column] = np.array([one + [0] * (length - len(one)) for one in ids], np.int64)
            ones = [[1] * len(one) + [0] * (length - len(one)) for one in ids]
            batch[f"{column}_segmentation"] = np.array(ones, np.int32)
            places = [[*range(len(one)), *[0] * (length - len(one))] for one in ids]
            batch[f"{column}_position"] = np.array(places, np.int32)
            batch[f"{column}_true_length"] = np.array([[len(one)] for one in ids], np.int32)
        yield {key: batch[key] for key in sorted(batch)}


def assert_same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert list(batch) == list(other)
        for key in other:
            assert batch[key].dtype == other[key].dtype
            np.testing.assert_array_equal(batch[key], other[key])


@pytest.mark.parametrize("kind", ["json", "parquet", "mapped"])
@pytest.mark.parametrize(
    ("shards", "options"),
    [
        (1, {}),
        (3, {"drop_remainder": True}),
        (2, {"add_eos": False}),
        (2, {"add_bos": False, "num_threads": 3}),
        (2, {"add_bos": False, "add_eos": False}),
        (5, {"columns": ("prompt", "answer")}),
    ],
)
def test_batches_of_one_host_are_those_of_maxtext(tmp_path, mesh, model, encoder, kind, shards, options):
    options = dict(options)
    columns = options.pop("columns", ("prompt",))
    rows = shards_of(shards)
    dataset = streamed(rows, tmp_path, "parquet" if kind == "parquet" else "json")
    if kind == "mapped":
        dataset = dataset.map(lambda row: row)
    found = preprocessing_pipeline(0, 1, mesh, dataset, list(columns), True, model, None, 4, 16, **options)
    bos, eos = options.get("add_bos", True), options.get("add_eos", True)
    ids_of = lambda text: naive_ids(text, encoder, 16, bos, eos)  # noqa: E731
    drop = options.get("drop_remainder", False)
    assert_same(found, naive_batches(naive_rows(rows, 0, 1), ids_of, 16, 4, columns, drop))


@pytest.mark.parametrize(("shards", "hosts"), [(5, 2), (4, 2), (2, 3)])
def test_hosts_have_the_rows_of_maxtext_and_equal_steps(tmp_path, mesh, model, encoder, shards, hosts):
    rows = shards_of(shards)
    dataset = streamed(rows, tmp_path)
    steps = set()
    for host in range(hosts):
        found = list(preprocessing_pipeline(host, hosts, mesh, dataset, ["prompt"], True, model, None, 4, 16))
        own = naive_rows(rows, host, hosts)
        padding = len(found) * 4 - len(own)
        assert all(len(batch["prompt"]) == 4 for batch in found)
        ids_of = lambda text: naive_ids(text, encoder, 16, True, True)  # noqa: E731
        joined = {key: np.concatenate([batch[key] for batch in found]) for key in found[0]}
        (expected,) = naive_batches(own, ids_of, 16, len(own))
        for key, values in expected.items():
            np.testing.assert_array_equal(joined[key][: len(own)], values)
            assert padding >= 0
            assert not joined[key][len(own) :].any()
        steps.add(len(found))
    assert len(steps) == 1


@pytest.mark.parametrize("hosts", [1, 3])
def test_rows_of_a_dataset_are_taken_in_contiguous_parts(mesh, model, encoder, hosts):
    (rows,) = shards_of(1)
    dataset = datasets.Dataset.from_list(rows)
    found = [
        preprocessing_pipeline(host, hosts, mesh, dataset, ["answer"], True, model, None, 4, 16)
        for host in range(hosts)
    ]
    parts = [dataset.shard(hosts, host, contiguous=True)["answer"] for host in range(hosts)]
    for batches, part in zip(found, parts, strict=True):
        ids = np.concatenate([batch["answer"] for batch in batches])
        assert [encoder.decode(row[1:].astype(np.int32)).split("<")[0] for row in ids][: len(part)] == list(part)


def test_shuffling_depends_on_the_seed_and_not_on_the_hosts(tmp_path, mesh, model):
    dataset = streamed(shards_of(3), tmp_path)

    def ids(hosts, size, seed):
        made = [
            preprocessing_pipeline(
                host,
                hosts,
                mesh,
                dataset,
                ["prompt"],
                True,
                model,
                None,
                size,
                16,
                shuffle=True,
                data_shuffle_seed=seed,
            )
            for host in range(hosts)
        ]
        return [row.tolist() for parts in zip(*made, strict=True) for part in parts for row in part["prompt"]]

    one = ids(1, 4, 1)
    assert sorted(one) == sorted(ids(1, 4, 2)) != one != ids(1, 4, 2)
    assert ids(2, 2, 1)[: len(one)] == one


def test_lists_of_ids_are_taken_without_tokenizing(mesh):
    rows = [{"ids": list(range(n))} for n in (0, 3, 20)]
    (batch,) = preprocessing_pipeline(0, 1, mesh, datasets.Dataset.from_list(rows), ["ids"], False, "", None, 4, 16)
    (expected,) = naive_batches(rows, lambda ids: ids[:16], 16, 4, ("ids",))
    assert_same([batch], [expected])
    # Token 0 is a token, and the true length is that of what is left.
    assert batch["ids_segmentation"].sum(axis=1).tolist() == [0, 3, 16]
    assert batch["ids_true_length"].tolist() == [[0], [3], [16]]
    strings = datasets.Dataset.from_list([{"ids": "text"}])
    with pytest.raises(gm.ArgumentError, match="row 0: 'ids': expected a list of ids with tokenize=False"):
        preprocessing_pipeline(0, 1, mesh, strings, ["ids"], False, "", None, 4, 16)


def test_truncation_side_of_the_tokenizer_is_followed(tmp_path, mesh, model, encoder):
    folder = write_chatml(tmp_path / "model")
    names = {"eos_token": "<|im_end|>", "truncation_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    dataset = datasets.Dataset.from_list([{"prompt": "abcdefgh"}])
    (batch,) = preprocessing_pipeline(0, 1, mesh, dataset, ["prompt"], True, str(folder), None, 1, 6)
    assert encoder.decode(batch["prompt"][0, :5].astype(np.int32)) == "efgh<|im_end|>"


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_resume_after_every_batch(tmp_path, mesh, model, shuffle, drop):
    dataset = streamed(shards_of(3), tmp_path)

    def pipeline():
        options = {"shuffle": shuffle, "data_shuffle_seed": 3, "drop_remainder": drop}
        return preprocessing_pipeline(0, 1, mesh, dataset, ["prompt"], True, model, None, 4, 16, **options)

    whole = pipeline()
    states, batches = [whole.get_state()], []
    for batch in whole:
        batches.append(batch)
        states.append(json.loads(json.dumps(whole.get_state())))
    resumed = pipeline()
    for step, state in enumerate(states):
        resumed.set_state(state)
        assert_same(resumed, batches[step:])
    with pytest.raises(gm.StateError, match="another pipeline"):
        resumed.set_state({**states[1], "fingerprint": "x"})
    with pytest.raises(gm.StateError, match="multiple of the 4 rows"):
        resumed.set_state({**states[1], "place": 3})


def test_shuffled_state_restores_on_another_number_of_hosts(tmp_path, mesh, model):
    dataset = streamed(shards_of(3), tmp_path)

    def pipelines(hosts, size):
        return [
            preprocessing_pipeline(h, hosts, mesh, dataset, ["prompt"], True, model, None, size, 16, shuffle=True)
            for h in range(hosts)
        ]

    (one,) = pipelines(1, 4)
    next(one)
    two = pipelines(2, 2)
    for host in two:
        host.set_state(one.get_state())
    parts = np.concatenate([next(host)["prompt"] for host in two])
    np.testing.assert_array_equal(parts, next(one)["prompt"])


def test_wrong_arguments_are_refused(mesh, model):
    devices = SimpleNamespace(size=3)
    dataset = datasets.Dataset.from_list([{"prompt": "a", "number": 1}])
    with pytest.raises(ValueError, match=r"^Batch size should be divisible number of global devices\.$"):
        preprocessing_pipeline(0, 1, devices, dataset, ["prompt"], True, model, None, 4, 16)
    with pytest.raises(KeyError, match="answer"):
        preprocessing_pipeline(0, 1, mesh, dataset, ["answer"], True, model, None, 4, 16)
    with pytest.raises(gm.ShardError, match=r"record 0.*number"):
        preprocessing_pipeline(0, 1, mesh, dataset, ["number"], True, model, None, 4, 16)


def test_single_host_loader_starts_again(mesh):
    loader = SingleHostDataLoader([1, 2], mesh)
    assert [next(loader), list(loader), list(loader)] == [1, [1, 2], [1, 2]]
    loader.reset()
    assert next(loader) == 1
    rows = [{"ids": [n]} for n in range(8)]
    batches = preprocessing_pipeline(0, 1, mesh, rows, ["ids"], False, "", None, 4, 4)
    loader = SingleHostDataLoader(batches, mesh)
    assert len(list(loader)) == len(list(loader)) == 2
    with pytest.raises(ValueError, match=r"^Type error: dataloader should be an Iterable\.$"):
        SingleHostDataLoader(3, mesh)


@pytest.fixture
def config(tmp_path, model):
    """The part of MaxText's configuration that is read."""
    streamed(shards_of(2), tmp_path)
    return SimpleNamespace(
        hf_path="json",
        hf_data_dir=None,
        hf_train_files=[str(tmp_path / "9.json"), str(tmp_path / "8.json")],
        hf_access_token=None,
        train_data_columns=["prompt"],
        tokenize_train_data=True,
        tokenizer_path=model,
        global_batch_size_to_load=4,
        global_batch_size_to_train_on=4,
        max_prefill_predict_length=16,
        max_target_length=32,
        data_sharding=[["data"]],
        eval_interval=-1,
        add_bos=False,
        add_eos=False,
        enable_data_shuffling=False,
    )


@pytest.mark.parametrize("columns", ["prompt", ["prompt"]])
def test_iterator_of_the_configuration_obeys_it(config, mesh, encoder, columns):
    config.train_data_columns = columns
    ids_of = lambda text: naive_ids(text, encoder, 16, False, False)  # noqa: E731
    expected = list(naive_batches(naive_rows(shards_of(2), 0, 1), ids_of, 16, 4))
    assert_same(create_data_iterator(config, mesh), expected)
    config.num_epoch = 2
    assert_same(make_hf_train_iterator(config, mesh, [0]), expected * 2)
    config.enable_data_shuffling, config.data_shuffle_seed = True, 4
    shuffled = list(create_data_iterator(config, mesh))
    assert len(shuffled) == len(expected) * 2
    assert any((a["prompt"] != b["prompt"]).any() for a, b in zip(shuffled[:5], shuffled[6:11], strict=True))


def test_evaluation_is_refused(config, mesh):
    config.eval_interval = 10
    with pytest.raises(ValueError, match=r"^GRPO input pipeline is not supported for eval data$"):
        create_data_iterator(config, mesh)


def test_host_that_does_not_load_gets_padding(config, mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    iterator = create_data_iterator(config, mesh)
    for _ in range(3):
        batch = next(iterator)
        assert sorted(batch) == ["prompt", "prompt_position", "prompt_segmentation", "prompt_true_length"]
        assert batch["prompt"].shape == (4, 16)
        assert not any(array.any() for array in batch.values())
