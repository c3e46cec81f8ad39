"""``adaspark-run store``: what has been learned, kept between processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from adaspark.cli.flags import STORE, options
from adaspark.cli.output import Output
from adaspark.cli.settings import usage_errors
from adaspark.errors import StoreError
from adaspark.learned import describe_state
from adaspark.memory import store_path
from adaspark.store import Row, Store, read_export, write_export

_SHORT = 8  # digits of a key that tell rows apart for people


@click.command(STORE)
@click.argument("action", type=click.Choice(["list", "show", "reset", "export", "import"]), default="list")
@click.argument("key", required=False, default="")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@options(STORE)
@click.pass_obj
def store(output: Output, /, action: str, key: str, file: Path | None, **values: Any) -> int:
    """List what has been learned, show it, forget it, or carry it to another machine of the same kind.

    list [KEY]; show KEY; reset KEY (or all); export KEY (or all) FILE; import FILE. A KEY may be cut to its first digits.
    """
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    with usage_errors():
        path = store_path("auto" if values["store"] is None else values["store"])
    if path is None:
        msg = "there is no store to look into: --store names its file"
        raise click.UsageError(msg)
    if action == "import":
        if not key or file is not None:
            msg = "give the file to import: store import FILE"
            raise click.UsageError(msg)
        return _import(output, path, Path(key))
    if action != "list" and not key:
        msg = f"say what to {action}: a key (store list has them)" + ("" if action == "show" else " or all")
        raise click.UsageError(msg)
    if (file is None) == (action == "export"):
        msg = "store export KEY FILE takes a file, the others none"
        raise click.UsageError(msg)
    if not path.exists():
        if action in ("list", "reset"):
            output.emit({"store": str(path), "rows": []} if action == "list" else {"store": str(path), "removed": 0})
            output.write(f"nothing learned yet: there is no {path}\n")
            return 0
        msg = f"there is no store {path}"
        raise StoreError(msg)
    if file is not None and file.exists() and file.samefile(path):
        msg = f"{file} is the store itself: export to another file"
        raise click.UsageError(msg)
    with Store(path, look=action != "reset") as opened:
        rows = opened.rows("" if key == "all" else key)
        if not rows and action in ("show", "export"):
            msg = f"{path} has no row whose key begins with {key!r}"
            raise StoreError(msg)
        if action == "reset":
            _need_writable(opened)
            removed = opened.reset("" if key == "all" else key)
            output.emit({"store": str(path), "removed": removed})
            output.write(f"forgot {removed} of what was learned\n")
        elif action == "export" and file is not None:
            _export(output, path, rows, file)
        elif action == "show":
            _show(output, path, rows)
        else:
            _list(output, path, rows)
    return 0


def _need_writable(opened: Store) -> None:
    if opened.read_only:
        msg = f"the store {opened.path} cannot be written: {opened.read_only}"
        raise StoreError(msg)


def _import(output: Output, path: Path, file: Path) -> int:
    try:
        rows = read_export(json.loads(file.read_text(encoding="utf-8")))  # before the store is touched
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{file} cannot be read: {error}"
        raise StoreError(msg) from error
    with Store(path) as opened:
        _need_writable(opened)
        opened.import_rows(rows)
    output.emit({"store": str(path), "imported": len(rows)})
    output.write(f"imported {len(rows)} into {path}\n")
    return 0


def _export(output: Output, path: Path, rows: list[Row], file: Path) -> None:
    file.write_text(json.dumps(write_export(rows), indent=1) + "\n", encoding="utf-8")
    output.emit({"store": str(path), "file": str(file), "exported": len(rows)})
    output.write(f"exported {len(rows)} to {file}\n")


def _about(row: Row) -> dict[str, Any]:
    """A row without its state."""
    data = row.to_dict()
    del data["state"], data["revision"]
    return {**data, "bytes": len(row.state)}


def _list(output: Output, path: Path, rows: list[Row]) -> None:
    output.emit({"store": str(path), "rows": [_about(row) for row in rows]})
    if not rows:
        output.write(f"{path} is empty\n")
        return
    output.write(
        f"{'KEY':<{_SHORT}}  {'ARM':<12} {'REQUESTS':>8} {'ROUNDS':>8} {'TOKENS':>8}  LAST USED         FILES\n"
    )
    for row in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.updated))
        files = " + ".join(str(name) for name in (row.files.get("target"), row.files.get("drafter")) if name)
        output.write(
            f"{row.key[:_SHORT]:<{_SHORT}}  {row.arm:<12} {row.requests:>8} {row.rounds:>8} {row.tokens:>8}  {used}  {files}\n"
        )


def _show(output: Output, path: Path, rows: list[Row]) -> None:
    shown = [{**_about(row), "learned": describe_state(row)} for row in rows]
    output.emit({"store": str(path), "rows": shown})
    for row in shown:
        output.write(f"{row['key']} {row['arm']}: {row['requests']} requests, {row['rounds']} rounds\n")
        for name, value in sorted({**row["files"], **row["identity"]}.items()):
            output.write(f"  {name:<17} {value}\n")
        learned = row["learned"]
        if learned is None:
            output.write("  the state is of another version, or damaged\n")
            continue
        output.write(f"  price of a verify, ms, at contexts of {', '.join(map(str, learned['contexts']))} tokens\n")
        for width in learned["widths"]:
            prices = "  ".join("   -   " if us is None else f"{us / 1e3:7.3f}" for us in width["us"])
            output.write(f"    {width['rows']:>2} rows {prices}  ({width['samples']} samples)\n")
        output.write(
            f"  a draft, ms: {'-' if learned['draft_us'] is None else format(learned['draft_us'] / 1e3, '.3f')}\n"
        )
        output.write(
            f"  log loss, decayed: {learned['fitted_loss']:.2f} fitted, {learned['head_loss']:.2f} by the head\n"
        )
        output.write(f"  width held: {learned['incumbent'] or '-'} rows\n")
