"""Mixture files: what they describe, their errors, and the commands that take them."""

import gzip
import itertools
import json
import sys
import tomllib

import numpy as np
import pytest

import gristmill as gm
from chat_models import write_chatml
from command_line import checked, fails, run_json
from gristmill._cli import main
from gristmill._mixture import mixture_file, syntax
from helpers import assert_same_batches, write_shard

STREAM = """
tokenizer = "model"
sequence_length = 64
batch_size = 8
lanes = 2
seed = 1
"""
SOURCES = """
[sources.web]
shards = "web/*.gz"
weight = 0.75
text_field = "raw_content"
epochs = 2

[sources.code]
shards = ["code/0.json.gz", "code/1.json.gz"]
weight = 0.25
text_field = "raw_content"
keep = "nlines > 0"
"""


@pytest.fixture
def folder(tmp_path, texts, tokenizer_file):
    """A folder with the shards of two sources, and a tokenizer."""
    for number in range(4):
        write_shard(tmp_path / "web" / f"{number}.json.gz", texts[number * 12 : number * 12 + 12])
    for number in range(2):
        write_shard(tmp_path / "code" / f"{number}.json.gz", texts[60 + number * 9 : 69 + number * 9])
    (tmp_path / "model").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "model" / name).write_bytes((tokenizer_file.parent / name).read_bytes())
    return tmp_path


@pytest.fixture
def write(folder):
    def write(text=STREAM + SOURCES, name="mixture.toml"):
        (folder / name).write_text(text)
        return folder / name

    return write


def in_python(folder, **more):
    web = gm.Source(str(folder / "web/*.gz"), weight=3, text_field="raw_content", epochs=2)
    code = gm.Source(str(folder / "code/*.gz"), weight=1, text_field="raw_content", keep="nlines > 0")
    return gm.PackedDataset(
        gm.Mixture({"web": web, "code": code}, **more),
        tokenizer=str(folder / "model"),
        sequence_length=64,
        batch_size=8,
        lanes=2,
        seed=1,
    )


def first(dataset, steps):
    with iter(dataset) as iterator:
        return [next(iterator) for _ in range(steps)]


def test_file_describes_the_stream_of_the_same_arguments(folder, write, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    path = write()
    dataset = gm.PackedDataset.from_file(path)
    assert_same_batches(first(dataset, 5), first(in_python(folder), 5))
    assert gm.PackedDataset.from_file(str(path), threads=1, lanes=1).lanes == 1
    with pytest.raises(gm.ArgumentError, match="a mixture file is read by"):
        gm.PackedDataset(path, tokenizer=dataset.encoder)
    mixture = gm.Mixture.from_file(path)
    assert list(mixture.sources) == ["web", "code"]
    own = gm.PackedDataset(mixture, tokenizer=folder / "model", sequence_length=64, batch_size=8, lanes=2, seed=1)
    assert own.fingerprint == dataset.fingerprint


def test_file_with_a_byte_order_mark_and_windows_lines_is_read(folder, write):
    path = write()
    expected = gm.PackedDataset.from_file(path).fingerprint
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert gm.PackedDataset.from_file(path).fingerprint == expected


def test_encoder_that_differs_from_the_file_is_refused(folder, write):
    path = write('special_tokens_in_text = "text"\n' + STREAM + SOURCES)
    encoder = gm.Encoder.from_file(folder / "model")
    with pytest.raises(gm.ArgumentError, match="says special_tokens_in_text='text', and the Encoder has 'id'"):
        gm.PackedDataset.from_file(path, tokenizer=encoder)
    encoder = gm.Encoder.from_file(folder / "model", special_tokens_in_text="text")
    found = gm.PackedDataset.from_file(path, tokenizer=encoder)
    assert found.fingerprint == gm.PackedDataset.from_file(path).fingerprint


def test_folder_named_like_a_glob_is_a_folder(folder, write, tmp_path_factory, capsys):
    moved = tmp_path_factory.mktemp("odd") / "[a]*"
    path = write()
    expected = gm.PackedDataset.from_file(path).fingerprint
    folder.rename(moved)
    assert gm.PackedDataset.from_file(moved / "mixture.toml").fingerprint == expected
    out = moved / "out"
    run_json(capsys, "pack", moved / "mixture.toml", "--output", out, "--steps", "2")
    assert checked(capsys, "verify", out)[0] == 0


@pytest.mark.parametrize("file_format", ["npy", "megatron"])
def test_hosts_pack_their_lanes(folder, write, capsys, file_format):
    path = write(STREAM + SOURCES.replace("epochs = 2", "epochs = 1") + "epochs = 1\n")
    options = ["pack", path, "--format", file_format]
    whole = run_json(capsys, *options, "--output", folder / "whole")
    hosts = []
    for host in range(2):
        out = folder / f"host-{host}"
        hosts.append(run_json(capsys, *options, "--output", out, "--shard-index", host, "--shard-count", 2))
        assert checked(capsys, "verify", out)[0] == 0
    for name in ("items", "tokens", "documents"):
        assert sum(host[name] for host in hosts) == whole[name]
    found = gm.PackedRows([folder / "host-0", folder / "host-1"])
    rows = sorted(found[number]["inputs"].tolist() for number in range(len(found)))
    expected = gm.PackedRows(folder / "whole")
    assert rows == sorted(expected[number]["inputs"].tolist() for number in range(len(expected)))


def test_stages_and_the_end_are_those_of_the_file(folder, write):
    stages = """
    [[stages]]
    step = 0
    weights = { web = 0.5, code = 0.5 }
    [[stages]]
    step = 3
    weights = { code = 1 }
    """
    path = write(f'on_exhausted = "stop"\nweights_by = "rows"{STREAM}{stages}{SOURCES}')
    expected = in_python(folder, stages=[(0, {"web": 1, "code": 1}), (3, {"code": 1})], on_exhausted="stop")
    assert_same_batches(first(gm.PackedDataset.from_file(path), 6), first(expected, 6))


def test_yaml_describes_the_same(folder, write):
    text = """
    tokenizer: model
    sequence_length: 64
    batch_size: 8
    lanes: 2
    seed: 1
    sources:
      web: &web
        shards: web/*.gz
        weight: 0.75
        text_field: raw_content
        epochs: 2
      code:
        <<: *web
        shards: [code/0.json.gz, code/1.json.gz]
        weight: 0.25
        keep: nlines > 0
        epochs: null
    """
    found = gm.PackedDataset.from_file(write(text, "mixture.yaml"))
    assert found.fingerprint == gm.PackedDataset.from_file(write()).fingerprint


def test_yaml_without_its_library_is_refused(write, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = write("sources: {}", "mixture.yml")
    assert "pip install pyyaml" in fails(capsys, "inspect", path)
    with pytest.raises(gm.MissingExtraError, match="is YAML, which needs PyYAML"):
        gm.Mixture.from_file(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = ", "not valid TOML: Invalid value (at "),
        (
            STREAM + SOURCES.replace("weight", "wieght", 1),
            "line 10: [sources.web] has the unknown key 'wieght': did you mean",
        ),
        ("batch_sise = 8" + STREAM + SOURCES, "line 1: the file has the unknown key 'batch_sise': did you mean"),
        ("keep = 'a'" + STREAM + SOURCES, "each source has its own: put it below [sources.NAME]"),
        (STREAM + SOURCES + "seed = 3", "[sources.code] has the unknown key 'seed': it is the same for all sources"),
        (STREAM + SOURCES + "format = 'jsonl'", "formats are recognised by content; leave it out"),
        (STREAM + SOURCES.replace("shards", "paths", 1), "unknown key 'paths': did you mean 'shards'?"),
        (STREAM, "expected sources, each as a table such as [sources.web], found none"),
        (STREAM + "sources = 3", "[sources]: expected a table of keys and values, found 3"),
        (STREAM + "[sources.web]\nweight = 1", "[sources.web] has no shards"),
        (STREAM + "[sources]", "expected at least one source"),
        (STREAM + SOURCES + SOURCES, "not valid TOML: Cannot declare ('sources', 'web') twice (at line"),
        (STREAM + SOURCES.replace("0.75", '"0.75"'), "source 'web': weight='0.75': expected a number from 0"),
        (STREAM + SOURCES.replace("0.75", "nan"), "source 'web': weight=nan: expected a finite number from 0 on"),
        (STREAM + SOURCES.replace('"web/*.gz"', "7"), "source 'web': shards=7: expected a glob, a path"),
        (STREAM + SOURCES.replace('"web/*.gz"', '"nothing/*.gz"'), "source 'web': no file matches the glob"),
        (STREAM + SOURCES.replace("sources.web", 'sources."a b"'), "the name 'a b': expected 1 to 64 of the"),
        (STREAM + SOURCES + "sample = 'chat'", "[sources.code.sample]: expected a table of keys"),
        (STREAM + SOURCES + "sample = { kind = 'talk' }", "expected a kind, one of 'text', 'chat'"),
        (STREAM + SOURCES + "sample = { kind = 'chat', feild = 'm' }", "unknown key 'feild': did you mean 'field'?"),
        (STREAM + SOURCES + "sample = { kind = 'chat', format = 'x' }", "source 'code': format='x'"),
        (STREAM + SOURCES + "sidecars = { s = { foldr = 'a' } }", "[sources.code.sidecars.s] has the unknown key"),
        (STREAM + SOURCES + "sidecars = { s = { folder = 'a' } }", "source 'code': Sidecar missing 1 required"),
        (STREAM + SOURCES + "drop = { file = 'a' }", "unknown key 'file': did you mean 'files'?"),
        (STREAM + "stages = [[0, { web = 1 }]]" + SOURCES, "[stages]: expected a table of keys and values"),
        (STREAM + "stages = [{ step = 0 }]" + SOURCES, "has no weights: expected step and weights"),
        (STREAM + "stages = [{ step = 0, weights = { wed = 1 } }]" + SOURCES, "stages: step 0 names 'wed'"),
        (STREAM.replace("64", '"64"') + SOURCES, "error: sequence_length='64': expected an integer"),
        (
            STREAM
            + SOURCES.replace('raw_content"\nkeep = "nlines > 0', "text")
            + "sample = { kind = 'chat', template = 'no' }",
            "source 'code': cannot read the template",
        ),
        (STREAM + SOURCES + "sample = { kind = 'chat', fim = {} }", "unknown key 'fim': expected one of kind, field, "),
        (STREAM.replace("model", "modell") + SOURCES, "no such file: "),
        (STREAM.replace('tokenizer = "model"', "") + SOURCES, "has no tokenizer"),
        (STREAM.replace("model", "\\u0000") + SOURCES, "expected a non-empty path without NUL"),
        (STREAM.replace('"model"', "3") + SOURCES, "tokenizer=3: expected a path, got int"),
    ],
)
def test_errors_of_files_name_the_place(write, capsys, text, message):
    path = write(text)
    code = main.run(["inspect", str(path)])
    said = capsys.readouterr().err
    assert code in (1, 2)
    assert message in said
    assert len(said.splitlines()) == 1 or "Usage" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not valid YAML: "),
        ("- a", "expected keys and values, found list"),
        ("", "expected keys and values, found NoneType"),
        ("seed: 1\nseed: 2", "line 2: the key 'seed' is on line 1, too"),
        ("sources:\n  web: {shards: a}\n  web: {shards: b}", "line 3: the key 'web' is on line 2, too"),
        ("sources:\n  no: {shards: a}", "line 2: YAML reads the key no as bool: put it in quotes"),
        ("sources:\n  1: {shards: a}", "line 2: YAML reads the key 1 as int: put it in quotes"),
        ("tokenizer: model\nsources:\n  web: {shards: 'web/*.gz', weight: 1e-3}", "weight='1e-3': expected a number"),
        ("sources:\n  web:\n    shards: a\n    wait: 3", "line 4: [sources.web] has the unknown key 'wait'"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: &a [*a]", "not valid YAML: an anchor contains itself"),
    ],
)
def test_errors_of_yaml_name_the_line(write, capsys, text, message):
    assert message in fails(capsys, "inspect", write(text, "mixture.yaml"), code=2)


def test_file_that_is_missing_or_among_others_is_refused(folder, write, capsys):
    assert "cannot read the mixture file" in fails(capsys, "inspect", folder / "none.toml")
    path = write()
    line = fails(capsys, "pack", path, folder / "web/0.json.gz", "--output", folder / "out", code=2)
    assert "is a mixture file: name it alone" in line
    with pytest.raises(gm.ArgumentError, match=r"expected a mixture file, whose name ends in \.toml"):
        gm.Mixture.from_file(folder / "web/0.json.gz")
    (folder / "mixture.toml").write_bytes(b"\xff")
    assert "expected UTF-8, found 0xff at byte 0" in fails(capsys, "inspect", path, code=2)


def test_resolved_config_reproduces_the_stream(folder, write, capsys, monkeypatch, tmp_path_factory):
    write_chatml(folder / "chatml")
    chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 9
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (folder / "seen.txt").write_text("file:1\n")
    extra = """
    drop = { files = "seen.txt", key = "url" }
    on_error = "quarantine"
    [sources.chats]
    shards = "chats.jsonl"
    weight = 0.1
    split_bytes = 400
    sample = { kind = "chat", train_on = "last", stop_tokens = [], date = 2026-11-26 }
    """
    stream = STREAM.replace('"model"', '"chatml"')
    path = write(stream + 'packing = "best_fit"\ntruncation = "left"\neos = "<|im_end|>"\n' + SOURCES + extra)
    for command in (["pack"], ["inspect"], ["bench"]):
        assert main.run([*command, str(path), "--print-config"]) == 0
        text = capsys.readouterr().out
        values = tomllib.loads(text)
        assert values["sources"]["web"]["shards"] == str(folder / "web/*.gz")
        assert (values["lanes"], values["sources"]["web"]["shuffle_window"]) == (2, 1024)
        assert values["truncation"] == "left"
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
        other = write(text, "sub.toml").rename(tmp_path_factory.mktemp("other") / "resolved.toml")
        expected = gm.PackedDataset.from_file(path)
        assert gm.PackedDataset.from_file(other).fingerprint == expected.fingerprint
    assert main.run(["pack", str(path), "--print-config", "--seed", "7"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["seed"] == 7
    assert main.run(["pack", "a.gz", "--tokenizer", str(folder / "model"), "--print-config"]) == 2
    assert main.run(["inspect", str(path), "--print-config", "--json"]) == 2


def test_toml_is_written_as_it_is_read():
    values = {
        "a": 'tab\t, quote ", backslash \\, \x7f, \x01, é \U0001f600',
        "b": True,
        "c": [1, 2.5, 1e-300, "x"],
        "d.e": {"x y": {"k": 1, "inner": {"z": [{"q": 1}], "none": None}}},
        "f": [{"step": 0, "weights": {"a": 0.1}}, {"step": 3, "weights": {"a.b": 2}}],
        "none": None,
    }
    del values["d.e"]["x y"]["inner"]["none"]
    found = tomllib.loads(syntax.write({**values, "empty": {}, "list": []}))
    del values["none"]
    assert found == {**values, "empty": {}, "list": []}


@pytest.mark.parametrize("file_format", ["npy", "megatron"])
def test_packed_mixture_is_verified_and_found_damaged(
    folder, write, capsys, monkeypatch, tmp_path_factory, file_format
):
    path = write()
    out = folder / "out"
    found = run_json(
        capsys, "pack", path, "--output", out, "--format", file_format, "--rows-per-file", "24", "--steps", "9"
    )
    assert found["parts"] == 3
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    code, checked_files = checked(capsys, "verify", out)
    assert (code, checked_files["equal"], checked_files["complete"]) == (0, True, True)
    code, one = checked(capsys, "verify", out, "--part", "2")
    assert (code, one["equal"]) == (0, True)
    with iter(gm.PackedDataset.from_file(path)) as iterator:
        batches = [next(iterator) for _ in range(9)]
        stats = iterator.stats()
    assert (found["tokens"], found["documents"]) == (stats["tokens"], stats["documents"])
    rows = gm.PackedRows(out)
    if file_format == "npy":
        expected = np.concatenate([batch["inputs"] for batch in batches])
        np.testing.assert_array_equal(np.stack([rows[number]["inputs"] for number in range(len(rows))]), expected)
    else:
        encoder = gm.Encoder.from_file(folder / "model")
        documents = {encoder.decode(rows[number]["inputs"][:-1]) for number in range(len(rows))}
        texts = [json.loads(line)["raw_content"] for line in _lines(folder)]
        assert documents <= set(texts)
        assert len(rows) == stats["documents"]
    described = run_json(capsys, "inspect", out)
    assert described["stream"]["web.epochs"] == "2"
    assert "source code" in _text(capsys, "inspect", out)
    # The same run says that there is nothing to do; another number of steps is another packing.
    arguments = ["pack", path, "--output", out, "--format", file_format, "--rows-per-file", "24"]
    assert run_json(capsys, *arguments, "--steps", "9")["parts_of_earlier_runs"] == 3
    assert "steps was 9 and is 10" in fails(capsys, *arguments, "--steps", "10")
    # The first shards of a source are others.
    write_shard(folder / "web" / "0.json.gz", ["other"])
    assert "of the source 'web' the shards are not those that were packed" in fails(capsys, "verify", out)


def _lines(folder):
    return [line for shard in folder.glob("*/*.json.gz") for line in gzip.decompress(shard.read_bytes()).splitlines()]


def _text(capsys, *arguments):
    assert main.run(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_interrupted_packing_of_a_mixture_resumes_to_the_same_bytes(folder, write, capsys):
    stream = 'weights_by = "tokens"\n' + STREAM
    for file_format in ("npy", "megatron"):
        path = write(stream + SOURCES.replace("epochs = 2", "epochs = 1") + "epochs = 1\n")
        options = ["--format", file_format, "--rows-per-file", "16"]
        one, other = folder / f"whole-{file_format}", folder / f"parts-{file_format}"
        run_json(capsys, "pack", path, "--output", one, *options)
        run_json(capsys, "pack", path, "--output", other, *options)
        notes = sorted(other.glob("part-*.json"))
        assert len(notes) > 3
        for note in notes[2:]:
            note.unlink()
        index = json.loads((other / "index.json").read_text())
        for key in ("complete", "totals", "parts"):
            del index[key]
        (other / "index.json").write_text(json.dumps(index))
        # The order of the sources in the file does not matter.
        web, code = SOURCES.replace("epochs = 2", "epochs = 1").split("[sources.code]")
        web = web.removeprefix("\n[sources.web]")
        write(f"{stream}[sources.code]{code}epochs = 1\n[sources.web]{web}")
        assert run_json(capsys, "pack", path, "--output", other, *options)["parts_of_earlier_runs"] == 2
        for file in one.glob("part-*"):
            if file.suffix != ".json":
                assert file.read_bytes() == (other / file.name).read_bytes(), file.name
        assert checked(capsys, "verify", other)[0] == 0


def test_moved_mixture_is_verified_with_its_file(folder, write, capsys, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "packed"
    run_json(capsys, "pack", write(), "--output", out, "--steps", "4")
    moved = tmp_path_factory.mktemp("moved") / "data"
    folder.rename(moved)
    assert "pass --shards and --tokenizer" in fails(capsys, "verify", out)
    tokenizer = ["--tokenizer", moved / "model"]
    assert checked(capsys, "verify", out, "--shards", moved / "mixture.toml", *tokenizer)[0] == 0
    assert "name its file" in fails(capsys, "verify", out, "--shards", moved / "web/*.gz", *tokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixture": {}}, "the source cannot be packed again with its arguments: its mixture is not one"),
        ({"mixture": {"sources": {"web": 3}}}, "its mixture is not one"),
        ({"mixture": {"sources": {"web": {"shards": 3}}}}, "the source 'web' has no weight"),
        ({"steps": 0}, "index.json is damaged: its steps are 0"),
        ({"steps": 1}, "the file holds 16 items, but the source has 8 there"),
    ],
)
def test_damaged_index_of_a_mixture_is_told(folder, write, capsys, change, message):
    out = folder / "out"
    run_json(capsys, "pack", write(), "--output", out, "--steps", "4", "--rows-per-file", "16")
    index = json.loads((out / "index.json").read_text())
    mixture = change.pop("mixture", None)
    if mixture is not None:
        index["source"]["mixture"] = mixture
    (out / "index.json").write_text(json.dumps({**index, **change}))
    main.run(["verify", str(out), "--json"])
    captured = capsys.readouterr()
    assert message in captured.out + captured.err
    assert main.run(["inspect", str(out)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_endless_mixture_needs_a_number_of_steps(write, folder, capsys):
    line = fails(capsys, "pack", write(), "--output", folder / "out", code=2)
    assert "the mixture never ends: name the number of steps with --steps" in line
    assert not (folder / "out").exists()
    path = write(STREAM.replace("batch_size = 8", "") + SOURCES)
    line = fails(capsys, "pack", path, "--output", folder / "out", "--steps", "3", code=2)
    assert "has no batch_size, on which each row's source depends" in line
    assert (
        run_json(capsys, "pack", path, "--output", folder / "out", "--steps", "3", "--batch-size", "4")["items"] == 12
    )


def test_quarantined_records_of_a_source_are_listed_and_verified(write, folder, capsys):
    write_shard(folder / "web" / "0.json.gz", ["a"])
    (folder / "web" / "bad.json.gz").write_bytes(gzip.compress(b'{"raw_content": "fine"}\n{"raw_content": 3}\n' * 3))
    path = write(
        STREAM + SOURCES.replace("epochs = 2", 'on_error = "quarantine"\nmax_error_rate = 1\nepochs = 1') + "epochs = 1"
    )
    out = folder / "out"
    found = run_json(capsys, "pack", path, "--output", out)
    assert found["quarantined"] == 3
    assert len((out / "quarantine.jsonl").read_text().splitlines()) == 3
    assert checked(capsys, "verify", out)[0] == 0


def test_source_with_a_policy_that_changed_resumes(write, folder, capsys):
    (folder / "web" / "bad.json.gz").write_bytes(gzip.compress(b'{"raw_content": "fine"}\n{"raw_content": 3}\n'))
    path = write(STREAM.replace("lanes = 2", "lanes = 1") + SOURCES)
    out = folder / "out"
    options = ["pack", path, "--output", out, "--steps", "30", "--rows-per-file", "8"]
    code = main.run(list(map(str, options)))
    said = capsys.readouterr().err
    assert code == 1, said
    write(path.read_text().replace("epochs = 2", 'on_error = "quarantine"\nmax_error_rate = 1\nepochs = 2'))
    found = run_json(capsys, *options)
    assert found["quarantined"] >= 1
    assert checked(capsys, "verify", out)[0] == 0


@pytest.mark.parametrize("weights_by", ["rows", "tokens", "samples"])
def test_row_of_a_mixture_is_located(folder, write, capsys, weights_by):
    path = write(f'weights_by = "{weights_by}"\n{STREAM}{SOURCES}')
    dataset = gm.PackedDataset.from_file(path, source_arrays=True, provenance=True)
    iterator = iter(dataset)
    batches = [next(iterator) for _ in range(3)]
    names = list(dataset.sources)
    (folder / "state.json").write_text(json.dumps(iterator.get_state()))
    batches.append(next(iterator))
    for step, row in [(0, 0), (2, 5), (3, 7)]:
        found = run_json(capsys, "inspect", path, "--row", row, "--step", step)
        batch = batches[step]
        assert found["source"] == names[batch["source"][row]]
        shards = [segment["shard"] for segment in found["segments"]]
        assert all(f"/{found['source']}/" in shard for shard in shards)
        count = len(found["segments"])
        expected = [dataset.pieces[shard].name for shard in batch["provenance"][row, :count, 0]]
        assert shards == expected
        assert [segment["record"] for segment in found["segments"]] == batch["provenance"][row, :count, 1].tolist()
    from_state = run_json(capsys, "inspect", folder / "state.json", "--row", "7", "--shards", path)
    assert from_state == found
    assert f"source  {found['source']}" in _text(capsys, "inspect", path, "--row", 7, "--step", 3)
    assert "name its file, such as --shards mixture.toml" in fails(
        capsys,
        "inspect",
        folder / "state.json",
        "--row",
        "7",
        "--shards",
        folder / "web/*.gz",
        "--tokenizer",
        folder / "model",
    )
    other = write(path.read_text().replace("seed = 1", "seed = 2"), "other.toml")
    assert "seed was 1 and is 2" in fails(capsys, "inspect", folder / "state.json", "--row", "7", "--shards", other)
    assert "a global batch has the rows 0 to 7" in fails(capsys, "inspect", path, "--row", "8", code=2)


def test_inspected_mixture_shows_sources_and_shares(folder, write, capsys):
    found = run_json(capsys, "inspect", write())
    assert found["sources"]["web"]["shards"] == 4
    assert found["stages"] == [{"step": 0, "shares": {"web": 0.75, "code": 0.25}}]
    assert (found["ends"], found["lanes"], found["rows_per_step"]) == (False, 2, 8)
    text = _text(capsys, "inspect", folder / "mixture.toml")
    assert "75.0000%" in text
    assert "never ends" in text
    for option in (
        ["--keep", "a"],
        ["--text", "a"],
        ["--chat"],
        ["--shards", "a"],
        ["--sample", "chat"],
        ["--step", "1"],
    ):
        assert main.run(["inspect", str(folder / "mixture.toml"), *option]) == 2
        assert "mixture" in (said := capsys.readouterr().err) or "No such option" in said


@pytest.mark.slow
def test_bench_compares_a_mixture_with_its_sources(folder, write, capsys):
    found = run_json(capsys, "bench", write(), "--threads", "1", "--rounds", "1", "--steps", "4")
    (entry,) = found["by_threads"]
    assert list(entry["summary"]) == ["*", "web", "code"]
    assert all(one["tokens"] > 0 and one["tokens_per_second"] > 0 for one in entry["summary"].values())
    assert found["shares"]["web"] == {"asked": 0.75, "given": 0.75}
    text = _text(capsys, "bench", folder / "mixture.toml", "--threads", "1", "--rounds", "1", "--steps", "4")
    assert "code alone" in text
    assert main.run(["bench", str(folder / "mixture.toml"), "--latency"]) == 2
    assert main.run(["bench", "--steps", "3"]) == 2


def test_arguments_of_sources_cannot_be_options(folder, write, capsys):
    line = fails(capsys, "pack", write(), "--output", folder / "out", "--keep", "a > 1", code=2)
    assert "each source of a mixture has its own" in line
    assert main.run(["pack", str(folder / "mixture.toml"), "--output", str(folder / "out"), "--sample", "chat"]) == 2


def test_options_replace_values_of_the_file(folder, write, capsys):
    out = folder / "out"
    run_json(capsys, "pack", write(), "--output", out, "--steps", "2", "--seed", "9", "--tokenizer", folder / "model")
    rows = gm.PackedRows(out)
    expected = first(gm.PackedDataset.from_file(folder / "mixture.toml", seed=9), 2)
    np.testing.assert_array_equal(rows[0]["inputs"], expected[0]["inputs"][0])
    assert len(rows) == 16


def test_tokenizer_of_the_hub_stays_a_name(folder):
    assert mixture_file._tokenizer(str(folder), "org/model") == "org/model"
    assert mixture_file._tokenizer(str(folder), "model") == str(folder / "model")


def test_prompts_take_the_mixture_of_a_file(folder, write):
    path = write("[sources.a]\nshards = 'web/*.gz'\nweight = 3\n[sources.b]\nshards = 'code/*.gz'\nweight = 1\n")
    sources = {
        name: gm.Source(str(folder / place / "*.gz"), weight=weight)
        for name, place, weight in (("a", "web", 3), ("b", "code", 1))
    }
    found, expected = (
        gm.PromptDataset(
            mixture, tokenizer=str(folder / "model"), prompt=gm.Text("raw_content"), prompt_length=2048, batch_size=8,
            seed=1, layout="maxtext", columns=False,
        )
        for mixture in (gm.Mixture.from_file(path), gm.Mixture(sources))
    )  # fmt: skip
    assert_same_batches(first(found, 3), first(expected, 3))


READY = """
lanes = 2
packing = "best_fit"
balance = "1,0.5"
skip = [[2, 3]]

[[stages]]
step = 0
sequence_length = 16
batch_size = 4

[[stages]]
step = 4
batch_size = 2
weights = { a = 1, b = 3 }

[[edits]]
step = 6
source = "a"
drop = { files = "bad.txt", key = "id" }

[sources.a]
shards = "a-*.jsonl"
weight = 1
epochs = 2
sample = { kind = "tokens", fields = { reward = { per = "sample" } } }

[sources.b]
shards = "b-*.jsonl"
weight = 1
epochs = 2
sample = { kind = "tokens" }
"""


def test_mixtures_of_ready_ids_need_no_tokenizer(tmp_path, capsys):
    for name in ("a-0", "a-1", "b-0", "b-1"):
        records = [{"id": f"{name}-{n}", "input_ids": [n + 1] * (n % 9 + 1), "reward": n} for n in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "bad.txt").write_text("a-0-3\n")
    path, printed = tmp_path / "mixture.toml", tmp_path / "printed.toml"
    path.write_text(READY)
    assert main.run(["inspect", str(path), "--print-config"]) == 0
    printed.write_text(capsys.readouterr().out)
    dataset, again = (gm.PackedDataset.from_file(file) for file in (path, printed))
    assert again.fingerprint == dataset.fingerprint
    assert_same_batches(again, list(dataset))
    iterator = iter(dataset)
    digests = {}
    for batch in itertools.islice(iterator, 8):
        digests[iterator.step] = gm.batch_digest(batch)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.get_state()))
    for file in (path, printed):
        found = run_json(capsys, "trace", "--digests", "--state", state, "--shards", file)
        assert {one["step"]: one["digest"] for one in found} == digests
    assert run_json(capsys, "inspect", "row", path, "--row", 0)["segments"]
    path.write_text(READY.replace('sample = { kind = "tokens" }', ""))
    with pytest.raises(gm.ArgumentError, match="has no tokenizer"):
        gm.PackedDataset.from_file(path)
    of_one_size = READY.partition("[[stages]]\nstep = 4")[0] + READY[READY.index("[[edits]]") :]
    (tmp_path / "one.toml").write_text(of_one_size)
    run_json(capsys, "pack", tmp_path / "one.toml", "--output", tmp_path / "packed", "--steps", 1)
    assert run_json(capsys, "verify", tmp_path / "packed")["equal"]
