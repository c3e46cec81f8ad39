"""``adaspark-run models``: the default pair in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspark import default_pair
from adaspark.cli.flags import MODELS, options
from adaspark.cli.output import Output
from adaspark.progress import TerminalProgress


@click.command(MODELS)
@click.argument("action", type=click.Choice(["list", "fetch", "remove"]), default="list")
@options(MODELS)
@click.pass_obj
def models(output: Output, /, action: str, **values: Any) -> int:
    """List the default pair, fetch its target into the cache, or remove it from there."""
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    changed = False
    if action == "fetch":
        changed = not default_pair.is_cached()
        default_pair.ensure_target(TerminalProgress(color=output.color))
    elif action == "remove":
        changed = default_pair.remove_target()
    entries = default_models()
    output.emit({"models": entries, "cache": str(default_pair.cache_dir()), "changed": changed})
    if action == "remove":
        output.write(f"removed {default_pair.target_path()}\n" if changed else "nothing to remove\n")
        return 0
    for entry in entries:
        size = f"{entry['bytes'] / 1e6:.1f} MB" if entry["present"] else "not fetched (adaspark-run models fetch)"
        output.write(f"{entry['role']:<8} {entry['name']:<22} {size:<10} {entry['path']}\n")
    return 0


def default_models() -> list[dict[str, Any]]:
    """The default target and drafter: where they are, or will be, and their sizes in bytes."""
    return [
        _entry("target", default_pair.target_path(), present=default_pair.is_cached()),
        _entry("drafter", default_pair.drafter_path(), present=default_pair.drafter_path().is_file()),
    ]


def _entry(role: str, path: Path, *, present: bool) -> dict[str, Any]:
    size = path.stat().st_size if present else None
    return {"role": role, "name": default_pair.NAME, "path": str(path), "present": present, "bytes": size}
