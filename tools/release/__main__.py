"""python -m release build VERSION, or verify; `make release` and `make verify` call it."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from release.build import BuiltImages, extract, release
from release.facts import NoRelease, commit_of, refuse_another
from release.oci import Damaged
from release.signing import NoSuchKey, sign
from release.verify import verify

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "build" / "source"
FOLDER = ROOT / "build" / "release"


def build(version: str, key: Path | None, images: BuiltImages | None) -> None:
    refuse_another(ROOT, version)
    if key:
        # The build takes minutes, and the key is used at its end.
        sign(key, b"")
    commit = commit_of(ROOT)
    extract(ROOT, SOURCE, commit)
    if images:
        # The file and its variables are those of the commit; only what a machine needs is passed on.
        command = ["make", "-C", str(SOURCE), "images", f"TAG={version}", f"SOURCE_DATE_EPOCH={commit.time}"]
        subprocess.run(command, check=True)
    release(SOURCE, FOLDER, version, commit, images, key)
    for each in sorted(FOLDER.iterdir()):
        print(f"{each.stat().st_size:12,}  {each.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    jobs = parser.add_subparsers(dest="job", required=True)
    made = jobs.add_parser("build")
    made.add_argument("version")
    made.add_argument("--key", type=Path, help="a private key in PEM, of the curve P-256; without it nothing is signed")
    made.add_argument("--images", nargs=2, metavar=("PREFIX", "BASE"), help="of the images; without it none are made")
    checked = jobs.add_parser("verify")
    checked.add_argument("--public-key", type=Path)
    words = parser.parse_args()
    try:
        if words.job == "build":
            docker = os.environ.get("DOCKER", "docker")
            build(words.version, words.key, BuiltImages(docker, *words.images) if words.images else None)
        else:
            for line in verify(FOLDER, words.public_key):
                print(line, flush=True)
    except (NoRelease, Damaged, NoSuchKey) as failed:
        print(f"{words.job}: {failed}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"{words.job}: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
