"""Where units are packed: a local folder, or one of a store, of which the plan and the indexes are copied.

plan.json              ──> the local folder, by each command
unit-00017/            written by `--unit 17`, as any packed folder of a store is
unit-*/index.json      ──> the local folder, by `--finish`, which writes index.json <──
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gristmill._core as _core
from gristmill._dataset.packed import PackedDataset
from gristmill._files import units
from gristmill._files.folder import INDEX
from gristmill._files.remote_folder import check_can_be_written, named_by_url
from gristmill._files.schema import Source
from gristmill._shards.address import Address
from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, GristmillError


@dataclass(frozen=True)
class Place:
    """Where units are packed.

    Attributes:
      path: the local folder.
      address: that of the folder, local or in a store.
    """

    path: Path
    address: Address

    @classmethod
    @contextlib.contextmanager
    def opened(cls, address: Address) -> "Iterator[Place]":
        """Access to a path or URL, until the end of the `with`. Errors name it as it was given.

        Raises:
          ArgumentError: the store cannot be written.
        """
        if not address.is_remote:
            yield cls(Path(address.name), address)
            return
        check_can_be_written(address.name)
        url = address.name.rstrip("/")
        with tempfile.TemporaryDirectory(prefix="gristmill-units-") as local, named_by_url(local, url):
            yield cls(Path(local), address.at(url))

    @property
    def url(self) -> str:
        """The URL of the folder; empty if it is a local one."""
        return self.address.name if self.address.is_remote else ""

    @property
    def local(self) -> Address:
        """The local folder, and how stores are reached."""
        return self.address.at(str(self.path.absolute()))

    def write_plan(self, dataset: PackedDataset, *, source: Source, **chosen: Any) -> None:
        """Writes the plan; the arguments are those of `units.write_plan`.

        Raises:
          ArgumentError: see there; or the folder is one of a store, and records are quarantined.
          GristmillError: see there; or the folder of a store holds other files, or the store cannot be reached.
        """
        if self.url and units.quarantines(source):
            raise ArgumentError(
                f"--output {self.url}: on_error='quarantine': the list of a unit's quarantined records cannot grow in "
                "a store: choose a folder that all machines see as a local one, or on_error='raise'"
            )
        if self.url and not self._fetch(units.PLAN):
            prefix = f"{self.url.split('://', 1)[1].partition('/')[2]}/"
            folders, files, _ = self._stores.list_folder(f"{self.url}/")
            if found := [*folders, *(key for key, _ in files)]:
                raise GristmillError(
                    f"{self.url} is not empty and does not hold units, but "
                    f"{shortened(min(found).removeprefix(prefix))}: choose another folder"
                )
        units.write_plan(dataset, self.path, source=source, **chosen)
        self._publish(units.PLAN)

    def plan(self) -> units.Plan:
        """The plan.

        Raises:
          MissingShardError: there is none.
          GristmillError: it is damaged, or the store cannot be reached.
        """
        if self.url:
            self._fetch(units.PLAN)
        return units.read_plan(self.path)

    def pack_unit(self, number: int, *, threads: int | None) -> dict[str, Any]:
        """Packs a unit; see `units.pack_unit`."""
        self.plan()
        return units.pack_unit(self.local, number, self.unit(number), threads=threads)

    def pack_all(self, pack_unit: units.PackUnit, *, engine: str | None, cpus: int) -> dict[str, Any]:
        """Packs all units, and joins them.

        Args:
          pack_unit: packs the unit with a number into a folder; None: its place.
          engine: `"ray"`; None: one unit after the other in this process.
          cpus: with an engine, CPUs of a task.

        Raises:
          ArgumentError: there is no such engine, or it is to write into a store.
          MissingExtraError: it is not installed.
          GristmillError: see `pack` and `finish`.
        """
        count = self.plan()["units"]
        if engine is None:
            for number in range(count):
                pack_unit(number, self.unit(number))
            return self.finish()
        if self.url:
            raise ArgumentError(f"--output {self.url}: the tasks of {engine} write into a folder that all nodes see")
        checks.choice("engine", engine, ("ray",))
        from gristmill._files import ray  # loads Ray

        ray.pack_units(pack_unit, self.path, count, cpus=cpus)
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Joins all units; see `units.finish`."""
        for number in range(self.plan()["units"] if self.url else 0):
            folder = units.unit_path(self.path, number)
            folder.mkdir()
            self._fetch(f"{folder.name}/{INDEX}")
        found = units.finish(self.path)
        self._publish(INDEX)
        return {**found, "folder": self.url or found["folder"]}

    def unit(self, number: int) -> str | None:
        """The URL of a unit; None if it is in its place in the local folder."""
        return f"{self.url}/{units.unit_path(self.path, number).name}" if self.url else None

    def _publish(self, name: str) -> None:
        if self.url:
            self._stores.upload(f"{self.url}/{name}", str(self.path / name))

    @property
    def _stores(self) -> "_core.Stores":
        return self.address.reach()

    def _fetch(self, name: str) -> bool:
        content = self._stores.read(f"{self.url}/{name}")
        if content is not None:
            (self.path / name).write_bytes(content)
        return content is not None
