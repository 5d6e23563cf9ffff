"""Streams, states, fingerprints and packed files must not change between releases: their values are recorded here.

All other tests compare a release with itself or with its documentation. These compare it with recorded values. A
failure means that users who update in the middle of a run silently get other data than without the update, or cannot
resume.

If the change was not intended, it is a bug. If it was:

- raise `VERSION` in `rust/state.rs`, so that states of earlier releases are refused with a plain message instead of
  continuing another stream. Fingerprints have no version of their own; the folders of `gristmill pack` have one, in
  `python/gristmill/_files/folder.py`;
- say in CHANGELOG.md under "Changed" that runs cannot resume across the update;
- record the new values here: the message of a failed test ends with them.

Another version of `tokenizers` is the exception, and changes `IDS` alone: states name it, with a hash of the ids of a
probe text. If that hash changes, so may the streams of users; their states are then refused.
"""

import gzip
import hashlib
import itertools
import json
import pickle
import pprint
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gristmill as gm
from gristmill import _core
from gristmill._files.pack import pack
from gristmill._shards.address import Address
from gristmill._state import states
from gristmill._util import named_values
from gristmill._util.atomic_files import LOCK

CHANGED = (
    "{} differs from earlier releases. States that users have saved would resume another stream, or none: this is a "
    "bug, or it needs another VERSION in rust/state.rs and an entry in CHANGELOG.md, see the top of this file. "
    "Now it is\n\n{}\n"
)

WORDS = ["the", "mill", "grinds", "grain", "into", "naïve", "flour", "日本語", "</s>", "\n", "7"]
MERGES = ["Ġ t", "h e", "Ġt he", "r a", "i n", "ra in", "m i", "l l", "mi ll", "Ã ¯", "æ Ĺ"]

# Hashes of the tokenizer, of its ids of the probe text, and of the manifests of the good and the bad shards.
TOKENIZER = "259807905aeaa30c"
IDS = "tokenizers=0.23.2 probe=69fa88befd0a8802"
IDS_OF_WORDS = "tokenizers=0.23.2 probe=467bb72c4852807a"
MANIFEST = "dbc29f2ee69a5917"
BAD_MANIFEST = "4dd0a0010ef26a94"


@dataclass(frozen=True)
class Release:
    """The stream of a dataset with these arguments, as a release yielded it."""

    arguments: dict[str, Any]
    fingerprint: str
    # `step`, `row` and `lanes` of a state in the middle of the stream.
    step: int
    row: int
    lanes: dict[str, str]
    # Hashes of the elements before and after it.
    before: str
    after: str
    # For each lane, which size its window has.
    window_sizes: tuple[int, ...] = ()

    @property
    def old_state(self) -> dict[str, Any]:
        """The state as it was saved before windows grew."""
        cursors = {"step": self.step, "row": self.row, "lanes": self.lanes}
        return {"version": 3, "fingerprint": self.fingerprint, "ids": IDS, **cursors}

    @property
    def state(self) -> dict[str, Any]:
        """The state as it is saved."""
        lanes = dict(self.lanes)
        for (lane, cursor), number in zip(self.lanes.items(), self.window_sizes, strict=False):
            lanes[lane] = f"{cursor} window_size={number}"
        return self.old_state | {"lanes": lanes}


RELEASES = {
    "concat": Release(
        {"sequence_length": 32, "batch_size": 3, "lanes": 3},
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 sequence_length=32 batch_size=3 lanes=3",
        2,
        0,
        {
            "0": "record=2 byte=85 offset=43 records=2 documents=2 tokens=64 text_bytes=30",
            "1": "offset=64 tokens=64",
            "2": "record=1 byte=29 offset=60 records=1 documents=1 tokens=64 text_bytes=6",
        },
        "b93048d380aa7465",
        "d4af488166acb205",
    ),
    "shuffled": Release(
        {
            "sequence_length": 24,
            "batch_size": 4,
            "boundary_targets": True,
            "bos": "<s>",
            "seed": 7,
            "shuffle_window": 5,
            "epochs": None,
            "provenance": True,
        },
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 bos=0 sequence_length=24 batch_size=4 "
        "boundary_targets=True lanes=4 seed=7 shuffle_window=5 epochs=None",
        30,
        0,
        {
            "0": "epoch=1 delivered=2 offset=43 window_hash=3586842501734008164 records=9 documents=11 tokens=720 "
            "text_bytes=959",
            "1": "epoch=1 offset=93 window_hash=2223519559039125382 records=8 documents=8 tokens=720 text_bytes=869",
            "2": "shard=1 record=5 byte=609 offset=7 window_hash=3550954704636628918 records=10 documents=10 "
            "tokens=720 text_bytes=971",
            "3": "epoch=1 delivered=1 offset=42 window_hash=1883880976359048597 records=10 documents=11 tokens=720 "
            "text_bytes=936",
        },
        "9687b6a7c1199a67",
        "19e246297edf68cc",
        (3, 3, 3, 4),
    ),
    "compact": Release(
        {"sequence_length": 40, "batch_size": 2, "layout": "varlen", "seed": 3},
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 sequence_length=40 batch_size=2 max_segments=16 "
        "layout=varlen lanes=2 seed=3",
        5,
        0,
        {
            "0": "delivered=3 offset=45 window_hash=3847627935155354639 documents=3 tokens=200 text_bytes=237",
            "1": "delivered=2 offset=107 window_hash=4239531075352385899 documents=2 tokens=200 text_bytes=141",
        },
        "c4c7f68ad36c5e10",
        "03304dd727dc00d7",
        (1, 1),
    ),
    "best_fit": Release(
        {
            "sequence_length": 40,
            "batch_size": 2,
            "packing": "best_fit",
            "fit_window": 4,
            "max_segments": 3,
            "layout": "grain",
            "seed": 2**64 - 1,
            "shuffle_window": 6,
            "epochs": 2,
        },
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 sequence_length=40 batch_size=2 "
        "packing=best_fit fit_window=4 max_segments=3 layout=grain lanes=2 seed=18446744073709551615 "
        "shuffle_window=6 epochs=2",
        20,
        0,
        {
            "0": "shard=2 record=1 byte=61 delivered=3 window_hash=4406009444717321233 records=12 documents=12 "
            "tokens=696 text_bytes=793 padding=104",
            "1": "record=6 byte=845 delivered=8 window_hash=913619384211481266 records=6 documents=10 tokens=677 "
            "text_bytes=909 padding=123",
        },
        "82f9236825b0d4f9",
        "ca5886073d6a7751",
        (3, 2),
    ),
    "rows of best_fit": Release(
        {
            "sequence_length": 40,
            "lanes": 2,
            "packing": "best_fit",
            "fit_window": 5,
            "eos": False,
        },
        f"manifest={MANIFEST} tokenizer={TOKENIZER} sequence_length=40 packing=best_fit fit_window=5 lanes=2",
        3,
        1,
        {
            "0": "delivered=4 window_hash=82850454147361672 documents=4 tokens=151 text_bytes=312 padding=9",
            "1": "delivered=3 window_hash=419426102479394799 documents=2 tokens=106 text_bytes=302 padding=14",
        },
        "150c5dd5cb743143",
        "5eea41648cfeaf18",
        (1, 1),
    ),
    "pad": Release(
        {
            "sequence_length": 16,
            "batch_size": 4,
            "packing": "pad",
            "truncation": "middle",
            "layout": "hf",
            "bos": "<s>",
            "provenance": True,
        },
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 bos=0 sequence_length=16 batch_size=4 "
        "packing=pad truncation=middle layout=hf lanes=4",
        3,
        0,
        {
            "0": "record=3 byte=207 records=3 documents=3 tokens=48 text_bytes=129 dropped=48",
            "1": "record=3 byte=482 records=3 documents=3 tokens=48 text_bytes=336 dropped=210",
            "2": "record=3 byte=253 records=3 documents=3 tokens=34 text_bytes=150 padding=14 dropped=75",
            "3": "record=3 byte=422 records=3 documents=3 tokens=48 text_bytes=264 dropped=146",
        },
        "8a8405e685566144",
        "3c926471eae45c09",
    ),
    "split": Release(
        {
            "sequence_length": 16,
            "batch_size": 2,
            "packing": "pad",
            "truncation": "split",
            "seed": 1,
            "shuffle_window": 4,
        },
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 sequence_length=16 batch_size=2 packing=pad "
        "truncation=split lanes=2 seed=1 shuffle_window=4",
        20,
        0,
        {
            "0": "record=4 byte=314 delivered=2 offset=64 window_hash=4373764367430521193 records=4 documents=6 "
            "tokens=266 text_bytes=285 padding=54",
            "1": "delivered=3 offset=112 window_hash=2647609005493097713 documents=3 tokens=303 text_bytes=264 "
            "padding=17",
        },
        "27fbd02f21aafacb",
        "cceb384e360b74fb",
        (2, 1),
    ),
}

# A stream with quarantined records, and below the lines of its quarantine file.
BAD = Release(
    {
        "sequence_length": 32,
        "batch_size": 2,
        "text_field": "the text",
        "seed": 3,
        "shuffle_window": 4,
        "on_error": "quarantine",
        "max_error_rate": 1,
        "max_document_bytes": 400,
    },
    f"manifest={BAD_MANIFEST} text_field=the%20text max_document_bytes=400 tokenizer={TOKENIZER} "
    "eos=1 sequence_length=32 batch_size=2 lanes=2 seed=3 shuffle_window=4 on_error=quarantine "
    "max_error_rate=1.0",
    7,
    0,
    {
        "0": "delivered=2 offset=64 window_hash=3085754919955168571 documents=2 tokens=224 text_bytes=211",
        "1": "record=7 byte=442 offset=16 window_hash=2100596814305108693 records=7 quarantined=3 documents=4 "
        "tokens=224 text_bytes=279",
    },
    "5516f5187bda3878",
    "f390f9094c955551",
    (1, 2),
)
# Its lines: shard, record, byte, epoch, lane and number.
BAD_LINES = [
    ("bad-0.jsonl", 1, 164, 0, 1, 1),
    ("bad-0.jsonl", 3, 223, 0, 1, 2),
    ("bad-0.jsonl", 5, 292, 0, 1, 3),
    ("bad-0.jsonl", 7, 442, 0, 1, 4),
    ("bad-0.jsonl", 9, 717, 0, 1, 5),
    ("bad-1.jsonl", 1, 57, 0, 0, 1),
    ("bad-1.jsonl", 3, 126, 0, 0, 2),
    ("bad-1.jsonl", 5, 276, 0, 0, 3),
    ("bad-1.jsonl", 7, 551, 0, 0, 4),
    ("bad-1.jsonl", 9, 1105, 0, 0, 5),
]

# Fingerprints of datasets with these arguments and defaults for all others.
DEFAULTS = {
    (): (f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 lanes=4"),
    (("packing", "best_fit"), ("seed", 0)): (
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 packing=best_fit lanes=4 seed=0"
    ),
    (("packing", "pad"), ("on_error", "quarantine")): (
        f"manifest={MANIFEST} tokenizer={TOKENIZER} eos=1 packing=pad lanes=4 on_error=quarantine"
    ),
}

# The shards of each lane, by seed and epoch.
PLANS = {
    (None, 0): [
        "004 007 016 033 037 044 050 056",
        "009 012 021 038 042 049 055 061",
        "000 014 017 020 026 043 047 054 060",
        "005 019 022 025 031 048 052 059",
        "010 024 027 030 036 053 057 064",
        "003 015 018 029 035 041 058 062",
        "001 006 008 023 034 040 046 063",
        "002 011 013 028 032 039 045 051",
    ],
    (7, 0): [
        "010 034 005 052 013 036 022 004",
        "062 019 023 001 057 049 030 051",
        "008 063 000 064 035 016 053 042",
        "028 012 003 041 014 027 045 056",
        "015 059 047 020 026 033 037 044 055",
        "032 024 011 043 002 029 050 046",
        "006 018 061 058 039 060 021 048",
        "040 009 025 007 038 031 017 054",
    ],
    (7, 1): [
        "000 044 001 017 015 029 027 048 020",
        "007 041 014 023 012 053 026 010",
        "006 004 042 032 039 038 031 045",
        "011 034 022 062 049 063 016 005",
        "061 046 003 024 018 056 040 008",
        "035 059 021 047 030 009 037 043",
        "028 055 054 013 051 025 033 057",
        "060 019 036 002 050 064 058 052",
    ],
}

# Hashes of the files of a packed folder, by name.
SOURCE = {"shards": ["*.jsonl"], "tokenizer": "tokenizer.json", "arguments": {}, "sizes": {}}
PACKED = {
    "npy": {
        "index.json": "d89c0037576cd060",
        "part-00000.json": "fb87b2982d059f63",
        "part-00000.npy": "33d67e587970500b",
        "part-00001.json": "cc3f5894ccc81036",
        "part-00001.npy": "e0bf6b7e1ce0247a",
        "part-00002.json": "ae5ef6db38e389a5",
        "part-00002.npy": "7fa0e3085bd723f6",
    },
    "megatron": {
        "index.json": "88d82661cfea97cf",
        "part-00000.bin": "30744f4d1fc2938c",
        "part-00000.idx": "92b1a50d823fcbad",
        "part-00000.json": "3936152308a62d67",
        "part-00001.bin": "5099c2317cbf8673",
        "part-00001.idx": "098b3f294565b253",
        "part-00001.json": "cfc3f154f32b766f",
    },
}

ODD_VALUES = "a=b%20c%3Dd plus=%2B%2520 slash=%2F~-_. letters=%C3%A9%E6%97%A5%0A%00 empty= none=None no=False"
ODD_MANIFEST = "9f4b2c10e52d7455"


@pytest.fixture(scope="module")
def tokenizer_bytes() -> bytes:
    """A byte-level BPE, written without the `tokenizers` package."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = [*map(chr, shown), *(chr(256 + number) for number in range(256 - len(shown)))]
    tokens = ["<s>", "</s>", *alphabet, *(merge.replace(" ", "") for merge in MERGES)]
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    file = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": tokens[i], **flags, "special": True} for i in range(2)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": MERGES},
    }
    return json.dumps(file).encode()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_bytes) -> gm.Encoder:
    return gm.Encoder.from_bytes(tokenizer_bytes, eos_token="</s>")


@pytest.fixture
def in_folder(tmp_path, monkeypatch) -> None:
    """A working folder for shards with relative names, which states and quarantine files may show."""
    monkeypatch.chdir(tmp_path)


def many_shards(count: int) -> gm.Manifest:
    """Shards that are never opened."""
    return gm.Manifest([f"/shards/{number:03}.jsonl" for number in range(count)], [100 + n % 5 for n in range(count)])


def text(number: int) -> str:
    """A text of up to 36 words; sometimes of none."""
    return " ".join(WORDS[(7 * number + i * i) % len(WORDS)] for i in range(5 * number * number % 37))


def write_shards(suffix: str) -> list[str]:
    """Six shards of four to nine documents in the working folder. Gzipped ones are stored: any zlib writes the same."""
    names = []
    for shard in range(6):
        lines = [json.dumps({"n": n, "text": text(n)}) + "\n" for n in range(10 * shard, 11 * shard + 4)]
        data = "".join(lines).encode()
        names.append(f"{shard}{suffix}")
        Path(names[-1]).write_bytes(gzip.compress(data, 0, mtime=0) if suffix.endswith(".gz") else data)
    return names


def write_bad_shards() -> list[str]:
    """Two shards in which every other line is bad, each in another way."""
    bad = [b"{", b'{"text": "a"}', b'{"the text": 7}', b'{"the text": "\xff"}', b'{"the text": "%s"}' % (b"a" * 400)]
    for shard in range(2):
        lines = []
        for n in range(5):
            lines += [json.dumps({"the text": text(n + 2 + shard)}).encode(), bad[(n + shard) % len(bad)]]
        Path(f"bad-{shard}.jsonl").write_bytes(b"\n".join(lines))
    return ["bad-0.jsonl", "bad-1.jsonl"]


def digest(elements) -> str:
    """A hash of names, types, shapes and numbers that does not depend on the machine's byte order."""
    hashed = hashlib.sha256()
    for element in elements:
        for name, array in element.items():
            array = array.astype(array.dtype.newbyteorder("<"))
            hashed.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return hashed.hexdigest()[:16]


def played(dataset: gm.PackedDataset, release: Release) -> dict[str, Any]:
    """The values of a dataset to compare with those of a release."""
    iterator = iter(dataset)
    rows = 1 if release.arguments.get("batch_size") else dataset.lanes
    before = list(itertools.islice(iterator, release.step * rows + release.row))
    state = iterator.get_state()
    return {"state": state, "before": digest(before), "after": digest(rest(iterator))}


def rest(iterator) -> list[Any]:
    """The rest of a stream, or 40 elements of an endless one."""
    return list(itertools.islice(iterator, 40))


def listed(file: Path) -> list[str]:
    """The lines of a quarantine file without their reasons, in the manifest's order."""
    entries = [{**json.loads(line), "reason": "..."} for line in file.read_text().splitlines()]
    return [json.dumps(entry) for entry in sorted(entries, key=lambda entry: (entry["shard"], entry["record"]))]


def packed(file: Path) -> Any:
    """A hash of a file of a packed folder; of JSON a hash of its values."""
    data = file.read_bytes()
    if file.suffix == ".json":
        value = json.loads(data)
        value.pop("gristmill", None)  # the release
        data = json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def check(what: str, found: object, expected: object) -> None:
    assert found == expected, CHANGED.format(what, pprint.pformat(found, width=110, sort_dicts=False))


def restore(method, saved: Any) -> None:
    try:
        method(saved)
    except gm.StateError as error:
        pytest.fail(CHANGED.format("a saved state, which this release refuses", error))


def test_tokenizer_hash_is_unchanged(tokenizer):
    check("a tokenizer's fingerprint", tokenizer.fingerprint, TOKENIZER)
    what = f"the ids of the probe text (another tokenizers than {_core.TOKENIZERS_VERSION} may change them)"
    check(what, tokenizer.ids_fingerprint, IDS)
    assert pickle.loads(pickle.dumps(tokenizer)).ids_fingerprint == IDS


def test_hash_of_ids_is_unchanged_if_the_probe_fails():
    model = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "<unk>"}
    encoder = gm.Encoder.from_bytes(json.dumps({"version": "1.0", "model": model}).encode())
    check("a tokenizer's ids of the probe text, as above", encoder.ids_fingerprint, IDS_OF_WORDS)


def test_tokenizers_version_changes_the_hash_of_ids(tokenizer, monkeypatch):
    pickled = pickle.dumps(tokenizer)
    monkeypatch.setattr(_core, "TOKENIZERS_VERSION", "0.0.0")
    other = pickle.loads(pickled)
    assert other.fingerprint == tokenizer.fingerprint
    assert other.ids_fingerprint == "tokenizers=0.0.0 " + IDS.split(" ")[1]


def test_special_tokens_in_text_changes_the_tokenizer_hash(tokenizer, tokenizer_bytes):
    changed = gm.Encoder.from_bytes(tokenizer_bytes, special_tokens_in_text="text")
    assert changed.fingerprint != tokenizer.fingerprint


def test_tokenizer_hash_ignores_run_settings(tokenizer, tokenizer_bytes):
    """A dataset's fingerprint has EOS and BOS of its own."""
    options = {"bos_token": "<s>", "engine": "reference", "cache_bytes": 0}
    assert gm.Encoder.from_bytes(tokenizer_bytes, **options).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", RELEASES)
def test_stream_and_state_are_unchanged(in_folder, tokenizer, name):
    release = RELEASES[name]
    dataset = gm.PackedDataset(write_shards(".jsonl"), tokenizer=tokenizer, **release.arguments)
    check("the fingerprint", dataset.fingerprint, release.fingerprint)
    expected = {"state": release.state, "before": release.before, "after": release.after}
    check(f"the stream {name!r}", played(dataset, release), expected)


@pytest.mark.parametrize("name", RELEASES)
def test_stream_of_gzipped_shards_is_the_same(in_folder, tokenizer, name):
    release = RELEASES[name]
    dataset = gm.PackedDataset(write_shards(".json.gz"), tokenizer=tokenizer, **release.arguments)
    found = played(dataset, release)
    assert found["state"].pop("fingerprint") != release.fingerprint  # other names and sizes
    expected = {name: value for name, value in release.state.items() if name != "fingerprint"}
    check(f"the stream {name!r}", found, {"state": expected, "before": release.before, "after": release.after})


@pytest.mark.parametrize("form", ["state", "old_state"])
@pytest.mark.parametrize("name", RELEASES)
def test_old_state_restores(in_folder, tokenizer, name, form):
    release = RELEASES[name]
    iterator = iter(gm.PackedDataset(write_shards(".jsonl"), tokenizer=tokenizer, **release.arguments))
    saved = getattr(release, form)
    # As it is read from a file.
    restore(iterator.set_state, json.loads(json.dumps(saved)))
    check("a state that was restored", iterator.get_state(), saved)
    check(f"the stream {name!r} from there on", digest(rest(iterator)), release.after)


def test_old_elastic_lane_states_restore(in_folder, tokenizer):
    """Grain's elastic checkpoints hold such states."""
    release = RELEASES["concat"]
    iterator = iter(gm.PackedDataset(write_shards(".jsonl"), tokenizer=tokenizer, **release.arguments))
    saved = [
        {"exhausted": False, "state": {**release.state, "lanes": {lane: cursor}}}
        for lane, cursor in release.lanes.items()
    ]
    restore(iterator.set_shard_states, saved)
    check("the states of single lanes", iterator.get_shard_states(), saved)
    check("the stream from there on", digest(rest(iterator)), release.after)


def test_stream_with_quarantine_is_unchanged(in_folder, tokenizer):
    """So is its quarantine file, apart from the reasons. If these are reworded, a run that resumes lists records again
    that its state does not count yet.
    """
    dataset = gm.PackedDataset(write_bad_shards(), tokenizer=tokenizer, quarantine_file="list.jsonl", **BAD.arguments)
    check("the fingerprint", dataset.fingerprint, BAD.fingerprint)
    expected = {"state": BAD.state, "before": BAD.before, "after": BAD.after}
    check("the stream", played(dataset, BAD), expected)
    file = Path("list.jsonl")
    stream = BAD.fingerprint.split(" on_error=")[0]
    name = hashlib.sha256(stream.encode()).hexdigest()[:16]
    lines = [
        {"shard": shard, "record": record, "byte": byte, "reason": "...", **counts, "stream": name}
        for shard, record, byte, *numbers in BAD_LINES
        for counts in [dict(zip(("epoch", "lane", "number"), numbers, strict=True))]
    ]
    check("the quarantine file", listed(file), [json.dumps(line) for line in lines])
    whole = file.read_text()
    iterator = iter(dataset)
    restore(iterator.set_state, BAD.state)
    check("the stream from there on", digest(rest(iterator)), BAD.after)
    assert file.read_text() == whole, "a listed record was listed again"


@pytest.mark.parametrize("file_format", PACKED)
def test_packed_files_are_unchanged(in_folder, tokenizer, file_format):
    """So are the notes of parts, from which an old unfinished packing resumes."""
    release = RELEASES["shuffled"]
    arguments = {**release.arguments, "epochs": 1}
    dataset = gm.PackedDataset(write_shards(".jsonl"), tokenizer=tokenizer, **arguments)
    pack(dataset, Address.of("packed"), file_format=file_format, rows_per_file=40, source=SOURCE)
    found = {path.name: packed(path) for path in sorted(Path("packed").iterdir()) if path.name != LOCK}
    check("files that gristmill pack writes", found, PACKED[file_format])


@pytest.mark.parametrize("arguments", DEFAULTS)
def test_fingerprint_of_defaults_is_unchanged(in_folder, tokenizer, arguments):
    dataset = gm.PackedDataset(write_shards(".jsonl"), tokenizer=tokenizer, **dict(arguments))
    check("the fingerprint of defaults", dataset.fingerprint, DEFAULTS[arguments])


@pytest.mark.parametrize(
    ("shards", "batch_size", "lanes"),
    [
        *[(65, None, 64), (65, 7, 1), (65, 12, 4), (65, 32, 32), (65, 64, 64), (65, 96, 32), (65, 256, 64)],
        *[(1000, 1024, 64), (64, 64, 64), (63, 64, 32), (3, 64, 2), (1, 64, 1)],
    ],
)
def test_default_number_of_lanes_is_unchanged(tokenizer, shards, batch_size, lanes):
    dataset = gm.PackedDataset(many_shards(shards), tokenizer=tokenizer, batch_size=batch_size)
    check(f"lanes= by default of {shards} shards and batch_size={batch_size}", dataset.lanes, lanes)
    assert f" lanes={lanes}" in dataset.fingerprint


@pytest.mark.parametrize(("seed", "epoch"), PLANS)
def test_assignment_of_shards_is_unchanged(tokenizer, seed, epoch):
    """Several shards have the same size: the seed decides between them."""
    dataset = gm.PackedDataset(many_shards(65), tokenizer=tokenizer, batch_size=8, seed=seed)
    plan = [" ".join(Path(path).stem for path in lane) for lane in dataset.plan(epoch)]
    check(f"the plan of seed={seed} in epoch {epoch}", plan, PLANS[seed, epoch])


def test_window_size_in_bytes_is_unchanged(in_folder, tokenizer):
    """The size is part of the stream, though no argument sets it."""
    line = json.dumps({"text": " the" * 2**18}) + "\n"
    Path("long.jsonl").write_text(35 * line)
    dataset = gm.PackedDataset("long.jsonl", tokenizer=tokenizer, packing="pad", sequence_length=8, seed=5)

    def begins(state: dict[str, Any]) -> list[int]:
        iterator = iter(dataset)
        iterator.set_state(state)
        cursors = (iterator.get_state()["lanes"]["0"] for _ in iterator)
        return [states.cursor_numbers(cursor)["record"] for cursor in cursors]

    start = iter(dataset).get_state()
    what = "where the windows of documents of a MiB begin"
    grown = [*range(1, 5), *[5] * 2, *[7] * 4, *[11] * 8, *[19] * 16, 0]
    check(what, begins(start), grown)
    large = [*[0] * 15, *[16] * 16, *[32] * 3, 0]
    check(f"{what} before they grew", begins(start | {"lanes": {"0": "window_size=10"}}), large)


def test_values_in_a_fingerprint_are_percent_encoded():
    odd = {"a": "b c=d", "plus": "+%20", "slash": "/~-_.", "letters": "é日\n\0", "empty": "", "none": None, "no": False}
    found = named_values.encode(odd)
    check("the text of a fingerprint", found, ODD_VALUES)
    assert named_values.decode(found) == {name: str(value) for name, value in odd.items()}


def test_manifest_fingerprint_of_odd_names_is_unchanged(tokenizer):
    shards = gm.Manifest([f"/data/{name}.jsonl" for name in ("a b", "a=b", "%20", "é", "日/x", "z\ny")], range(6))
    check("the fingerprint of a manifest", shards.fingerprint, ODD_MANIFEST)
    moved = gm.Manifest([path.replace("/data/", "/else where/") for path in shards.paths], shards.sizes)
    assert moved.fingerprint == shards.fingerprint
    dataset = gm.PackedDataset(shards, tokenizer=tokenizer, text_field="raw text=%")
    assert " text_field=raw%20text%3D%25 " in dataset.fingerprint
