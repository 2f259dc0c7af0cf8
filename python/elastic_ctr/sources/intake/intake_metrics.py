"""The intake's status and metrics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.status.intake_status import (
    AcceptedCounts,
    DamagedRange,
    IntakeStatus,
    IntakeTopicStatus,
    LateClickCounts,
)
from elastic_ctr.sources.intake.click_log import ClickLog
from elastic_ctr.sources.intake.topic_reader import TopicReader

_COMMIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass
class Counts:
    """Counters since the process began."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    repeated: int = 0
    refused: int = 0


def status_of(log: ClickLog, counts: Counts, error: str | None, topic: TopicReader | None) -> IntakeStatus:
    return IntakeStatus(
        role="intake",
        partition=log.partition,
        first=log.kept.first,
        end=log.kept.end,
        needed_from=log.needed,
        bytes=log.bytes,
        accepted=AcceptedCounts(requests=counts.requests, records=counts.records, bytes=counts.bytes),
        late_clicks=LateClickCounts.model_validate(log.joins),
        repeated=counts.repeated,
        refused=counts.refused,
        damaged=tuple(DamagedRange(first=first, end=end) for first, end in sorted(log.damaged.items())),
        error=error,
        topic=None if topic is None else IntakeTopicStatus.model_validate(topic),
    )


class IntakeMetrics(Metrics):
    """`observe_commit` takes the seconds of a transaction. All other metrics are read at each scrape, those of `topic` if it is set."""

    def __init__(self, log: ClickLog, counts: Counts, error: Callable[[], str | None]) -> None:
        self.topic: TopicReader | None = None
        super().__init__("intake")
        commits = self.histogram("commit_seconds", "Seconds of a transaction, with its sync.", _COMMIT_SECONDS)
        self.observe_commit = commits.observe

        def compute() -> Iterator[Metric]:
            for name, what, count in (
                ("records", "Lines that were accepted.", counts.records),
                ("bytes", "Bytes of the lines that were accepted.", counts.bytes),
                ("late_clicks_joined", "Clicks that were joined to their impression by its key.", log.joins.joined),
                (
                    "late_clicks_unmatched",
                    "Clicks without a remembered impression, which were dropped.",
                    log.joins.unmatched,
                ),
                (
                    "late_clicks_duplicate",
                    "Clicks of an impression that was clicked before, which were dropped.",
                    log.joins.duplicate,
                ),
                (
                    "impressions_crowded_out",
                    "Impressions that were forgotten before their time, because there were too many.",
                    log.joins.crowded_out,
                ),
                ("repeated_requests", "Requests that were answered by their Idempotency-Key.", counts.repeated),
                ("refused_requests", "Requests that were refused or could not be written.", counts.refused),
            ):
                yield CounterMetricFamily(f"elastic_ctr_intake_{name}", what, value=count)
            topic = self.topic
            if topic is not None:
                for name, what, count in (
                    ("topic_records", "Lines of the topic that were appended to the log.", topic.records),
                    ("topic_gone", "Offsets that the topic kept no more when they were due.", topic.gone),
                    ("topic_dropped", "Messages that were dropped: their impressions are too long.", topic.dropped),
                ):
                    yield CounterMetricFamily(f"elastic_ctr_intake_{name}", what, value=count)
                for name, what, value in (
                    (
                        "topic_lag",
                        "Offsets of the topic that are not in the log yet; NaN while it cannot be read.",
                        nan if topic.lag is None else topic.lag,
                    ),
                    (
                        "topic_waiting",
                        "1 while messages are left to the topic, because training is behind.",
                        topic.waits,
                    ),
                    (
                        "topic_failing",
                        "1 while the topic, or a partition of it, cannot be read.",
                        topic.error is not None,
                    ),
                ):
                    yield GaugeMetricFamily(f"elastic_ctr_intake_{name}", what, value=value)
            for name, what, value in (
                ("log_first", "First offset that is kept.", log.kept.first),
                ("log_end", "Offset of the next line.", log.kept.end),
                ("log_bytes", "Bytes of the disk that the kept lines take.", log.bytes),
                (
                    "damaged_batches",
                    "Batches of the log that were found damaged when they were read.",
                    len(log.damaged),
                ),
                ("write_failing", "1 while the last transaction could not be written.", error() is not None),
            ):
                yield GaugeMetricFamily(f"elastic_ctr_intake_{name}", what, value=value)

        self.computed(compute)
