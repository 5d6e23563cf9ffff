"""Levanter's caches and its data loader over gristmill; `make test-levanter` installs Levanter."""

import asyncio
import itertools
import json

import numpy as np
import pytest

import gristmill as gm
from helpers import write_shard

pytest.importorskip("levanter", reason="Levanter is not installed: make test-levanter")
levanter = pytest.importorskip("gristmill.integrations.levanter")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LENGTH, ROWS = 64, 4


@pytest.fixture(scope="module")
def folder(tokenizer_file):
    """The tokenizer, as Levanter reads it."""
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (tokenizer_file.parent / "tokenizer_config.json").write_text(json.dumps(names))
    return str(tokenizer_file.parent)


@pytest.fixture(scope="module")
def theirs(folder):
    from levanter.tokenizers import load_tokenizer

    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def ours(folder):
    return levanter.load_tokenizer(folder)


class TestTokenizer:
    def test_ids_are_those_of_its_own_backend(self, ours, theirs, texts):
        assert ours.encode_batch(texts) == theirs.encode_batch(texts)
        assert ours.encode_batch(texts[:9], add_special_tokens=True) == theirs.encode_batch(
            texts[:9], add_special_tokens=True
        )
        for text in texts[:20]:
            for special in (False, True):
                assert ours.encode(text, add_special_tokens=special) == theirs.encode(text, add_special_tokens=special)

    def test_batch_tokenizer_and_its_metadata_are_the_same(self, ours, theirs, texts):
        from levanter.data.text._batch_tokenizer import BatchTokenizer

        batch = [{"text": text} for text in texts[:100]]
        found, expected = BatchTokenizer(ours), BatchTokenizer(theirs)
        assert found(batch) == expected(batch)
        assert found.metadata == expected.metadata

    def test_long_runs_are_not_cut(self, ours, theirs):
        """The ids are those of the library for the whole text."""
        text = "abcdefghij" * 7_001
        assert ours.encode(text) == theirs._tokenizer.encode(text, add_special_tokens=False).ids

    def test_config_takes_it_for_its_caches(self, folder):
        from levanter.data.text.datasets import LmDataConfig

        config = levanter.with_gristmill(LmDataConfig(tokenizer=folder))
        assert isinstance(config.the_tokenizer, levanter.GristmillTokenizer)
        with pytest.raises(gm.ArgumentTypeError, match="load_tokenizer"):
            levanter.GristmillTokenizer.of("gpt2")

    def test_cache_is_read_by_levanter_alone(self, ours, theirs, texts, tmp_path):
        from levanter.data.sharded_datasource import UrlDataSource
        from levanter.data.text.cache import build_lm_dataset_cache, load_lm_dataset_cache
        from levanter.data.text.formats import TextLmDatasetFormat

        path = tmp_path / "train.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:50]))
        form = TextLmDatasetFormat()
        build_lm_dataset_cache(str(tmp_path / "cache" / "train"), UrlDataSource([str(path)]), form, ours)
        cache = load_lm_dataset_cache(str(tmp_path / "cache" / "train"), form, theirs)
        expected = form.build_preprocessor(theirs)([{"text": text} for text in texts[:50]])
        found = asyncio.run(cache.get_batch(list(range(50))))
        for one, other in zip(found, expected, strict=True):
            assert one["input_ids"].tolist() == other["input_ids"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("shards")
    for number, count in enumerate((40, 10, 30, 25)):
        write_shard(folder / f"{number}.json.gz", [text[:300] for text in texts[number * 40 : number * 40 + count]])
    return str(folder / "*.json.gz")


def dataset_of(shards, folder, **more):
    arguments = {"text_field": "raw_content", "sequence_length": LENGTH, "batch_size": ROWS, "epochs": None, "seed": 3}
    return gm.PackedDataset(shards, tokenizer=folder, **{**arguments, **more})


def examples(stream, indices):
    return asyncio.run(stream.get_batch(indices))


class TestStream:
    @pytest.fixture
    def dataset(self, shards, folder):
        return dataset_of(shards, folder)

    @pytest.fixture
    def rows(self, dataset):
        batches = itertools.islice(dataset, 12)
        return [dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True)]

    def test_rows_have_their_index(self, dataset, rows):
        stream = levanter.StreamDataset(dataset)
        assert not stream.is_finite()
        for row, example in zip(rows, examples(stream, range(len(rows))), strict=True):
            np.testing.assert_array_equal(example.tokens, row["inputs"])
        stream.close()

    @pytest.mark.parametrize("window", [1, 8, 4096])
    def test_rows_are_found_in_any_order(self, dataset, rows, window):
        stream = levanter.StreamDataset(dataset, window=window, state_every=2)
        order = np.random.default_rng(1).permutation(len(rows)).tolist()
        for indices in ([5], [40, 3, 3], *itertools.batched(order, 7)):
            for index, example in zip(indices, examples(stream, indices), strict=True):
                np.testing.assert_array_equal(example.tokens, rows[index]["inputs"])
        stream.close()

    def test_loss_and_segments_keep_documents_apart(self, dataset, rows, theirs):
        """Segments are those that Levanter finds by EOS; nothing is trained across documents."""
        from levanter.data.text.examples import GrugLmExample

        stream = levanter.StreamDataset(dataset)
        for row, example in zip(rows, examples(stream, range(len(rows))), strict=True):
            expected = GrugLmExample.causal(example.tokens, eos_id=theirs.eos_token_id)
            segments = np.asarray(example.attn_mask.segment_ids[0])
            np.testing.assert_array_equal(segments, np.asarray(expected.attn_mask.segment_ids[0]))
            inside = np.append(segments[:-1] == segments[1:], False)
            np.testing.assert_array_equal(np.asarray(example.loss_weight), inside.astype(np.float32))
            assert (row["inputs_segmentation"] > 0).all()
        stream.close()

    def test_padding_is_in_no_document(self, shards, folder):
        stream = levanter.StreamDataset(dataset_of(shards, folder, packing="best_fit"))
        padded = 0
        for example in examples(stream, range(24)):
            segments = np.asarray(example.attn_mask.segment_ids[0])
            padded += (segments == -1).sum()
            assert not np.asarray(example.loss_weight)[segments == -1].any()
        assert padded
        stream.close()

    def test_states_of_a_folder_make_restarts_short(self, dataset, rows, tmp_path):
        stream = levanter.StreamDataset(dataset, state_folder=tmp_path, state_every=3)
        examples(stream, range(len(rows)))
        stream.close()
        assert {path.name for path in tmp_path.iterdir()} == {f"step_{step}.json" for step in (3, 6, 9, 12)}
        again = levanter.StreamDataset(dataset, state_folder=tmp_path, state_every=3, window=2 * ROWS)
        (example,) = examples(again, [46])
        np.testing.assert_array_equal(example.tokens, rows[46]["inputs"])
        assert sorted(again._steps) == [10, 11]
        assert again._iterator.stats()["batches"] == 12
        again.close()

    def test_states_of_another_stream_are_refused(self, dataset, shards, folder, tmp_path):
        stream = levanter.StreamDataset(dataset, state_folder=tmp_path, state_every=3)
        examples(stream, [20])
        stream.close()
        with pytest.raises(gm.StateError, match="seed"):
            levanter.StreamDataset(dataset_of(shards, folder, seed=4), state_folder=tmp_path)
        (tmp_path / "step_9.json").write_text((tmp_path / "step_6.json").read_text())
        with pytest.raises(gm.StateError, match="expected the state of step 9, got that of step 6"):
            levanter.StreamDataset(dataset, state_folder=tmp_path)

    def test_its_loader_delivers_what_a_list_of_the_rows_gives(self, dataset, rows, folder):
        """As its trainer does: a mixture, which permutes rows within blocks, from a batch on."""
        import haliax
        import jax
        from haliax.partitioning import set_mesh
        from levanter.data.dataset import ListAsyncDataset
        from levanter.data.loader import DataLoader
        from levanter.data.text.datasets import DirectDatasetComponent, LmDataConfig
        from levanter.schedule import BatchSchedule

        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))

        def tokens(data):
            component = DirectDatasetComponent(datasets={"train": data})
            config = LmDataConfig(
                tokenizer=folder, components={"rows": component}, shuffle=False, mixture_block_size=16
            )
            train = config.train_set(haliax.Axis("position", LENGTH), BatchSchedule(8), key=jax.random.PRNGKey(0))
            with set_mesh(mesh):
                loader = DataLoader(
                    train, 8, mesh=mesh, axis_resources={"batch": "data"}, max_buffered_batches=0, fetch_batch_size=1
                )
                batches = loader.iter_from_step(1)
                found = [np.asarray(batch.tokens.array) for batch in itertools.islice(batches, 4)]
                batches.close()
            return np.stack(found)

        stream = levanter.StreamDataset(dataset, window=32, state_every=2)
        whole = examples(stream, range(len(rows)))
        np.testing.assert_array_equal(tokens(stream), tokens(ListAsyncDataset(whole)))
        stream.close()

    @pytest.mark.parametrize(
        "more", [{"epochs": 1}, {"batch_size": None}, {"lanes": 2, "shard_count": 2}, {"layout": "hf"}]
    )
    def test_other_datasets_are_refused(self, shards, folder, more):
        with pytest.raises(gm.ArgumentError):
            levanter.StreamDataset(dataset_of(shards, folder, **more))
