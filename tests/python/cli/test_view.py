"""`gristmill view`: what its page holds, compared with the arrays of the dataset, and what a browser makes of it."""

import base64
import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import browser
import gristmill as gm
from chat_models import write_chatml, write_vision
from command_line import fails, run_json, shard_of
from gristmill import _core
from gristmill._cli import main
from gristmill._inspect.locate import run_of
from gristmill._view import page, pages
from helpers import tar_of
from images import captions, image

HOSTILE = (
    "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">&amp;\u202e\u0007"
)

TEXT = {"text_field": "raw_content"}
SET_TEXT = ("--set", "text_field=raw_content")


class Parsed(HTMLParser):
    """The elements of a page, its data, and its text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self._inside, self._data = [], "", [], ""
        self.feed(text)
        self.data = json.loads(self._data)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attributes = self._inside[-1] if self._inside else ("", {})
        if attributes.get("id") == "data":
            self._data += data
        elif tag not in ("script", "style"):
            self.text += data

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def viewed(path, *arguments):
    output = path / "page.html"
    assert main.run(["view", *map(str, arguments), "--output", str(output)]) == 0
    return Parsed(output.read_text("utf-8"))


def page_of(dataset, **options):
    return Parsed(
        pages.of_run(run_of(dataset), title="a run", **{"step": None, "rows": 4, "measured": 4, **options}).html()
    )


@pytest.mark.parametrize("layout", _core.LAYOUTS)
@pytest.mark.parametrize("batch_size", [None, 8])
def test_page_holds_the_rows_of_the_stream(layout, batch_size, shards, encoder, tokenizer_file, tmp_path):
    options = {**TEXT, "sequence_length": 64, "lanes": 4, "layout": layout, "packing": "best_fit"}
    settings = [f"--set={name}={value}" for name, value in options.items()]
    settings += [] if batch_size is None else [f"--set=batch_size={batch_size}"]
    found = viewed(tmp_path, shards, "--tokenizer", tokenizer_file, *settings, "--rows", "20", "--step", "1").data
    if layout == "varlen":
        layout, options = "maxtext", {**options, "layout": "maxtext", "max_segments": 16}
    more = {"attention_mask": True} if layout == "hf" else {}
    dataset = gm.PackedDataset(shards, tokenizer=encoder, batch_size=batch_size, provenance=True, **more, **options)
    rows = [row for element in dataset for row in (rows_of(element) if batch_size else [element])]
    per_step = batch_size or 4
    ids, marks, positions = {
        "maxtext": ("inputs", "inputs_segmentation", "inputs_position"),
        "grain": ("tokens", "tokens_segment_ids", "tokens_positions"),
        "hf": ("input_ids", "attention_mask", "position_ids"),
    }[layout]
    assert [row["name"] for row in found["rows"][:2]] == ["step 1, row 0", "step 1, row 1"]
    for row, expected in zip(found["rows"], rows[per_step : per_step + 20], strict=True):
        assert row["tokens"] == expected[ids].tolist()
        assert row["positions"] == expected[positions].tolist()
        lengths = [length for _, _, _, length in expected["provenance"].tolist() if length]
        assert [length for _, length, _ in row["segments"]][: len(lengths)] == lengths
        assert sum(length for _, length, _ in row["segments"]) == (expected[marks] != 0).sum()
        for start, length, place in row["segments"]:
            assert "record" in place
            text = encoder.decode(row["tokens"][start : start + length])
            if text.isascii():  # a token may be a part of another character
                assert "".join(found["texts"][str(token)] for token in row["tokens"][start : start + length]) == text


def rows_of(batch):
    return [dict(zip(batch, arrays, strict=True)) for arrays in zip(*batch.values(), strict=True)]


def test_trained_tokens_are_those_of_the_mask(tmp_path):
    model = write_chatml(tmp_path / "model")
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    shard = shard_of(tmp_path, *[json.dumps({"messages": messages})] * 8)
    for layout in _core.LAYOUTS:
        found = viewed(
            tmp_path, shard, "--tokenizer", model, "--sample", "chat", "--set", "sequence_length=64",
            "--set", "lanes=1", "--set", "packing=pad", "--set", f"layout={layout}",
        ).data  # fmt: skip
        row = found["rows"][0]
        trained = [token for token, mark in zip(row["tokens"], row["trained"], strict=True) if mark == "1"]
        assert "".join(found["texts"][str(token)] for token in trained) == "Good day<|im_end|>"


def test_tokens_of_a_conversation_name_their_message(tmp_path):
    model = write_chatml(tmp_path / "model")
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    shard = shard_of(tmp_path, *["", json.dumps({"messages": messages})] * 3)
    found = viewed(
        tmp_path, shard, "--tokenizer", model, "--sample", "chat", "--set", "sequence_length=20",
        "--set", "lanes=1", "--set", "truncation=split",
    ).data  # fmt: skip
    origins: dict[str, str] = {}
    for row in found["rows"]:
        for token, origin in zip(row["tokens"], row["origins"], strict=True):
            name = found["origins"][origin] if origin >= 0 else "padding"
            origins[name] = origins.get(name, "") + found["texts"][str(token)]
    assert origins["user, message 0: content"] == "Hello" * 3
    assert origins["assistant, message 1: content"] == "Good day" * 3
    assert origins["assistant, message 1: role"] == "assistant" * 3
    assert "<" not in origins.get("padding", "").replace("<|im_end|>", "")


def test_hostile_text_stays_text(tmp_path, tokenizer_file):
    shard = shard_of(tmp_path, json.dumps({"text": HOSTILE}), name=f"{'<b>'}.json.gz")
    found = viewed(tmp_path, shard, "--tokenizer", tokenizer_file, "--set", "lanes=1", "--set", "sequence_length=256")
    assert len(found.named("script")) == 2
    assert not found.named("img")
    assert not found.named("b")
    assert HOSTILE in found.text
    assert found.named("meta")[1]["content"].startswith("default-src 'none'")


def test_page_asks_the_network_for_nothing(shards, tmp_path, tokenizer_file):
    found = viewed(
        tmp_path, shards, "--tokenizer", tokenizer_file, *SET_TEXT, "--set", "sequence_length=64", "--set", "lanes=1"
    )
    addresses = [value for _, own in found.elements for name, value in own.items() if name in ("src", "href")]
    assert all(address.startswith("data:") for address in addresses)


def test_each_chart_has_its_table(shards, tmp_path, encoder):
    found = page_of(
        gm.PackedDataset(shards, tokenizer=encoder, **TEXT, sequence_length=64, lanes=2), measured=500, rows=2
    )
    assert len(found.named("svg")) == len(found.named("figure")) >= 4
    assert all(own["aria-hidden"] == "true" for own in found.named("svg"))
    assert len(found.data["rows"]) == 2
    assert "Lengths of segments, of 500 rows" in found.text


def test_rows_after_a_state(shards, tmp_path, encoder, tokenizer_file):
    dataset = gm.PackedDataset(shards, tokenizer=encoder, **TEXT, sequence_length=64, lanes=2, batch_size=4)
    with iter(dataset) as iterator:
        next(iterator)
        state = iterator.get_state()
        expected = next(iterator)["inputs"]
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    found = viewed(tmp_path, path, "--shards", shards, "--tokenizer", tokenizer_file, "--rows", "4").data
    assert [row["tokens"] for row in found["rows"]] == expected.tolist()
    assert found["rows"][0]["name"] == "step 1, row 0"
    alone = viewed(tmp_path, path)
    assert alone.data["rows"] == []
    assert "Cursors of the lanes" in alone.text


def test_rows_of_a_mixture_name_their_source(shards, tmp_path, tokenizer_file):
    file = tmp_path / "mixture.toml"
    file.write_text(
        f"tokenizer = {json.dumps(str(tokenizer_file))}\nsequence_length = 64\nbatch_size = 4\nlanes = 2\n"
        + "".join(
            f'[sources.{name}]\nshards = {json.dumps(shards)}\ntext_field = "raw_content"\nweight = 1\n'
            for name in ("one", "two")
        )
    )
    found = viewed(tmp_path, file)
    assert "source one" in found.text
    assert "source two" in found.text
    assert "50.000%" in found.text


def test_packed_rows(pack, tmp_path, tokenizer_file):
    folder = tmp_path / "packed"
    pack(folder)
    rows = gm.PackedRows(folder)
    found = viewed(tmp_path, folder, "--row", "3", "--rows", "2", "--tokenizer", tokenizer_file).data
    assert [row["name"] for row in found["rows"]] == ["row 3", "row 4"]
    first = next(name for name in rows.fields if name in ("inputs", "tokens", "input_ids"))
    assert [row["tokens"] for row in found["rows"]] == [rows[3][first].tolist(), rows[4][first].tolist()]


@pytest.mark.parametrize("layout", ["grain", "maxtext"])
def test_values_of_fields_of_packed_rows(tmp_path, layout):
    shard = tmp_path / "a.jsonl"
    shard.write_text(json.dumps({"input_ids": [1, 2, 3], "adv": [0.5, 1.5, 2.5], "reward": -2.0}) + "\n")
    sample = gm.Tokens(fields={"adv": gm.Field("adv", "float16"), "reward": gm.Field("reward", per="sample")})
    dataset = gm.PackedDataset(shard, sample=sample, sequence_length=4, layout=layout, max_segments=2, batch_size=1)
    gm.pack(dataset, tmp_path / "packed")
    [row] = viewed(tmp_path, tmp_path / "packed").data["rows"]
    array = {"grain": {"adv": [0.5, 1.5, 2.5, 0.0]}, "maxtext": {"targets_adv": [1.5, 2.5, 0.0, 0.0]}}[layout]
    assert (row["values"], row["of_samples"]) == (array, {"reward": [-2.0, 0.0]})


def test_quarantine_file(tmp_path, encoder):
    lines = [json.dumps({"text": "good"}), "not JSON", json.dumps({"text": 3})]
    shard, listed = shard_of(tmp_path, *lines), tmp_path / "quarantine.jsonl"
    options = {"on_error": "quarantine", "max_error_rate": 1.0, "quarantine_file": listed}
    with iter(gm.PackedDataset(shard, tokenizer=encoder, sequence_length=64, lanes=1, **options)) as iterator:
        list(iterator)
    found = viewed(tmp_path, listed)
    assert "2 entries" in found.text
    for entry in map(json.loads, listed.read_text().splitlines()):
        assert entry["reason"] in found.text
    listed.write_text(listed.read_text() + "other\n")
    assert main.run(["view", str(listed), "--output", str(tmp_path / "page.html")]) == 1


@pytest.mark.parametrize(
    "model",
    [
        gm.ImageModel("gemma3", size=(8, 12), tokens=4),
        gm.ImageModel("qwen3-vl", patch_size=4, min_pixels=64, max_pixels=1 << 20),
        gm.ImageModel("llama4", size=8, tokens=4),
    ],
    ids=["one size", "patches", "tiles"],
)
def test_images_are_those_of_the_batch(model, tmp_path):
    tokenizer = write_vision(tmp_path / "model")
    size = (12, 8) if model.size else (48, 24)  # the size is that of the model, or one that it leaves as it is
    size = (8, 8) if model.name == "llama4" else size
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([(f"{number}", {"png": image(*size, number), "txt": b"a caption"}) for number in range(2)]))
    sample = gm.ImageText(model, text=gm.Text("txt"), max_images=4, max_patches=None if model.size else 512)
    options = {"packing": "best_fit", "sequence_length": 256, "lanes": 1, "eos": False}
    found = page_of(gm.PackedDataset(path, tokenizer=tokenizer, sample=sample, **options))
    urls = [own["src"].removeprefix("data:image/png;base64,") for own in found.named("img")]
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(url)))) for url in urls]
    expected = [np.asarray(Image.open(io.BytesIO(image(*size, number)))) for number in range(2)]
    assert sorted(own.tobytes() for own in shown) == sorted(own.tobytes() for own in expected)


def test_float_pixels_and_large_images_are_drawn(tmp_path):
    tokenizer = write_vision(tmp_path / "model")
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(captions(9)))
    model = gm.ImageModel("gemma3", size=(600, 300), tokens=4)
    sample = gm.ImageText(model, text=gm.Text("txt"), max_images=4, images="float32")
    found = page_of(
        gm.PackedDataset(path, tokenizer=tokenizer, sample=sample, packing="pad", sequence_length=256, lanes=1)
    )
    assert found.named("img")
    for own in found.named("img"):
        shown = Image.open(io.BytesIO(base64.b64decode(own["src"].removeprefix("data:image/png;base64,"))))
        assert shown.size == (100, 200)


def test_wrong_usage_is_named(shards, tmp_path, tokenizer_file, capsys):
    output = ["--output", tmp_path / "page.html"]
    assert main.run(["view", shards, *map(str, output)]) == 2
    assert "shards need --tokenizer" in capsys.readouterr().err
    line = fails(capsys, "view", shards, "--tokenizer", tokenizer_file, *SET_TEXT, "--step", "100000", *output, code=2)
    assert "there is no step 100000" in line
    line = fails(capsys, "view", tokenizer_file.parent / "none", "--tokenizer", tokenizer_file, *output)
    assert "none" in line
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the path")
def test_a_browser_shows_tokens_and_follows_keys(shards, tmp_path, tokenizer_file):
    shard = shard_of(tmp_path, json.dumps({"text": HOSTILE}))
    viewed(tmp_path, shard, "--tokenizer", tokenizer_file, "--set", "lanes=1", "--set", "sequence_length=64")
    with browser.Browser(tmp_path / "page.html") as tab:
        tab.press("Tab")
        tab.press("Enter")
        shown = tab.evaluate("document.querySelector('#tokens div').textContent")
        assert shown.startswith("</script><script>")
        assert tab.evaluate("document.title") == str(shard)
    viewed(
        tmp_path, shards, "--tokenizer", tokenizer_file, *SET_TEXT, "--set", "lanes=2", "--set", "sequence_length=64"
    )
    with browser.Browser(tmp_path / "page.html") as tab:
        title = "document.querySelector('#tokens h4').textContent"
        tab.press("Tab")
        assert tab.evaluate("document.activeElement.getAttribute('aria-label')").startswith("segment 1 of ")
        tab.press("Enter")
        assert tab.evaluate(title).startswith("step 0, row 0, tokens 0 to ")
        for _ in range(2):
            tab.press("ArrowDown")
        assert tab.evaluate(title).startswith("step 1, row 0, tokens 0 to ")
        tab.press("ArrowRight")
        tab.press("ArrowLeft")
        assert tab.evaluate(title).startswith("step 1, row 0, tokens 0 to ")
        hint = tab.evaluate("document.querySelector('.token').title")
        assert hint.startswith("token 0, id ")
        names = {node["role"]["value"] for node in tab.call("Accessibility.getFullAXTree")["nodes"] if "role" in node}
        assert {"heading", "button", "list", "complementary"} <= names
        asked = [event for event in tab.events if event.get("method") == "Network.requestWillBeSent"]
        assert {event["params"]["request"]["url"].split(":")[0] for event in asked} <= {"file", "data"}
        assert not [
            event for event in tab.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]


def test_page_without_rows_is_whole():
    made = Parsed(page.Page("nothing", [("a", "<b>")]).html())
    assert made.data == {"rows": [], "origins": [], "texts": {}}
    assert "<b>" in made.text


PROMPTS = [
    [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": f"What is {n} + {n}? {'Think. ' * (n % 4)}"},
    ]
    for n in range(11)
]


@pytest.fixture
def prompts(tmp_path):
    """A shard of prompts, and their tokenizer."""
    shard = tmp_path / "prompts.jsonl"
    shard.write_text("".join(json.dumps({"prompt": own, "n": n}) + "\n" for n, own in enumerate(PROMPTS)))
    return shard, write_chatml(tmp_path / "model")


@pytest.mark.parametrize("layout", ["verl", "hf", "maxtext"])
def test_page_holds_the_rows_of_prompts(prompts, tmp_path, layout):
    shard, model = prompts
    options = {"prompt_length": 96, "batch_size": 4, "num_generations": 2, "seed": 3, "layout": layout}
    settings = [f"--set={name}={value}" for name, value in options.items()]
    page = viewed(tmp_path, shard, "--prompt", "--tokenizer", model, *settings, "--step", "1", "--rows", "8")
    dataset = gm.PromptDataset(shard, tokenizer=model, **options)
    batch = [*dataset][1]
    ids, mask, positions = {
        "maxtext": ("prompt", "prompt_segmentation", "prompt_position"),
    }.get(layout, ("input_ids", "attention_mask", "position_ids"))
    found = page.data
    assert [row["name"] for row in found["rows"]] == [f"step 1, row {row}" for row in range(8)]
    for number, row in enumerate(found["rows"]):
        assert row["tokens"] == batch[ids][number].tolist()
        assert row["positions"] == batch[positions][number].tolist()
        [[start, length, place]] = row["segments"]
        assert np.flatnonzero(batch[mask][number]).tolist() == list(range(start, start + length))
        assert f"record {batch['n'][number]} " in place
        parts = {}
        for token, origin in zip(row["tokens"], row["origins"], strict=True):
            name = found["origins"][origin] if origin >= 0 else ""
            parts[name] = parts.get(name, "") + found["texts"][str(token)]
        [_, user] = PROMPTS[batch["n"][number]]
        assert parts["user, message 1: content"] == user["content"].strip()
        assert parts["template"].endswith("<|im_start|>assistant\n")
    assert "of each prompt" in page.text


def test_page_of_cut_prompts_tells_the_part_that_is_left(prompts, tmp_path):
    shard, model = prompts
    for overlong in ("left", "right", "middle"):
        settings = ["--set=prompt_length=24", f"--set=overlong={overlong}", "--set=batch_size=2"]
        found = viewed(tmp_path, shard, "--prompt", "--tokenizer", model, *settings, "--rows", "2").data
        dataset = gm.PromptDataset(shard, tokenizer=model, prompt_length=24, overlong=overlong, batch_size=2)
        for row, expected in zip(found["rows"], next(iter(dataset))["input_ids"], strict=True):
            assert row["tokens"] == expected.tolist()
            assert [origin >= 0 for origin in row["origins"]] == [True] * 24
            kept = [found["origins"][origin] for origin in row["origins"]]
            assert any("system" in name for name in kept) == (overlong != "left")
            assert (kept[-1] == "template") == (overlong != "right")


def test_page_underlines_the_trained_tokens_of_completions(prompts, tmp_path):
    _, model = prompts
    shard = tmp_path / "pairs.jsonl"
    rows = [
        {"prompt": own, "completion": [{"role": "assistant", "content": "ant " * n}]} for n, own in enumerate(PROMPTS)
    ]
    shard.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--set=prompt_length=96", "--set=batch_size=4"]
    found = viewed(tmp_path, shard, "--prompt", "--sample=completion", "--tokenizer", model, *settings, "--rows=4").data
    options = {"prompt_length": 96, "batch_size": 4, "layout": "hf"}
    batch = next(iter(gm.PromptDataset(shard, tokenizer=model, prompt=gm.Completion(), **options)))
    for row, mask in zip(found["rows"], batch["loss_mask"].tolist(), strict=True):
        assert row["trained"] == "".join(map(str, mask))
        assert {0, 1} == set(mask)


def test_page_of_a_state_of_a_mixture_of_prompts(prompts, tmp_path, capsys):
    shard, model = prompts
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"q": f"Say {n}"}) + "\n" for n in range(9)))
    mixture = tmp_path / "mix.toml"
    mixture.write_text(
        f"""
        tokenizer = "model"
        batch_size = 4
        [sources.chats]
        shards = "{shard.name}"
        weight = 0.5
        sample = {{ kind = "chat", field = "prompt", add_generation_prompt = true }}
        [sources.texts]
        shards = "texts.jsonl"
        weight = 0.5
        sample = {{ kind = "text", field = "q" }}
        """
    )
    chat = gm.Chat("prompt", add_generation_prompt=True)
    sources = {
        "chats": gm.Source(shard, weight=0.5, sample=chat),
        "texts": gm.Source(tmp_path / "texts.jsonl", weight=0.5, sample=gm.Text("q")),
    }
    dataset = gm.PromptDataset(
        gm.Mixture(sources), tokenizer=model, batch_size=4, prompt_length=96, prompt=chat, source_arrays=True
    )
    iterator = iter(dataset)
    for _ in range(3):
        batch = next(iterator)
    (tmp_path / "state.json").write_text(json.dumps(iterator.get_state()))
    batch = next(iterator)
    options = ["--prompt", "--shards", mixture, "--set", "prompt_length=96"]
    page = viewed(tmp_path, tmp_path / "state.json", *options, "--rows", "4")
    for number, row in enumerate(page.data["rows"]):
        assert row["name"] == f"step 3, row {number}"
        assert row["tokens"] == batch["input_ids"][number].tolist()
        assert (max(row["origins"], default=-1) >= 0) == (batch["source"][number] == 0)
    assert "source chats" in page.text
    assert "Prompts that were delivered before" in page.text
    capsys.readouterr()
    found = run_json(capsys, "inspect", tmp_path / "state.json", *options, "--row", 2)
    assert (found["step"], found["row"], found["prompts"][0]["source"]) == (3, 2, list(sources)[batch["source"][2]])
    ids = [token["id"] for token in found["prompts"][0]["tokens"]]
    assert ids == batch["input_ids"][2][batch["attention_mask"][2] == 1].tolist()
    assert "--row 4: a global batch has the rows 0 to 3" in fails(
        capsys, "inspect", tmp_path / "state.json", *options, "--row", 4, code=2
    )
    assert "is a saved state of prompts: name its shards" in fails(
        capsys, "view", tmp_path / "state.json", "--prompt", "--output", tmp_path / "x.html", code=2
    )
    assert main.run(["view", str(mixture), "--prompt", "--row", "1", "--output", str(tmp_path / "x.html")]) == 2
    assert "--row does not go with --prompt" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium")
def test_browser_shows_the_tokens_of_a_prompt(prompts, tmp_path):
    shard, model = prompts
    viewed(tmp_path, shard, "--prompt", "--tokenizer", model, "--set=prompt_length=96", "--set=batch_size=4")
    with browser.Browser(tmp_path / "page.html") as tab:
        assert tab.evaluate("document.querySelectorAll('.segment').length") == 8
        tab.evaluate("document.querySelector('.segment').click()")
        panel = tab.evaluate("document.getElementById('tokens').textContent")
        assert "What is 0 + 0?" in panel
        assert "user, message 1: content" in panel
        titles = tab.evaluate("[...document.querySelectorAll('.token')].map((one) => one.title)")
        assert titles[0].startswith("token ")
        assert any(title.endswith("user, message 1: content") for title in titles)
        left = tab.evaluate("parseFloat(document.querySelector('.segment').style.left)")
        assert left > 10  # padding comes first


def test_values_of_fields_are_in_the_page(tmp_path, tokenizer_file):
    record = {"input_ids": [1, 2, 3], "adv": [0.5, 1.5, 2.5], "reward": -2.0}
    shard = tmp_path / "a.jsonl"
    shard.write_text(json.dumps(record) + "\n")
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(
        f'tokenizer = "{tokenizer_file}"\nsequence_length = 4\nlayout = "grain"\n[sources.a]\nweight = 1\n'
        f'epochs = 1\nshards = "{shard}"\n'
        'sample = {kind = "tokens", fields = {adv = {dtype = "float16"}, reward = {per = "sample"}}}\n'
    )
    assert main.run(["view", str(mixture), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert '"values":{"adv":[0.5,1.5,2.5,0.0]}' in page
    assert '"of_samples":{"reward":[-2.0,0.0,0.0,0.0]}' in page
