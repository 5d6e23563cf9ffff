"""Fill-in-the-middle: the ids of documents that are cut, beside an oracle that draws the same numbers."""

import json
import random

import numpy as np
import pytest
import tokenizers

import gristmill as gm
from command_line import checked, run_json
from gristmill._cli import main
from helpers import assert_resumes, assert_same_batches, write_shard

ONE = 2**64
FIM = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")
TEXTS = [
    "",
    "x",
    "é",
    "e\u0301\u0323 combining \u0928\u0940",
    "👩‍👩‍👧 family 🇩🇪 flags 👍🏽",
    "def f(x):\n\treturn x + 1\n",
    "the text spells out <fim_suffix> and </s> itself",
    "\n\n\n",
]


class SplitMix64:
    """The generator of the stream's draws; `rust/random.rs` is the other implementation."""

    def __init__(self, *parts):
        self.state = parts[0]
        for part in parts[1:]:
            self.state = self.next() ^ part

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) % ONE
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % ONE
        z = (z ^ z >> 27) * 0x94D049BB133111EB % ONE
        return z ^ z >> 31

    def below(self, bound):
        while True:
            product = self.next() * bound
            if product % ONE >= -bound % ONE % bound:
                return product // ONE


def parts_of(text, rate, spm_rate, key, seed=0):
    """A document's parts: strings, and the numbers 0, 1 and 2 for the tokens of prefix, middle and suffix."""
    purpose = 5
    draws = SplitMix64(seed, purpose, *key)
    if not text or draws.below(2**53) >= rate * 2**53:
        return [text]
    start, end = sorted([draws.below(len(text) + 1), draws.below(len(text) + 1)])
    prefix, middle, suffix = text[:start], text[start:end], text[end:]
    if draws.below(2**53) < spm_rate * 2**53:
        return [0, 2, suffix, 1, prefix, middle]
    return [0, prefix, 2, suffix, 1, middle]


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer_json):
    """A tokenizer with the sentinels of StarCoder."""
    folder = tmp_path_factory.mktemp("fim")
    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    tokenizer.add_special_tokens(list(FIM))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


@pytest.fixture(scope="module")
def documents(texts):
    rng = random.Random(3)
    alphabet = "ab \n\té\u0301漢😀\u200d<fim_prefix>"
    odd = ["".join(rng.choices(alphabet, k=rng.randrange(30))) for _ in range(120)]
    found = [*TEXTS, *odd, *texts[:80]]
    rng.shuffle(found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("shards")
    for number in range(4):
        write_shard(folder / f"{number}.json.gz", documents[number::4])
    return folder


@pytest.fixture
def make(folder, model):
    def make(rate=0.6, spm_rate=0.4, **arguments):
        fim = gm.FillInTheMiddle(rate, spm_rate)
        values = {"sequence_length": 64, "batch_size": 8, "lanes": 2, "seed": 7, **arguments}
        return gm.PackedDataset(
            str(folder / "*.gz"), tokenizer=str(model), sample=gm.Text("raw_content", fim=fim), **values
        )

    return make


def delivered(dataset, epochs=1):
    """The ids of each document by its shard, its record and how often that came before."""
    found = {}
    pieces = list(dataset.pieces)
    for batch in dataset:
        for row in range(len(batch["inputs"])):
            at = 0
            for shard, record, offset, length in batch["provenance"][row].tolist():
                if not length:
                    break
                passes = found.setdefault((int(pieces[shard].path.split("/")[-1][0]), record), [])
                if offset == 0:
                    passes.append([])
                passes[-1].extend(batch["inputs"][row, at : at + length].tolist())
                at += length
    assert all(len(passes) == epochs for passes in found.values())
    return found


def expected_ids(tokenizer, parts, eos):
    sentinels = [tokenizer.token_to_id(token) for token in FIM]
    ids = []
    for part in parts:
        ids += [sentinels[part]] if isinstance(part, int) else tokenizer.encode(part, add_special_tokens=False).ids
    return [*ids, eos]


@pytest.mark.parametrize("special", ["id", "text"])
@pytest.mark.parametrize("seed", [None, 7])
def test_ids_are_those_of_the_oracle(make, model, folder, documents, seed, special):
    encoder = gm.Encoder.from_file(model, special_tokens_in_text=special)
    fim = gm.Text("raw_content", fim=gm.FillInTheMiddle(0.6, 0.4))
    dataset = gm.PackedDataset(
        str(folder / "*.gz"), tokenizer=encoder, sample=fim, sequence_length=64, batch_size=8, lanes=2, seed=seed,
        epochs=2, provenance=64, packing="pad", truncation="split", verify=1.0,
    )  # fmt: skip
    found = delivered(dataset, epochs=2)
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.encode_special_tokens = special == "text"
    kinds = set()
    for (shard, record), passes in found.items():
        text = documents[shard::4][record]
        for epoch, ids in enumerate(passes):
            parts = parts_of(text, 0.6, 0.4, (epoch, shard, record), seed or 0)
            kinds.add(tuple(part for part in parts if isinstance(part, int)))
            assert ids == expected_ids(tokenizer, parts, encoder.eos_id), (text, parts)
    assert kinds == {(), (0, 2, 1)}
    assert len(found) == len(documents)


def test_draws_do_not_depend_on_lanes_or_order(make):
    one = delivered(make(lanes=1, provenance=64))
    assert one == delivered(make(lanes=4, provenance=64))
    assert one == delivered(make(lanes=2, provenance=2048, packing="best_fit", sequence_length=4096))


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_stream_is_the_same_on_any_threads_hosts_and_after_restores(make, packing):
    whole = list(make(packing=packing, threads=1))
    assert_same_batches(make(packing=packing, threads=3), whole)
    for step in (1, 4):
        assert_resumes(make(packing=packing, threads=2), step)
    hosts = [make(packing=packing, shard_index=host, shard_count=2) for host in range(2)]
    iterators = [iter(host) for host in hosts]
    firsts = [next(iterator) for iterator in iterators]
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in firsts]), whole[0]["inputs"])
    state = gm.merge_states([iterator.get_state() for iterator in iterators])
    restored = iter(make(packing=packing))
    restored.set_state(state)
    assert_same_batches(restored, whole[1:])


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("truncation", ["right", "left", "middle"])
def test_documents_are_cut_in_their_new_order(make, packing, truncation):
    """The part of a document that is kept is that which `pad` keeps."""

    def ids_of(**arguments):
        found = {}
        for batch in make(truncation=truncation, provenance=64, sequence_length=64, **arguments):
            for row, entries in zip(batch["inputs"], batch["provenance"], strict=True):
                at = 0
                for shard, record, offset, length in entries.tolist():
                    if length:
                        found.setdefault((shard, record), {})[offset] = row[at : at + length].tolist()
                    at += length
        # Neighbouring parts are of one document that two rows hold.
        return {place: [token for _, part in sorted(parts.items()) for token in part] for place, parts in found.items()}

    assert ids_of(packing=packing) == ids_of(packing="pad")


def test_rate_of_zero_is_plain_text_and_others_are_another_stream(make, folder, model):
    plain = gm.PackedDataset(
        str(folder / "*.gz"), tokenizer=str(model), text_field="raw_content", sequence_length=64, batch_size=8, lanes=2,
        seed=7,
    )  # fmt: skip
    assert_same_batches(make(rate=0.0), plain)
    state = iter(make()).get_state()
    for other in (plain, make(rate=0.5), make(spm_rate=0.5)):
        with pytest.raises(gm.StateError, match=r"sample was FillInTheMiddle\(rate=0.6, spm_rate=0.4, prefix=600"):
            iter(other).set_state(state)
    assert "tokens_loss_mask" not in next(iter(make(layout="grain")))


def test_statistics_count_documents_and_their_text(make, documents):
    iterator = iter(make())
    for _ in iterator:
        pass
    stats = iterator.stats()
    assert stats["documents"] == len(documents)
    assert stats["text_bytes"] == sum(len(text.encode()) for text in documents)


def test_source_of_a_mixture_is_cut_alone(folder, model):
    fim = gm.Text("raw_content", fim=gm.FillInTheMiddle(1.0, 0.0))
    sources = {
        "code": gm.Source(str(folder / "[01]*.gz"), weight=1, sample=fim),
        "web": gm.Source(str(folder / "[23]*.gz"), weight=1, text_field="raw_content"),
    }
    dataset = gm.PackedDataset(
        gm.Mixture(sources), tokenizer=str(model), sequence_length=128, batch_size=8, seed=3, source_arrays=True
    )
    middle = dataset.encoder.token_to_id("<fim_middle>")
    counts = np.zeros(2, np.int64)
    with iter(dataset) as iterator:
        for _ in range(10):
            batch = next(iterator)
            np.add.at(counts, batch["source"], (batch["inputs"] == middle).sum(axis=1))
    assert counts[0] > 50
    assert counts[1] == 0


@pytest.mark.parametrize(
    "tokens",
    [
        ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
        ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
        ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),
        ("▁<PRE>", "▁<MID>", "▁<SUF>"),
    ],
)
def test_tokens_of_known_models_are_found(folder, tokenizer_json, tokens):
    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    tokenizer.add_special_tokens(list(tokens))
    encoder = gm.Encoder(tokenizer.to_str().encode(), eos_token="</s>")
    make = {"tokenizer": encoder, "sequence_length": 64}
    shards = str(folder / "0.json.gz")
    known = gm.PackedDataset(shards, sample=gm.Text("raw_content", fim=gm.FillInTheMiddle()), **make)
    named = gm.FillInTheMiddle(0.5, 0.5, *tokens)
    assert gm.PackedDataset(shards, sample=gm.Text("raw_content", fim=named), **make).fingerprint == known.fingerprint
    ids = gm.FillInTheMiddle(0.5, 0.5, *map(encoder.token_to_id, tokens))
    assert gm.PackedDataset(shards, sample=gm.Text("raw_content", ids), **make).fingerprint == known.fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"the vocabulary has none of the known tokens .*pass prefix=, middle= and suffix=.*'<s>', '</s>'"),
        ({"prefix": "<s>"}, "middle=None: expected prefix=, middle= and suffix=, or none of them"),
        ({"prefix": "<s>", "middle": "</s>", "suffix": "<nothing>"}, "suffix='<nothing>'"),
        ({"prefix": "<s>", "middle": "</s>", "suffix": 99999}, "suffix=99999: the vocabulary has no such id"),
        ({"prefix": "<s>", "middle": "</s>", "suffix": "<s>"}, "expected three different tokens, found the ids 0, 1"),
        ({"prefix": 0, "middle": 1, "suffix": True}, "suffix=True: expected an integer from 0 to"),
        ({"rate": 1.5}, "rate=1.5: expected a number from 0 to 1"),
        ({"spm_rate": "a"}, "spm_rate='a': expected a number from 0 to 1"),
        ({"rate": float("nan")}, "rate=nan"),
    ],
)
def test_wrong_tokens_and_rates_are_refused(folder, encoder, given, message):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=message):
        gm.PackedDataset(
            str(folder / "0.json.gz"), tokenizer=encoder, sample=gm.Text("raw_content", gm.FillInTheMiddle(**given))
        )


def test_several_known_models_in_one_vocabulary_are_told_apart(folder, tokenizer_json):
    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    tokenizer.add_special_tokens([*FIM, "▁<PRE>", "▁<MID>", "▁<SUF>"])
    encoder = gm.Encoder(tokenizer.to_str().encode(), eos_token="</s>")
    sample = gm.Text("raw_content", fim=gm.FillInTheMiddle())
    with pytest.raises(gm.ArgumentError, match="the vocabulary has several of the known tokens"):
        gm.PackedDataset(str(folder / "0.json.gz"), tokenizer=encoder, sample=sample)


def test_other_values_for_fim_are_refused(folder, model):
    with pytest.raises(gm.ArgumentTypeError, match=r"fim=0\.5: expected gm\.FillInTheMiddle or None"):
        gm.Text("raw_content", fim=0.5)
    sample = gm.Text("raw_content", fim=gm.FillInTheMiddle())
    with pytest.raises(gm.ArgumentError, match="text_field='text2': the sample names the keys"):
        gm.PackedDataset(str(folder / "0.json.gz"), tokenizer=str(model), text_field="text2", sample=sample)
    with pytest.raises(gm.ArgumentError, match="prompts are not cut"):
        gm.PromptDataset(str(folder / "0.json.gz"), tokenizer=str(model), prompt=sample)


def test_commands_take_it(folder, model, make, tmp_path, capsys):
    fim = '{"rate": 0.6, "spm_rate": 0.4}'
    sample = [part for word in ("text", "field=raw_content", f"fim={fim}") for part in ("--sample", word)]
    rows = ["--sequence-length", "64", "--batch-size", "8", "--lanes", "2", "--seed", "7"]
    for file_format in ("npy", "megatron"):
        out = tmp_path / file_format
        arguments = [folder / "*.gz", "--tokenizer", model, "--output", out, *sample, *rows, "--format", file_format]
        run_json(capsys, "pack", *arguments)
        assert checked(capsys, "verify", out)[0] == 0
    packed = gm.PackedRows(tmp_path / "npy")
    expected = next(iter(make()))
    np.testing.assert_array_equal(packed[5]["inputs"], expected["inputs"][5])
    iterator = iter(make())
    (tmp_path / "state.json").write_text(json.dumps(iterator.get_state()))
    state = ["inspect", tmp_path / "state.json", "--shards", folder / "*.gz", "--tokenizer", model, "--row", "5"]
    found = run_json(capsys, *state, *sample)
    ids = expected["inputs"][5][expected["inputs_segmentation"][5] > 0]
    assert "".join(part["text"] for part in found["segments"]) == make().encoder.decode(ids)
    assert main.run(list(map(str, state))) == 1
    assert "name it with --sample" in capsys.readouterr().err
    (tmp_path / "mixture.toml").write_text(f"""
        tokenizer = "{model}"
        batch_size = 8
        seed = 1
        [sources.code]
        shards = "{folder}/*.gz"
        weight = 1
        sample = {{ kind = "text", field = "raw_content", fim = {{ rate = 0.6 }} }}
    """)
    stream = run_json(capsys, "inspect", tmp_path / "mixture.toml")["stream"]
    assert stream["code.sample"].startswith("FillInTheMiddle(")
    text = (tmp_path / "mixture.toml").read_text()
    (tmp_path / "mixture.toml").write_text(text.replace("rate", "ratio"))
    assert main.run(["inspect", str(tmp_path / "mixture.toml")]) == 2
    assert "unknown key 'ratio': did you mean 'rate'?" in capsys.readouterr().err
