"""URLs of stores wherever a file is named: sidecars, row lists, manifests, prompts, mixtures and the command line."""

import json
import pickle

import numpy as np
import pytest

import gristmill as gm
from command_line import checked, fails, run_json
from gristmill import _core, filters
from gristmill._shards.indexes import make_indexes
from helpers import assert_same_batches
from object_store import Server
from red_pajama import OPTION, SIGNALS, RedPajama

GLOB = "gs://bucket/documents/*/*/*.json.gz"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return RedPajama(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def objects(corpus):
    rows = "".join(f"{base}.json.gz/{row}\n" for base in corpus.documents for row in (0, 7, 8))
    (corpus.root / "rows.txt").write_text(rows)
    paths = (path for path in corpus.root.rglob("*") if path.is_file())
    return {f"bucket/{path.relative_to(corpus.root)}": path.read_bytes() for path in paths}


@pytest.fixture
def server(objects):
    with Server(objects) as server:
        yield server


def storage(server):
    """The options of a command that lead to a server."""
    return [word for pair in server.options().items() for word in ("--storage-option", "=".join(pair))]


def remote(server, encoder, shards=GLOB, **arguments):
    given = {"sequence_length": 32, "batch_size": 4, "text_field": "raw_content"}
    return gm.PackedDataset(shards, tokenizer=encoder, storage_options=server.options(), **{**given, **arguments})


def test_sidecars_lie_beside_shards_in_a_store(corpus, server, encoder):
    local = corpus.dataset(encoder, batch_size=4, provenance=False)
    found = remote(server, encoder, keep=filters.gopher, sidecars=SIGNALS)
    assert found.fingerprint == local.fingerprint
    assert_same_batches(found, local)


def test_sidecars_in_a_store_of_local_shards(corpus, server, encoder):
    folder = f"{corpus.root}/documents"
    sidecar = gm.Sidecar(folder, "gs://bucket/quality_signals", ".json.gz", ".signals.json.gz")
    found = remote(server, encoder, corpus.glob(), keep=filters.gopher, sidecars={"signals": sidecar})
    assert_same_batches(found, corpus.dataset(encoder, batch_size=4, provenance=False))


def test_missing_sidecar_is_named(server, encoder):
    del server.objects["bucket/quality_signals/2023-06/0000/en_head.signals.json.gz"]
    message = "'gs://bucket/quality_signals/2023-06/0000/en_head.signals.json.gz', the sidecar 'signals' of 'gs://"
    with pytest.raises(gm.MissingShardError, match=message):
        remote(server, encoder, keep=filters.gopher, sidecars=SIGNALS)


def test_row_list_in_a_store(corpus, server, encoder):
    rows = corpus.dataset(
        encoder,
        batch_size=4,
        provenance=False,
        keep=None,
        sidecars=None,
        drop=gm.RowList(str(corpus.root / "rows.txt")),
    )
    found = remote(server, encoder, drop=gm.RowList("gs://bucket/rows.txt"))
    assert found.fingerprint == rows.fingerprint
    assert_same_batches(found, rows)


def test_outage_of_a_row_list_is_no_bad_record(server, encoder):
    options = server.options(retry_timeout="0.2")
    manifest = gm.Manifest.find(GLOB, options)
    # Objects are found, and then not read.
    read, server.objects["bucket/rows.txt"] = server.objects["bucket/rows.txt"], b"x"
    named = gm.Manifest.find("gs://bucket/rows.txt", options)
    server.is_out = True
    files = [(path, size) for path, size in named]
    with pytest.raises(gm.GristmillError, match="the store did not answer") as raised:
        _core.RowList("", files, None, list(manifest.paths), named.storage_options)
    assert not isinstance(raised.value, gm.ShardError)
    server.objects["bucket/rows.txt"] = read


def test_texts_name_urls_without_backslashes():
    rows = gm.RowList.check("drop", "gs://bucket/a.parquet,s3://b/c.txt:column=doc_id")
    assert (rows.paths, rows.column) == (("gs://bucket/a.parquet", "s3://b/c.txt"), "doc_id")
    assert gm.RowList.check("drop", rows.text) == rows
    sidecar = gm.Sidecar.parse("sidecars", "gs://b/documents/:gs://b/signals/:match=id")
    assert sidecar.path_of("gs://b/documents/0/a.gz") == "gs://b/signals/0/a.gz"


@pytest.mark.parametrize("place", ["local", "store"])
def test_saved_manifest_stands_for_its_shards(corpus, server, encoder, tmp_path, place):
    path = str(tmp_path / "all.manifest.json") if place == "local" else "gs://bucket/all.manifest.json"
    dataset = remote(server, encoder, keep=filters.gopher, sidecars=SIGNALS)
    dataset.manifest.save(path)
    asked = len(server.requests)
    loaded = gm.Manifest.load(path, server.options())
    assert loaded == dataset.manifest
    for shards in (loaded, path, [path]):
        assert_same_batches(remote(server, encoder, shards, keep=filters.gopher, sidecars=SIGNALS), dataset)
    # Neither shards nor sidecars are listed, or asked for their sizes.
    assert all(method == "GET" and (span or "manifest" in key) for method, key, span in server.requests[asked:])


def test_saved_manifest_of_a_mount_is_that_of_the_bucket(corpus, server, tmp_path):
    local, path = gm.Manifest.find(corpus.glob()), tmp_path / "all.manifest.json"
    local.save(path)
    text = path.read_text().replace(f"{corpus.root}/", "gs://bucket/")
    path.write_text(text)
    moved = gm.Manifest.load(path, server.options())
    assert moved == gm.Manifest.find(GLOB, server.options())
    assert moved.fingerprint == local.fingerprint
    assert pickle.loads(pickle.dumps(moved)) == moved


def test_relative_paths_are_saved_from_the_root(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus.root / "documents")
    found = gm.Manifest.find("*/*/*.json.gz")
    found.save("../all.manifest.json")
    monkeypatch.chdir(tmp_path)
    loaded = gm.Manifest.load(corpus.root / "all.manifest.json")
    (corpus.root / "all.manifest.json").unlink()
    assert (loaded.fingerprint, loaded.sizes) == (found.fingerprint, found.sizes)
    assert loaded.paths == tuple(str(corpus.root / "documents" / path) for path in found.paths)


def test_wrong_manifests_are_errors(corpus, tmp_path, encoder):
    path = tmp_path / "all.manifest.json"
    found = gm.Manifest.find(corpus.glob())
    with pytest.raises(gm.ArgumentError, match=r"expected a name that ends in \.manifest\.json"):
        found.save(tmp_path / "all.json")
    with pytest.raises(gm.MissingShardError, match=r"no such file: .*, a saved manifest"):
        gm.Manifest.load(path)
    found.save(path)
    value = json.loads(path.read_text())
    for change, message in [
        ({"kind": "other"}, "expected a manifest that Manifest.save wrote"),
        ({"version": 2}, "expected version 1 of saved manifests, found 2"),
        ({"shards": {"a": 1}, "sidecars": {}}, "expected the shards of the fingerprint"),
        ({"shards": 1}, "found a damaged one"),
    ]:
        path.write_text(json.dumps({**value, **change}))
        with pytest.raises(gm.ArgumentError, match=message):
            gm.Manifest.load(path)
    path.write_text(json.dumps(value)[:-9])
    with pytest.raises(gm.ArgumentError, match="expected a saved manifest, found"):
        gm.PackedDataset(path, tokenizer=encoder)
    with pytest.raises(gm.ArgumentError, match="name a saved manifest alone"):
        gm.Manifest.find([path, corpus.glob()])


def test_globs_leave_saved_manifests_out(corpus, server):
    here = gm.Manifest.find(f"{corpus.root}/documents/**/*.json*")
    path = corpus.root / "documents" / "all.manifest.json"
    here.save(path)
    assert gm.Manifest.find(f"{corpus.root}/documents/**/*.json*") == here
    path.unlink()


def test_web_is_not_written(server):
    found = gm.Manifest.find(GLOB, server.options())
    with pytest.raises(gm.GristmillError, match="expected a store that can be written, found http://"):
        found.save(f"{server.url}/bucket/all.manifest.json")


def test_prompts_are_read_from_a_store(corpus, server, encoder):
    given = {"tokenizer": encoder, "prompt": gm.Text("raw_content"), "batch_size": 8, "keep": filters.gopher}
    local = gm.PromptDataset(corpus.glob(), sidecars=SIGNALS, **given)
    found = gm.PromptDataset(GLOB, sidecars=SIGNALS, storage_options=server.options(), **given)
    assert found.fingerprint == local.fingerprint
    for one, other in zip(found, local, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
    source = gm.Source(GLOB, weight=1, storage_options=server.options())
    mixed = gm.PromptDataset(gm.Mixture({"web": source}), **{**given, "keep": None})
    assert len(mixed) == 160


def test_outage_stops_prompts_without_a_bad_record(server, encoder):
    options = server.options(retry_timeout="0.2")
    manifest = gm.Manifest.find(GLOB, options)
    server.is_out = True
    with pytest.raises(gm.GristmillError, match="the store did not answer") as raised:
        gm.PromptDataset(manifest, tokenizer=encoder, prompt=gm.Text("raw_content"), batch_size=8)
    assert not isinstance(raised.value, gm.ShardError)


def test_inspect_looks_at_the_start_of_a_shard(capsys, server):
    rows = "".join(json.dumps({"raw_content": f"text {row} " * 99}) + "\n" for row in range(20_000))
    server.objects["bucket/large.jsonl"] = rows.encode()
    found = run_json(capsys, "inspect", "gs://bucket/large.jsonl", "--records", "10", *storage(server))
    assert (found["kind"], found["path"], found["bytes"]) == ("shard", "gs://bucket/large.jsonl", len(rows))
    assert found["records_read"] == 10
    spans = [span for method, _, span in server.requests if method == "GET"]
    assert spans == ["bytes=0-262143"]


def test_inspect_of_a_glob_names_a_shard(capsys, server):
    message = fails(capsys, "inspect", GLOB, *storage(server))
    assert "a glob needs --keep or --row; to inspect a shard, name it, such as 'gs://bucket/documents/2023" in message
    assert not [key for method, key, span in server.requests if span]


def test_inspect_filter_and_rows_in_a_store(capsys, corpus, server, tokenizer_file):
    options = ["--keep", filters.gopher, "--sidecar", OPTION]
    local = run_json(capsys, "inspect", corpus.glob(), *options)
    assert run_json(capsys, "inspect", GLOB, *options, *storage(server)) == local
    row = ["--row", "1", "--tokenizer", str(tokenizer_file), "--set", "batch_size=4", "--set", "text_field=raw_content"]
    local = run_json(capsys, "inspect", corpus.glob(), *row)
    found = run_json(capsys, "inspect", GLOB, *row, *storage(server))
    assert found["segments"][0]["shard"].startswith("gs://bucket/")
    assert [part["text"] for part in found["segments"]] == [part["text"] for part in local["segments"]]


def test_pack_and_verify_shards_in_a_store(capsys, corpus, server, tokenizer_file, tmp_path):
    options = ["--tokenizer", tokenizer_file, "--text-field", "raw_content", "--batch-size", "4"]
    here = run_json(capsys, "pack", corpus.glob(), "--output", tmp_path / "here", *options)
    there = run_json(capsys, "pack", GLOB, "--output", tmp_path / "there", *options, *storage(server))
    assert there["items"] == here["items"] > 0
    index = (tmp_path / "there" / "index.json").read_text()
    assert "aws_endpoint" not in index
    assert json.loads(index)["source"]["shards"] == [GLOB]
    same = "part-00000.npy"
    assert (tmp_path / "there" / same).read_bytes() == (tmp_path / "here" / same).read_bytes()
    assert run_json(capsys, "verify", tmp_path / "there", *storage(server))["equal"]


def test_mixture_file_names_stores(capsys, corpus, server, tokenizer_file, tmp_path):
    text = f"""
        tokenizer = {json.dumps(str(tokenizer_file))}
        batch_size = 4
        sequence_length = 32
        lanes = 1
        [sources.head]
        shards = "gs://bucket/documents/*/*/en_head.json.gz"
        text_field = "raw_content"
        weight = 0.5
        [sources.middle]
        shards = ["{corpus.root}/documents/*/*/en_middle.json.gz"]
        text_field = "raw_content"
        weight = 0.5
    """
    (tmp_path / "mixture.toml").write_text(text)
    found = run_json(capsys, "inspect", tmp_path / "mixture.toml", *storage(server))
    assert found["sources"]["head"]["shards"] == 2
    packed = run_json(
        capsys, "pack", tmp_path / "mixture.toml", "--output", tmp_path / "packed", "--steps", "3", *storage(server)
    )
    assert packed["items"] == 12
    assert "aws_endpoint" not in (tmp_path / "packed" / "index.json").read_text()
    assert run_json(capsys, "verify", tmp_path / "packed", *storage(server))["equal"]
    own = "".join(f"        {name} = {json.dumps(value)}\n" for name, value in server.options().items())
    (tmp_path / "mixture.toml").write_text(f"{text}\n        [sources.head.storage_options]\n{own}")
    dataset = gm.PackedDataset.from_file(tmp_path / "mixture.toml")
    assert len(dataset.sources["head"].manifest) == 2


@pytest.mark.slow
def test_bench_measures_gristmill_alone(capsys, server, tokenizer_file):
    options = ["--tokenizer", tokenizer_file, "--text-field", "raw_content", "--rounds", "1", "--threads", "1"]
    found = run_json(capsys, "bench", GLOB, *options, *storage(server))
    assert [*found["contenders"]] == ["gristmill"]
    assert found["shard_bytes"] == sum(len(data) for key, data in server.objects.items() if "documents" in key)
    assert "aws_endpoint" not in json.dumps(found)
    code, said = checked(capsys, "bench", GLOB, *options, *storage(server), "--formats")
    assert (code, "--formats needs local shards" in said) == (2, True)


def test_option_without_value_is_an_error(capsys, server):
    message = fails(capsys, "inspect", GLOB, "--storage-option", "aws_region", code=2)
    assert "--storage-option" in message
    assert "expected name=value" in message


def test_index_is_refused_for_stores():
    with pytest.raises(gm.ArgumentError, match="an index lies beside a local shard"):
        make_indexes(gm.Manifest(("gs://bucket/a.gz",), (1,)))


def test_quarantine_file_is_local(corpus, encoder):
    for make in (gm.PackedDataset, gm.PromptDataset):
        with pytest.raises(gm.ArgumentError, match="expected a local file, to which records are appended"):
            make(corpus.glob(), tokenizer=encoder, on_error="quarantine", quarantine_file="gs://bucket/bad.jsonl")
