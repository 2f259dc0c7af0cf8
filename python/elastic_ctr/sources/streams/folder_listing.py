"""The files below a followed folder, each listed once however many links it has."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from elastic_ctr.sources.streams.followed_file import FollowedFile
from elastic_ctr.store.backends import NotInStore, StoreError

_HIDDEN = (".", "_")


def files_below(root: Path, passed_over: Callable[[str], None]) -> list[FollowedFile]:
    """Return the files sorted by name, without hidden files and folders and links to folders.

    `passed_over` gets a message for each unreadable entry. Raises NotInStore if the folder does not exist, StoreError.
    """
    found: dict[tuple[int, int], FollowedFile] = {}
    links: dict[tuple[int, int], bool] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                inside = sorted(entries, key=lambda each: each.name)
        except FileNotFoundError as gone:
            if folder:
                continue
            raise NotInStore(f"the folder {root} does not exist: is data.source.url right?") from gone
        except OSError as failed:
            if not folder:
                raise StoreError(f"file://{root}?follow cannot be read: {failed.strerror or failed}") from failed
            passed_over(f"{folder} in {root} is not read: {failed.strerror or failed}")
            continue
        for entry in inside:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(_HIDDEN):
                continue
            if not name.isprintable():
                raise StoreError(
                    f"file://{root}?follow has a file {name!r}, whose name is no text: rename it or put a dot before it"
                )
            if entry.is_dir(follow_symlinks=False):
                folders.append(name)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                # Deleted since, or a link to nothing.
                continue
            except OSError as failed:
                passed_over(f"{name} in {root} is not read: {failed.strerror or failed}")
                continue
            if stat.S_ISREG(status.st_mode):
                file = FollowedFile.of(Path(entry.path), name, status)
                if file.key not in found or (links.get(file.key) and not entry.is_symlink()):
                    found[file.key] = file
                    links[file.key] = entry.is_symlink()
    return sorted(found.values(), key=lambda each: each.name)
