"""The JSON of the commands has the keys that docs/json.md lists, and no others."""

import json
import re

import numpy as np
import pytest

import gristmill as gm
from chat_models import CHATML, write_chatml
from command_line import checked, run_json, shard_of
from gristmill._bench import child, contenders, latency, run
from gristmill._cli import main
from helpers import ROOT

PAGE = (ROOT / "docs" / "json.md").read_text()
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", dict: "object"}


def table(heading):
    """The rows of a section: by key, its types."""
    section = re.search(rf"^##+ {heading}\n(.*?)(?=^#|\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE)
    return {key: set(re.split(" or |, ", types)) for keys, types in rows for key in re.findall("`(.*?)`", keys)}


def leaves(value, listed, path=""):
    """The page's key for each value, and its type."""
    inside = [key for key in listed if key.startswith((f"{path}.", f"{path}[]"))] if path else listed
    if isinstance(value, dict) and inside:
        if path in listed:
            yield path, "object"
        for name, item in value.items():
            own = f"{path}.{name}" if path else name
            is_listed = any(key == own or key.startswith((f"{own}.", f"{own}[]")) for key in listed)
            yield from leaves(item, listed, own if is_listed else f"{path}.*")
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, listed, f"{path}[]")
    else:
        yield path, TYPES[type(value)]


def assert_listed(found, heading):
    listed = table(heading)
    seen = set()
    for path, kind in leaves(found, listed):
        types = listed.get(path, set())
        assert kind in types or (kind == "integer" and "number" in types), f"{path} is {kind}, listed is {types}"
        seen.add(path)
    assert {path for path, types in listed.items() if "optional" not in types} <= seen
    return seen


def test_demo(tmp_path, tokenizer_file, capsys):
    found = run_json(
        capsys, "demo", "--folder", tmp_path, "--megabytes", "0.05", "--tokenizer", tokenizer_file, "--rows", "1"
    )
    assert_listed(found, "demo")
    assert_listed(found["stats"], "Figures of an iterator")


def test_certify(tokenizer_file, tmp_path, capsys):
    found = run_json(capsys, "certify", tokenizer_file, "--documents", 20, "--output", tmp_path / "a.json")
    seen = assert_listed(found, "certify")
    example = {"kind": "given", "number": 0, "text": "a", "alone": True, "expected": [1], "found": [2]}
    assert seen | assert_listed(found | {"examples": [example]}, "certify") == table("certify").keys()
    checked_now = run_json(capsys, "certify", tokenizer_file, "--check", tmp_path / "a.json")
    assert checked_now == {"fits": True, "misfits": [], "caveats": checked_now["caveats"]}


def test_inspect_tokenizer(tokenizer_file, tokenizer_json, tmp_path, capsys):
    value = json.loads(tokenizer_json) | {"normalizer": {"type": "NFC"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    config = json.loads((tokenizer_file.parent / "tokenizer_config.json").read_bytes()) | {"pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    seen = assert_listed(run_json(capsys, "inspect", tmp_path, "--text", "a b"), "A tokenizer")
    assert seen == table("A tokenizer").keys()


def write_mixture(tmp_path, shard_folder, tokenizer_file):
    text = f'''
        tokenizer = "{tokenizer_file.parent}"
        batch_size = 4
        lanes = 2
        sources.a = {{ shards = "{shard_folder}/*/*.gz", text_field = "raw_content", weight = 1 }}
        sources.b = {{ shards = "{shard_folder}/*/*.gz", text_field = "raw_content", weight = 2, epochs = 1 }}
    '''
    path = tmp_path / "mixture.toml"
    path.write_text(text)
    return path


def test_inspect_mixture(tmp_path, shard_folder, tokenizer_file, capsys):
    path = write_mixture(tmp_path, shard_folder, tokenizer_file)
    assert_listed(run_json(capsys, "inspect", path), "A mixture")
    row = run_json(capsys, "inspect", path, "--row", "1", "--full")
    others = {"segments[].images", "segments[].bytes", "segments[].sample", "segments[].fields"}
    others |= {f"segments[].document.parts[].{name}" for name in ("text", "trained")}
    assert assert_listed(row, "A row") == table("A row").keys() - others


@pytest.mark.slow
def test_bench_of_a_mixture(tmp_path, shard_folder, tokenizer_file, capsys):
    path = write_mixture(tmp_path, shard_folder, tokenizer_file)
    found = run_json(capsys, "bench", path, "--threads", "1", "--rounds", "1", "--steps", "2")
    assert_listed(found, "bench of a mixture")


def test_inspect_shard(shard_folder, capsys):
    assert_listed(run_json(capsys, "inspect", shard_folder / "0000" / "en_head.json.gz"), "A shard")


def test_inspect_filter(shard_folder, capsys):
    keep = "len(raw_content) > 100 and url is not None and nlines == 1 and missing is None"
    seen = assert_listed(run_json(capsys, "inspect", shard_folder / "*/*.gz", "--keep", keep), "A filter")
    assert seen == table("A filter").keys()


def test_inspect_state_and_row(shards, tokenizer_file, tmp_path, capsys):
    dataset = gm.PackedDataset(shards, tokenizer=tokenizer_file, text_field="raw_content", batch_size=8)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iter(dataset).get_state()))
    assert_listed(run_json(capsys, "inspect", state), "A state")
    row = run_json(capsys, "inspect", state, "--row", "0", "--shards", shards, "--tokenizer", tokenizer_file)
    assert_listed(row, "A row")


def test_inspect_chat(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    shard.write_text(json.dumps({"messages": messages}))
    command = ["inspect", shard, "--chat", "--tokenizer", folder]
    assert_listed(run_json(capsys, *command), "Conversations")
    messages[1]["reasoning"] = "c"
    shard.write_text(json.dumps({"messages": messages}))
    seen = assert_listed(run_json(capsys, *command, "--set", 'stop_tokens=["<|im_start|>"]'), "Conversations")
    seen |= assert_listed(run_json(capsys, *command, "--set", "samples=turns"), "Conversations")
    shard.write_text(json.dumps({"messages": [{"role": "system", "content": "d"}, *messages]}))
    template = "template=" + CHATML.replace("in messages", "in messages if message.role != 'system'")
    seen |= assert_listed(run_json(capsys, *command, "--set", template), "Conversations")
    assert seen == table("Conversations").keys()


def test_audit(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 40}]
    conversation = json.dumps({"messages": messages})
    (tmp_path / "a.jsonl").write_text("\n".join([conversation, "[]", conversation]))
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b")
    options = ["audit", tmp_path / "*.jsonl*", "--tokenizer", folder]
    seen = assert_listed(run_json(capsys, *options), "audit")
    seen |= assert_listed(run_json(capsys, *options, "--sequence-length", 20), "audit")
    (tmp_path / "text.jsonl").write_text('{"text": "a"}')
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(
        'tokenizer = "model"\n[sources.chats]\nshards = "[ab].jsonl*"\nweight = 1\nsample = {kind = "chat"}\n'
        '[sources.web]\nshards = "text.jsonl"\nweight = 1\n'
    )
    seen |= assert_listed(run_json(capsys, "audit", mixture, "--sequence-length", 20), "audit")
    assert seen == table("audit").keys()


def test_inspect_state_of_prompts(tmp_path, capsys):
    rows = [{"prompt": "a"}] * 3
    dataset = gm.PromptDataset(rows, tokenizer=write_chatml(tmp_path / "model"), prompt=gm.Text("prompt"), batch_size=1)
    iterator = iter(dataset)
    next(iterator)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for path in (tmp_path / "state.json", checkpoint / "process_0-of-1.json"):
        path.write_text(json.dumps(iterator.get_state()))
    for path in (tmp_path / "state.json", checkpoint):
        found = run_json(capsys, "inspect", path)
        assert_listed(found, "A state of prompts")
        assert (found["epoch"], found["place"]) == (0, 1)
        assert main.run(["inspect", str(path)]) == 0
        assert "epoch 0, after 1 of its prompts" in capsys.readouterr().out


def test_inspect_prompt(tmp_path, capsys):
    folder = write_chatml(tmp_path / "model")
    shard = tmp_path / "a.jsonl"
    shard.write_text(json.dumps({"prompt": [{"role": "user", "content": "a"}]}))
    assert_listed(run_json(capsys, "inspect", shard, "--prompt", "--tokenizer", folder), "Prompts")


def test_pack_inspect_and_verify(tmp_path, pack, capsys):
    folder = tmp_path / "packed"
    assert_listed(pack(folder), "pack")
    (folder / "part-00001.npy").write_bytes(b"")
    seen = assert_listed(run_json(capsys, "inspect", folder), "Packed files")
    assert "damaged[]" in seen
    code, found = checked(capsys, "verify", folder)
    assert code == 3
    seen = assert_listed(found, "verify")
    rows = np.load(folder / "part-00000.npy", mmap_mode="r+")
    rows[3, 0, 5] += 1
    rows.flush()
    code, found = checked(capsys, "verify", folder)
    assert code == 3
    assert seen | assert_listed(found, "verify") == table("verify").keys()


def test_units(tmp_path, packing, capsys):
    folder = tmp_path / "packed"
    assert_listed(run_json(capsys, *packing(folder, "--plan", "--units", 2)), "A plan")
    for number in (0, 1):
        assert_listed(run_json(capsys, "pack", "--output", folder, "--unit", number), "pack")
    assert_listed(run_json(capsys, "pack", "--output", folder, "--finish"), "Finished units")
    assert_listed(run_json(capsys, "inspect", folder), "Packed units")


def test_inspect_megatron(tmp_path, pack, capsys):
    pack(tmp_path / "packed", "--format", "megatron")
    assert_listed(run_json(capsys, "inspect", tmp_path / "packed" / "part-00000.idx"), "A Megatron index")


def test_index(tmp_path, capsys):
    paths = shard_of(tmp_path, '{"text": "a"}'), tmp_path / "plain.jsonl"
    paths[1].write_bytes(b"")
    seen = assert_listed(run_json(capsys, "index", *paths), "index")
    assert seen == table("index").keys()


def test_bench(tmp_path, monkeypatch, tokenizer_file, capsys):
    def here(what, module, request, environment=None):
        if module.endswith("latency"):
            return latency.measure(contenders.Job(**request))
        if request["name"] == "inflate":
            raise gm.GristmillError("no")
        return run.measure(request["name"], contenders.Job(**request["job"]), count=request["count"])

    monkeypatch.setattr(child, "measure", here)
    monkeypatch.setattr(latency, "_STARTS", 1)
    monkeypatch.setattr(latency, "_BATCHES", 2)
    arguments = ["bench", "--folder", tmp_path, "--megabytes", "0.3", "--tokenizer", tokenizer_file, "--rounds", "1"]
    arguments += ["--threads", "1", "--only", "copy", "--only", "inflate", "--sequence-length", "64", "--latency"]
    seen = assert_listed(run_json(capsys, *arguments), "bench")
    message = {"role": "assistant", "content": "ant"}
    chats = shard_of(tmp_path, json.dumps({"messages": [{"role": "user", "content": "ant"}, message]}))
    model = write_chatml(tmp_path / "model")
    conversations = ["bench", chats, "--tokenizer", model, "--sample", "chat", "--rounds", "1", "--threads", "1"]
    seen |= assert_listed(run_json(capsys, *conversations, "--only", "copy"), "bench")
    assert seen == table("bench").keys()
