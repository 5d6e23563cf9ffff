"""MaxText's iterators of training and evaluation, over `PackedDataset`.

A step trains on the first `global_batch_size_to_train_on` of the rows that MaxText loads; all where
`per_device_batch_size` is 1 or more and `expansion_factor_real_data` is not set. A dataset has these rows, the rest is
padding, and only hosts whose devices hold such rows read:

    8 devices, per_device_batch_size 0.5      rows 0 to 3 of the dataset    rows 4 to 7: padding
                                              hosts 0 and 1 read            hosts 2 and 3 do not

A host reads the lanes of its rows. Where these are no whole lanes, as with fewer files than hosts, each host reads all
lanes and takes its rows of each batch. The stream is the same either way.
"""

import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import grain
import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import PackedDataset, PackedDatasetIterator, merge_states
from gristmill.errors import ArgumentError, GristmillError, StateError
from gristmill.integrations.maxtext.datasets import make_dataset
from gristmill.integrations.maxtext.hosts import CTRL_C, Hosts, LoadError, Status, Vote, described, shown
from gristmill.integrations.maxtext.settings import check, sources_of
from gristmill.integrations.maxtext.words import MAXTEXT

_LOGGER = logging.getLogger("gristmill")
Batch = dict[str, jax.Array]


def make_gristmill_iterators(config: Any, mesh: Mesh) -> "tuple[DataLoadIterator, DataLoadIterator | None]":
    """The iterators of training and, if `eval_interval` is positive, of evaluation: called on all hosts.

    Args:
      config: MaxText's, with the key `gristmill`; docs/coming-from-maxtext.md lists its settings.
      mesh: MaxText's.

    Raises:
      ValueError: the config asks for what is not done here.
      GristmillError: as `PackedDataset`, with the keys of MaxText's config; on all hosts if it is raised on one.
    """
    train = make_gristmill_train_iterator(config, mesh)
    return train, make_gristmill_eval_iterator(config, mesh) if config.eval_interval > 0 else None


def make_gristmill_train_iterator(
    config: Any, global_mesh: Mesh, process_indices: list[int] | None = None
) -> "DataLoadIterator":
    """The batches of training, by the arguments of `make_grain_train_iterator`.

    Args:
      config: as for `make_gristmill_iterators`.
      global_mesh: MaxText's mesh.
      process_indices: the processes that call this; None: all.

    Raises:
      ValueError, GristmillError: as `make_gristmill_iterators`.
    """

    def make() -> PackedDataset:
        _check(config, process_indices)
        return make_dataset(
            config,
            sources_of(config.grain_train_files, config.grain_train_mixture_config_path),
            config.train_data_columns,
            batch_size=_rows(config, "global_batch_size_to_load", "global_batch_size_to_train_on"),
            epochs=config.num_epoch,
            seed=config.data_shuffle_seed if config.enable_data_shuffling else None,
        )

    CTRL_C.handle()
    dataset = Hosts(global_mesh).together(make)
    return DataLoadIterator(dataset, global_mesh, config.global_batch_size_to_load, CTRL_C.leave)


def make_gristmill_eval_iterator(
    config: Any, global_mesh: Mesh, process_indices: list[int] | None = None
) -> "DataLoadIterator":
    """The batches of evaluation, one pass in order, as `make_gristmill_train_iterator` makes those of training."""

    def make() -> PackedDataset:
        _check(config, process_indices)
        return make_dataset(
            config,
            sources_of(config.grain_eval_files),
            config.eval_data_columns,
            batch_size=_rows(config, "global_batch_size_to_load_eval", "global_batch_size_to_eval_on"),
            epochs=1,
            is_training=False,
        )

    dataset = Hosts(global_mesh).together(make)
    return DataLoadIterator(dataset, global_mesh, config.global_batch_size_to_load_eval)


def _rows(config: Any, loaded: str, used: str) -> int:
    """The rows of a batch that a step uses."""
    return int(min(getattr(config, loaded), getattr(config, used, None) or getattr(config, loaded)))


def _check(config: Any, process_indices: list[int] | None) -> None:
    check(config)
    if process_indices is not None and len(process_indices) != jax.process_count():
        raise ValueError(
            f"{len(process_indices)} of {jax.process_count()} hosts load, and the others would run on when the data "
            "ends: return make_gristmill_iterators(config, mesh) at the beginning of create_data_iterator, on all hosts"
        )


class DataLoadIterator:
    """The interface of MaxText's `MultiHostDataLoadIterator`."""

    def __init__(
        self,
        dataset: PackedDataset,
        mesh: Mesh,
        loaded_rows: int | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.dataloader = dataset
        self.global_mesh = mesh
        self._on_close = on_close
        # MaxText saves and restores this.
        self.local_iterator = ElasticStream(dataset, mesh, loaded_rows)

    def reset(self) -> None:
        """Returns to the start of the stream."""
        self.local_iterator.reset()

    def close(self) -> None:
        """Ends the threads."""
        self.local_iterator.close()
        self._on_close()

    def __iter__(self) -> Iterator[Batch]:
        self.reset()
        return self

    def __next__(self) -> Batch:
        return next(self.local_iterator)


class _Ahead(NamedTuple):
    """The step after the last delivered one, as far as this host has it."""

    batch: Batch
    state: dict[str, Any] | None
    error: BaseException | None
    vote: Callable[[], Vote]


class ElasticStream(grain.experimental.ElasticIterator):
    """Global batches, with a state of the whole stream that is equal on all hosts.

    It is one of Grain's elastic iterators, of which MaxText's checkpoints hold one file, whatever the number of hosts.

    Args:
      dataset: the rows that a step uses.
      mesh: the devices of all hosts.
      loaded_rows: the rows of a batch. None: those of the dataset.
    """

    def __init__(self, dataset: PackedDataset, mesh: Mesh, loaded_rows: int | None = None) -> None:
        grain.IterDataset.__init__(self)  # the original is elastic over another thing
        self._hosts = Hosts(mesh)
        self._fingerprint = dataset.fingerprint
        self._hosts.check_same(self._fingerprint)
        self._placing = _Placing(dataset, mesh, loaded_rows)
        self._dataset = self._placing.own_of(dataset)
        self._restart()

    def _restart(self) -> None:
        self._own: PackedDatasetIterator | None = None if self._dataset is None else iter(self._dataset)
        self._state = self._own and self._own.get_state()
        self._ahead: _Ahead | None = None
        self._failure = ""

    def __iter__(self) -> "ElasticStream":
        return self

    def __next__(self) -> Batch:
        """The next batch: int32 `[loaded_rows, max_target_length]` by MaxText's keys.

        Raises:
          StopIteration: all hosts have delivered all that they read.
          LoadError: the data of one of them cannot be loaded, one was interrupted, or they resumed at different steps:
            on all of them.
        """
        if self._failure:
            raise LoadError(self._failure)
        try:
            return self._next()
        except GristmillError as error:  # MaxText would take StopIteration for the end of the data
            self._fail(described(error), error)

    def _next(self) -> Batch:
        if self._ahead is None:
            self._check_steps()
            self._ahead = self._take()
        ahead = self._ahead
        vote = ahead.vote()
        if Status.FAILED in vote.statuses:
            failed = self._hosts.texts("" if ahead.error is None else described(ahead.error))
            self._fail(shown({host: text for host, text in failed.items() if text}), ahead.error)
        if self._placing.reads_all and not vote.agrees:
            self._fail("the hosts read other bytes of the same shards, and quarantined other records", None)
        if Status.ROWS not in vote.statuses:
            raise StopIteration
        self._state = ahead.state
        self._ahead = self._take()
        return ahead.batch

    def get_state(self) -> dict[str, Any]:
        """The state of all hosts' lanes after the last batch: a collective, called on all hosts."""
        if self._placing.reads_all and self._state is not None:
            return dict(json.loads(json.dumps(self._state)))
        found = self._hosts.texts("" if self._state is None else json.dumps(self._state))
        return dict(merge_states([json.loads(text) for text in found.values() if text]))

    def set_state(self, state: dict[str, Any]) -> None:
        """Moves to a state of `get_state`, from any number of hosts.

        Raises:
          StateError: it is that of another stream; of other weights, it says how to write them.
        """
        if self._own is not None:
            try:
                self._own.set_state(state)
            except StateError as error:
                stages = self._dataset.stages_after(state) if self._dataset else []
                advice = ". To change the weights from here on, set gristmill.stages: " + json.dumps(stages)
                said = MAXTEXT.said(error)
                raise said.reworded(lambda text: f"{text}{advice}") if stages else said from error
            self._state = self._own.get_state()
        self._ahead, self._failure = None, ""

    def reset(self) -> None:
        """Returns to the start of the stream."""
        self.close()
        self._restart()

    def close(self) -> None:
        """Ends the threads."""
        if self._own is not None:
            self._own.close()

    def _take(self) -> _Ahead:
        """Takes this host's rows of the next step, begins to move them, and votes on the step."""
        rows, status, error = None, Status.ENDED, None
        try:
            if CTRL_C.is_pressed:
                raise KeyboardInterrupt
            if self._own is not None:
                rows, status = next(self._own), Status.ROWS
        except StopIteration:
            pass
        except (Exception, KeyboardInterrupt) as caught:
            error, status = caught, Status.FAILED
        state = self._own.get_state() if self._own is not None and error is None else self._state
        position = "" if state is None else repr(state["lanes"])
        batch = {} if error else self._placing.place(rows)
        return _Ahead(batch, state, error, self._hosts.vote(status, position))

    def _check_steps(self) -> None:
        steps = self._hosts.texts("" if self._state is None else str(self._state["step"]))
        if len(set(filter(None, steps.values()))) > 1:
            at = ", ".join(f"process {host} at step {step}" for host, step in sorted(steps.items()) if step)
            raise StateError(f"the hosts resumed at different steps: {at}; restore all of them from one checkpoint")

    def _fail(self, message: str, error: BaseException | None) -> NoReturn:
        CTRL_C.leave()
        self._failure = f"the data ends here on all hosts: {message}"
        raise LoadError(self._failure) from error


def input_sharding(mesh: Mesh) -> NamedSharding:
    """How MaxText lays out its input: rows over all devices, in the order of all axes of the mesh."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


class _Placing:
    """Where the rows of a dataset are in MaxText's batches.

    Attributes:
      reads_all: whether each host reads all lanes.
    """

    def __init__(self, dataset: PackedDataset, mesh: Mesh, loaded_rows: int | None) -> None:
        dataset.check_one_size("MaxText")
        used = dataset.batch_size or 0
        self._shape = (loaded_rows or used, dataset.sequence_length)
        if self._shape[0] % mesh.size:
            raise ValueError(
                f"global_batch_size_to_load={self._shape[0]}: it must be divisible by the {mesh.size} devices"
            )
        self._sharding = input_sharding(mesh)
        self._fields = list(dataset.dtypes.items())
        first_row: dict[Any, int] = {
            device: index[0].indices(self._shape[0])[0]
            for device, index in self._sharding.devices_indices_map(self._shape).items()
        }
        devices = sorted(first_row, key=first_row.__getitem__)
        self._per_device = self._shape[0] // mesh.size
        self._first: NamedSharding | None = self._devices_of_lanes(dataset, devices, used)
        self.reads_all = self._first is None
        own: list[Any] = [device for device in devices if device.process_index == jax.process_index()]
        starts = [first_row[device] for device in own]
        if not self.reads_all:  # rows of this host alone
            starts = [number * self._per_device if start < used else used for number, start in enumerate(starts)]
        # For each own device the first of its rows among those that this host has.
        self._places = list(zip(own, starts, strict=True))

    def _devices_of_lanes(self, dataset: PackedDataset, devices: list[Any], used: int) -> NamedSharding | None:
        """The sharding of the used rows, if the rows of each host are whole lanes."""
        try:
            if used % self._per_device:
                raise ArgumentError(f"{used} rows are not those of whole devices, with {self._per_device} each")
            mesh = Mesh(np.array(devices[: used // self._per_device]), ("rows",))
            sharding = NamedSharding(mesh, PartitionSpec("rows"))
            dataset.lanes_of_processes(sharding)
        except ArgumentError as error:
            if jax.process_index() == 0 and len({device.process_index for device in devices}) > 1:
                _LOGGER.warning(
                    "each host reads all files and takes its rows of each batch, which takes each of them the work of "
                    "all: there are too few files, or pieces of files, for the hosts (%s); more files, or "
                    "gristmill.split_bytes, divide the work",
                    MAXTEXT.said(error),
                )
            return None
        return sharding

    def own_of(self, dataset: PackedDataset) -> PackedDataset | None:
        """The part of a dataset that this host reads; None: nothing."""
        if self._first is None:
            return dataset
        devices: set[Any] = self._first.device_set
        reads = any(device.process_index == jax.process_index() for device in devices)
        return dataset.for_sharding(self._first) if reads else None

    def place(self, rows: "Mapping[str, npt.NDArray[Any]] | None") -> Batch:
        """Begins to move the rows of this host, or padding, to its devices."""
        parts = [self._part(rows, name, dtype, start) for name, dtype in self._fields for _, start in self._places]
        devices = [device for _, (device, _) in itertools.product(self._fields, self._places)]
        moved = iter(jax.device_put(parts, devices))
        return {
            name: jax.make_array_from_single_device_arrays(
                self._shape, self._sharding, list(itertools.islice(moved, len(self._places)))
            )
            for name, _ in self._fields
        }

    def _part(
        self, rows: "Mapping[str, npt.NDArray[Any]] | None", name: str, dtype: Any, start: int
    ) -> "npt.NDArray[Any]":
        """The rows of a device, of which those that no step uses are padding."""
        found = None if rows is None else rows[name][start : start + self._per_device]
        if found is not None and len(found) == self._per_device:
            return found
        part = np.zeros((self._per_device, self._shape[1]), dtype)
        if found is not None:
            part[: len(found)] = found
        return part
