"""The parsers by name. Each is made from a seed, and fed by `batch(inputs)`, which raises where a parser is wrong."""

from collections.abc import Callable, Mapping
from typing import Protocol

from fuzz.csv_files import CsvFiles
from fuzz.cube_wire import CubeBlockingClient, CubeClient, CubeServer
from fuzz.documents import PublishedFiles, ReleaseMessages, ReleaseStates, ValuesFiles
from fuzz.intake import IntakeRows
from fuzz.record_files import RecordFiles
from fuzz.rotations import Rotations
from fuzz.serving_http import ServingHttp, ServingRows
from fuzz.texts import ClickLog, JsonRows, Predictions, SequenceFiles


class Target(Protocol):
    """One parser, or one reader of files."""

    def batch(self, count: int) -> int:
        """Feed so many inputs; how many of them were understood. AssertionError: an answer that cannot be."""


TARGETS: Mapping[str, Callable[[int], Target]] = {
    target.name: target
    for target in (
        CubeServer,
        CubeClient,
        CubeBlockingClient,
        ServingHttp,
        ServingRows,
        ClickLog,
        JsonRows,
        SequenceFiles,
        Predictions,
        PublishedFiles,
        ReleaseStates,
        ReleaseMessages,
        ValuesFiles,
        IntakeRows,
        CsvFiles,
        RecordFiles,
        Rotations,
    )
}
