"""Orders the builder to rebuild damaged parts of versions that pods need and cannot load."""

import logging
import time
from collections.abc import Collection, Iterable

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.builder_client import Builder

log = logging.getLogger(__name__)

# Seconds between two orders for a version: each order reads all its parts, and pods need some seconds to fetch them anew.
_AGAIN_SECONDS = 60.0


class PartRepairs:
    """`version` is the version under repair, `failed` maps versions to the reason why their repair failed."""

    def __init__(self, builder: Builder) -> None:
        self.version: int | None = None
        self.failed: dict[int, str] = {}
        self._builder = builder
        self._not_before: dict[int, float] = {}

    def next_of(self, wanted: Iterable[int], built: Collection[int], reports: Iterable[AgentReport]) -> int | None:
        """Return the first wanted version that is built, that a pod cannot load, and whose pause is over; or None."""
        refused = {version for report in reports for version in report.refused}
        self.failed = {version: why for version, why in self.failed.items() if version in refused}
        now = time.monotonic()
        self._not_before = {version: at for version, at in self._not_before.items() if at > now}
        due = refused - self._not_before.keys()
        return next((version for version in wanted if version in due and version in built), None)

    async def repair(self, version: int) -> None:
        log.warning("pods cannot load version %s: its parts are read, and damaged ones are built again", version)
        self.version = version
        try:
            progress = await self._builder.mend(version)
        finally:
            self.version = None
        self._not_before[version] = time.monotonic() + _AGAIN_SECONDS
        self.failed.pop(version, None)
        if progress.stage == "failed":
            self.failed[version] = progress.error or "the builder gives no reason"
            log.warning("version %s is not mended: %s", version, progress.error)

    def problems(self) -> list[str]:
        """Return the failed repairs as sentences for operators."""
        now = f"version {self.version} has damaged parts in the store: they are built again from its SequenceFiles"
        failed = [f"version {each} has damaged parts in the store: {why}" for each, why in sorted(self.failed.items())]
        return failed if self.version is None else [now, *failed]
