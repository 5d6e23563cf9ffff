"""File systems that lack system calls: those of clusters, network servers, and in user space."""

import errno
import itertools
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import gristmill as gm
from gristmill._util import atomic_files, folder_lock
from gristmill._util.folder_lock import HOLDER, locked
from helpers import PATIENCE, ROOT

SUPPORT = ROOT / "tests" / "support"

# For each call that some file systems lack, the errors with which they fail.
FAILURES = [
    # Lustre without -o flock, NFS without a lock daemon, others.
    [{"flock": error} for error in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)],
    # CIFS, sshfs, gocryptfs, VirtualBox's shared folders; folders that may be written and not be read.
    [
        *({"sync_folder": error} for error in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)),
        *({"sync_folder": error} for error in (errno.EBADF, errno.EPERM)),
        *({"open_folder": error} for error in (errno.EACCES, errno.EISDIR)),
    ],
    [{"sync_file": error} for error in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)],
    # SFTP servers and shared folders that rename only to free names.
    [{"replace": error} for error in (errno.EEXIST, errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL)],
    # File systems in user space with direct I/O, 9p.
    [{"map_shared": errno.ENODEV}, {"map": errno.ENODEV}, {"map": errno.EINVAL}],
    # File systems in user space that report no number of names.
    [{"count_names": 1}],
]


def combinations():
    """Every combination of failing calls; each call fails with another of its errors each time."""
    errors = [itertools.cycle(ways) for ways in FAILURES]
    for chosen in itertools.product([False, True], repeat=len(FAILURES)):
        failing = [next(ways) for ways, is_chosen in zip(errors, chosen, strict=True) if is_chosen]
        yield {call: error for way in failing for call, error in way.items()}


@pytest.fixture
def limited_file_system(tmp_path):
    """A preloaded library with which calls fail on demand."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    library = tmp_path / "limited_file_system.so"
    source = SUPPORT / "limited_file_system.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.slow
def test_files_are_written_on_file_systems_that_lack_calls(tmp_path, limited_file_system):
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, SUPPORT / "on_limited_file_system.py", work, json.dumps([*combinations()])],
        env={**os.environ, "LD_PRELOAD": str(limited_file_system)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture
def no_flock(monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(folder_lock.fcntl, "flock", refuse)


def test_lock_file_names_its_holder(tmp_path, no_flock):
    named = rf"\(process {os.getpid()} on .*remove '{tmp_path}/{HOLDER}'"
    with locked(tmp_path), pytest.raises(gm.GristmillError, match=named):
        locked(tmp_path).__enter__()
    assert not (tmp_path / HOLDER).exists()
    with locked(tmp_path):
        pass


@pytest.mark.parametrize(
    ("holder", "named"),
    [
        ({"host": "another", "pid": 7, "machine": "another", "started": "1"}, "(process 7 on another)"),
        # Whether it has ended is not known: one of the two cannot see /proc.
        ({"host": "here", "pid": 2**22, "machine": None, "started": None}, f"(process {2**22} on here)"),
        (None, "(unknown process)"),
    ],
)
def test_lock_file_of_another_machine_stays(tmp_path, no_flock, holder, named):
    (tmp_path / HOLDER).write_text("" if holder is None else json.dumps(holder))
    with pytest.raises(gm.GristmillError) as refused:
        locked(tmp_path).__enter__()
    assert named in str(refused.value)
    assert f"if it has ended, remove '{tmp_path}/{HOLDER}'" in str(refused.value)
    (tmp_path / HOLDER).unlink()
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("ended", ["gone", "another with its number"])
def test_lock_file_of_an_ended_process_is_replaced(tmp_path, no_flock, ended):
    pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout
    holder = {"host": "here", "pid": os.getpid(), "machine": folder_lock._machine(), "started": "1"}
    (tmp_path / HOLDER).write_text(json.dumps(holder if ended != "gone" else {**holder, "pid": int(pid)}))
    with locked(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["started"] == folder_lock._started(os.getpid())
    assert [path.name for path in tmp_path.iterdir()] == [folder_lock.LOCK]


def test_lock_file_of_another_process_is_not_removed(tmp_path):
    path = tmp_path / HOLDER
    path.write_text("the new holder")
    folder_lock._remove(path, "the ended one")
    assert path.read_text() == "the new holder"
    folder_lock._remove(tmp_path / "gone", "the ended one")
    assert [*tmp_path.iterdir()] == [path]


def test_wait_for_a_lock_file_is_logged(tmp_path, no_flock, caplog):
    path = tmp_path / HOLDER
    path.write_text(json.dumps({"host": "another", "pid": 7, "machine": "another", "started": "1"}))
    threading.Timer(3 * folder_lock._POLL_SECONDS, path.unlink).start()
    with caplog.at_level(logging.WARNING, "gristmill"), locked(tmp_path, waits=True):
        pass
    (record,) = caplog.records
    assert record.getMessage().startswith(f"waiting: {tmp_path}: another process is writing")


def test_terminated_process_removes_its_lock_file(tmp_path, no_flock):
    def wait_with_a_lock():
        with locked(tmp_path):
            assert (tmp_path / HOLDER).exists()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE)

    with pytest.raises(SystemExit) as ended:
        wait_with_a_lock()
    assert ended.value.code == 143
    assert not (tmp_path / HOLDER).exists()


def test_kill_while_the_index_is_replaced_is_recovered(tmp_path, pack):
    whole = pack(tmp_path)
    index = tmp_path / "index.json"
    index.rename(atomic_files.unfinished(index))
    again = pack(tmp_path)
    assert again["parts_of_earlier_runs"] == again["parts"] == whole["parts"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_sync_of_a_folder_is_an_error(tmp_path, monkeypatch, number):
    fsync = os.fsync

    def broken(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(file)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match=os.strerror(number)):
        atomic_files.write_json(tmp_path / "a.json", 1)


def test_advice_depends_on_the_error(tmp_path):
    for number, advice in (
        (errno.ENOSYS, "choose a folder on another file system"),
        (errno.EROFS, "make it writable, or choose another folder"),
        (errno.ENOSPC, "run the same command again"),
    ):
        with (
            pytest.raises(gm.GristmillError, match=f"{os.strerror(number)}; .*{advice}"),
            atomic_files.writing_into(tmp_path, "run the same command again"),
        ):
            raise OSError(number, os.strerror(number))
