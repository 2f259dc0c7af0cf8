"""An order to score hours or files: commands make it, and the pods of a Job get it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from elastic_ctr.config.data import Data
from elastic_ctr.config.load import settings
from elastic_ctr.scoring.dumps import Dump
from elastic_ctr.scoring.listing import Listing, complete_hours, given_files
from elastic_ctr.scoring.run import Given, how_read
from elastic_ctr.scoring.scoring_job import Options, OutputFormat
from elastic_ctr.scoring.version import LATEST
from elastic_ctr.scoring.worker import Place
from elastic_ctr.store import open_source
from elastic_ctr.versions.manifest import Record


class Order(Record):
    """`output` is the address of a store, or a folder in the one with the versions. `files` are of this machine; without them hours of
    data.source are scored, from `first` to `last`.
    """

    deed: Literal["predict", "evaluate"]
    output: str | None = None
    version: str = LATEST
    first: str | None = None
    last: str | None = None
    files: tuple[str, ...] = ()
    no_clicks: bool = False
    form: OutputFormat = "csv"
    copied: tuple[str, ...] = ()
    dumps: tuple[Dump, ...] = ()

    def given(
        self,
        data: Data,
        models: Place,
        *,
        live: Callable[[], int | None],
        told: Callable[[str], None],
        processes: int,
        scratch: Path,
    ) -> Given:
        """`told` hears of hours that are left out. Raises ConfigRefused, NothingToRead, OSError."""
        assert self.output is not None
        data = self._at_hours(data)
        url = self.output if "://" in self.output else f"{models.url.rstrip('/')}/{self.output.strip('/')}"
        listed = given_files([Path(file) for file in self.files]) if self.files else None
        source = Place("file:///") if self.files else Place(data.source.url, data.source.user)
        return Given(
            options=Options(
                deed=self.deed,
                version=self.version,
                source=source.url,
                data=how_read(data),
                hours="" if self.files else f"{data.start}..{data.end or ''}",
                files=() if listed is None else tuple(sorted(listed.files)),
                no_clicks=self.no_clicks,
                form=self.form,
                copied=self.copied,
                dumps=self.dumps,
            ),
            data=data,
            models=models,
            folder=models._replace(url=url),
            source=source,
            listing=lambda: listed or self._hours(data, told),
            live=live,
            processes=processes,
            scratch=scratch,
        )

    def _at_hours(self, data: Data) -> Data:
        """Raises ConfigRefused."""
        told = {name: split for name, split in (("start", self.first), ("end", self.last)) if split is not None}
        if not told:
            return data
        return settings(Data, {**data.model_dump(by_alias=True, exclude_defaults=True), **told}, "--from, --to")

    def _hours(self, data: Data, told: Callable[[str], None]) -> Listing:
        source = open_source(data.source.url, data.source.user)
        # Hours that were named are looked for one by one; without a last one there would be no end of them.
        found = complete_hours(source, data, chosen=self.first is not None and data.end is not None)
        for split in found.waiting:
            told(f"{split} has no {data.donefile} yet and is left out")
        return found
