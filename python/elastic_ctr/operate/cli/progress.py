"""Progress of long work on files: a bar on a terminal, elsewhere a line every few seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_TOLD_SECONDS = 5.0


@contextmanager
def progress_of(size: int, begin: str) -> Iterator[Callable[[int, str], None]]:
    """Yield a callback for the bytes done since the last call and a sentence on the results so far."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(begin, total=size)
            yield lambda done, sentence: shown.update(task, advance=done, description=sentence)
        return
    done_so_far, told_at = 0, time.monotonic()

    def tell(done: int, sentence: str) -> None:
        nonlocal done_so_far, told_at
        done_so_far += done
        if time.monotonic() - told_at > _TOLD_SECONDS:
            told_at = time.monotonic()
            typer.echo(f"{done_so_far / max(size, 1):.0%} of {size:,} bytes: {sentence}", err=True)

    yield tell
