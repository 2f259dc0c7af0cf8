"""An order to score hours or files: commands create it, and the pods of a Kubernetes Job read it."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.jobs.scoring.dumps import Dump
from elastic_ctr.jobs.scoring.listing import Listing, complete_hours, given_files, with_span
from elastic_ctr.jobs.scoring.run import Given, how_read
from elastic_ctr.jobs.scoring.scoring_job import Options, OutputFormat, OutputRefused
from elastic_ctr.jobs.scoring.version import LATEST
from elastic_ctr.jobs.scoring.worker import Place
from elastic_ctr.store.backends import open_source
from elastic_ctr.store.backends.address import lies_in, tokens_for
from elastic_ctr.store.versions.manifest import Record


class Order(Record):
    """`pods` share the work. `output` is the address of a store, or a folder in the store with the versions; None: the output is deleted after the command.
    `files` are on this machine; without them hours of data.source are scored, from `first` to `last`.
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
    pods: int = Field(default=1, ge=1)

    def given(
        self,
        data: Data,
        models: Place,
        *,
        live: Callable[[], int | None],
        told: Callable[[str], None],
        processes: int,
        scratch: Path,
        tokens_given: bool = False,
    ) -> Given:
        """The callback gets sentences about hours that are left out. An output elsewhere gets the tokens of `models` only with `tokens_given`.

        Raises ConfigRefused, OutputRefused, NothingToRead, OSError, ValueError.
        """
        data = with_span(data, self.first, self.last, "--from, --to")
        output = models.at.moved(self._output_at(models, scratch))
        self._refuse_input(output, data)
        listed = given_files([Path(file) for file in self.files]) if self.files else None
        source = DataSource(url="file:///") if self.files else data.source
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
            folder=Place(output, models.tokens if tokens_given else tokens_for(output, models.at, models.tokens)),
            source=source,
            listing=lambda: listed or self._hours(data, told),
            live=live,
            processes=processes,
            scratch=scratch,
        )

    def _output_at(self, models: Place, scratch: Path) -> str:
        if self.output is None:
            return (scratch / "job").as_uri()
        return self.output if "://" in self.output else f"{models.at.url.rstrip('/')}/{self.output.strip('/')}"

    def _refuse_input(self, output: StoreConfig, data: Data) -> None:
        """Raises OutputRefused if the output overlaps the input."""
        # An evaluation writes counts and no rows to the store of the versions, which may share a file system with the hours.
        if self.output is None or (self.deed == "evaluate" and "://" not in self.output):
            return
        hours = data.source.moved(f"{data.source.url.rstrip('/')}/{quote(data.template.root)}")
        if lies_in(output, hours) or lies_in(hours, output):
            raise OutputRefused(
                f"--output {output.url} overlaps {hours.url}, where the hours are: a training would read the output as its input; give a "
                "folder that neither holds the hours nor lies among them"
            )
        for file in self.files:
            # An output below the folder of a file, such as one in the working directory, contains no input.
            folder = Path(file).resolve().parent
            if lies_in(output.moved(folder.as_uri()), output):
                raise OutputRefused(
                    f"--output {output.url} is a folder with input in it: {file}; give one that is not above the files"
                )

    def _hours(self, data: Data, told: Callable[[str], None]) -> Listing:
        source = open_source(data.source)
        # Named hours are looked up one by one, which needs a last hour.
        found = complete_hours(source, data, chosen=self.first is not None and data.end is not None)
        for split in found.waiting:
            told(f"{split} {data.why_incomplete} and is left out")
        return found
