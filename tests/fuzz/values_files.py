"""All odd values files, or so many of them: .venv/bin/python -m fuzz.values_files [SIZE [SEED]], in tests/. Exit 1: verdicts differ."""

import random
import sys
import tempfile
from pathlib import Path

from chart.rendering import Renderer
from chart.test_one_verdict import SETTINGS
from chart.verdicts import differ, odd_scalars, odd_settings, of_the_chart, of_the_laptop


def main() -> int:
    size, seed = (int(each) for each in (*sys.argv[1:], "1000000", "1")[:2])
    cases = [*odd_scalars(), *odd_settings(SETTINGS)]
    random.Random(seed).shuffle(cases)
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (below, above) in enumerate(cases[:size]):
            if number % 500 == 0:
                render = Renderer()  # which keeps what it rendered
            laptop, chart = of_the_laptop(Path(folder), below, above), of_the_chart(render, Path(folder), below, above)
            if differ(laptop, chart, above):
                differing += 1
                print(f"{above}\n  laptop: {laptop or 'taken'}\n  chart: {chart or 'taken'}")
    print(f"{min(size, len(cases))} files, {differing} with two verdicts")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
