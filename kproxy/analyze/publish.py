"""How an analysis becomes visible: all of it at once, or nothing.

    a folder on a disk     .DIR.1f0c.partial/… ─ rename ─▶ DIR/…
    on remote storage      OUT/RUN/…, then  OUT/analysis.json    (one object)
    a run of a lake        LAKE/TABLE/run=RUN/…, then  LAKE/runs/RUN.json
                           LAKE/runs/RUN/TABLE/… if its format is not Parquet (`formats`)

Invariants: what fails, or is stopped, leaves nothing behind; what a killed job left on a disk is
removed by the next one for the same place, and on remote storage it does not count. On a disk only
the owner can read what is made, or whom the mode lets, whatever the umasks of Spark and its tasks
are.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from kproxy.analyze import export
from kproxy.analyze.described import ABOUT
from kproxy.analyze.lake import MANIFEST, PART, RUNS, Tables, encoded, new_name, runs
from kproxy.analyze.place import Place, of_folder
from kproxy.recording.files import is_free, lock
from kproxy.spark import SparkError
from kproxy.spark.session import failures

_FULL = re.compile("No space left on device|Disk quota exceeded|File too large")


def check_free(out: Place) -> None:
    """Check that an analysis may be made there.

    Raises: SparkError, OSError.
    """
    folder = out.local
    _check_no_link(out)
    if out.children() if folder is None else _is_taken(folder):
        what = f"{out} is there already: name another folder, or remove it"
        raise SparkError(what + ("; --append adds to it" if _is_lake(out) else ""))
    if folder is not None:
        _check_writable(folder.absolute().parent)


def _check_no_link(out: Place) -> None:
    """Check that what is to be renamed, or to be made, has its own name."""
    if out.local is not None and out.local.is_symlink():
        raise SparkError(f"{out} is a link: name the folder that it leads to")


def _is_taken(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _is_lake(out: Place) -> bool:
    try:
        return bool(runs(out))
    except (SparkError, OSError):
        return False


def _check_writable(folder: Path) -> None:
    above = next(each for each in (folder, *folder.parents) if each.exists())
    if not above.is_dir():
        raise SparkError(f"{above} is no folder: name another one with --out")
    if not os.access(above, os.W_OK | os.X_OK):
        raise SparkError(f"{above} cannot be written to: name another folder with --out")


def check_lake(out: Place) -> None:
    """Check that something may be added to a lake, or one be made.

    Raises: SparkError, OSError.
    """
    _check_no_link(out)
    runs(out)
    if out.local is not None:
        _check_writable(out.local.absolute())


@contextlib.contextmanager
def new_analysis(out: Place) -> Iterator[Place]:
    """Yield a folder to fill, with the manifest last; it becomes visible if nothing is raised.

    Raises: SparkError, OSError.
    """
    check_free(out)
    if out.local is None:
        run = out / new_name()
        with _cleaned_up(run.remove, disk=run):
            yield run
            if MANIFEST in out.children():
                raise SparkError(f"{out} was made by another job meanwhile: name another folder")
            about = json.loads((run / MANIFEST).read()) | {"folder": run.path.name}
            (out / MANIFEST).write(encoded(about))
        return
    with _renamed(out.local, out.mode) as partial:
        yield partial
        check_free(out)  # somebody else may have made it meanwhile


@contextlib.contextmanager
def alone(lake: Place) -> Iterator[None]:
    """Let no other process add to a lake meanwhile; remote storage has no locks.

    Raises: SparkError, if another one does; OSError.
    """
    if lake.local is None:
        yield
        return
    lake.make_folder()
    with _locked(lake.local) as is_alone:
        if not is_alone:
            raise SparkError(f"another kproxy analyze adds to {lake}: wait until it has ended")
        yield


@contextlib.contextmanager
def new_run(lake: Place, staged: bool = False) -> Iterator[Tables]:
    """Yield where to write the tables of a run, and its manifest last (`publish`); it is added to
    the lake, which is locked (`alone`), if nothing is raised.

    Raises: SparkError, also if another process has added to the lake meanwhile; OSError.
    """
    new = Tables(lake, new_name(), hidden=lake.local is not None and not staged, staged=staged)
    if lake.local is not None:
        _remove_what_does_not_count(lake, lake.local)
    with _cleaned_up(functools.partial(_remove_run, new), disk=lake):
        yield new
        _check_last(lake, new.run)  # others may have looked at the same time


def _check_last(lake: Place, name: str) -> None:
    """Check that the last run of a lake has this name; with "", that it has none.

    Raises: SparkError, OSError.
    """
    last = [each.name for each in runs(lake)[-1:]]
    if last != [each for each in (name,) if each]:
        raise SparkError(f"another kproxy analyze has added to {lake} meanwhile: try again")


def publish(new: Tables, manifest: Mapping[str, Any]) -> None:
    """Make a run count: give its tables on a disk their names, and write its manifest.

    Raises: SparkError, if another one has been added since it began; OSError.
    """
    _check_last(new.folder, manifest["after"])
    for name in manifest["rows"]:
        folder, visible = new.table(name), attrs.evolve(new, hidden=False).table(name)
        if folder.local is None or not folder.local.is_dir():
            continue  # a table without rows may have no folder
        if visible.local is not None and new.hidden:
            set_modes(folder.local, folder.mode)
            for each in (folder.local, folder.local.parent):
                each.chmod(of_folder(folder.mode))
            folder.local.rename(visible.local)
    (new.folder / RUNS / f"{new.run}.json").write(encoded(manifest))


def _remove_run(new: Tables) -> None:
    for suffix in (".json", ".html", PART):  # first: then it does not count
        (new.folder / RUNS / f"{new.run}{suffix}").remove()
    for name in export.TABLES.keys() | ABOUT.keys():
        for hidden in (True, False):
            attrs.evolve(new, hidden=hidden).remove(name)
    if new.staged:
        new.stage.remove()


def _remove_what_does_not_count(lake: Place, folder: Path) -> None:
    """Remove what killed jobs have left on a disk: no other job is adding to the lake. What has a
    manifest stays, whatever it says."""
    staged = {run.name for run in runs(lake) if run.staged}
    with_manifest = {path.stem for path in (folder / RUNS).glob("*.json")}
    kept = {f"run={name}" for name in with_manifest}
    tables = (folder / name for name in export.TABLES.keys() | ABOUT.keys())
    of_runs = (each for table in tables for each in (*table.glob("run=*"), *table.glob(".run=*")))
    left = [each for each in of_runs if each.name not in kept]
    left += [each for each in (folder / RUNS).glob("*") if each.is_dir()]
    for found in left:
        if found.name not in staged:
            shutil.rmtree(found, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yield whether no other process has the folder locked; have it locked meanwhile."""
    held = os.open(folder, os.O_RDONLY)
    try:
        yield lock(held)
    finally:
        os.close(held)


@contextlib.contextmanager
def _renamed(folder: Path, mode: int) -> Iterator[Place]:
    """Yield a hidden folder to fill, which then gets its name. What killed jobs have left under
    such hidden names is removed."""
    _remove_abandoned(folder, f".{glob.escape(folder.name)}.????????.partial")
    hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    place = Place(hidden, mode)
    place.make_folder()
    with _locked(hidden), _cleaned_up(place.remove, disk=place):
        yield place
        set_modes(hidden, mode)
        hidden.rename(folder)


@contextlib.contextmanager
def _cleaned_up(remove: Callable[[], None], *, disk: Place) -> Iterator[None]:
    """If something is raised, remove what was made; tell it if the disk of a place is full."""
    try:
        with _said_if_full(disk.local):
            yield
    except BaseException:
        remove()
        raise


@contextlib.contextmanager
def _said_if_full(folder: Path | None) -> Iterator[None]:
    """Tell if a disk is full, before there is room again."""
    try:
        yield
    except failures() as error:
        no_room = None if folder is None else _no_room(error, folder)
        if no_room is None:
            raise
        raise no_room from None


def set_modes(folder: Path, mode: int) -> None:
    """Give all files in a folder a mode, and the folders that which belongs to it."""
    for above, folders, files in os.walk(folder):
        for names, one in ((folders, of_folder(mode)), (files, mode)):
            for name in names:
                with contextlib.suppress(PermissionError):  # there are file systems without modes
                    os.chmod(os.path.join(above, name), one)


def _remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove what killed jobs have left: folders that no living process locks."""
    for left in folder.parent.glob(pattern):
        with contextlib.suppress(OSError):  # it belongs to another user
            held = os.open(left, os.O_RDONLY)
            try:
                if is_free(held):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


def _no_room(error: Exception, folder: Path) -> SparkError | None:
    """Return an error that names the full disk, if one is full: Spark and Arrow do not name it."""
    found = _FULL.search(str(error))
    if found is None:
        return None
    where, what = folder.parent.absolute(), "name another folder with --out"
    scratch = Path(tempfile.gettempdir())
    if shutil.disk_usage(scratch).free < shutil.disk_usage(where).free:
        where, what = scratch, "let TMPDIR name another folder"
    return SparkError(f"{where}: {found[0]}: make room there, or {what}")
