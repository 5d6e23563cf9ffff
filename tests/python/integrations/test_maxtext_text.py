"""`gristmill.integrations.maxtext` beside MaxText's own Grain pipeline; `make test-maxtext` installs MaxText.

Without MaxText, its config is a namespace of the settings that are read, and only what needs no MaxText runs.
"""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import write_chatml
from gristmill.integrations import maxtext
from gristmill.integrations.maxtext.hosts import CTRL_C
from gristmill.integrations.maxtext.settings import KEYS as SETTINGS
from gristmill.integrations.maxtext.settings import sources_of
from helpers import ROOT, write_shard
from run_hosts import run_hosts

LENGTH = 128
KEYS = {f"{side}{what}" for side in ("inputs", "targets") for what in ("", "_segmentation", "_position")}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def ctrl_c_is_left_to_pytest():
    yield
    CTRL_C.leave()


@pytest.fixture(scope="module")
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))


@pytest.fixture(scope="module")
def parquet(tmp_path_factory, texts):
    """Texts that fit into a row, in one file, which MaxText reads in order."""
    path = tmp_path_factory.mktemp("parquet") / "train.parquet"
    pq.write_table(pa.table({"text": [text[:200] for text in texts[:300]]}), path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file):
    """The folder of the tokenizer, as `transformers` reads it."""
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tokenizer_file.parent / "tokenizer_config.json").write_text(json.dumps(names))
    return str(tokenizer_file.parent)


def settings(parquet, tokenizer, **more):
    return {
        "grain_train_files": parquet,
        "grain_eval_files": parquet,
        "grain_file_type": "parquet",
        "tokenizer_path": str(tokenizer),
        "tokenizer_type": "huggingface",
        "max_target_length": LENGTH,
        "enable_data_shuffling": False,
        "train_data_columns": ["text"],
        "eval_data_columns": ["text"],
        "packing": True,
        "grain_packing_type": "concat_then_split",
        "grain_worker_count": 0,
        "grain_worker_count_eval": 0,
        "add_bos": False,
        "add_eos": True,
        **more,
    }


@pytest.fixture
def config(parquet, tokenizer):
    def config(**more):
        defaults = {
            "grain_train_mixture_config_path": None,
            "global_batch_size_to_load": 8,
            "global_batch_size_to_load_eval": 4,
            "num_epoch": 1,
            "data_shuffle_seed": 3,
            "max_segments_per_seq": -1,
            "use_truncation": True,
            "use_sft": False,
            "sft_train_on_completion_only": True,
            "chat_template": "",
            "gristmill": {},
        }
        return SimpleNamespace(**{**defaults, **settings(parquet, tokenizer), **more})

    return config


def test_train_and_eval_iterators_have_whole_batches(config, mesh):
    train = maxtext.make_gristmill_train_iterator(config(), mesh, [0])
    first = next(train)
    assert set(first) == KEYS
    assert {array.shape for array in first.values()} == {(8, LENGTH)}
    evaluation = maxtext.make_gristmill_eval_iterator(config(), mesh, [0])
    counts = [sum(1 for _ in evaluation) for _ in range(2)]  # each loop starts over
    assert counts[0] == counts[1] > 0
    evaluation.reset()
    assert next(evaluation)["inputs"].shape == (4, LENGTH)
    np.testing.assert_array_equal(next(iter(train))["inputs"], first["inputs"])
    for iterator in (train, evaluation):
        iterator.close()


def test_mixtures_are_those_of_the_settings(config, parquet, tmp_path):
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": ["zzz " * 30] * 50}), other)
    file = tmp_path / "mixture.json"
    file.write_text(json.dumps({"a": {"path": parquet, "weight": 3}, "b": {"path": str(other), "weight": 1}}))
    by_file = {"grain_train_files": "", "grain_train_mixture_config_path": str(file)}
    for more in ({"grain_train_files": f"{parquet},3;{other},1"}, by_file):
        own = config(**more)
        patterns = sources_of(own.grain_train_files, own.grain_train_mixture_config_path)
        dataset = maxtext.make_dataset(own, patterns, ["text"], batch_size=8, epochs=1)
        with iter(dataset) as batches:
            next(batches)
            assert [source["rows"] for source in batches.stats()["sources"].values()] == [6, 2]


def test_conversations_are_trained_on_answers(config, tmp_path):
    model = write_chatml(tmp_path / "model")
    messages = [{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "It is 2."}]
    shard = tmp_path / "chats.jsonl"
    shard.write_text(json.dumps({"messages": messages}) + "\n")
    own = config(tokenizer_path=str(model), use_sft=True, grain_packing_type="best_fit")
    dataset = maxtext.make_dataset(own, {str(shard): 1.0}, ["messages"], batch_size=1, epochs=1)
    batch = next(iter(dataset))
    trained = batch["targets"][batch["targets_segmentation"] != 0]
    assert "It is 2." in gm.Encoder.from_pretrained(model).decode(trained)
    assert "1 + 1" not in gm.Encoder.from_pretrained(model).decode(trained)


def test_ids_are_read_as_they_are(config, tmp_path):
    shard = tmp_path / "ids.jsonl"
    shard.write_text("".join(json.dumps({"ids": [5 + number, 6, 7]}) + "\n" for number in range(4)))
    own = config(tokenize_train_data=False, grain_packing_type="best_fit")
    dataset = maxtext.make_dataset(own, {str(shard): 1.0}, ["ids"], batch_size=1, epochs=1)
    batch = next(iter(dataset))
    assert batch["inputs"][0, :12].tolist() == [5, 6, 7, 6, 6, 7, 7, 6, 7, 8, 6, 7]
    assert batch["targets"][0, :6].tolist() == [6, 7, 0, 6, 7, 0]


@pytest.mark.parametrize(
    "more",
    [
        {"use_dpo": True},
        {"tokenize_train_data": False, "use_sft": True, "train_data_columns": ["messages"]},
        {"formatting_func_path": "a.b"},
        {"is_offline_distillation": True},
        {"train_data_columns": ["a", "b"]},
        {"train_data_columns": ["a", "b"], "use_sft": True},
        {"chat_template_path": "missing.jinja", "use_sft": True, "train_data_columns": ["messages"]},
        {"gristmill": {"lane": 3}},
        {"gristmill": {"date": "2026-11-28"}},
        {"gristmill": {"lanes": 3}},
        {"max_target_length": 0},
    ],
)
def test_errors_name_the_key_of_the_config(config, mesh, more):
    with pytest.raises(ValueError, match="|".join(more)) as caught:
        maxtext.make_gristmill_train_iterator(config(**more), mesh)
    if more.get("gristmill") == {"lane": 3}:
        assert all(name in str(caught.value) for name in SETTINGS)


def test_keys_of_the_config_are_arguments(config, parquet, tmp_path):
    settings = {"seed": 7, "lanes": 1, "shuffle_window": 5, "on_error": "quarantine", "max_error_rate": 0.5}
    own = config(gristmill=settings)
    made = maxtext.make_dataset(own, sources_of(parquet), ["text"], batch_size=4, epochs=1, seed=3)
    expected = gm.PackedDataset(
        parquet, tokenizer=own.tokenizer_path, sequence_length=LENGTH, batch_size=4, truncation="right", **settings
    )
    assert made.fingerprint == expected.fingerprint
    # Evaluation is in order, and its lanes follow from its own files.
    evaluation = maxtext.make_dataset(own, sources_of(parquet), ["text"], batch_size=4, epochs=1, is_training=False)
    assert evaluation.fingerprint != made.fingerprint
    assert "seed" not in evaluation.fingerprint

    model = write_chatml(tmp_path / "model")
    options = {"date": "2026-11-28", "template_kwargs": {"a": 1}, "on_lost_reasoning": "ignore", "on_untrained": "drop"}
    own = config(tokenizer_path=str(model), use_sft=True, gristmill={**options, "split_bytes": 100})
    shard = tmp_path / "a.jsonl"
    shard.write_text(json.dumps({"messages": []}))
    made = maxtext.make_dataset(own, sources_of(str(shard)), ["messages"], batch_size=2, epochs=1)
    sample = gm.Chat(**options, string_arguments="keep")
    expected = gm.PackedDataset(
        shard, tokenizer=model, sample=sample, sequence_length=LENGTH, batch_size=2, truncation="right", split_bytes=100
    )
    assert made.fingerprint == expected.fingerprint


def test_sources_keep_their_names_through_stages(config, parquet, tmp_path):
    file = tmp_path / "mixture.json"
    file.write_text(json.dumps({name: {"path": parquet, "weight": 1} for name in ("web", "code")}))
    named = {"grain_train_files": "", "grain_train_mixture_config_path": str(file)}
    stages = [[0, {"web": 1.0, "code": 0.0}], [2, {"web": 0.0, "code": 1.0}]]
    own = config(**named, gristmill={"stages": stages})
    made = maxtext.make_dataset(own, sources_of("", str(file)), ["text"], batch_size=4, epochs=1)
    with iter(made) as batches:
        rows = [next(batches) and {n: s["rows"] for n, s in batches.stats()["sources"].items()} for _ in range(4)]
    assert rows == [{"web": 4, "code": 0}, {"web": 8, "code": 0}, {"web": 8, "code": 4}, {"web": 8, "code": 8}]
    assert list(sources_of("/data/a b/*.parquet,1;gs://x/*,2")) == ["_data_a_b_.parquet", "gs_x_"]
    with pytest.raises(ValueError, match="grain_train_mixture_config_path"):
        sources_of("a*,1;a*,2")
    for files in ("a*,1;b*,half", "a*,1;b*", "a*,1;"):
        with pytest.raises(ValueError, match="expected glob,weight;glob,weight"):
            sources_of(files)


def test_changed_weights_say_how_to_write_stages(config, mesh, parquet, tmp_path):
    file = tmp_path / "mixture.json"

    def iterator(weight, **settings):
        file.write_text(json.dumps({n: {"path": parquet, "weight": w} for n, w in {"a": 1, "b": weight}.items()}))
        named = {"grain_train_files": "", "grain_train_mixture_config_path": str(file)}
        return maxtext.make_gristmill_train_iterator(config(**named, gristmill=settings), mesh)

    first = iterator(1)
    next(first)
    state = first.local_iterator.get_state()
    with pytest.raises(gm.StateError, match=r"gristmill\.stages") as caught:
        iterator(3).local_iterator.set_state(state)
    # As the message says.
    stages = json.loads(str(caught.value).split("gristmill.stages: ")[1])
    assert stages == [[0, {"a": 1.0, "b": 1.0}], [1, {"a": 1.0, "b": 3.0}]]
    resumed = iterator(3, stages=stages)
    resumed.local_iterator.set_state(state)
    next(resumed)


@pytest.mark.parametrize("columns", [["prompt", "completion"], ["answer", "question"], ["instruction", "output"]])
def test_columns_become_conversations(config, tmp_path, columns):
    model = write_chatml(tmp_path / "model")
    asked, answered = sorted(columns, key=["prompt", "question", "instruction", "completion", "answer", "output"].index)
    shard, chats = tmp_path / "a.jsonl", tmp_path / "chats.jsonl"
    pairs = [("Hi\n1", "It is 1."), ("", "2")]
    shard.write_text("".join(json.dumps({asked: q, answered: a, "other": 1}) + "\n" for q, a in pairs))
    messages = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]
    chats.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in messages))
    own = config(tokenizer_path=str(model), use_sft=True, grain_packing_type="best_fit")
    found, expected = (
        next(iter(maxtext.make_dataset(own, {str(path): 1.0}, names, batch_size=1, epochs=1)))
        for path, names in ((shard, columns), (chats, ["messages"]))
    )
    for name in KEYS:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("kind", ["first_fit", "concat_then_split"])
@pytest.mark.parametrize("use_sft", [False, True])
def test_long_documents_are_cut_before_they_are_packed(config, tmp_path, kind, use_sft):
    model = write_chatml(tmp_path / "model")
    shard = tmp_path / "long.jsonl"
    turns = [{"role": "user", "content": "Repeat"}, {"role": "assistant", "content": "red green " * 80}]
    shard.write_text((json.dumps({"messages": turns, "text": "the ant " * 200}) + "\n") * 3)
    own = config(tokenizer_path=str(model), use_sft=use_sft, grain_packing_type=kind, max_target_length=64)
    columns = ["messages" if use_sft else "text"]
    for truncates, rows in ((True, 3), (False, 3 if use_sft else None)):
        own.use_truncation = truncates
        found = list(maxtext.make_dataset(own, {str(shard): 1.0}, columns, batch_size=1, epochs=1))
        assert len(found) == rows if rows else len(found) > 3
        if rows:
            assert all((batch["inputs_position"] == np.arange(64)).all() for batch in found)


def test_chat_template_is_read_from_its_file(config, tmp_path):
    model = write_chatml(tmp_path / "model")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    (tmp_path / "t.jinja").write_text(template)
    (tmp_path / "t.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    fingerprints = {
        maxtext.make_dataset(
            config(tokenizer_path=str(model), use_sft=True, sft_train_on_completion_only=False, **more),
            sources_of(str(tmp_path / "a.jsonl")),
            ["messages"],
            batch_size=1,
            epochs=1,
        ).fingerprint
        for more in (
            {"chat_template": template},
            {"chat_template_path": str(tmp_path / "t.jinja")},
            {"chat_template_path": str(tmp_path / "t.json")},
        )
    }
    assert len(fingerprints) == 1


def test_rows_that_no_step_uses_are_padding_and_lose_nothing(config, parquet):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "fsdp"))
    own = config(global_batch_size_to_load=8, global_batch_size_to_train_on=3)
    loaded = maxtext.make_gristmill_train_iterator(own, mesh)
    expected = maxtext.make_dataset(own, sources_of(parquet), ["text"], batch_size=3, epochs=1)
    for batch, rows in zip(loaded.local_iterator, expected, strict=True):
        assert batch["inputs"].shape == (8, LENGTH)
        for name in KEYS:
            np.testing.assert_array_equal(batch[name][:3], rows[name])
            assert not np.asarray(batch[name][3:]).any()


def test_skipped_steps_of_the_training_are_left_out(config, mesh):
    own = {"grain_eval_files": config().grain_train_files, "eval_interval": 1}
    batches = [batch["inputs"] for batch in maxtext.make_gristmill_train_iterator(config(**own), mesh).local_iterator]
    skipping = config(**own, gristmill={"skip": [[1, 3]]})
    train, evaluation = maxtext.make_gristmill_iterators(skipping, mesh)
    found = [next(train.local_iterator)["inputs"] for _ in range(2)]
    np.testing.assert_array_equal(np.array(found), np.array([batches[0], batches[3]]))
    assert train.local_iterator.get_state()["step"] == 4
    assert evaluation.dataloader.skip == []
    train.close()
    evaluation.close()


@pytest.mark.parametrize("use_sft", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_missing_column_names_the_key_of_the_config(config, mesh, tmp_path, kind, use_sft):
    model = write_chatml(tmp_path / "model")
    path = tmp_path / f"other.{kind}"
    if kind == "jsonl":
        path.write_text('{"other": "a"}\n')
    else:
        pq.write_table(pa.table({"other": ["a"]}), path)
    columns = ["prompt", "completion"] if use_sft else ["text"]
    own = config(grain_train_files=str(path), use_sft=use_sft, train_data_columns=columns, tokenizer_path=str(model))
    with pytest.raises(
        maxtext.LoadError, match=r"other\..*found .*(set|with|in) train_data_columns \(eval_data_columns\)"
    ):
        next(maxtext.make_gristmill_train_iterator(own, mesh))


def test_failed_load_is_no_exception_that_ends_the_training_quietly(config, mesh, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps({"text": "the ant " * 40}) + "\n" for _ in range(40)) + '{"text": 3}\n')
    iterator = maxtext.make_gristmill_train_iterator(config(grain_train_files=str(path)), mesh)
    batches, steps = iterator.local_iterator, itertools.count()
    with pytest.raises(maxtext.LoadError, match=r"process 0: .*bad\.jsonl: record 40.*gristmill\.on_error") as caught:
        all(next(batches) and next(steps) >= 0 for _ in itertools.count())
    steps = next(steps)
    assert steps > 0
    assert not isinstance(caught.value, Exception)
    assert iterator.local_iterator.get_state()["step"] == steps
    iterator.close()
    skipping = config(grain_train_files=str(path), gristmill={"on_error": "quarantine", "max_error_rate": 1.0})
    assert sum(1 for _ in maxtext.make_gristmill_train_iterator(skipping, mesh)) >= steps


def hosts_config(config, path, **more):
    """A config as a plain dict, for another process."""
    return vars(config(grain_train_files=str(path), grain_eval_files=str(path), global_batch_size_to_load=8, **more))


@pytest.mark.slow
def test_hosts_with_too_few_files_or_rows_have_the_same_stream(tmp_path, config, parquet):
    two_files = tmp_path / "*.jsonl"
    for number in range(2):
        lines = (json.dumps({"text": f"the ant {number} {line} " * 9}) + "\n" for line in range(60 - 25 * number))
        (tmp_path / f"{number}.jsonl").write_text("".join(lines))
    cases = [
        {"config": hosts_config(config, path, global_batch_size_to_train_on=used, global_batch_size_to_load_eval=8)}
        for path, used in ((parquet, 8), (parquet, 3), (two_files, 8), (two_files, 4), (two_files, 2))
    ]
    programs = {"programs": [("maxtext_config", case | {"fails": None}) for case in cases]}
    (expected,) = run_hosts(tmp_path / "1", "several", programs, hosts=1)
    assert all(len(case["train"]) > 2 < len(case["evaluation"]) for case in expected)
    for hosts in (2, 4):
        for found in run_hosts(tmp_path / str(hosts), "several", programs, hosts=hosts):
            assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["record", "interrupt", "file"])
def test_failure_of_one_host_ends_all_after_the_same_step(tmp_path, config, fails):
    for host in range(2):
        records = [{"text": f"the ant {number} " * 9} for number in range(200)]
        if host and fails == "record":
            records[150] = {"text": None}
        (tmp_path / f"{host}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    own = hosts_config(config, tmp_path / "*.jsonl", global_batch_size_to_load_eval=8)
    results = run_hosts(tmp_path / "run", "maxtext_config", {"config": own, "fails": fails}, hosts=2)
    expected = {
        "record": r"process 1: .*1\.jsonl: record 150",
        "interrupt": "process 1: interrupted",
        "file": "process 1",
    }
    assert results[0]["train"] == results[1]["train"]
    assert results[0]["states"] == results[1]["states"]
    assert (fails == "file") == (not results[0]["train"])
    for result in results:
        assert re.search(expected[fails] if fails != "file" else "no such file", result["error"]), result["error"]


@pytest.mark.slow
def test_state_saved_on_two_hosts_resumes_on_four_and_one(tmp_path, texts, tokenizer_file):
    for number, count in enumerate((40, 10, 3, 25)):
        write_shard(tmp_path / f"{number}.json.gz", [text[:700] for text in texts[: count + number]])
    arguments = {
        "dataset": gm.PackedDataset(
            str(tmp_path / "*.json.gz"),
            tokenizer=str(tokenizer_file),
            text_field="raw_content",
            sequence_length=64,
            batch_size=8,
            lanes=4,
            seed=2,
            packing="best_fit",
        ),
        "after": 3,
    }
    two = run_hosts(tmp_path / "two", "maxtext_stream", {**arguments, "state": None}, hosts=2)
    assert two[0]["state"] == two[1]["state"]
    assert sorted(two[0]["state"]["lanes"]) == ["0", "1", "2", "3"]
    for hosts in (4, 1):
        resumed = run_hosts(
            tmp_path / f"{hosts}", "maxtext_stream", {**arguments, "state": two[0]["state"]}, hosts=hosts
        )
        for result in resumed:
            assert result["rest"] == two[0]["rest"]


class TestBesideMaxText:
    """MaxText's own pipeline, config and checkpoints."""

    @pytest.fixture(scope="class")
    def theirs(self):
        return pytest.importorskip(
            "maxtext.input_pipeline.input_pipeline_interface", reason="MaxText is not installed: make test-maxtext"
        )

    @pytest.fixture
    def initialize(self, theirs, parquet, tokenizer, tmp_path):
        """A config of MaxText, as its command line makes it, and its mesh."""
        from maxtext.configs import pyconfig

        def initialize(**more):
            values = {
                "run_name": "test",
                "base_output_directory": str(tmp_path),
                "dataset_type": "grain",
                "per_device_batch_size": 8,
                "skip_jax_distributed_system": True,
                "hardware": "cpu",
                **settings(parquet, tokenizer, **more),
            }
            path = pyconfig.__file__.replace("pyconfig.py", "base.yml")
            config = pyconfig.initialize(["", path], **values)
            devices = np.array(jax.devices()[:1]).reshape((1,) * len(config.mesh_axes))
            return config, jax.sharding.Mesh(devices, config.mesh_axes)

        return initialize

    @pytest.mark.parametrize("size", [2, 4])
    def test_zigzag_is_its_order_of_context_parallelism(self, theirs, size):
        from maxtext.utils.max_utils import reorder_sequence

        batch = {name: np.arange(64, dtype=np.int32).reshape(2, 32) for name in sorted(KEYS)}
        for name, array in gm.context_parallel(batch, size).items():
            np.testing.assert_array_equal(array, reorder_sequence(batch[name], size), err_msg=name)

    def test_diffs_of_the_guide_fit_its_files(self, theirs):
        """Lines that are there, and removed ones, follow one another in the files that the diffs name."""
        folder = Path(theirs.__file__).parents[1]
        page = (ROOT / "docs" / "coming-from-maxtext.md").read_text()
        checked = 0
        for block in re.findall(r"^```diff\n # (\S+\.py).*\n((?:.*\n)*?)^```", page, re.MULTILINE):
            for path, lines in re.findall(r"^ # (\S+\.py).*\n((?:(?! # ).*\n)*)", f" # {block[0]}\n{block[1]}", re.M):
                old = [line[1:] for line in lines.splitlines() if line[:1] in " -"]
                assert "\n".join(old) in (folder / path).read_text(), (path, old)
                checked += bool(old)
        assert checked == 3

    @pytest.mark.parametrize(
        "more",
        [
            {"grain_packing_type": "concat_then_split"},
            {"packing": False, "max_target_length": 64},
            {"packing": False, "max_target_length": 64, "use_truncation": False},
            {"grain_packing_type": "concat_then_split", "max_target_length": 24},
        ],
        ids=["concat", "pad", "split", "concat of cut texts"],
    )
    def test_batches_are_those_of_its_grain_pipeline(self, initialize, theirs, more):
        config, mesh = initialize(**more)
        from maxtext.input_pipeline.grain_data_processing import make_grain_train_iterator

        expected = make_grain_train_iterator(config, mesh, [0])
        found = maxtext.make_gristmill_train_iterator(config, mesh, [0])
        for _ in range(8):
            assert_same(next(found), next(expected))

    @pytest.mark.parametrize("columns", [["messages"], ["prompt", "completion"], ["question", "answer"]])
    def test_conversations_have_its_ids_and_are_trained_up_to_their_stop(self, initialize, tmp_path, columns):
        from maxtext.input_pipeline.grain_data_processing import make_grain_train_iterator

        turns = [("Hi 1", "the ant"), ("2 + 2?", "4"), ("more", "no ant")]
        records = [
            {
                "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}],
                "prompt": asked,
                "completion": said,
                "question": asked,
                "answer": said,
            }
            for asked, said in turns * 4
        ]
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "chats.parquet")
        model = write_chatml(tmp_path / "model")
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (model / "tokenizer_config.json").write_text(json.dumps(names))
        config, mesh = initialize(
            grain_train_files=str(tmp_path / "chats.parquet"),
            tokenizer_path=str(model),
            add_eos=False,
            packing=False,
            use_sft=True,
            sft_train_on_completion_only=True,
            train_data_columns=columns,
        )
        expected = next(make_grain_train_iterator(config, mesh, [0]))
        found = next(maxtext.make_gristmill_train_iterator(config, mesh))
        is_token = np.asarray(expected["inputs_segmentation"]) != 0
        np.testing.assert_array_equal(np.asarray(found["inputs_segmentation"]) != 0, is_token)
        np.testing.assert_array_equal(np.asarray(found["inputs"])[is_token], np.asarray(expected["inputs"])[is_token])
        decode = gm.Encoder.from_pretrained(model).decode
        for row, (_, said) in enumerate((turns * 4)[: len(is_token)]):
            ours, theirs = (
                decode(np.asarray(batch["targets"][row])[np.asarray(batch["targets_segmentation"][row]) != 0])
                for batch in (found, expected)
            )
            assert (ours, theirs) == (f"{said}<|im_end|>", f"{said}<|im_end|>\n")

    def test_recipe_of_the_guide_has_its_pairs(self, theirs, tokenizer, tmp_path, monkeypatch):
        import grain
        from maxtext.input_pipeline.dpo_utils import DPODataFormatting
        from maxtext.input_pipeline.grain_tokenizer import TokenizeAndTrim
        from maxtext.input_pipeline.tokenizer import build_tokenizer

        page = (ROOT / "docs" / "coming-from-maxtext.md").read_text()
        (code,) = re.findall(r"^```python\n((?:(?!```).*\n)*?class DPOIterator(?:.*\n)*?)^```", page, re.MULTILINE)
        monkeypatch.chdir(tmp_path)
        recipe = {}
        exec(code[: code.index("lengths = ")], recipe)
        columns = ("prompt", "chosen", "rejected")
        lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
        length, most = 20, 12
        transforms = [
            TokenizeAndTrim(columns, length, build_tokenizer(tokenizer, "huggingface", False, False, None)),
            DPODataFormatting(-1, length, columns, most),
        ]
        expected = grain.MapDataset.source([json.loads(line) for line in lines])
        for transform in transforms:
            expected = expected.map(transform)
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
        lengths = {"max_prompt_length": most, "max_target_length": length}
        found = recipe["DPOIterator"]("pairs.jsonl", mesh, batch_size=8, tokenizer=tokenizer, **lengths)
        batch = next(found)
        for row in range(8):
            pair = expected[row]  # once: it changes the record
            for name, array in pair.items():
                mask = pair[name.replace("_ids", "_mask")] != 0
                np.testing.assert_array_equal(np.asarray(batch[name][row])[mask], array[mask], name)
                assert batch[name][row].shape == array.shape

    def test_conversations_of_the_guide_are_its_pairs(self, theirs, tokenizer, tmp_path):
        from maxtext.input_pipeline.dpo_utils import DPODataFormatting

        page = (ROOT / "docs" / "prompts.md").read_text()
        (code,) = re.findall(r"^(def for_maxtext\(.*\n(?:(?: .*)?\n)*)", page, re.MULTILINE)
        guide = {"np": np}
        exec(code, guide)
        model = write_chatml(tmp_path / "model")
        rows = [
            {
                "chosen": [
                    {"role": "user", "content": f"{n}?" * n},
                    {"role": "assistant", "content": "yes " * n + "."},
                ],
                "rejected": [{"role": "user", "content": f"{n}?" * n}, {"role": "assistant", "content": "no"}],
            }
            for n in range(1, 8)
        ]
        prompt = {name: gm.Chat(name, train_on="last") for name in ("chosen", "rejected")}
        pairs = gm.PromptDataset(rows, tokenizer=model, prompt=prompt, layout="ragged", batch_size=len(rows))
        batch = next(iter(pairs))
        lengths, pad = (24, 16), -1
        found = guide["for_maxtext"](batch, *lengths, pad)
        template = gm.ChatTemplate.from_pretrained(model)
        formatting = DPODataFormatting(pad, sum(lengths), ("chosen", "rejected"), lengths[0])
        ids = [{name: template.encode(messages, train_on=None)[0] for name, messages in row.items()} for row in rows]
        assert len(ids[0]["chosen"]) < sum(lengths) < len(ids[-1]["chosen"])
        for row, record in enumerate(ids):
            expected = formatting.map(record)
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name][row], array, name)

    def test_its_checkpoints_hold_one_file_and_restore(self, initialize, tmp_path):
        from maxtext.common import grain_utility
        from orbax.checkpoint import v1 as ocp

        config, mesh = initialize()
        iterator, _ = maxtext.make_gristmill_iterators(config, mesh)
        for _ in range(3):
            next(iterator)
        with ocp.training.Checkpointer(tmp_path / "checkpoints") as checkpointer:
            checkpointer.save_checkpointables(3, {"iter": grain_utility.for_save(3, iterator, -1)})
        expected = [next(iterator) for _ in range(3)]
        assert [path.name for path in (tmp_path / "checkpoints/3/iter").glob("process*")] == ["process_0.json"]
        again, _ = maxtext.make_gristmill_iterators(config, mesh)
        with ocp.training.Checkpointer(tmp_path / "checkpoints") as checkpointer:
            restore = {"iter": grain_utility.for_restore(checkpointer, 3, again, -1)}
            checkpointer.load_checkpointables(3, restore)
        for batch in expected:
            for name, array in next(again).items():
                np.testing.assert_array_equal(array, batch[name])


def assert_same(found, expected):
    """Asserts that ids, segments and positions are equal; and targets, where they are in the token's document."""
    assert found.keys() == expected.keys() == KEYS
    found, expected = ({name: np.asarray(array) for name, array in batch.items()} for batch in (found, expected))
    is_token = expected["inputs_segmentation"] != 0
    for name in ("inputs_segmentation", "inputs_position"):
        np.testing.assert_array_equal(found[name], expected[name], name)
    np.testing.assert_array_equal(found["inputs"][is_token], expected["inputs"][is_token])
    has_target = (found["targets_segmentation"] != 0) & (expected["targets_segmentation"] != 0)
    np.testing.assert_array_equal(found["targets"][has_target], expected["targets"][has_target])
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in expected.items()
    }
    # Theirs alone: the first token of the next document; ours alone: the token after the row.
    segments = found["inputs_segmentation"]
    boundary = segments[:, :-1] != segments[:, 1:]
    differs = ((found["targets_segmentation"] != 0) != (expected["targets_segmentation"] != 0))[:, :-1]
    assert not (differs & ~boundary).any()
