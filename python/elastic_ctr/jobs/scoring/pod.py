"""One pod of a Kubernetes Job that scores; its progress goes to the log."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from elastic_ctr.config.role_files import ScoringFile
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.jobs.scoring.quality import ScoringReport
from elastic_ctr.jobs.scoring.run import Progress, run_job
from elastic_ctr.jobs.scoring.scoring_job import Job, Share
from elastic_ctr.jobs.scoring.worker import Place

log = logging.getLogger(__name__)


class _Logged(Progress):
    def begun(self, job: Job, done: set[int], *, again: bool) -> None:
        how = "goes on" if again else "begins"
        log.info("the job %s with version %d: %d of %d tasks are done", how, job.version, len(done), len(job.tasks))
        self._done = len(done)

    def done(self, job: Job, tasks: set[int]) -> None:
        self._done += len(tasks)
        if tasks:
            log.info("%d of %d tasks are done", self._done, len(job.tasks))

    def noted(self, sentence: str) -> None:
        log.warning("%s", sentence)


def run_order(order: Order, settings: ScoringFile, models: Place, live: Callable[[], int | None]) -> ScoringReport:
    """Score this pod's share of an order, and then what other pods have left. Raises the errors of `run_job`, and ConfigRefused."""
    scratch = Path(settings.scoring.scratch_dir)
    scratch.mkdir(parents=True, exist_ok=True)
    given = order.given(
        settings.data,
        models,
        live=live,
        told=lambda sentence: log.warning("%s", sentence),
        processes=settings.scoring.processes,
        scratch=scratch,
    )
    # Kubernetes numbers the pods of an Indexed Job, and a pod that replaces another has its number.
    index = os.environ.get("JOB_COMPLETION_INDEX")
    share = None if index is None else Share(int(index), order.pods)
    return run_job(replace(given, share=share), _Logged())
