"""Column statistics: those of the values file or of the first pass are pinned, and later passes are compared with them.

Long work and calls to the store are done without the coordinator's lock.
"""

import logging

from elastic_ctr.config.features import Features
from elastic_ctr.config.statistics import numbers_out_of_scale, short_vocabularies
from elastic_ctr.features.statistics.collector import merged_series
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.features.statistics.drift import compared
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.pinned_statistics import publish_statistics, read_statistics
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import DriftRow
from elastic_ctr.training.master.work.start_from import kept_series

log = logging.getLogger(__name__)


def pin_given(ledger: Ledger, store: Store, features: Features | None, text: str | None) -> None:
    """Pin the statistics of the values file at the first start. Raises ValueError if they differ later, and StoreError."""
    if text is None or features is None:
        return
    given, pinned, started = Statistics.from_json(text), ledger.facts.statistics, ledger.facts.started_from
    if started is not None and started.statistics and (not pinned or started.given):
        if started.given == given.digest:
            return
        if not started.given:
            ledger.set_facts(started_from=started.model_copy(update={"given": given.digest}))
            given = kept_series(read_statistics(store, started.statistics), given)
    if pinned and pinned != given.digest:
        if features.needs_statistics:
            raise ValueError(
                f"statistics was {pinned} (its SHA-256) when this model began and is {given.digest} now: its keys and numbers would "
                f"mean something else; leave statistics out, give {layout.statistics_file(pinned)} of the store, or begin with an "
                "empty state and store (another --dir)"
            )
        log.info("later passes are compared with other statistics than before")
    if pinned != given.digest:
        _warn_of_columns(features, given)
        ledger.set_facts(statistics=publish_statistics(store, given), statistics_of=0)


def _warn_of_columns(features: Features | None, statistics: Statistics) -> None:
    for sentence in (*short_vocabularies(features, statistics), *numbers_out_of_scale(features, statistics)):
        log.warning("%s", sentence)


class PassStatistics:
    """Merges the statistics that trainers have collected over a pass."""

    def __init__(self, coordinator: Coordinator, store: Store, features: Features | None) -> None:
        self._coordinator = coordinator
        self._store = store
        self._features = features
        self._pinned: tuple[str, Statistics] | None = None

    def step(self) -> bool:
        """Merge a pass if that is due. Return True if it was. Raises StoreError, ValueError; call again later."""
        due = self._coordinator.found.collected_pass()
        if due is None:
            return False
        current, parts, pinned = due
        found = merged_series(
            {name: head for name, (_, head) in parts.items()},
            lambda name, place: self._coordinator.found.collected_series(parts[name][0], place),
        )
        if pinned:
            drift = compared(self._read(pinned), found)
            rows = max((each.rows for each in (*found.texts.values(), *found.numbers.values())), default=0)
            self._coordinator.found.drift_found(current, DriftRow(rows=rows, columns=tuple(drift)))
        else:
            started = self._coordinator.facts.started_from
            if started is not None and started.statistics:
                found = kept_series(self._read(started.statistics), found)
            _warn_of_columns(self._features, found)
            self._coordinator.found.statistics_pinned(current, publish_statistics(self._store, found))
        return True

    def _read(self, digest: str) -> Statistics:
        if self._pinned is None or self._pinned[0] != digest:
            self._pinned = (digest, read_statistics(self._store, digest))
        return self._pinned[1]
