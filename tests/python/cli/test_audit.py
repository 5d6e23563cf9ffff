"""`gristmill audit`, against a naive count of conversations that are encoded one by one."""

import gzip
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill as gm
from chat_models import REASONING, write_chatml
from command_line import checked, fails, run_json
from gristmill._cli import main
from gristmill._util.progress import Progress

LENGTH = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_chatml(tmp_path_factory.mktemp("models") / "chatml")


def conversation(number):
    """One of different lengths and roles; some train nothing, or only a stop."""
    said = {3: "", 5: "ant"}.get(number % 7, "the ant " * (number % 11))
    messages = [{"role": "system", "content": "Be brief."}] * (number % 2)
    for turn in range(1 + number % 4):
        messages += [
            {"role": "user", "content": f"{number} and {turn}?"},
            {"role": "assistant", "content": said, "train": number % 9 != 4},
        ]
    if number % 5 == 2:
        messages += [{"role": "tool", "content": "42"}, {"role": "assistant", "content": "It is 42."}]
    return messages


RECORDS = [{"messages": conversation(number)} for number in range(60)] + [
    {"messages": conversation(3)},
    {"messages": conversation(8)},
    {"messages": conversation(8)},
]
BAD = {
    7: '{"messages": [{"role": "user"',
    20: '{"messages": "no list"}',
    21: '{"messages": [{"content": "no role"}, {"role": "user", "content": "a"}]}',
    30: '{"other": []}',
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three shards, of which the last one is Parquet; with bad lines, and an empty one."""
    folder = tmp_path_factory.mktemp("audit")
    lines = [BAD.get(number, json.dumps(record)) for number, record in enumerate(RECORDS)]
    (folder / "a.jsonl").write_text("\n".join(lines[:25]) + "\n\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[25:50]).encode()))
    pq.write_table(pa.Table.from_pylist(RECORDS[50:]), folder / "c.parquet")
    return folder


def naive(folder, shards, length, **options):
    """The counts of each shard, and the records of each kind."""
    template = gm.ChatTemplate.from_pretrained(folder)
    encoder = gm.Encoder.from_file(folder)
    end, decode = encoder.token_to_id("<|im_end|>"), encoder.decode
    names = [str(shards / name) for name in ("a.jsonl", "b.jsonl.gz", "c.parquet")]
    places = (
        [(names[0], n) for n in range(25)] + [(names[1], n) for n in range(25)] + [(names[2], n) for n in range(13)]
    )
    found = {name: {"counts": Counter(), "roles": {}, "lengths": Counter()} for name in names}
    kinds, seen = {}, {}
    for number, (record, (shard, row)) in enumerate(zip(RECORDS, places, strict=True)):
        own = found[shard]
        counts = own["counts"]
        counts["records"] += 1
        if number in BAD:
            counts["refused"] += 1
            continue
        messages = record["messages"]
        try:
            ids, mask = template.encode(messages, **options)
        except gm.TemplateError:
            ids, mask = template.encode(messages, train_on=None)
            assert not mask.any()
        text = template.render(messages)
        spans = template.spans(messages, train_on=options.get("train_on", "assistant"))
        offsets, at = [], 0
        for token in ids.tolist():
            offsets.append(at)
            at += len(decode([token]))
        assert at == len(text)
        counts["conversations"] += 1
        counts["samples"] += 1
        own["lengths"][len(ids)] += 1
        answers, cut_answers = set(), set()
        for index, (offset, trained) in enumerate(zip(offsets, mask.tolist(), strict=True)):
            message = next(message for start, stop, message, _, _ in spans if start <= offset < stop)
            role = "" if message is None else messages[message]["role"]
            tokens = own["roles"].setdefault(role, Counter())
            tokens["tokens"] += 1
            tokens["trained_tokens"] += trained
            if trained:
                answers.add(message)
            if index >= length:
                counts["cut_tokens"] += 1
                counts["cut_trained_tokens"] += trained
                if trained:
                    cut_answers.add(message)
        for message in messages:
            own["roles"].setdefault(message["role"], Counter())["messages"] += 1
        counts["answers"] += len(answers)
        counts["cut_answers"] += len(cut_answers)
        is_of = {
            "untrained": not mask.any(),
            "only_stops": mask.any() and set(ids[mask].tolist()) == {end},
            "cut": len(ids) > length,
            "cut_untrained": mask.any() and not mask[:length].any(),
            "duplicates": text in seen,
        }
        for kind, is_so in is_of.items():
            counts[kind] += bool(is_so)
            if is_so:
                kinds.setdefault(kind, []).append((shard, row))
        seen.setdefault(text, (shard, row))
    return found, kinds


def assert_figures(found, expected):
    for name, count in expected["counts"].items():
        assert found[name] == count, name
    assert found["roles"].keys() == {role or "(template)" for role in expected["roles"]}
    for role, own in expected["roles"].items():
        assert found["roles"][role or "(template)"] == {
            name: own[name] for name in ("messages", "tokens", "trained_tokens")
        }
    lengths = sorted(expected["lengths"].elements())
    for share, length in found["lengths"]["quantiles"].items():
        assert sum(one <= length for one in lengths) >= float(share) * len(lengths), share
        assert sum(one < length for one in lengths) < float(share) * len(lengths), share
    assert len(found["lengths"]["quantiles"]) == (8 if lengths else 0)
    for one in found["lengths"]["bins"]:
        assert one["count"] == sum(one["from"] <= length <= one["to"] for length in lengths)
    assert sum(one["count"] for one in found["lengths"]["bins"]) == len(lengths)
    assert found["tokens"] == sum(lengths)


def merged(shards):
    total = {"counts": Counter(), "roles": {}, "lengths": Counter()}
    for own in shards.values():
        total["counts"].update(own["counts"])
        total["lengths"].update(own["lengths"])
        for role, counts in own["roles"].items():
            total["roles"].setdefault(role, Counter()).update(counts)
    return total


@pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
def test_counts_are_those_of_a_naive_pass(shards, folder, capsys, train_on):
    expected, kinds = naive(folder, shards, LENGTH, train_on=train_on)
    found = run_json(
        capsys, "audit", shards / "*.jsonl*", shards / "*.parquet", "--tokenizer", folder, "--sequence-length", LENGTH,
        "--set", f"train_on={train_on}", "--threads", 3,
    )  # fmt: skip
    assert [one["shard"] for one in found["shards"]] == sorted(expected)
    for own in found["shards"]:
        assert_figures(own, expected[own["shard"]])
    assert_figures(found["total"], merged(expected))
    if train_on == "assistant":
        assert kinds.keys() == {"untrained", "only_stops", "cut", "cut_untrained", "duplicates"}
    for kind, places in kinds.items():
        listed = [(one["shard"], one["record"]) for one in found["findings"] if one["kind"] == kind]
        assert listed == places[:5], kind
    assert found["compared"] == found["total"]["conversations"] == len(RECORDS) - len(BAD)
    firsts = {one["record"]: one["first"]["record"] for one in found["findings"] if one["kind"] == "duplicates"}
    assert firsts == {10: 3, 11: 8, 12: 8}


def test_bad_records_are_located_by_reason(shards, folder, capsys):
    found = run_json(capsys, "audit", shards / "*.jsonl*", "--tokenizer", folder)
    first = [(one["shard"], one["record"], one["byte"]) for reason in found["reasons"] for one in reason["first"]]
    lines = (shards / "a.jsonl").read_bytes().split(b"\n")
    at = {number: sum(len(line) + 1 for line in lines[:number]) for number in (7, 20, 21)}
    assert set(first) == {
        *((str(shards / "a.jsonl"), number, byte) for number, byte in at.items()),
        (str(shards / "b.jsonl.gz"), 5, 1 + sum(len(json.dumps(record)) + 1 for record in RECORDS[25:30]) - 1),
    }
    assert sum(reason["records"] for reason in found["reasons"]) == len(BAD) == found["total"]["refused"]
    assert any("found a string" in reason["first"][0]["reason"] for reason in found["reasons"])
    assert found["total"]["lost_shards"] == 0


def test_reasons_that_differ_in_numbers_are_one(tmp_path, folder, capsys):
    user = {"role": "user", "content": "a"}
    lines = [json.dumps({"messages": [*[user] * number, "no object"]}) for number in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = run_json(capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder)
    assert [(reason["records"], len(reason["first"])) for reason in found["reasons"]] == [(9, 5)]
    assert found["reasons"][0]["first"][3]["record"] == 3
    assert found["total"]["lengths"] == {"quantiles": {}, "bins": []}


def test_lost_shard_does_not_end_it(tmp_path, folder, capsys):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(RECORDS[0]).encode())[:-9])
    (tmp_path / "b.jsonl").write_text(json.dumps(RECORDS[1]))
    found = run_json(capsys, "audit", tmp_path / "*", "--tokenizer", folder)
    assert (found["total"]["lost_shards"], found["total"]["refused"]) == (1, 1)
    assert found["shards"][1]["conversations"] == 1


def test_lost_reasoning_and_missing_stops_are_found(tmp_path, folder, capsys):
    thinking = {"role": "assistant", "content": "A", "reasoning_content": "R"}
    question = {"role": "user", "content": "Q"}
    rows = [[question, thinking], [question, thinking, question, thinking], [question, {**thinking, "train": False}]]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in rows))
    plain = REASONING.replace("m.content + '<|im_end|>\\n'", "m.content + ('' if loop.last else '<|im_end|>\\n')")
    assert plain != REASONING
    (tmp_path / "plain.jinja").write_text(plain)
    (tmp_path / "reasoning.jinja").write_text(REASONING)
    options = ["--tokenizer", folder]
    found = run_json(
        capsys, "audit", tmp_path / "a.jsonl", *options, "--set", f"template={tmp_path / 'reasoning.jinja'}"
    )
    assert (found["total"]["lost_reasoning"], found["total"]["without_stop"], found["total"]["untrained"]) == (1, 0, 1)
    (lost,) = (one for one in found["findings"] if one["kind"] == "lost_reasoning")
    assert (lost["record"], lost["message"]) == (1, 1)
    found = run_json(
        capsys, "audit", tmp_path / "a.jsonl", *options, "--set", f"template={tmp_path / 'plain.jinja'}",
        "--set", 'stop_tokens=["<|im_end|>"]',
    )  # fmt: skip
    assert (found["total"]["without_stop"], found["total"]["answers_without_stop"]) == (2, 2)
    stopless = [(one["record"], one["message"]) for one in found["findings"] if one["kind"] == "without_stop"]
    assert stopless == [(0, 1), (1, 3)]


def test_messages_and_tools_that_the_template_does_not_write_are_found(tmp_path, folder, capsys):
    question, answer = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
    developer, system = ({"role": role, "content": "Be brief."} for role in ("developer", "system"))
    rows = [[question, answer], [developer, question, answer], [question, answer, system, question, answer]]
    rows.append([{**system, "content": ""}, question, answer])
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    records = [*({"messages": messages} for messages in rows), {"messages": rows[0]} | tools]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    template = (
        "{%- for m in messages %}{%- if m.role in ['user', 'assistant'] %}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    settings = ["--tokenizer", folder, "--set", "tools=tools", "--set"]
    found = run_json(capsys, "audit", tmp_path / "a.jsonl", *settings, f"template={template}")
    assert (found["total"]["unwritten_messages"], found["total"]["unwritten_tools"]) == (2, 1)
    places = [(one["record"], one["message"]) for one in found["findings"] if one["kind"].startswith("unwritten")]
    assert places == [(1, 0), (2, 2), (4, None)]
    found = run_json(
        capsys, "inspect", "chats", tmp_path / "a.jsonl", "--records", 9, *settings, f"template={template}"
    )
    unwritten = [(one["unwritten_messages"], one["unwritten_tools"]) for one in found["conversations"]]
    assert unwritten == [([], False), ([0], False), ([2], False), ([], False), ([], True)]
    assert (
        main.run(
            [*map(str, ["inspect", "chats", tmp_path / "a.jsonl", "--records", 9, *settings, f"template={template}"])]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "messages[2]: the template writes nothing of its content\n" in shown
    assert "the template writes nothing of the tools\n" in shown
    written = "{{ tools | tojson if tools }}" + template.replace("if m.role in ['user', 'assistant']", "if m.content")
    found = run_json(capsys, "audit", tmp_path / "a.jsonl", *settings, f"template={written}")
    assert (found["total"]["unwritten_messages"], found["total"]["unwritten_tools"]) == (0, 0)


def test_samples_of_turns_are_counted_by_conversation(tmp_path, folder, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": conversation(11)}))
    template = gm.ChatTemplate.from_pretrained(folder)
    messages = conversation(11)
    ends = [n + 1 for n, message in enumerate(messages) if message["role"] == "assistant"]
    encoded = [template.encode(messages[:end], train_on="last") for end in ends]
    found = run_json(
        capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder, "--sample", "chat", "--sample", "samples=turns",
        "--sequence-length", len(encoded[0][0]),
    )["total"]  # fmt: skip
    assert (found["conversations"], found["samples"], found["answers"]) == (1, len(ends), len(ends))
    assert found["tokens"] == sum(len(ids) for ids, _ in encoded)
    assert found["trained_tokens"] == sum(int(mask.sum()) for _, mask in encoded)
    assert found["cut"] == 1
    assert found["roles"]["assistant"]["messages"] == len(ends)


def test_text_of_a_message_is_its_own_wherever_it_is_written(tmp_path, folder, capsys):
    template = (
        "{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% for m in messages[1:] %}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    messages = [
        {"role": "system", "content": "ant ant"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"},
    ]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    roles = run_json(
        capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder, "--set", f"template={template}"
    )["total"]["roles"]  # fmt: skip
    encode = gm.Encoder.from_file(folder).encode
    assert roles["system"]["tokens"] == len(encode("ant ant"))
    assert roles["(template)"]["tokens"] == len(encode("<|im_start|>system\n")) + len(encode("<|im_end|>\n"))


def test_filters_leave_records_out(tmp_path, folder, capsys):
    rows = [{"messages": conversation(n), "n": n} for n in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = run_json(capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder, "--keep", "n >= 4")["total"]
    assert (found["records"], found["filtered"], found["conversations"]) == (10, 4, 6)


@pytest.mark.parametrize("sample", ["instruction", "completion"])
def test_other_samples_are_conversations_too(tmp_path, folder, capsys, sample):
    rows = {
        "instruction": {"instruction": "Add.", "input": "1+1", "output": "2"},
        "completion": {
            "prompt": [{"role": "user", "content": "Add.\n1+1"}],
            "completion": [{"role": "assistant", "content": "2"}],
        },
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[sample]))
    found = run_json(capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder, "--sample", sample)["total"]
    ids, mask = gm.ChatTemplate.from_pretrained(folder).encode(
        rows["completion"]["prompt"] + rows["completion"]["completion"]
    )
    assert (found["tokens"], found["trained_tokens"]) == (len(ids), int(mask.sum()))
    assert {role: own["messages"] for role, own in found["roles"].items()} == {"assistant": 1, "user": 1}


def test_text_and_page_have_the_counts(shards, folder, tmp_path, capsys):
    options = ["audit", str(shards / "*"), "--tokenizer", str(folder), "--sequence-length", str(LENGTH)]
    assert main.run(options) == 0
    text = " ".join(capsys.readouterr().out.split())
    found = run_json(capsys, *options)
    total = found["total"]
    for words in (
        f"records {total['records']} in 3 shards",
        f"{total['cut']} {total['cut'] / total['conversations']:.2%}",
        f"{total['duplicates']} {total['duplicates'] / total['conversations']:.2%}",
        f"{shards / 'a.jsonl'}: record 7",
        "are equal to an earlier one",
    ):
        assert words in text, words
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(found))
    page = tmp_path / "page.html"
    assert main.run(["view", str(path), "--output", str(page)]) == 0
    html = page.read_text()
    for words in ("Audit audit.json", "Trained tokens by role", f"{total['tokens']:,}", "are equal to an earlier one"):
        assert words in html, words


def test_progress_names_the_conversations_so_far(tmp_path, folder, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(Progress, "show", lambda _, done, note: shown.append((done, note)))
    line = json.dumps({"messages": conversation(10)}) + "\n"
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(line * 12_000)
    found = run_json(capsys, "audit", tmp_path / "*.jsonl", "--tokenizer", folder, "--threads", 1)
    counts = [int(note.split()[0].replace(",", "")) for _, note in shown]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= found["total"]["conversations"] == 24_000
    assert {done for done, _ in shown} <= {0, 12_000 * len(line)}


def test_error_while_it_shows_progress_ends_it(tmp_path, folder, monkeypatch):
    class EndedError(Exception):
        pass

    def end(*_):
        raise EndedError

    monkeypatch.setattr(Progress, "show", end)
    (tmp_path / "a.jsonl").write_text((json.dumps({"messages": conversation(10)}) + "\n") * 24_000)
    with pytest.raises(EndedError):
        main.run(["audit", str(tmp_path / "a.jsonl"), "--tokenizer", str(folder), "--threads", "1"])


def test_what_is_no_conversation_is_refused(tmp_path, folder, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "prompt": "b", "completion": "c"}')
    for sample in (["text", "--set", "field=text"], ["completion"]):
        message = fails(capsys, "audit", tmp_path / "a.jsonl", "--tokenizer", folder, "--sample", *sample, code=2)
        assert "an audit is of conversations" in message
    assert "no such" in fails(capsys, "audit", tmp_path / "b.jsonl", "--tokenizer", folder)


MIXTURE = """
tokenizer = "{folder}"
[sources.web]
shards = "text.jsonl"
weight = 2
[sources.chats]
shards = ["a.jsonl", "b.jsonl.gz"]
weight = 1
sample = {{kind = "chat", train_on = "last"}}
keep = "messages is not None"
[sources.more]
shards = "*.parquet"
weight = 1
sample = {{kind = "chat"}}
"""


def test_sources_of_a_mixture_are_counted_each_with_its_own_arguments(shards, folder, tmp_path, capsys):
    (shards / "text.jsonl").write_text('{"text": "a"}')
    (shards / "mixture.toml").write_text(MIXTURE.format(folder=folder))
    found = run_json(capsys, "audit", shards / "mixture.toml", "--sequence-length", LENGTH)
    alone = ["--tokenizer", folder, "--sequence-length", LENGTH]
    chats = run_json(
        capsys, "audit", shards / "a.jsonl", shards / "b.jsonl.gz", *alone, "--set", "train_on=last", "--keep",
        "messages is not None",
    )  # fmt: skip
    more = run_json(capsys, "audit", shards / "*.parquet", *alone)
    assert found["not_audited"] == ["web"]
    assert found["sources"] == [{"source": "chats", **chats["total"]}, {"source": "more", **more["total"]}]
    for key in ("shards", "findings", "reasons"):
        assert found[key] == [
            {"source": name, **one} for name, own in (("chats", chats), ("more", more)) for one in own[key]
        ]
    for name in ("records", "refused", "trained_tokens", "cut", "duplicates"):
        assert found["total"][name] == chats["total"][name] + more["total"][name] > 0
    assert found["compared"] == chats["compared"] + more["compared"]
    assert main.run(["audit", str(shards / "mixture.toml")]) == 0
    text = capsys.readouterr().out
    assert "sources without conversations: web" in text
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("chats", "more"))] == ["chats", "more"]
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(found))
    assert main.run(["view", str(path), "--output", str(tmp_path / "page.html")]) == 0
    assert "<td>chats</td>" in (tmp_path / "page.html").read_text()


def test_options_of_sources_are_refused_beside_a_mixture(shards, folder, tmp_path, capsys):
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(MIXTURE.format(folder=folder))
    for option in (["--sample", "chat"], ["--set", "train_on=last"], ["--keep", "a"], ["--max-document-bytes", "9"]):
        code, message = checked(capsys, "audit", mixture, *option)
        assert code == 2
        assert f"{option[0]}: each source of a mixture has its own" in message
    mixture.write_text(f'tokenizer = "{folder}"\n[sources.web]\nshards = "{shards}/a.jsonl"\nweight = 1')
    assert "an audit is of conversations" in fails(capsys, "audit", mixture, code=2)
    assert "--tokenizer" in checked(capsys, "audit", shards / "a.jsonl")[1]
