"""The data of a run on this machine, for commands that use its serving: the source, and the part that a version has learned."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from elastic_ctr.config.data import Data, split_end, split_time
from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.operate.local.run_folder import RunFolder
from elastic_ctr.store.backends import StoreError, open_store
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.master.calendar.split_files import SplitFiles, splits_there


@dataclass(frozen=True)
class RunData:
    """The settings of data and store, as the run's master has them."""

    data: Data
    store: StoreConfig

    @classmethod
    def of(cls, run: RunFolder) -> "RunData | None":
        """Return the data of a run; None if it never wrote its settings, or if another release's cannot be read."""
        try:
            file = load(MasterFile, run.path / "config" / "ctr-master-0.yaml")
        except ConfigRefused:
            return None
        return cls(file.data, file.store)

    @property
    def source(self) -> Path | None:
        """The folder of the source; None if it is not on this machine."""
        url = urlsplit(self.data.source.url)
        return Path(unquote(url.path)).resolve() if url.scheme == "file" else None

    def split_of(self, file: Path) -> str | None:
        """Return the split whose folder has a file, or None."""
        source, whole = self.source, file.resolve()
        if source is None or not whole.is_relative_to(source):
            return None
        folders = whole.parent.relative_to(source).parts[: len(self.data.template.segments)]
        return self.data.split_of("/".join(folders))

    def newest_folder(self) -> tuple[str, Path] | None:
        """Return the newest complete split and its folder; None if the source is not on this machine."""
        if self.source is None or self.data.is_stream:
            return None
        source, data = FileSource(self.source), self.data.model_copy(update={"end": None})
        looks = SplitFiles(source, data, at_once=True)
        with suppress(StoreError):
            for split in reversed(splits_there(source, data)):
                if not looks.look((split,)).missing:
                    return split, self.source / data.folder_of(split)
        return None

    def follows(self, file: Path) -> bool:
        """True if the run follows a file, which it reads while the file grows."""
        source = self.source
        return source is not None and self.data.is_stream and file.resolve().is_relative_to(source)

    def learned_until(self, version: int) -> int | None:
        """Return the end of the newest split that a version has learned, in unix seconds; None if the store does not have it."""
        try:
            return read_version(open_store(self.store), version).event_time_max
        except (StoreError, ManifestDamaged, OSError):
            return None

    def has_learned(self, split: str, until: int) -> bool:
        if split_time(split) < split_time(self.data.start):
            return False
        return split_end(split, self.data.split_interval, self.data.time_zone) <= until
