"""The build's fetch of the llama.cpp sources, on a small archive of the same layout."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "third_party" / "fetch_llama.py"

WANTED = {
    "CMakeLists.txt": "project(llama)",
    "LICENSE": "MIT",
    "ggml/CMakeLists.txt": "project(ggml)",
    "include/llama.h": "// interface",
    "src/llama-ext.h": "// staging",
    "tools/ui/CMakeLists.txt": "project(ui)",
}
UNWANTED = ["docs/a.md", "models/vocab.gguf", "srcs/a.cpp", "tools/server/tests/a.py", "tools/ui/src/a.ts"]


@pytest.fixture(scope="module")
def fetch() -> Any:
    spec = importlib.util.spec_from_file_location("fetch_llama", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_archive(path: Path, files: dict[str, str]) -> str:
    """A source package with ``files`` in its copy of llama.cpp and things that must stay packed; returns its sha256."""
    base = path.name.removesuffix(".tar.gz")
    with tarfile.open(path, "w:gz") as tar:
        for name in UNWANTED:
            files = {**files, name: "unwanted"}
        for name, text in files.items():
            member = tarfile.TarInfo(f"{base}/vendor/llama.cpp/{name}")
            member.size, member.mtime = len(text), 1_700_000_000
            tar.addfile(member, io.BytesIO(text.encode()))
        escape = tarfile.TarInfo(f"{base}/vendor/llama.cpp/src/../../escaped")
        tar.addfile(escape, io.BytesIO(b""))
        link = tarfile.TarInfo(f"{base}/vendor/llama.cpp/src/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../outside"
        tar.addfile(link)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A third_party folder: the archive put there by hand, and its pin."""
    digest = write_archive(tmp_path / "llama_cpp_python-1.2.tar.gz", WANTED)
    write_pin(tmp_path, digest)
    return tmp_path


def write_pin(root: Path, digest: str) -> None:
    (root / "pins.txt").write_text(f"# comment\nllama-cpp-python==1.2 --hash=sha256:{digest}\n", encoding="utf-8")


def unpacked(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def leftovers(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {"pins.txt", "llama_cpp_python-1.2.tar.gz", ".llama.cpp.lock"}


def test_unpacks_the_wanted_part_once(fetch: Any, root: Path) -> None:
    folder = fetch.provide(root, root / "pins.txt")
    files = unpacked(folder)
    del files[fetch.STAMP]
    assert folder == root / "llama.cpp-1.2"
    assert files == WANTED
    assert leftovers(root) == {folder.name}
    assert (folder / "LICENSE").stat().st_mtime == 1_700_000_000

    (root / "llama_cpp_python-1.2.tar.gz").unlink()
    assert fetch.provide(root, root / "pins.txt") == folder


def test_refuses_an_archive_with_another_hash(fetch: Any, root: Path) -> None:
    write_pin(root, "0" * 64)
    with pytest.raises(fetch.FetchError, match=r"sha256 is [0-9a-f]{64}, expected 0{64}"):
        fetch.provide(root, root / "pins.txt")
    assert leftovers(root) == set()


def test_replaces_a_half_unpacked_folder(fetch: Any, root: Path) -> None:
    half = root / "llama.cpp-1.2"
    half.mkdir()
    (half / "CMakeLists.txt").write_text("project(", encoding="utf-8")
    (half / "stale.cpp").touch()
    files = unpacked(fetch.provide(root, root / "pins.txt"))
    assert files["CMakeLists.txt"] == WANTED["CMakeLists.txt"]
    assert "stale.cpp" not in files


def test_a_build_stopped_on_the_way_leaves_nothing(fetch: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_archive: Path, folder: Path) -> None:
        (folder / "CMakeLists.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch, "unpack", stopped)
        with pytest.raises(KeyboardInterrupt):
            fetch.provide(root, root / "pins.txt")
    assert leftovers(root) == set()
    fetch.provide(root, root / "pins.txt")


def test_a_new_pin_unpacks_again(fetch: Any, root: Path) -> None:
    fetch.provide(root, root / "pins.txt")
    changed = {**WANTED, "include/llama.h": "// newer"}
    write_pin(root, write_archive(root / "llama_cpp_python-1.2.tar.gz", changed))
    assert unpacked(fetch.provide(root, root / "pins.txt"))["include/llama.h"] == "// newer"


def test_an_archive_without_llama_is_refused(fetch: Any, root: Path) -> None:
    write_pin(root, write_archive(root / "llama_cpp_python-1.2.tar.gz", {"LICENSE": "MIT"}))
    with pytest.raises(fetch.FetchError, match=r"has no CMakeLists\.txt"):
        fetch.provide(root, root / "pins.txt")
    assert leftovers(root) == set()


def test_builds_at_the_same_time_share_the_folder(root: Path) -> None:
    command = [sys.executable, SCRIPT, f"--root={root}", f"--pins={root / 'pins.txt'}"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    folders = {run.communicate(timeout=60)[0].strip() for run in runs}
    assert [run.returncode for run in runs] == [0] * 4
    assert folders == {(root / "llama.cpp-1.2").as_posix()}
    assert leftovers(root) == {"llama.cpp-1.2"}


def test_a_checkout_is_used_in_its_place(fetch: Any, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkout = fetch.provide(root, root / "pins.txt")
    other = root / "elsewhere"
    checkout.rename(other)
    assert fetch.main([f"--checkout={other}", f"--root={root}"]) == 0
    assert capsys.readouterr().out.strip() == other.as_posix()
    assert not checkout.exists()

    (other / "src" / "llama-ext.h").unlink()
    assert fetch.main([f"--checkout={other}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ADASPARK_LLAMA_DIR" in captured.err
    assert "src/llama-ext.h" in captured.err


def test_a_failed_download_names_the_remedies(root: Path, fetch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "llama_cpp_python-1.2.tar.gz").unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(root))
    with pytest.raises(fetch.FetchError, match=r"llama_cpp_python-1\.2\.tar\.gz .*ADASPARK_LLAMA_DIR"):
        fetch.provide(root, root / "pins.txt")
    assert leftovers(root) == set()


def test_the_outer_pip_reaches_the_nested_one_only_with_its_index(fetch: Any) -> None:
    outer = {"PATH": "/bin", "PIP_INDEX_URL": "https://mirror", "PIP_CONSTRAINT": "c.txt", "PIP_PLATFORM": "any"}
    assert fetch.pip_environment(outer) == {"PATH": "/bin", "PIP_INDEX_URL": "https://mirror"}


def test_the_pin_of_this_repository_is_readable(fetch: Any) -> None:
    pin = fetch.read_pin(SCRIPT.parent / "pins.txt")
    assert pin.archive_name == f"llama_cpp_python-{pin.version}.tar.gz"
