"""The data of a run on this machine, for commands that ask its serving: what it trains on, and what a version has learned of it."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from elastic_ctr.config.data import Data, split_end, split_time
from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.roles import StoreConfig
from elastic_ctr.operate.local.run_folder import RunFolder
from elastic_ctr.store import StoreError, open_store
from elastic_ctr.store.versions.manifest import ManifestDamaged, read_version


@dataclass(frozen=True)
class RunData:
    """As the run's master has it."""

    data: Data
    store: StoreConfig

    @classmethod
    def of(cls, run: RunFolder) -> "RunData | None":
        """None where the run never wrote its settings, or those of another release cannot be read."""
        try:
            file = load(MasterFile, run.path / "config" / "ctr-master-0.yaml")
        except ConfigRefused:
            return None
        return cls(file.data, file.store)

    @property
    def folder(self) -> Path | None:
        """That of the day folders; None where the source is not one of this machine."""
        url = urlsplit(self.data.source.url)
        return Path(unquote(url.path), self.data.path.strip("/")).resolve() if url.scheme == "file" else None

    def split_of(self, file: Path) -> str | None:
        """The split whose folder a file is in."""
        folder, whole = self.folder, file.resolve()
        if folder is None or not whole.is_relative_to(folder) or len(parts := whole.relative_to(folder).parts) != 3:
            return None
        try:
            split_time(name := "/".join(parts[:2]))
        except ValueError:
            return None
        return name

    def newest_split(self) -> str | None:
        """The newest folder of a split that is complete; None where the source is not one of this machine."""
        if self.folder is None or self.data.is_stream:
            return None
        done = self.folder.glob(f"[0-9]*/[0-9]*/{self.data.donefile}")
        return max(filter(None, map(self.split_of, done)), default=None)

    def follows(self, file: Path) -> bool:
        """Whether the run reads a file as it is appended to."""
        folder = self.folder
        return folder is not None and self.data.is_stream and file.resolve().is_relative_to(folder)

    def learned_until(self, version: int) -> int | None:
        """Unix seconds at which the newest split ends that a version has learned; None where the store cannot say it."""
        try:
            return read_version(open_store(self.store.url, user=self.store.user), version).event_time_max
        except (StoreError, ManifestDamaged, OSError):
            return None

    def has_learned(self, split: str, until: int) -> bool:
        if split_time(split) < split_time(self.data.start):
            return False
        return split_end(split, self.data.split_interval, self.data.time_zone) <= until
