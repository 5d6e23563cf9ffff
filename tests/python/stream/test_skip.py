"""`skip=`: steps that are made and not delivered. The oracle is the stream without it, of which steps are left out."""

import _thread
import itertools
import json
import re
import threading
import time

import grain
import numpy as np
import pytest

import gristmill as gm
from gristmill._cli import main
from helpers import assert_same_batches, write_shard

LENGTH = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four shards, of which one is longer than the others, so that its lane ends last."""
    folder = tmp_path_factory.mktemp("skip")
    for number, count in enumerate([12, 9, 60, 12]):
        texts = [f"shard {number} text {index} " + "with words " * (index % 7) for index in range(count)]
        write_shard(folder / f"{number}.jsonl.gz", texts)
    return folder


@pytest.fixture(scope="module")
def made(folder, encoder):
    def made(skip=None, **arguments):
        given = {"text_field": "raw_content", "sequence_length": LENGTH, "batch_size": 8, "lanes": 4, **arguments}
        return gm.PackedDataset(f"{folder}/*.gz", tokenizer=encoder, skip=skip, **given)

    return made


@pytest.fixture(scope="module")
def mixed(folder, encoder):
    def mixed(skip=None, **arguments):
        sources = {
            name: gm.Source(f"{folder}/*.gz", weight=weight, text_field="raw_content", epochs=2)
            for name, weight in [("a", 1), ("b", 2)]
        }
        given = {"sequence_length": LENGTH, "batch_size": 8, "lanes": 2, **arguments}
        return gm.PackedDataset(
            gm.Mixture(sources, on_exhausted="continue"), tokenizer=encoder, skip=skip, source_arrays=True, **given
        )

    return mixed


def is_kept(step, skip):
    return not any(first <= step < end for first, end in skip)


def kept(dataset, skip):
    return [batch for step, batch in enumerate(dataset) if is_kept(step, skip)]


SKIPS = [[(3, 6)], [(0, 2)], [(1, 2), (4, 5), (7, 11)], [(5, 10**9)], [(0, 10**9)], [(10**9, 10**9 + 1)]]


@pytest.mark.parametrize("skip", SKIPS, ids=str)
@pytest.mark.parametrize("arguments", [{}, {"packing": "best_fit", "seed": 3}, {"packing": "pad"}], ids=str)
def test_other_steps_are_those_of_the_stream(made, skip, arguments):
    expected = kept(made(**arguments), skip)
    assert_same_batches(made(skip, **arguments), expected)
    assert_same_batches(made(skip, threads=3, prefetch=1, **arguments), expected)


@pytest.mark.parametrize("skip", SKIPS[:4], ids=str)
def test_steps_of_mixtures_are_skipped(mixed, skip):
    assert_same_batches(mixed(skip), kept(mixed(), skip))


@pytest.mark.parametrize("kind", ["made", "mixed"])
def test_state_restores_at_all_points(request, kind):
    dataset = request.getfixturevalue(kind)
    skip = [(2, 4), (5, 6)]
    epochs = {"epochs": None} if kind == "made" else {}
    expected = list(itertools.islice(kept(itertools.islice(dataset(**epochs), 20), skip), 8))
    numbers = [step for step in range(20) if is_kept(step, skip)][:8]
    iterator = iter(dataset(skip, **epochs))
    for count in range(8):
        state = json.loads(json.dumps(iterator.get_state()))
        assert state["step"] == (numbers[count - 1] + 1 if count else 0)
        again = iter(dataset(skip, **epochs))
        again.set_state(state)
        assert again.get_state() == state
        assert_same_batches(itertools.islice(again, 8 - count), expected[count:])
        next(iterator)


@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("kind", ["made", "mixed"])
def test_hosts_skip_the_same_steps_and_states_restore_on_other_numbers(request, kind, hosts):
    whole = request.getfixturevalue(kind)([(2, 4), (5, 7)], **({"epochs": None} if kind == "made" else {}))
    if whole.lanes % hosts:
        pytest.skip("the lanes have no such number of hosts")
    expected = list(itertools.islice(whole, 5))
    iterators = [iter(whole.for_hosts(host, hosts)) for host in range(hosts)]
    for count in range(5):
        merged = gm.merge_states([iterator.get_state() for iterator in iterators])
        one = iter(whole)
        one.set_state(merged)
        assert_same_batches(itertools.islice(one, 5 - count), expected[count:])
        for host in range(hosts):
            again = iter(whole.for_hosts(host, hosts))
            again.set_state(merged)
            rows = slice(8 * host // hosts, 8 * (host + 1) // hosts)
            assert (next(again)["inputs"] == expected[count]["inputs"][rows]).all()
        for iterator in iterators:
            next(iterator)


def test_hosts_with_equal_steps_deliver_parts_of_the_kept_steps(made):
    skip = [(1, 3), (5, 6)]
    expected = kept(made(), skip)
    parts = [list(made(skip, equal_steps=True, shard_index=host, shard_count=2)) for host in range(2)]
    joined = (
        {name: np.concatenate([one[name] for one in step]) for name in step[0]} for step in zip(*parts, strict=True)
    )
    assert_same_batches(joined, expected)


def test_single_rows_of_skipped_steps_are_left_out(made):
    rows = list(made(batch_size=None))
    found = list(made([(1, 3)], batch_size=None))
    assert_same_batches(found, rows[:4] + rows[12:])
    iterator = iter(made([(1, 3)], batch_size=None))
    for count in range(9):  # within steps, too
        again = iter(made([(1, 3)], batch_size=None))
        again.set_state(iterator.get_state())
        assert_same_batches(again, found[count:])
        next(iterator)


def test_grain_reads_on_behind_skipped_steps(made):
    skip = [(1, 3)]
    expected = [batch["inputs"] for batch in kept(made(), skip)]
    prefetched = iter(
        made(skip).map(lambda batch: batch["inputs"]).mp_prefetch(grain.MultiprocessingOptions(num_workers=0))
    )
    next(prefetched)
    state = prefetched.get_state()
    rest = list(prefetched)
    np.testing.assert_array_equal(rest, expected[1:])
    prefetched.set_state(state)
    np.testing.assert_array_equal(list(prefetched), rest)


def test_global_batches_are_those_of_kept_steps(made):
    jax = pytest.importorskip("jax")
    sharding = jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",)), jax.sharding.PartitionSpec("rows")
    )
    skip = [(2, 4), (5, 10**9)]
    expected = kept(made(), skip)
    with gm.global_batches(made(skip), sharding) as batches:
        for count, batch in enumerate(expected):
            again = gm.global_batches(made(skip), sharding)
            again.set_state(batches.get_state())
            assert (np.asarray(next(again)["inputs"]) == batch["inputs"]).all(), count
            again.close()
            assert (np.asarray(next(batches)["inputs"]) == batch["inputs"]).all()
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("skip", [[(2, 4)], [(3, 9)], [(3, 10**9)]], ids=str)
def test_hosts_that_end_within_skipped_steps_end_together(made, skip):
    whole = made(skip)
    expected = [batch["inputs"] for batch in kept(made(), skip)]
    barrier, given, found, states = threading.Barrier(2), {}, {}, {}

    def run(host):
        count = 0

        def vote(more):
            nonlocal count
            given[count, host] = more
            number, count = count, count + 1

            def answer():
                if (number, "done", host) not in given:
                    given[number, "done", host] = True
                    barrier.wait(timeout=60)
                return any(given[number, other] for other in range(2))

            return answer

        with whole.for_hosts(host, 2).iterate_together(vote) as rows:
            found[host] = [step["inputs"] for step in rows]
            states[host] = rows.get_state()

    threads = [threading.Thread(target=run, args=[host]) for host in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for host in range(2):
        np.testing.assert_array_equal(found[host], [step[4 * host : 4 * host + 4] for step in expected])
    assert states[0]["step"] == states[1]["step"]
    ended = iter(whole)
    ended.set_state(gm.merge_states([*states.values()]))
    assert next(ended, None) is None


def test_stats_count_skipped_steps_and_tokens(made):
    skip = [(1, 3), (4, 6)]
    skipped = [int((batch["inputs_segmentation"] != 0).sum()) for batch in itertools.islice(made(), 6)]
    iterator = iter(made(skip))
    assert [iterator.stats()[name] for name in ("skipped_steps", "skipped_tokens")] == [0, 0]
    found = []
    for _ in range(3):
        next(iterator)
        found.append([iterator.stats()[name] for name in ("batches", "skipped_steps", "skipped_tokens")])
    assert found == [[1, 0, 0], [4, 2, sum(skipped[1:3])], [7, 4, sum(skipped[1:3] + skipped[4:6])]]
    again = iter(made(skip))
    again.set_state(iterator.get_state())
    assert [again.stats()[name] for name in ("skipped_steps", "skipped_tokens")] == [4, 0]


def test_state_stays_while_steps_are_skipped(made):
    iterator = iter(made([(1, 2**40)], epochs=None))
    next(iterator)
    state, errors = iterator.get_state(), []

    def skip():
        try:
            next(iterator)
        except gm.ArgumentError as error:
            errors.append(str(error))

    thread = threading.Thread(target=skip)
    thread.start()
    for _ in range(20):
        assert iterator.get_state() == state
        assert iterator.stats()["skipped_tokens"] == 0
        time.sleep(0.01)
    iterator.close()
    thread.join()
    assert "this iterator was closed" in errors[0]


@pytest.mark.parametrize("kind", ["made", "mixed"])
@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        (None, [(5, 7)], None),
        ([(5, 7)], None, None),
        ([(2, 3)], [(2, 3), (5, 9)], None),
        ([(2, 3), (6, 9)], [(2, 3), (5, 8)], None),
        ([(2, 3), (5, 8)], [(2, 3)], None),
        (None, [(4, 6)], 4),
        (None, [(0, 1)], 0),
        ([(2, 3)], None, 2),
        ([(2, 3)], [(2, 4)], 3),
        ([(2, 3), (4, 5)], [(2, 3)], 4),
        ([(1, 3)], [(1, 2)], 2),
    ],
)
def test_future_may_change_and_the_past_may_not(request, kind, before, after, first):
    dataset = request.getfixturevalue(kind)
    iterator = iter(dataset(before))
    while iterator.get_state()["step"] < 5:
        next(iterator)
    state = iterator.get_state()
    again = iter(dataset(after))
    if first is None:
        again.set_state(state)
        expected = [batch for step, batch in enumerate(dataset()) if step >= 5 and is_kept(step, after or [])]
        assert_same_batches(again, expected)
    else:
        with pytest.raises(gm.StateError, match=f"the first step that differs is {first}, which is in the past"):
            again.set_state(state)
        assert again.get_state()["step"] == 0


def test_end_of_a_range_around_a_state_may_not_be_behind_it(made):
    iterator = iter(made(batch_size=None))
    for _ in range(6):  # two rows of step 1
        next(iterator)
    with pytest.raises(gm.StateError, match="the first step that differs is 1,"):
        iter(made([(1, 3)], batch_size=None)).set_state(iterator.get_state())
    iter(made([(2, 3)], batch_size=None)).set_state(iterator.get_state())


def test_ranges_have_one_form(made):
    one = made([(3, 6)])
    assert one.skip == [(3, 6)]
    assert made().skip == made([]).skip == []
    assert made([]).fingerprint == made().fingerprint
    for same in ([[3, 4], [4, 6]], [(5, 6), (3, 5)], [(3, 5), (3, 6)], np.array([[3, 6]]), "3:6", "5:6,3:5"):
        assert made(same).fingerprint == one.fingerprint
    assert "skip=3%3A6 " in one.fingerprint + " "


@pytest.mark.parametrize(
    ("skip", "kind", "said"),
    [
        ([(3, 3)], gm.ArgumentError, r"skip=\[3, 3\]: expected pairs of a first step and an end behind it"),
        ([(1, 2, 3)], gm.ArgumentError, r"skip=\[1, 2, 3\]: expected pairs"),
        ([(-1, 3)], gm.ArgumentError, "skip=-1: expected an integer from 0"),
        ([(1.5, 3)], gm.ArgumentTypeError, "skip=1.5: expected an integer from 0"),
        ([5], gm.ArgumentTypeError, "skip=5: expected pairs"),
        (7, gm.ArgumentTypeError, r"skip=7: expected a list of pairs"),
        ("3-6", gm.ArgumentError, "skip='3-6': expected text such as 12000:12200"),
        ("3:", gm.ArgumentError, "skip='3:': expected text"),
    ],
)
def test_other_values_are_refused(made, skip, kind, said):
    with pytest.raises(kind, match=said) as caught:
        made(skip)
    assert caught.value.argument == "skip"


def test_command_line_packs_and_shows_them(made, folder, tokenizer_file, tmp_path, capsys):
    options = ["--tokenizer", tokenizer_file, "--text-field", "raw_content", "--sequence-length", LENGTH]
    options += ["--batch-size", 8, "--lanes", 4, "--skip", "1:3,5:6"]
    code = main.run(list(map(str, ["pack", f"{folder}/*.gz", "--output", tmp_path / "packed", *options])))
    assert code == 0, capsys.readouterr().err
    expected = [batch["inputs"] for batch in kept(made(), [(1, 3), (5, 6)])]
    rows = gm.PackedRows(tmp_path / "packed")
    found = np.array([rows[number]["inputs"] for number in range(len(rows))])
    whole = np.concatenate(expected)
    np.testing.assert_array_equal(found, whole[(whole != 0).any(axis=1)])
    assert main.run(["verify", str(tmp_path / "packed")]) == 0
    state = tmp_path / "state.json"
    iterator = iter(made([(1, 3), (5, 6)]))
    next(iterator), next(iterator)
    state.write_text(json.dumps(iterator.get_state()))
    capsys.readouterr()
    assert main.run(["inspect", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skip"] == {"past": [[1, 3]], "future": [[5, 6]]}
    assert main.run(["inspect", str(state)]) == 0
    shown = capsys.readouterr().out.split("\n\n")[0]
    assert [line.split()[-1] for line in shown.splitlines()[-2:]] == ["1:3", "5:6"]


@pytest.mark.parametrize("step", [4, 5, 6])
def test_rows_of_skipped_steps_can_be_looked_at(made, folder, tokenizer_file, tmp_path, capsys, encoder, step):
    state = tmp_path / "state.json"
    iterator = iter(made([(1, 3), (5, 6)]))
    next(iterator), next(iterator)
    state.write_text(json.dumps(iterator.get_state()))
    row = [*["inspect", "row", state, "--row", 4, "--step", step, "--shards", f"{folder}/*.gz"], "--json"]
    assert main.run(list(map(str, [*row, "--tokenizer", tokenizer_file]))) == 0
    found = json.loads(capsys.readouterr().out)
    ids = next(itertools.islice(made(), step, None))["inputs"][4]
    assert "".join(part["text"] for part in found["segments"]) == encoder.decode(ids[ids != 0].tolist())


@pytest.mark.slow
def test_endless_skip_says_where_it_is_and_can_be_interrupted(made, caplog):
    iterator = iter(made([(0, 10**12)], epochs=None))
    interrupt = threading.Timer(11, _thread.interrupt_main)
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        interrupt.cancel()
        iterator.close()
    (note,) = [record.getMessage() for record in caplog.records]
    said = r"step \d+ is made and not delivered, as all before step 1000000000000: see skip= and commit"
    assert re.fullmatch(said, note), note


def test_mixture_files_name_ranges(folder, tokenizer_file, tmp_path, capsys):
    file = tmp_path / "mixture.toml"
    file.write_text(
        f'tokenizer = "{tokenizer_file}"\nsequence_length = {LENGTH}\nbatch_size = 8\nlanes = 2\nskip = [[1, 3]]\n'
        f'[sources.a]\nshards = "{folder}/*.gz"\nweight = 1\ntext_field = "raw_content"\nepochs = 1\n'
    )
    dataset = gm.PackedDataset.from_file(file)
    assert dataset.skip == [(1, 3)]
    assert main.run(["inspect", "mixture", str(file), "--print-config"]) == 0
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert gm.PackedDataset.from_file(again).fingerprint == dataset.fingerprint
