"""`data:` in the values file: the click logs to train on."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict

from elastic_ctr.config.addresses import BUCKET, is_stream, is_table
from elastic_ctr.config.buckets import Addressed
from elastic_ctr.config.kafka import Kafka
from elastic_ctr.config.micro_pass import Join, MicroPass
from elastic_ctr.config.path_template import PATH_OF_INTERVAL, PATH_SCHEMA, PathTemplate, template_of
from elastic_ctr.config.section import EXACT, Count, Seconds, Section, Share, SlotName, text_of
from elastic_ctr.formats.inputs import USUAL_WORDS, MissingWords
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.auth import TokenFile, Tokens

_SPLIT = re.compile(r"^\d{8}/\d{2}(\d{2})?$")
_SOURCE = (
    rf"^(file:///|delta\+file:///[^?#]+$|(delta\+)?({BUCKET}|(s?web)?hdfs://[^/?#@]+(/[^?#]*)?$)|"
    r"iceberg(\+rest)?://[^/?#@]+(/[^?#@]*)*/[^/?#@]+\.[^/?#@]+$|"
    r"kafka://[^/?#@]+/[^/?#@]+$|intake://([^/?#@:]+:[0-9]+)?$)"
)
_CREDENTIALS = {
    "kafka": "name mounted files by kafka.usernameFile and kafka.passwordFile",
    "intake": "name a mounted file by tokenFile",
    **dict.fromkeys(("hdfs", "webhdfs", "swebhdfs"), "give the user by user"),
    **dict.fromkeys(("s3", "gs", "az"), "give them by bucket"),
}
_QUERIES = {
    "kafka": ", which no broker is told; leave it out, and give TLS and SASL by source.kafka",
    **dict.fromkeys(("hdfs", "webhdfs", "swebhdfs"), "; leave it out, and give the user by user"),
    **dict.fromkeys(
        ("s3", "gs", "az"), "; leave it out: objects do not grow, so a bucket cannot be followed, and has hours alone"
    ),
}
# A word for a missing value must not match this: a request would send it as a number.
_NUMBER = r"^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_OF_STREAMS = ("clicks", "csv", "tsv", "jsonl")
Start = Literal["earliest", "latest"]
_STARTS = get_args(Start)
_MINUTES_A_DAY, _HOUR_MINUTES = 24 * 60, 60


def _slot_names(given: object) -> tuple[str, ...]:
    if isinstance(given, SlotList):
        return tuple(given.names)
    if isinstance(given, str):
        return tuple(SlotList.parse(given).names)
    if isinstance(given, (list, tuple)):
        return tuple(SlotList.parse([text_of("a slot", each) for each in given]).names)
    raise ValueError("slots is a list of texts, or one text with a slot a line")


# The chart's schema for fields whose validators are Python code.
_SLOTS_SCHEMA: JsonDict = {
    "type": ["array", "string", "null"],
    "items": {"type": "string", "pattern": r"^[!-9;-~]+$"},
    "minItems": 1,
    "minLength": 1,
    "uniqueItems": True,
}
_SPLIT_PATTERN = r"[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])/([01][0-9]|2[0-3])([0-5][0-9])?"
_COMMIT = r"[0-9]{1,19}"
_END_SCHEMA: JsonDict = {"pattern": f"^({_SPLIT_PATTERN}|{_COMMIT})$"}
_START_SCHEMA: JsonDict = {"pattern": f"^({_SPLIT_PATTERN}|{_COMMIT}|{'|'.join(_STARTS)})$"}
_SPLITS_OR_COMMITS: JsonDict = {
    "if": {"properties": {"source": {"properties": {"url": {"pattern": r"^(delta\+|iceberg)"}}}}},
    # The patterns of both fields refuse what is neither, in one sentence.
    "then": {"properties": {name: {"not": {"type": "string", "pattern": "/"}} for name in ("start", "end")}},
    "else": {"properties": {name: {"not": {"type": "string", "pattern": f"^{_COMMIT}$"}} for name in ("start", "end")}},
}
# A new user's first mistakes, which Helm reports by itself: what clicks and rows cannot be without.
_FORMAT_SCHEMA: JsonDict = {
    "if": {"properties": {"format": {"const": "clicks"}}},
    "then": {"required": ["slots"], "properties": {"slots": {"type": ["array", "string"]}}},
    "else": {"required": ["label"], "properties": {"label": {"type": "string"}}},
    "allOf": [*PATH_OF_INTERVAL, _SPLITS_OR_COMMITS],
}
_DIVIDES_A_DAY: list[JsonValue] = [minutes for minutes in range(1, _MINUTES_A_DAY + 1) if _MINUTES_A_DAY % minutes == 0]


class DataSource(Addressed):
    """Where the click logs are."""

    url: str = Field(
        json_schema_extra={"pattern": _SOURCE},
        description="Address of the logs: file:///some/dir, or hdfs://namenode:9000, which is asked through WebHDFS at port 9870; "
        "webhdfs://namenode:PORT for another port, swebhdfs://namenode:9871 over TLS, hdfs://nn1:9000,nn2:9000 for a pair. A folder may "
        "follow. Or a bucket: s3://bucket/dir, gs://bucket/dir, az://container/dir. Or a stream: "
        "kafka://broker:9092/topic, several brokers with commas between them; intake://, the clicks that this release's intake takes, or "
        "intake://host:port, those of another one; or file:///some/dir?follow, a folder of files that are appended to. Or a table: delta+ "
        "before the address of its folder, as delta+s3://bucket/table; iceberg://CATALOG/namespace.table, with a catalog of pyiceberg's "
        "configuration, or iceberg+rest://host:8181/namespace.table.",
    )
    kafka: Kafka = Kafka()
    token_file: str | None = Field(
        default=None,
        pattern=r"^/[^:\s]+$",
        description="A mounted file with the internal tokens of the release whose intake `url` names. This release's own intake needs none.",
    )

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        if re.match(_SOURCE, url):
            return url
        scheme = url.strip().partition(":")[0].lower()
        # Status and logs show the address, so it may not have credentials; the error message does not quote it either.
        if "@" in url and scheme in _CREDENTIALS:
            raise ValueError(f"the address has credentials in it; leave them out, and {_CREDENTIALS[scheme]}")
        if scheme in _QUERIES and re.search("[?#]", url):
            raise ValueError(f"the address has a query{_QUERIES[scheme]}")
        shown = "the address" if re.search("[@?#]", url) else repr(url)
        raise ValueError(
            f"{shown} is none of file:///some/dir, hdfs://namenode:9000, s3://bucket/dir, gs://bucket/dir, az://container/dir, kafka://broker:9092/topic, intake://, intake://host:port, "
            "file:///some/dir?follow, delta+s3://bucket/table, iceberg://CATALOG/namespace.table and iceberg+rest://host:8181/namespace.table"
        )

    @property
    def is_topic(self) -> bool:
        return self.url.startswith("kafka://")

    @property
    def is_intake(self) -> bool:
        return self.url.startswith("intake://")

    def tokens(self) -> Tokens | None:
        """Return the tokens for the intake at `url`, or None. Raises ValueError naming the setting."""
        try:
            return None if self.token_file is None else TokenFile(Path(self.token_file))
        except (OSError, ValueError) as wrong:
            raise ValueError(f"data.source.tokenFile {self.token_file} cannot be used: {wrong}") from wrong

    @model_validator(mode="after")
    def _kafka_is_of_kafka(self) -> "DataSource":
        if self.token_file is not None and not self.is_intake:
            raise ValueError(f"tokenFile is of an intake, and {self.url} is no address of one; leave it out")
        if self.kafka != Kafka() and not self.is_topic:
            raise ValueError(f"kafka is of brokers, and {self.url} is no address of them; leave it out")
        return self


class Data(Section):
    """Hours of click logs, each a folder with a donefile, or a stream of them."""

    model_config = ConfigDict(json_schema_extra=_FORMAT_SCHEMA)

    source: DataSource
    path: str = Field(
        default="/",
        description="Folder with folders `YYYYMMDD/HH[MM]` inside the source, or a template such as `/logs/dt={time:%Y-%m-%d}/hr={time:%H}`. A "
        "template has %Y, %m, %d or %j, and %H and %M unless splits are longer.",
        json_schema_extra=PATH_SCHEMA,
    )
    start: str = Field(
        description="First split, YYYYMMDD/HH or YYYYMMDD/HHMM, whatever its folder is; included. Of a stream or table: `earliest`, all that it keeps, or `latest`, what "
        "comes from now on. A version or snapshot id of a table, in quotes, begins behind it.",
        json_schema_extra=_START_SCHEMA,
    )
    end: str | None = Field(
        default=None,
        description="Last split, or version or snapshot id of a table, included. Absent: follow new ones as they come.",
        json_schema_extra=_END_SCHEMA,
    )
    format: Literal["clicks", "csv", "tsv", "jsonl", "parquet", "reader"] = Field(
        default="clicks",
        description="The format of the files: `clicks` is lines of `show click feasign:slot …`; of any other, `features` says what its "
        "columns mean. Files may be zipped, .gz or .zst.",
    )
    reader: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="For `format: reader`: a function of a package in the trainers' image, `package.module:function`, that yields the "
        "rows of a file as pyarrow record batches.",
    )
    label: str | None = Field(
        default=None,
        min_length=1,
        description="Column that is 1 for a click and 0 for none; with `shows`, the column of clicks.",
    )
    shows: str | None = Field(default=None, min_length=1, description="Column of impressions, where a row is several.")
    columns: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="Names of the columns of csv and tsv files without a header. Absent: the first line of each file names them.",
        json_schema_extra={"uniqueItems": True},
    )
    missing: tuple[str, ...] | None = Field(
        default=None,
        description="Words of rows of columns that stand for an empty cell, of categories as of numbers; requests know the same words. "
        f"Absent: {', '.join(USUAL_WORDS.texts)}; of numbers also {', '.join(USUAL_WORDS.numbers[len(USUAL_WORDS.texts) :])}. An empty list: none.",
        json_schema_extra={
            "items": {"type": "string", "minLength": 1, "not": {"pattern": _NUMBER}},
            "uniqueItems": True,
        },
    )
    slots: Annotated[tuple[str, ...], BeforeValidator(_slot_names)] | None = Field(
        default=None,
        description="For `format: clicks`: the slots that are features, in the network's order: a list of texts, or one text with a slot a "
        "line. Numbers stand in quotes, for YAML reads 0101 as 65.",
        json_schema_extra=_SLOTS_SCHEMA,
    )
    split_interval: int = Field(
        default=60,
        ge=1,
        le=_MINUTES_A_DAY,
        description="Minutes of log in one folder; must divide a day. 1440: days.",
        json_schema_extra={"enum": _DIVIDES_A_DAY},
    )
    splits_per_pass: Count = Field(
        default=1, description="Folders that are trained as one pass. A pass of a table has so many commits at most."
    )
    skip_changes: bool = Field(
        default=False,
        description="Leave out, with a notice, commits of a table that delete or change rows and add others. Else training waits before such a "
        "commit, because its files do not show which rows are new.",
    )
    donefile: str = Field(
        default="donefile",
        pattern=r"^[^/\s]+$",
        description="The file whose presence says that a folder is complete, such as _SUCCESS.",
    )
    settle_seconds: Seconds | None = Field(
        default=None,
        description="Seconds without a change, and since its time ended, after which a folder with files is complete without a donefile. More "
        "than the longest pause of its writers.",
    )
    sleep_seconds: Seconds = Field(default=10, description="Seconds between two looks for complete folders.")
    time_zone: str = Field(
        default="UTC",
        json_schema_extra={"pattern": r"^[A-Za-z][A-Za-z0-9_+/-]*$"},
        description="Time zone of folder names and event times. An hour that its clocks skip has no folder, one that they repeat has one.",
    )
    max_refused_share: Share = Field(
        default=0.01, description="Above this share of refused lines a pass stops before it changes anything."
    )
    max_missing_share: Share = Field(
        default=0.99,
        description="Above this share of empty cells in a column of rows that was mostly full in the pinned statistics, a pass stops before "
        "it changes anything. 1: never.",
    )
    max_line_bytes: int = Field(
        default=1 << 20, ge=64, le=64 << 20, description="A longer line is refused; it never sits in memory whole."
    )
    holdout: float = Field(
        default=0,
        ge=0,
        lt=1,
        description="Share of the records, chosen by their features, that are never trained: quality is measured on them.",
    )
    group: SlotName = Field(
        default="",
        description="Slot or feature, such as a user, for GAUC, the mean of the groups' AUCs by their impressions. Empty: none.",
    )
    shuffle: bool = Field(
        default=True,
        description="Whether the records of a pass are shuffled by `model.seed`. Streams are trained in their order.",
    )
    stream: MicroPass = MicroPass()
    task_bytes: int = Field(
        default=64 << 20,
        ge=1,
        le=EXACT,
        description="Bytes of log in one task. Small files share a task, up to 8 MiB of them.",
    )

    @field_validator("start", "end")
    @classmethod
    def _split(cls, split: str | None, given: ValidationInfo) -> str | None:
        if split is None or split in _STARTS:
            return split
        source = given.data.get("source")
        if source is not None and is_table(source.url):
            if not re.fullmatch(_COMMIT, split):
                raise ValueError(f"{split!r} is no commit of a table; give a version of Delta or the id of a snapshot")
            return split
        if not _SPLIT.match(split):
            raise ValueError(f"{split!r} is not YYYYMMDD/HH or YYYYMMDD/HHMM, such as 20200401/00")
        split_time(split)
        return split

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError) as unknown:
            raise ValueError(f"{name!r} is not a time zone of the IANA list, such as UTC or Asia/Shanghai") from unknown
        return name

    @field_validator("missing")
    @classmethod
    def _words(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for word in words or ():
            if not word or (words or ()).count(word) > 1:
                raise ValueError(f"the word {word!r} is empty or comes twice; an empty cell is missing anyway")
            if re.search(_NUMBER, word):
                raise ValueError(
                    f"the word {word!r} is a number, which a request would send as one; leave such cells empty in the data"
                )
        return words

    @property
    def missing_words(self) -> MissingWords:
        return MissingWords.of(self.missing)

    @model_validator(mode="after")
    def _format_is_described(self) -> "Data":
        of_rows = {name: getattr(self, name) for name in ("label", "shows", "columns", "reader", "missing")}
        if self.format == "clicks":
            if self.slots is None:
                raise ValueError("slots is missing; list those that are features, or give `format` and `features`")
            if given := next((name for name, value in of_rows.items() if value is not None), None):
                raise ValueError(f"{given} is for rows of columns; leave it out, or give another `format` than clicks")
            return self
        if self.slots is not None:
            raise ValueError(f"slots is for `format: clicks`; with {self.format}, `features` says what columns mean")
        if self.label is None:
            raise ValueError(f"label is missing; name the column of {self.format} rows that says which were clicked")
        if (self.format == "reader") != (self.reader is not None):
            raise ValueError("reader goes with `format: reader`; give both, or neither")
        if self.columns is not None:
            self._check_names(self.columns)
        return self

    def _check_names(self, columns: tuple[str, ...]) -> None:
        if self.format not in {"csv", "tsv"}:
            raise ValueError(f"columns is for csv and tsv; the columns of {self.format} have names already")
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise ValueError(f"columns has {twice!r} more than once; name each column once")
        for name in (self.label, self.shows):
            if name is not None and name not in columns:
                raise ValueError(f"the column {name!r} is not among columns, which are {', '.join(columns)}")

    @property
    def is_stream(self) -> bool:
        return is_stream(self.source.url)

    @property
    def is_table(self) -> bool:
        return is_table(self.source.url)

    @property
    def partitions_below(self) -> str | None:
        """The folder below which folders `key=value` are columns; None: none is, because files of Iceberg have all columns."""
        return None if self.source.url.startswith("iceberg") else self.template.root

    @property
    def template(self) -> PathTemplate:
        """The template of the folders of splits."""
        return template_of(self.path, self.split_interval)

    def folder_of(self, split: str) -> str:
        """Return the folder of a split, relative to the source."""
        return self.template.folder(split_time(split))

    def split_of(self, folder: str) -> str | None:
        """Return the split with this folder, relative to the source; None if there is none."""
        moment = self.template.moment(folder)
        return None if moment is None else self.split_at(moment)

    def split_at(self, moment: datetime) -> str | None:
        """Return the split that begins at a wall-clock time; None if none begins then."""
        on_grid = (moment.hour * _HOUR_MINUTES + moment.minute) % self.split_interval == 0
        return split_name(moment, self.split_interval) if on_grid else None

    @property
    def why_incomplete(self) -> str:
        """The end of a sentence on a split that is not complete."""
        if self.settle_seconds is None:
            return f"has no {self.donefile} yet"
        return f"has no file yet, or changed in the last {self.settle_seconds:g} s"

    def of_intake(self, address: str, token_file: str) -> "Data":
        """Return the settings that readers of the release's own intake use; it listens at `address` (host:port)."""
        source = {"url": f"intake://{address}", "kafka": Kafka(), "token_file": token_file}
        return self.model_copy(update={"source": self.source.model_copy(update=source)})

    def _check_stream(self) -> None:
        if self.start not in _STARTS or self.end is not None:
            raise ValueError(f"{self.source.url} is a stream: start is `earliest` or `latest`, and there is no end")
        if self.format not in _OF_STREAMS:
            raise ValueError(f"format {self.format} is of whole files; a stream has {', '.join(_OF_STREAMS)}")
        if self.format in {"csv", "tsv"} and self.columns is None:
            raise ValueError("columns is missing: no line of a stream names them; list them")
        if self.stream.join is not None:
            self._check_join(self.stream.join)
        if self.stream.late_clicks and self.format != "clicks" and self.shows is None:
            raise ValueError(
                "stream.lateClicks needs shows: a row without it is one impression; name the column of impressions"
            )

    def _check_table(self) -> None:
        if self.end in _STARTS:
            raise ValueError(f"end {self.end} is no commit of a table; give a version of Delta or the id of a snapshot")
        if self.format != "parquet":
            raise ValueError(
                f"format {self.format} is of files; the rows of a table are in Parquet: give format: parquet"
            )
        if self.path.strip("/"):
            raise ValueError(f"path {self.path} is of folders of hours; leave it out, since source.url names the table")

    def _check_join(self, join: Join) -> None:
        if not (self.source.is_topic or self.source.is_intake):
            raise ValueError(f"stream.join is of a topic or an intake, and {self.source.url} is neither; leave it out")
        if not self.stream.late_clicks:
            raise ValueError("stream.join makes late clicks: set stream.lateClicks to true, or leave stream.join out")
        if self.format == "clicks":
            raise ValueError("stream.join is of rows with a column for the key; lines of clicks have none")
        if join.key in {self.label, self.shows}:
            raise ValueError(
                f"stream.join.key {join.key!r} says what was clicked; name the column with the impression's id"
            )
        if self.columns is not None and join.key not in self.columns:
            raise ValueError(f"stream.join.key {join.key!r} is not among columns, which are {', '.join(self.columns)}")

    @model_validator(mode="after")
    def _consistent(self) -> "Data":
        template_of(self.path, self.split_interval)
        if self.is_stream:
            self._check_stream()
            return self
        if self.stream.join is not None:
            raise ValueError(f"stream.join is of streams, and {self.source.url} is none; leave it out")
        if self.stream.late_clicks:
            raise ValueError(f"stream.lateClicks is of streams, and {self.source.url} is none; leave it out")
        if self.is_table:
            self._check_table()
            return self
        if self.skip_changes:
            raise ValueError(f"skipChanges is of tables, and {self.source.url} is none; leave it out")
        for name in ("start", "end"):
            if getattr(self, name) in _STARTS:
                raise ValueError(
                    f"{name} {getattr(self, name)} is of streams and tables, and {self.source.url} is neither; give a split, YYYYMMDD/HH"
                )
        if _MINUTES_A_DAY % self.split_interval:
            raise ValueError(f"splitInterval {self.split_interval} does not divide a day; give 5, 10, 15, 30, 60 …")
        for name in ("start", "end"):
            split = getattr(self, name)
            if split is not None and (split_time(split).hour * 60 + split_time(split).minute) % self.split_interval:
                raise ValueError(f"{name} {split} is not on the {self.split_interval}-minute grid of splitInterval")
        if self.end is not None and split_time(self.end) < split_time(self.start):
            raise ValueError(
                f"end {self.end} is before start {self.start}; swap them, or leave end out to follow new hours"
            )
        return self


def split_time(split: str) -> datetime:
    """Return the wall-clock start of a split, without time zone. Raises ValueError for a date that does not exist."""
    day, _, time = split.partition("/")
    try:
        return datetime.strptime(day + time.ljust(4, "0"), "%Y%m%d%H%M")  # noqa: DTZ007 (the zone is data.timeZone's)
    except ValueError as wrong:
        raise ValueError(f"{split!r} names a time that does not exist") from wrong


def split_name(moment: datetime, interval: int) -> str:
    """Return the name of a split: `YYYYMMDD/HH` if `interval` is whole hours, else `YYYYMMDD/HHMM`."""
    return moment.strftime("%Y%m%d/%H" if interval % 60 == 0 else "%Y%m%d/%H%M")


_MINUTE = timedelta(minutes=1)


def split_exists(moment: datetime, interval: int, zone: str) -> bool:
    """True if the wall clock shows any minute of a split. A split that it skips in spring has no folder.

    A split that it repeats in autumn has one folder for both times.
    """
    return not (_left_out(moment, zone) and _left_out(moment + timedelta(minutes=interval) - _MINUTE, zone))


def _left_out(moment: datetime, zone: str) -> bool:
    before, after = (moment.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset() for fold in (0, 1))
    return before is not None and after is not None and before < after


def split_end(split: str, interval: int, zone: str) -> int:
    """Return the Unix seconds at which a split ends, the event time of all its records. If the clock repeats the last minute, its
    second time counts; if the clock skips it, the last minute before the gap counts.
    """
    last = split_time(split) + timedelta(minutes=interval) - _MINUTE
    while _left_out(last, zone):
        last -= _MINUTE
    return int((last.replace(tzinfo=ZoneInfo(zone), fold=1)).timestamp()) + 60
