"""`gristmill pack` into stores: files appear whole or not at all, and an interrupted run continues."""

import gc
import json
import os
import pickle

import pytest

import gristmill as gm
from command_line import checked, fails, run_json
from gristmill import _core
from gristmill._cli import main
from gristmill._files import remote_folder
from object_store import Faults, Server

PACKED = "gs://bucket/runs/packed"


def storage(server, **more):
    return [word for pair in server.options(**more).items() for word in ("--storage-option", "=".join(pair))]


def files_of(server):
    """The content of each packed file by its name. An index also says where its source was."""
    key = PACKED.removeprefix("gs://")
    return {name.removeprefix(f"{key}/"): data for name, data in server.objects.items() if name.startswith(key)}


@pytest.fixture
def local(tmp_path, pack):
    """The files of the same packing in a local folder."""
    pack(tmp_path / "packed")
    return {path.name: path.read_bytes() for path in (tmp_path / "packed").glob("[!.]*")}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_files_are_those_of_a_local_folder(local, packing, capsys, scheme):
    with Server({}) as server:
        url = PACKED.replace("gs", scheme, 1)
        found = run_json(capsys, *packing(url), *storage(server))
        assert found["folder"] == url
        assert found["parts"] > 2
        assert files_of(server) == local
        again = run_json(capsys, *packing(url), *storage(server))
        assert again["parts_of_earlier_runs"] == again["parts"] == found["parts"]


def test_parquet_files_are_those_of_a_local_folder(tmp_path, pack, packing, capsys):
    pack(tmp_path, "--format", "parquet")
    with Server({}) as server:
        run_json(capsys, *packing(PACKED, "--format", "parquet"), *storage(server))
        assert files_of(server) == {path.name: path.read_bytes() for path in tmp_path.glob("[!.]*")}


@pytest.mark.parametrize("published", range(0, 9, 2))
def test_interrupted_run_goes_on(local, packing, capsys, monkeypatch, published):
    """Killed before or after any file: those that are there are whole, and none is written twice."""
    publish, count = remote_folder.RemoteFolder.publish, iter(range(100))

    def dies(self, path):
        if next(count) == published:
            raise KeyboardInterrupt
        publish(self, path)

    with Server({}) as server:
        with monkeypatch.context() as patch:
            patch.setattr(remote_folder.RemoteFolder, "publish", dies)
            assert main.run([*packing(PACKED), *storage(server)]) == 130
        capsys.readouterr()
        before = files_of(server)
        assert len(before) == published
        assert all(local[name] == data for name, data in before.items() if name != "index.json")
        server.requests.clear()
        found = run_json(capsys, *packing(PACKED), *storage(server))
        assert found["parts_of_earlier_runs"] == sum(name.startswith("part") and ".json" in name for name in before)
        assert files_of(server) == local
        written = [key for method, key, _ in server.requests if method == "PUT"]
        notes = {f"bucket/runs/packed/{name}" for name in before if name.startswith("part") and ".json" in name}
        assert not notes & {*written}


def test_network_faults_change_nothing(local, packing, capsys):
    kinds = ("429", "500", "503", "reset", "short")
    with Server({}, faults=Faults(3, 0.3, kinds)) as server:
        run_json(capsys, *packing(PACKED), *storage(server))
        assert server.faults.seen
        assert files_of(server) == local


@pytest.mark.slow
def test_outage_ends_the_run_and_the_next_goes_on(local, packing, capsys, monkeypatch):
    publish, count = remote_folder.RemoteFolder.publish, iter(range(100))
    with Server({}) as server:

        def goes_out(self, path):
            server.is_out = next(count) == 4
            publish(self, path)

        monkeypatch.setattr(remote_folder.RemoteFolder, "publish", goes_out)
        message = fails(capsys, *packing(PACKED), *storage(server, retry_timeout="0.3"))
        assert "gs://bucket/runs/packed/part-00001.json: the store did not answer" in message
        server.is_out = False
        assert run_json(capsys, *packing(PACKED), *storage(server))["parts_of_earlier_runs"] == 1
        assert files_of(server) == local


@pytest.mark.slow
def test_long_file_is_sent_in_parts_and_appears_at_the_end(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * 70)
    with Server({}) as server:
        _core.Stores(list(server.options().items())).upload("s3://bucket/large", str(path))
        sent = [query for method, _, query in server.requests if method == "PUT"]
        assert len(sent) == 5
        assert server.objects["bucket/large"] == path.read_bytes()
    with Server({}) as server:
        server.refuses_completion = True
        with pytest.raises(gm.GristmillError, match="the store did not answer"):
            _core.Stores([*server.options(retry_timeout="0.1").items()]).upload("s3://bucket/large", str(path))
        assert not server.objects


def test_other_files_and_settings_are_kept(packing, capsys):
    with Server({"bucket/runs/packed/other.txt": b"x"}) as server:
        message = fails(capsys, *packing(PACKED), *storage(server))
        assert "gs://bucket/runs/packed is not empty and does not hold packed files, but 'other.txt'" in message
    with Server({}) as server:
        run_json(capsys, *packing(PACKED), *storage(server))
        message = fails(capsys, *packing(PACKED, "--seed", "1"), *storage(server))
        assert message.startswith(f"error: {PACKED} already holds files packed with other settings: seed")


def test_damaged_part_is_found(packing, capsys):
    with Server({}) as server:
        run_json(capsys, *packing(PACKED), *storage(server))
        server.objects["bucket/runs/packed/part-00001.npy"] += b"x"
        message = fails(capsys, *packing(PACKED), *storage(server))
        assert f"{PACKED}: part-00001.npy has" in message


def test_what_a_store_cannot_hold_is_refused(packing, capsys):
    with Server({}) as server:
        code, said = checked(capsys, *packing(PACKED, "--on-error", "quarantine"), *storage(server))
        assert (code, "name a local file for quarantined records with --quarantine-file" in said) == (2, True)
        assert "expected a local folder, or gs://" in fails(capsys, *packing(f"{server.url}/packed"), code=2)
        assert not server.objects


def test_output_among_the_shards_is_refused(capsys, tokenizer_file):
    with Server({"bucket/runs/a.json": json.dumps({"text": "x"}).encode()}) as server:
        shards = ["gs://bucket/runs/**", "--tokenizer", tokenizer_file, "--output", PACKED, *storage(server)]
        message = fails(capsys, "pack", *shards, code=2)
        assert "'gs://bucket/runs/packed/index.json' will be written, and the glob 'gs://bucket/runs/**'" in message


def test_dataset_of_python_is_packed_into_a_store(shards, encoder, tmp_path):
    dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", sequence_length=64, batch_size=4)
    here = gm.pack(dataset, tmp_path / "packed", rows_per_file=200)
    with Server({}) as server:
        found = gm.pack(dataset, PACKED, rows_per_file=200, storage_options=server.options())
        assert {**found, "seconds": 0, "tokens_per_second": 0, "folder": ""} == {
            **here, "seconds": 0, "tokens_per_second": 0, "folder": "",
        }  # fmt: skip
        assert files_of(server) == {path.name: path.read_bytes() for path in (tmp_path / "packed").glob("[!.]*")}
        with pytest.raises(gm.ArgumentError, match="the tasks of ray write into a folder that all nodes see"):
            gm.pack(dataset, f"{PACKED}-2", units=2, engine="ray", storage_options=server.options())


@pytest.fixture
def units_of(shards, tokenizer_file):
    """The arguments of a `pack` in two units."""
    options = ["--text-field", "raw_content", "--sequence-length", "128", "--rows-per-file", "50", "--units", "2"]
    return lambda folder: ["pack", shards, "--tokenizer", tokenizer_file.parent, "--output", folder, *options]


def test_units_are_those_of_a_local_folder(units_of, capsys, tmp_path):
    expected = run_json(capsys, *units_of(tmp_path / "packed"))
    local = {
        str(path.relative_to(tmp_path / "packed")): path.read_bytes() for path in (tmp_path / "packed").rglob("[!.]*.*")
    }
    with Server({}) as server:
        plan = run_json(capsys, *units_of(PACKED), "--plan", *storage(server))
        assert (plan["folder"], plan["units"]) == (PACKED, 2)
        unit = ["pack", "--output", PACKED, *storage(server), "--unit"]
        message = fails(capsys, *unit[:-1], "--finish")
        assert f"{PACKED}: 2 units of 2 not complete: 0, 1" in message
        for number in (1, 0, 1):
            assert run_json(capsys, *unit, number)["folder"] == f"{PACKED}/unit-{number:05}"
        assert "the plan has the units 0 to 1" in fails(capsys, *unit, 2, code=2)
        for _ in range(2):
            assert run_json(capsys, *unit[:-1], "--finish") == {**expected, "folder": PACKED}
        assert files_of(server) == local
        # The plan may be written again, and another is refused.
        run_json(capsys, *units_of(PACKED), "--plan", *storage(server))
        message = fails(capsys, *units_of(PACKED), "--seed", 1, "--plan", *storage(server))
        assert f"{PACKED}/plan.json is another plan" in message
    # A copy in a local folder is a packed folder.
    for name, content in files_of(server).items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(content)
    assert run_json(capsys, "verify", tmp_path / "copy")["equal"]
    assert len(gm.PackedRows(tmp_path / "copy")) == expected["items"]


def test_one_command_and_python_pack_units_into_a_store(units_of, capsys, shards, encoder, tmp_path):
    expected = run_json(capsys, *units_of(tmp_path / "packed"))
    with Server({}) as server:
        assert run_json(capsys, *units_of(PACKED), *storage(server)) == {**expected, "folder": PACKED}
    dataset = gm.PackedDataset(shards, tokenizer=encoder, text_field="raw_content", lanes=8, batch_size=8)
    with Server({}) as server:
        found = gm.pack(dataset, PACKED, units=4, storage_options=server.options())
        assert (found["folder"], found["units"]) == (PACKED, 4)
        names = {name.partition("/")[0] for name in files_of(server)}
        assert names == {"plan.json", "index.json", *(f"unit-{number:05}" for number in range(4))}


def test_what_units_in_a_store_cannot_do_is_refused(units_of, capsys):
    with Server({"bucket/runs/packed/other.txt": b"x"}) as server:
        message = fails(capsys, *units_of(PACKED), *storage(server))
        assert f"{PACKED} is not empty and does not hold units, but 'other.txt'" in message
    with Server({}) as server:
        message = fails(capsys, *units_of(PACKED), "--on-error", "quarantine", *storage(server), code=2)
        assert "quarantined records cannot grow in a store" in message
        message = fails(capsys, "pack", "--output", PACKED, "--unit", 0, *storage(server))
        assert f"no plan.json in '{PACKED}'" in message
        assert not server.objects
        assert "which can be written" in fails(capsys, *units_of(f"{server.url}/packed"), code=2)


def test_inspect_shows_a_packed_folder(packing, units_of, capsys, tmp_path):
    here = run_json(capsys, *packing(tmp_path / "packed")) and run_json(capsys, "inspect", tmp_path / "packed")
    with Server({}) as server:
        run_json(capsys, *packing(PACKED), *storage(server))
        found = run_json(capsys, "inspect", PACKED, *storage(server))
        assert found == {**here, "path": PACKED, "first": None}
        server.objects["bucket/runs/packed/part-00001.npy"] += b"x"
        [damage] = run_json(capsys, "inspect", PACKED, *storage(server))["damaged"]
        assert damage.startswith("part-00001.npy has ")
        message = fails(capsys, "inspect", f"{PACKED}/none", *storage(server))
        assert f"{PACKED}/none" in message
    with Server({}) as server:
        run_json(capsys, *units_of(PACKED), *storage(server))
        found = run_json(capsys, "inspect", PACKED, *storage(server))
        assert (found["kind"], found["path"], found["units"]) == ("packed units", PACKED, 2)
        assert run_json(capsys, "inspect", f"{PACKED}/unit-00001", *storage(server))["complete"]


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_packed_files_are_read_where_they_are(tmp_path, pack, packing, capsys, monkeypatch, form):
    pack(tmp_path / "packed", "--format", form)
    local = gm.PackedRows(tmp_path / "packed")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    with Server({}) as server:
        run_json(capsys, *packing(PACKED, "--format", form), *storage(server))
        server.requests.clear()
        rows = gm.PackedRows(PACKED, server.options())
        assert (len(rows), rows.fields, repr(rows)) == (len(local), local.fields, repr(local))
        assert not any(key.endswith(form) for _, key, _ in server.requests), "parts are fetched when they are needed"
        for found in (rows, pickle.loads(pickle.dumps(rows))):
            for number in (len(rows) - 1, 0, len(rows) // 2):
                assert all((found[number][name] == array).all() for name, array in local[number].items())
        read = [key for method, key, _ in server.requests if method == "GET" and key.endswith(form)]
        assert len(read) <= 6
        del rows, found
        gc.collect()
        assert not list((tmp_path / "temporary").iterdir())
        # Damage is that of the object.
        server.objects["bucket/runs/packed/part-00001." + form] = b"x"
        rows = gm.PackedRows(PACKED, server.options())
        with pytest.raises(gm.GristmillError, match=rf"{PACKED}/part-00001, item 0: part-00001.{form} has 1 byte"):
            _ = [rows[number] for number in range(len(rows))]


def test_packed_files_are_verified_where_they_are(tmp_path, pack, packing, units_of, capsys):
    pack(tmp_path / "packed")
    here = run_json(capsys, "verify", tmp_path / "packed")
    for pack_it in (packing, units_of):
        with Server({}) as server:
            run_json(capsys, *pack_it(PACKED), *storage(server))
            found = run_json(capsys, "verify", PACKED, *storage(server))
            assert (found["equal"], found["complete"], found["folder"]) == (True, True, PACKED)
            if pack_it is packing:
                assert found == {**here, "folder": PACKED}
            else:
                assert len(gm.PackedRows(PACKED, server.options())) == found["items"]
            part = next(key for key in server.objects if key.endswith("part-00000.npy"))
            data = bytearray(server.objects[part])
            data[-2] ^= 1
            server.objects[part] = bytes(data)
            code, said = checked(capsys, "verify", PACKED, *storage(server))
            assert (code, said["difference"]["files"]) == (3, ["part-00000.npy"])
            del server.objects[part]
            code, said = checked(capsys, "verify", PACKED, *storage(server))
            assert (code, "part-00000.npy is missing" in said["difference"]["what"]) == (3, True)


def test_packed_files_are_drawn_where_they_are(tmp_path, packing, capsys):
    with Server({}) as server:
        run_json(capsys, *packing(PACKED), *storage(server))
        page = tmp_path / "page.html"
        assert main.run(["view", PACKED, "--output", str(page), *storage(server)]) == 0
        assert f"<dd>{PACKED}" in page.read_text() or PACKED in page.read_text()


def test_folders_that_are_none_are_named(capsys):
    with Server({"bucket/other/a.txt": b""}) as server:
        for url, message in [
            ("gs://bucket/none", "no packed files in 'gs://bucket/none': no such folder"),
            ("gs://bucket/other", "no packed files in 'gs://bucket/other': it has no index.json"),
            (f"{server.url}/bucket/other", "expected packed files in a local folder, or in gs://, s3:// or az://"),
            ("hf://datasets/a/b/packed", "expected packed files in a local folder, or in gs://, s3:// or az://"),
        ]:
            assert message in fails(capsys, "verify", url, *storage(server), code=2 if "expected" in message else 1)
            with pytest.raises(gm.GristmillError, match=message):
                gm.PackedRows(url, server.options())
