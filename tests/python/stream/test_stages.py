"""`stages=`: lengths of rows and sizes of batches from a step on. The oracle is a naive model of a lane."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import gristmill as gm
from gristmill._cli import main
from gristmill._util.named_values import decode
from helpers import assert_same_batches
from lane_model import Rules, documents_of, lane_steps

SHARDS = 4
RECORDS = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stages")
    for shard in range(SHARDS):
        lines = [
            json.dumps({"input_ids": one.ids, "number": one.record, "text": str(one.record)})
            for one in documents_of(shard, RECORDS)
        ]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def made(folder):
    def made(**arguments):
        given = {"sample": gm.Tokens(), "layout": "grain", "lanes": 2, "threads": 2, **arguments}
        return gm.PackedDataset(f"{folder}/*.jsonl", **given)

    return made


STAGES = [gm.Stage(0, 16, 4), gm.Stage(9, 32, 2), gm.Stage(15, 24, 6), gm.Stage(16, 24, 2)]
PACKINGS = [
    {"packing": "concat"},
    {"packing": "concat", "seed": 5, "shuffle_window": 40},
    {"packing": "best_fit", "fit_window": 30},
    {"packing": "best_fit", "seed": 5, "fit_window": 30, "shuffle_window": 40},
    {"packing": "best_fit", "fit_window": 30, "balance": gm.Cost(1, 0.1)},
    {"packing": "pad", "truncation": "split"},
    {"packing": "pad", "truncation": "split", "seed": 5, "shuffle_window": 40},
]


def segments(batch):
    """The ids of each segment of each row."""
    rows = zip(batch["tokens"], batch["tokens_segment_ids"], strict=True)
    return [[ids[numbers == number].tolist() for number in range(1, numbers.max() + 1)] for ids, numbers in rows]


def tokens(batches):
    return [token for batch in batches for row in segments(batch) for segment in row for token in segment]


ALL_TOKENS = sorted(token for shard in range(SHARDS) for one in documents_of(shard, RECORDS) for token in one.ids)


def modelled(dataset, rules_of, packing, window, truncates=False):
    """The batches that the model makes of the shards of each lane, as segments of rows."""
    lanes = []
    for shards in dataset.plan():
        documents = [one for path in shards for one in documents_of(int(path.rpartition("/")[2][0]), RECORDS)]
        lanes.append(list(lane_steps(documents, rules_of, packing, window, truncates)))
    steps = []
    for step in range(max(map(len, lanes))):
        empty = [[] for _ in range(rules_of(step).rows)]
        steps.append([row for lane in lanes for row in (lane[step] if step < len(lane) else empty)])
    return steps


@hypothesis.settings(
    max_examples=12, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    borders=st.lists(st.integers(1, 60), max_size=4, unique=True),
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), min_size=5, max_size=5),
    packing=st.sampled_from(["concat", "pad", "best_fit"]),
    window=st.integers(1, 80),
    truncates=st.booleans(),
)
def test_rows_are_those_of_the_model(made, borders, sizes, packing, window, truncates):
    steps = [0, *sorted(borders)]
    stages = [gm.Stage(step, length, 2 * rows) for step, (length, rows) in zip(steps, sizes, strict=False)]
    truncates = truncates and packing == "pad"

    def rules_of(step):
        stage = [stage for stage in stages if stage.step <= step][-1]
        return Rules(stage.sequence_length, stage.batch_size // 2)

    more = {"fit_window": window} if packing == "best_fit" else {}
    dataset = made(packing=packing, stages=stages, truncation="right" if truncates else "split", **more)
    found = list(dataset)
    expected = modelled(dataset, rules_of, packing, window, truncates)
    assert [segments(batch) for batch in found] == expected
    for step, batch in enumerate(found):
        assert {name: array.shape for name, array in batch.items()} == dataset.shapes_at(step)


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_each_token_is_delivered_once_and_counted(made, arguments):
    iterator = iter(made(stages=STAGES, **arguments))
    batches = list(iterator)
    assert sorted(tokens(batches)) == ALL_TOKENS
    stats = iterator.stats()
    assert stats["documents"] == stats["records"] == SHARDS * RECORDS
    assert stats["tokens"] == len(ALL_TOKENS)
    assert stats["rows"] == sum(len(batch["tokens"]) for batch in batches)
    assert stats["padding_tokens"] == sum(int((batch["tokens_segment_ids"] == 0).sum()) for batch in batches)


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_state_restores_at_all_points(made, arguments):
    dataset = made(stages=STAGES, **arguments)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    for step in [*range(0, len(batches), 5), 8, 9, 10, 14, 15, 16, 17, len(batches)]:
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(states[step])))
        assert restored.get_state() == states[step]
        assert_same_batches(restored, batches[step:])
        assert restored.get_state() == states[-1]
        assert counts(restored) == counts(iterator)


def counts(iterator):
    return {
        name: value
        for name, value in iterator.stats().items()
        if "seconds" not in name and name not in ("ring_ready", "skipped_tokens")
    }


@pytest.mark.parametrize("arguments", PACKINGS[:4], ids=str)
def test_hosts_deliver_the_same_batches(made, arguments):
    dataset = made(stages=STAGES, epochs=None, **arguments)
    whole, hosts = iter(dataset), [iter(dataset.for_hosts(index, 2)) for index in range(2)]
    for step in range(25):
        batch, parts = next(whole), [next(host) for host in hosts]
        for name, array in batch.items():
            assert np.array_equal(array, np.concatenate([part[name] for part in parts])), step
        merged = gm.merge_states([host.get_state() for host in hosts])
        assert merged == whole.get_state()
        if step % 4 == 3:  # on another number of hosts
            whole.set_state(merged)


@pytest.mark.parametrize("arguments", PACKINGS[:4], ids=str)
def test_hosts_of_equal_steps_and_single_rows(made, arguments):
    dataset = made(stages=STAGES, **arguments)
    hosts = [dataset.for_hosts(index, 2, equal_steps=True) for index in range(2)]
    for batch, *parts in zip(dataset, *hosts, strict=True):
        assert np.array_equal(batch["tokens"], np.concatenate([part["tokens"] for part in parts]))
    single = made(stages=[gm.Stage(0, 16), gm.Stage(3, 32)], **arguments)
    rows = list(single)
    assert [row["tokens"].shape for row in rows[:8]] == [(16,)] * 6 + [(32,)] * 2
    assert sorted(tokens([{name: array[None] for name, array in row.items()} for row in rows])) == ALL_TOKENS
    iterator = iter(single)
    for count in range(10):
        restored = iter(single)
        restored.set_state(iterator.get_state())
        assert_same_batches(restored, rows[count:])
        next(iterator)


@pytest.mark.parametrize("arguments", PACKINGS, ids=str)
def test_past_of_an_added_stage_is_that_of_the_stream(made, arguments):
    short = list(made(stages=STAGES[:1], **arguments))
    longer = list(made(stages=STAGES[:2], **arguments))
    assert_same_batches(longer[:9], short[:9])
    iterator = iter(made(sequence_length=16, batch_size=4, **arguments))
    for _ in range(9):
        next(iterator)
    changed = iter(made(stages=STAGES[:2], **arguments))
    changed.set_state(iterator.get_state())
    assert_same_batches(changed, longer[9:])


@pytest.mark.parametrize("arguments", [PACKINGS[index] for index in (0, 1, 2, 3, 5, 6)], ids=str)
def test_batches_that_grow_have_the_rows_of_the_lane(made, arguments):
    grown = made(stages=[gm.Stage(0, 16, 2), gm.Stage(5, None, 4), gm.Stage(7, None, 8)], **arguments)
    plain = made(sequence_length=16, batch_size=2, **arguments)
    for host in range(2):
        rows = [np.concatenate([batch["tokens"] for batch in dataset.for_hosts(host, 2)]) for dataset in (grown, plain)]
        count = min(map(len, rows))
        assert np.array_equal(rows[0][:count], rows[1][:count])
        assert not rows[0][count:].any()


def test_a_changed_past_is_refused_with_its_first_step(made):
    iterator = iter(made(stages=STAGES))
    for _ in range(12):
        next(iterator)
    state = iterator.get_state()
    for stages, step in [
        (STAGES[:1], 9),
        ([STAGES[0], gm.Stage(10, 32, 2)], 9),
        ([*STAGES[:2], gm.Stage(11, 8, 2)], 11),
        ([gm.Stage(0, 16, 4), gm.Stage(9, 32, 4)], 9),
    ]:
        with pytest.raises(gm.StateError, match=f"the first step that differs is {step}, which is in the past"):
            iter(made(stages=stages)).set_state(state)
    with pytest.raises(gm.StateError, match="sequence_length was 16 and is 32"):
        iter(made(sequence_length=32, batch_size=4)).set_state(state)
    for stages in (STAGES[:2], [*STAGES[:2], gm.Stage(12, 8, 2)]):
        restored = iter(made(stages=stages))
        restored.set_state(state)
        next(restored)


def test_a_skipped_range_may_lie_across_a_border(made):
    batches = list(made(stages=STAGES))
    skip = [(7, 12), (15, 17)]
    dataset = made(stages=STAGES, skip=skip)
    expected = [batch for step, batch in enumerate(batches) if not any(first <= step < end for first, end in skip)]
    assert_same_batches(dataset, expected)
    iterator = iter(dataset)
    for count in range(12):
        restored = iter(dataset)
        restored.set_state(iterator.get_state())
        assert_same_batches(restored, expected[count:])
        next(iterator)


def test_mixtures_have_stages_of_rows(folder):
    def made(stages, **more):
        sources = {
            "a": gm.Source(f"{folder}/[01].jsonl", weight=1, sample=gm.Tokens(), epochs=2),
            "b": gm.Source(f"{folder}/[23].jsonl", weight=3, sample=gm.Tokens()),
        }
        mixture = gm.Mixture(sources, stages=[(12, {"a": 1, "b": 1})], on_exhausted="stop")
        return gm.PackedDataset(
            mixture,
            stages=stages,
            layout="grain",
            lanes=2,
            seed=3,
            packing="best_fit",
            fit_window=20,
            source_arrays=True,
            **more,
        )

    dataset = made(STAGES)
    iterator = iter(dataset)
    states, batches = [], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    stats = iterator.stats()["sources"]
    for number, name in enumerate("ab"):
        rows = sum(int((batch["source"] == number).sum()) for batch in batches)
        assert stats[name]["rows"] == rows
    for step in (0, 7, 8, 9, 14, 15, 16, 20):
        restored = iter(dataset)
        restored.set_state(states[step])
        assert_same_batches(restored, batches[step + 1 :])
    assert_same_batches(batches[:9], list(made(None, sequence_length=16, batch_size=4))[:9])


@pytest.mark.parametrize("layout", ["maxtext", "hf", "varlen"])
def test_all_layouts_have_stages(made, layout):
    dataset = made(stages=STAGES, layout=layout, provenance=True)
    batches = list(dataset)
    for step, batch in enumerate(batches):
        assert {name: array.shape for name, array in batch.items()} == dataset.shapes_at(step)
    restored = iter(dataset)
    first = iter(dataset)
    for _ in range(10):
        next(first)
    restored.set_state(first.get_state())
    assert_same_batches(restored, batches[10:])
    assert sum(int(batch["provenance"][..., 3].sum()) for batch in batches) == len(ALL_TOKENS)


def test_text_and_chats_have_stages(folder, encoder, texts, tmp_path):
    lines = [
        json.dumps(
            {
                "messages": [{"role": "user", "content": text[:40]}, {"role": "assistant", "content": text[40:300]}],
                "text": text,
            }
        )
        for text in texts[:120]
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    for sample in (None, gm.Chat("messages", template=template, on_untrained="drop")):
        for truncation in ("right", "left", "middle", "drop", None):
            dataset = gm.PackedDataset(
                tmp_path / "chats.jsonl", tokenizer=encoder, sample=sample, packing="concat", seed=2,
                truncation=truncation, stages=[gm.Stage(0, 64, 2), gm.Stage(4, 200, 1), gm.Stage(9, 32, 3)],
            )  # fmt: skip
            iterator = iter(dataset)
            states, batches = [iterator.get_state()], []
            for batch in iterator:
                batches.append(batch)
                states.append(iterator.get_state())
            stats = iterator.stats()
            assert stats["records"] == 120 == stats["documents"] + stats["filtered"]
            for step in (3, 4, 5, 8, 9, 10, len(batches)):
                restored = iter(dataset)
                restored.set_state(states[step])
                assert_same_batches(restored, batches[step:])


def test_ramps_are_those_of_megatron():
    def megatron(start, increment, samples, size, steps):
        """As `RampupBatchsizeNumMicroBatchesCalculator` counts, which has a share of samples for each increment."""
        given, sizes = 0, []
        for _ in range(steps):
            grown = (
                size if given > samples else start + int(given / (samples / ((size - start) // increment))) * increment
            )
            sizes.append(grown)
            given += grown
        return sizes

    for start, increment, samples, size in [(4, 4, 100, 16), (2, 2, 1000, 12), (8, 8, 7, 32), (1, 1, 64, 9)]:
        stages = gm.Stage.ramp(start, increment, samples, size, step=10)
        found = [[stage.batch_size for stage in stages if stage.step <= step][-1] for step in range(10, 410)]
        assert found == megatron(start, increment, samples, size, 400)
    assert gm.Stage.ramp(8, 8, 0, 8) == [gm.Stage(0, None, 8)]
    with pytest.raises(gm.ArgumentError, match="increment=3"):
        gm.Stage.ramp(4, 3, 10, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": [gm.Stage(0, 16, 4), gm.Stage(3, 16, 3)], "lanes": 2}, "batch_size=3"),
        ({"stages": [gm.Stage(0, 16, 4)], "sequence_length": 32}, "sequence_length=32: the first of stages= has 16"),
        ({"stages": [gm.Stage(0, 16, 4)], "batch_size": 8}, "batch_size=8: the first of stages= has 4"),
        ({"stages": [gm.Stage(3, 16), gm.Stage(3, 32)]}, "step 3 follows step 3"),
        ({"stages": [gm.Stage(0, 16), gm.Stage(3, 32, 4)]}, "expected a batch_size= in the first stage"),
        ({"stages": "0:16"}, "expected stages such as"),
        ({"stages": [gm.Stage(0, 16, 4), gm.Stage(5, 40)], "pad_segments_to": 16}, "from step 5 on: pad_segments"),
    ],
)  # fmt: skip
def test_stages_that_do_not_fit_are_refused(made, arguments, message):
    with pytest.raises(gm.ArgumentError, match=message):
        made(**arguments)


def test_stages_may_begin_later_and_be_text(made):
    later = made(sequence_length=16, batch_size=4, stages=[gm.Stage(9, 32, 2)])
    assert later.stages == STAGES[:2]
    assert later.fingerprint == made(stages="0:16:4,9:32:2").fingerprint
    assert (
        made(stages=[gm.Stage(0, 16, 4), gm.Stage(5, 16)]).fingerprint
        == made(sequence_length=16, batch_size=4).fingerprint
    )
    assert_same_batches(later, made(stages=STAGES[:2]))


def test_inspect_shows_past_and_future(made, tmp_path, capsys):
    iterator = iter(made(stages=STAGES))
    for _ in range(12):
        next(iterator)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(iterator.get_state()))
    assert main.run(["inspect", str(state), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [stage["step"] for stage in found["stages"]["past"]] == [9]
    assert [stage["step"] for stage in found["stages"]["future"]] == [15, 16]


@pytest.mark.parametrize("arguments", PACKINGS[:4], ids=str)
def test_hosts_that_have_ended_pad_in_the_shape_of_the_step(made, folder, arguments, tmp_path):
    for shard, count in enumerate((10, 80)):
        lines = (folder / f"{shard}.jsonl").read_text().splitlines()[:count]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    stages = [gm.Stage(0, 16, 4), gm.Stage(8, 32, 2), gm.Stage(12, None, 4), gm.Stage(14, 8, 4)]
    dataset = gm.PackedDataset(
        f"{tmp_path}/*.jsonl", sample=gm.Tokens(), layout="grain", lanes=2, stages=stages, **arguments
    )
    whole = list(dataset)
    hosts = []
    for index in range(2):
        count = [0]

        def vote(more, count=count):
            step, count[0] = count[0], count[0] + 1
            return lambda: step < len(whole)

        hosts.append(dataset.for_hosts(index, 2).iterate_together(vote))
    for batch, *parts in zip(whole, *hosts, strict=True):
        for name, array in batch.items():
            assert np.array_equal(array, np.concatenate([part[name] for part in parts])), name


def test_mixture_files_hold_stages_of_weights_and_rows(folder, tokenizer_file, tmp_path):
    (tmp_path / "mixture.toml").write_text(
        f"""
        tokenizer = "{tokenizer_file}"
        batch_size = 4
        lanes = 2
        [sources.a]
        shards = "{folder}/[01].jsonl"
        weight = 1
        [sources.b]
        shards = "{folder}/[23].jsonl"
        weight = 1
        [[stages]]
        step = 0
        sequence_length = 16
        [[stages]]
        step = 5
        weights = {{ a = 1, b = 3 }}
        sequence_length = 8
        batch_size = 8
        [[edits]]
        step = 7
        source = "a"
        keep = "number > 20"
        """
    )
    dataset = gm.PackedDataset.from_file(tmp_path / "mixture.toml")
    assert dataset.stages == [gm.Stage(0, 16, 4), gm.Stage(5, 8, 8)]
    found = decode(dataset.fingerprint)
    assert (found["stages"], found["row_stages"]) == ("0:a:1,b:1;5:a:1,b:3", "5:8:8")
    assert json.loads(found["edits"]) == [{"step": 7, "keep": "number > 20", "source": "a"}]
    shapes = [batch["inputs"].shape for _, batch in zip(range(7), dataset, strict=False)]
    assert shapes == [(4, 16)] * 5 + [(8, 8)] * 2
