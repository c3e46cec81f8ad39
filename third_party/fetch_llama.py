"""Provide the llama.cpp sources the engine is built with and print their folder.

They travel inside the source package of ``llama-cpp-python``: any machine that can run ``pip install`` can have them,
mirrors and proxies included. The package is fetched by pip, checked against the pinned hash, and the part of it that is
built goes to ``third_party/llama.cpp-<version>/``, once. Standard library only: this runs in bare build environments.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent

# What is unpacked of vendor/llama.cpp: the libraries, and what llama.cpp's own server needs (benchmarks compare with it).
KEEP = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "common",
    "examples/speculative-simple",
    "ggml",
    "include",
    "licenses",
    "scripts/ui-assets.cmake",
    "src",
    "tools/mtmd",
    "tools/server",
    "tools/ui/CMakeLists.txt",
    "tools/ui/sources.cmake",
    "tools/ui/ui.cpp.in",
    "tools/ui/ui.h.in",
    "vendor",
)
DROP = (
    "tools/mtmd/legacy-models",
    "tools/mtmd/test-1.jpeg",
    "tools/mtmd/test-2.mp3",
    "tools/mtmd/test-3.mp4",
    "tools/mtmd/tests",
    "tools/server/bench",
    "tools/server/tests",
)

# Present in every llama.cpp the engine can be built with.
MARKERS = ("CMakeLists.txt", "include/llama.h", "src/llama-ext.h", "ggml/CMakeLists.txt")

STAMP = ".adaspark-stamp"

# Settings of the surrounding pip that say how to reach an index. The others (constraints, targets, platforms, formats)
# belong to the install that started this build and would break or change the nested download.
PIP_ENV = frozenset(
    {
        "PIP_CACHE_DIR",
        "PIP_CERT",
        "PIP_CLIENT_CERT",
        "PIP_CONFIG_FILE",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_INDEX_URL",
        "PIP_KEYRING_PROVIDER",
        "PIP_NO_CACHE_DIR",
        "PIP_NO_INDEX",
        "PIP_PROXY",
        "PIP_RETRIES",
        "PIP_TIMEOUT",
        "PIP_TRUSTED_HOST",
    }
)


class FetchError(Exception):
    """The sources cannot be had. The message says what to do."""


class Pin(NamedTuple):
    name: str
    version: str
    sha256: str

    @property
    def archive_name(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"


def read_pin(path: Path) -> Pin:
    text = path.read_text(encoding="utf-8")
    match = re.search(r"^([a-z-]+)==(\S+) +--hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if match is None:
        msg = f"{path}: no line of the form 'name==version --hash=sha256:...'"
        raise FetchError(msg)
    return Pin(*match.groups())


def check_checkout(folder: Path) -> Path:
    """The folder of ADASPARK_LLAMA_DIR, if it is a llama.cpp checkout."""
    for marker in MARKERS:
        if not (folder / marker).is_file():
            msg = f"ADASPARK_LLAMA_DIR={folder} is not a llama.cpp checkout: it has no {marker}"
            raise FetchError(msg)
    return folder.resolve()


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if not key.startswith("PIP_") or key in PIP_ENV}


def download(pins: Path, pin: Pin, folder: Path) -> Path:
    """Have pip fetch the pinned source package into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-binary", pin.name, "--require-hashes", "--requirement", os.fspath(pins)]
    command += ["--dest", os.fspath(folder)]
    print(f"fetching {pin.name} {pin.version} (77 MB), which carries llama.cpp", file=sys.stderr, flush=True)
    result = subprocess.run(command, env=pip_environment(os.environ), stdout=sys.stderr, check=False)  # noqa: S603
    archive = folder / pin.archive_name
    if result.returncode != 0 or not archive.is_file():
        msg = (
            f"pip could not download the source package {pin.name} {pin.version} (its message is above).\n"
            f"Put {pin.archive_name} into {HERE}, or set ADASPARK_LLAMA_DIR to a llama.cpp checkout, and build again."
        )
        raise FetchError(msg)
    return archive


def check_hash(archive: Path, pin: Pin) -> None:
    digest = hashlib.sha256()
    with archive.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != pin.sha256:
        msg = f"{archive}: sha256 is {digest.hexdigest()}, expected {pin.sha256}. Delete the file and build again."
        raise FetchError(msg)


def is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def unpack(archive: Path, folder: Path) -> None:
    """Write the kept part of ``vendor/llama.cpp`` to ``folder``. Regular files only, so nothing can point outside it."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if not member.isfile() or parts[1:3] != ("vendor", "llama.cpp") or ".." in parts:
                continue
            path = "/".join(parts[3:])
            source = tar.extractfile(member)
            if source is None or not is_below(path, KEEP) or is_below(path, DROP):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            # The archive's times: unpacking again must not look like a change to the build.
            os.utime(target, (member.mtime, member.mtime))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on ``path``, waiting for other builds; released by the system if the process dies."""
    with path.open("a+b") as file:
        lock_file(file)
        yield


if sys.platform == "win32":
    import msvcrt
    import time

    def lock_file(file: IO[bytes]) -> None:
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.2)
            else:
                return
else:
    import fcntl

    def lock_file(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)


def provide(root: Path, pins: Path) -> Path:
    """The folder with the pinned llama.cpp below ``root``, made if it is absent, incomplete or of another pin."""
    pin = read_pin(pins)
    folder = root / f"llama.cpp-{pin.version}"
    stamp = hashlib.sha256(repr((pin, KEEP, DROP)).encode()).hexdigest()
    with locked(root / ".llama.cpp.lock"):
        if (folder / STAMP).is_file() and (folder / STAMP).read_text(encoding="utf-8") == stamp:
            return folder
        with tempfile.TemporaryDirectory(prefix=".llama.cpp-", dir=root) as scratch:
            given = root / pin.archive_name
            archive = given if given.is_file() else download(pins, pin, Path(scratch))
            check_hash(archive, pin)
            fresh = Path(scratch) / folder.name
            fresh.mkdir()
            unpack(archive, fresh)
            check_checkout(fresh)
            (fresh / STAMP).write_text(stamp, encoding="utf-8")
            # The folder appears whole or not at all: a build killed on the way leaves nothing that looks finished.
            if folder.exists():
                shutil.rmtree(folder)
            fresh.rename(folder)
    return folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", default="", help="use this llama.cpp instead (ADASPARK_LLAMA_DIR)")
    parser.add_argument("--root", type=Path, default=HERE, help="folder that holds the unpacked sources")
    parser.add_argument("--pins", type=Path, default=HERE / "pins.txt", help="requirement line with the hash")
    options = parser.parse_args(arguments)
    try:
        folder = check_checkout(Path(options.checkout)) if options.checkout else provide(options.root, options.pins)
    except (FetchError, OSError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        return 1
    print(folder.as_posix())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
