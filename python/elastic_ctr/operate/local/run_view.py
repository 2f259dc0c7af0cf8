"""The progress of a local run: a live table on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from elastic_ctr.operate.fitted_text import FittedTable
from elastic_ctr.operate.local.report import table
from elastic_ctr.operate.local.session import Session, troubles
from elastic_ctr.runtime.status.master_status import TrainingStatus

_STATES = {
    "analyzing": "is being analyzed",
    "checking": "is being checked",
    "checked": "is checked",
    "training": "is being trained",
    "evaluating": "is being evaluated",
    "saving": "is being saved and exported",
    "stopped": "is stopped",
}


def stage(status: TrainingStatus | None, candidate: int | None) -> str:
    """Return the stage of the run as one sentence."""
    if status is None:
        return "the master starts"
    if not status.ready:
        serving = sum(each.serving for each in status.pservers)
        return f"generation {status.generation}: {serving} pservers serve, {len(status.trainers)} trainers joined"
    current = status.current
    if current is not None:
        one = next(each for each in status.passes if each.id == current.id)
        by_tasks = one.state in ("analyzing", "checking", "training", "evaluating")
        tasks = f" ({one.tasks_done} of {one.tasks} tasks done)" if by_tasks else ""
        epoch = f", epoch {current.epoch}" if current.epoch > 1 else ""
        if current.state == "waiting":
            return f"pass {current.id} waits for {status.waits_for or 'its files'}"
        return f"pass {current.id} {_STATES.get(current.state, current.state)}{epoch}{tasks}"
    if candidate is not None:
        return f"version {candidate} is loaded and validated"
    return "the last version is built" if status.finished else "looks for the next pass"


@contextmanager
def following(console: Console) -> Iterator[Callable[[Session], None]]:
    """Yield a function that shows the progress after each look."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield lambda session: live.update(_picture(session))
        return
    said: list[str] = []

    def say_once(text: str, style: str | None = None) -> None:
        if text not in said:
            said.insert(0, text)
            console.print(text, style=style, highlight=False)

    def line(session: Session) -> None:
        now = stage(session.status, session.candidate)
        # Task counts change all the time, so a log gets only one line per stage.
        short = now.partition(" (")[0]
        if not said or said[-1] != short:
            said.append(short)
            console.print(now, highlight=False)
        for text in [*troubles(session.status), *session.problems()]:
            say_once(text, "yellow")
        for version, asked in session.seen.items():
            say_once(f"version {version} is live: {asked.samples} samples, largest difference {asked.max_abs_diff:.1e}")

    yield line


def _picture(session: Session) -> Group:
    parts: list[RenderableType] = []
    if session.status is not None:
        parts.append(FittedTable(table(session.status, session.seen), indent=0))
    restarts = len(session.supervisor.restarts)
    parts.append(
        Text(stage(session.status, session.candidate) + (f"; {restarts} restarts" if restarts else ""), style="cyan")
    )
    parts += [Text(each, style="yellow") for each in [*troubles(session.status), *session.problems()]]
    return Group(*parts)
