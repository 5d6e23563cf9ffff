"""Text and JSON in WebDataset's tars, beside images that are not read. tests/rust has the tests of the reader."""

import json
from pathlib import Path

import pytest

import gristmill as gm
from chat_models import write_chatml
from gristmill._cli import main
from gristmill._inspect import contents
from helpers import assert_resumes, tar_of

RECORDS = 60


@pytest.fixture
def shards(tmp_path):
    """Captions and conversations in three shards, with an image of 1 MB in each record."""
    for shard in range(3):
        records = []
        for number in range(shard, RECORDS, 3):
            turns = [
                {"role": "user", "content": f"What is picture {number}?"},
                {"role": "assistant", "content": f"It is picture {number}."},
            ]
            about = {"caption": f"In JSON: {number}", "width": 10 * number, "messages": turns}
            members = {
                "jpg": b"\xff\xd8\0" + bytes(10**6),
                "json": json.dumps(about, indent=1).encode(),
                "txt": f"Beside: {number}\n".encode(),
            }
            records.append((f"{number:04}", members))
        (tmp_path / f"{shard}.tar").write_bytes(tar_of(records))
    return str(tmp_path / "*.tar")


def texts(shards, encoder, **arguments):
    """The texts of all records by their numbers."""
    dataset = gm.PackedDataset(
        shards, tokenizer=encoder, packing="pad", sequence_length=128, layout="grain", eos=False, lanes=1, **arguments
    )
    found = [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in dataset]
    return sorted((text for text in found if text), key=lambda text: int("".join(filter(str.isdigit, text))))


def test_text_of_members_and_in_json(shards, encoder):
    assert texts(shards, encoder, text_field="txt") == [f"Beside: {number}\n" for number in range(RECORDS)]
    in_json = [f"In JSON: {number}" for number in range(RECORDS)]
    assert texts(shards, encoder, text_field="json.caption") == in_json
    kept = texts(shards, encoder, text_field="json.caption", keep="json.width > 200")
    assert kept == in_json[21:]
    assert texts(shards, encoder, text_field="json.caption", keep="jpg.bytes == 1000003 and png is None") == in_json
    completion = gm.Completion("json.caption", "txt")
    joined = [f"In JSON: {number}Beside: {number}\n" for number in range(RECORDS)]
    assert sorted(texts(shards, encoder, sample=completion)) == sorted(joined)


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_resume_and_provenance(shards, encoder, packing):
    dataset = gm.PackedDataset(
        shards,
        tokenizer=encoder,
        text_field="json.caption",
        keep="json.width % 20 == 0",
        packing=packing,
        sequence_length=64,
        batch_size=2,
        lanes=2,
        seed=1,
        epochs=2,
        provenance=True,
    )
    assert_resumes(dataset, 6)


def test_conversations(shards, tmp_path):
    folder = write_chatml(tmp_path / "model")
    dataset = gm.PackedDataset(
        shards, tokenizer=folder, sample=gm.Chat("json.messages"), sequence_length=128, batch_size=4, epochs=1
    )
    with iter(dataset) as iterator:
        assert sum(1 for _ in iterator) > 0
        assert iterator.stats()["documents"] == RECORDS


def test_inspect_shows_members_and_guesses(shards, capsys):
    found = contents.inspect(Path(shards.replace("*", "0")))
    assert found["format"] == "tar"
    assert found["keys"]["jpg"] == {"types": {"binary": 20}, "characters": 20 * 1_000_003}
    assert found["keys"]["json.caption"]["types"] == {"string": 20}
    assert main.run(["inspect", shards.replace("*", "0"), "--records", "3"]) == 0
    shown = capsys.readouterr().out
    assert "Most text is under text_field='json.caption'." in shown
    assert "Conversations may be under sample=gm.Chat('json.messages')." in shown
    assert "Images with it may be under sample=gm.ImageText(model, text=gm.Chat('json'))." in shown


def test_broken_shard_is_one_entry_and_others_are_read(shards, tmp_path, encoder):
    path = tmp_path / "1.tar"
    path.write_bytes(path.read_bytes()[: 5 * 10**6])
    dataset = gm.PackedDataset(
        shards, tokenizer=encoder, text_field="txt", on_error="quarantine", max_error_rate=1.0, epochs=1
    )
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        (entry,) = iterator.quarantine()
        stats = iterator.stats()
    assert (entry["shard"], entry["record"], stats["lost_shards"]) == (str(path), 3, 1)
    assert entry["reason"].startswith("expected the data of a member, found the end of the file in it")
    assert stats["documents"] == 43  # nothing of record 3, whose end is not known, is used


def test_prompts_have_all_columns_but_binary_ones(shards, tmp_path):
    folder = write_chatml(tmp_path / "model")
    dataset = gm.PromptDataset(
        shards,
        tokenizer=folder,
        prompt=gm.Chat("json.messages", add_generation_prompt=True),
        prompt_length=128,
        batch_size=RECORDS,
        layout="verl",
        epochs=1,
    )
    batch = next(iter(dataset))
    assert sorted(batch["txt"]) == sorted(f"Beside: {number}\n" for number in range(RECORDS))
    assert {about["caption"] for about in batch["json"]} == {f"In JSON: {number}" for number in range(RECORDS)}
    assert batch["jpg"][0] == {"bytes": 1_000_003}
