"""What an installed AdaSpark consists of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

DISTRIBUTION = metadata.distribution("adaspark")
EDITABLE = json.loads(DISTRIBUTION.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable", False)


def installed_files() -> set[str]:
    return {path.as_posix() for path in DISTRIBUTION.files or []}


def module_file(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def test_version_is_the_one_of_pyproject() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    assert DISTRIBUTION.version == found[1]


@pytest.mark.skipif(EDITABLE, reason="an editable install has its files in the source tree")
def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    info = f"adaspark-{DISTRIBUTION.version}.dist-info"
    files = installed_files()
    assert {path.split("/")[0] for path in files if not path.startswith("..")} == {"adaspark", info}
    assert {Path(path).stem for path in files if path.startswith("..")} == {"adaspark-run"}
    assert {"adaspark/py.typed", "adaspark/_core.pyi", "adaspark/_engine.pyi", "adaspark/_replay.pyi"} <= files
    assert not {path for path in files if path.endswith((".h", ".a", ".cmake", ".cpp", ".pyx"))}


def test_licences_travel_along() -> None:
    info = f"adaspark-{DISTRIBUTION.version}.dist-info"
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/llama.cpp/LICENSE"} <= installed_files()


def test_core_works_without_the_engine() -> None:
    code = "import sys; sys.modules['adaspark._engine'] = None; import adaspark._core"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("nm") is None, reason="reads ELF symbols with nm")
@pytest.mark.parametrize("name", ["_core", "_engine", "_replay"])
def test_modules_export_their_init_function_only(name: str) -> None:
    """Two libraries with llama.cpp inside can share a process only if neither shows its symbols."""
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", module_file(f"adaspark.{name}")]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert symbols == [f"PyInit_{name}"]
