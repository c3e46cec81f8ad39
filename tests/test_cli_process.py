"""``adaspark-run`` as a process: Ctrl-C, bytes that are no text, locales, colours on a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

SECONDS = 60
N = ("-n", "24", "--ignore-eos")
pytestmark = pytest.mark.usefixtures("environment")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "adaspark", *arguments]


@pytest.fixture
def endless(pair: tuple[str, ...]) -> tuple[str, ...]:
    """Far more tokens than anyone waits for."""
    return (*pair, "-c", "60000", "--ignore-eos", "hi")


def test_ctrl_c_keeps_the_partial_text(endless: tuple[str, ...]) -> None:
    with subprocess.Popen(command(*endless), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        head = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert len(head + out) > 20
    assert out.endswith(b"\n")
    assert b"| cancel]" in err
    assert b"Traceback" not in err


def test_ctrl_c_in_json_is_one_object(endless: tuple[str, ...]) -> None:
    with subprocess.Popen(
        command(*endless, "--json", "-vv"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it has begun to load
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    data = json.loads(out)
    assert data.get("finish_reason") == "cancel" or data["error"]["type"] == "Interrupted"


def test_ctrl_c_in_an_interactive_chat_ends_the_reply_only(endless: tuple[str, ...]) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("chat", *endless[:-1]), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        os.write(ours, b"hi\n")
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        os.write(ours, b"/clear\nho\n")
        process.stdout.readline()  # the rest of the first reply
        process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        os.write(ours, b"/exit\n")
        _, err = process.communicate(timeout=SECONDS)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert err.count(b"| cancel]") == 2


def test_a_reader_that_leaves_is_no_drama(endless: tuple[str, ...]) -> None:
    with subprocess.Popen(command(*endless), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(SECONDS)
    assert process.returncode == 1
    assert err == b""


def test_foreign_bytes_on_stdin_are_2(pair: tuple[str, ...]) -> None:
    for command_, data in ((("chat",), b"one\ncaf\xe9\n"), (("generate", "-f", "-"), b"caf\xe9")):
        run = subprocess.run(
            command(*command_, *pair, *N, "--json"), input=data, capture_output=True, check=False, timeout=SECONDS
        )
        error = json.loads(run.stdout)
        assert (run.returncode, error["error"]["type"]) == (2, "UsageError")
        assert "UTF-8" in error["error"]["message"]
        assert command_ != ("chat",) or len(error["turns"]) == 1


def test_a_name_that_is_no_utf8_is_one_object() -> None:
    name = b"caf\xe9.gguf" if sys.platform == "linux" else b"missing.gguf"
    arguments = [*map(os.fsencode, command("-m")), name, b"-p", b"a", b"--json"]
    got = subprocess.run(arguments, check=False, capture_output=True)
    assert got.returncode == 1
    assert json.loads(got.stdout)["error"]["type"]
    assert b"Traceback" not in got.stderr


def test_streams_are_utf_8_in_any_locale(pair: tuple[str, ...]) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    run = subprocess.run(
        command("chat", *pair, *N, "--json"), input="é中😀\n".encode(), capture_output=True, check=True, env=environment,
        timeout=SECONDS,
    )  # fmt: skip
    assert json.loads(run.stdout.decode("utf-8"))["messages"][0]["content"] == "é中😀"


def test_no_color_and_no_escapes_in_pipes(pair: tuple[str, ...]) -> None:
    run = subprocess.run(command(*pair, *N, "hi"), capture_output=True, check=True, timeout=SECONDS)
    assert b"\x1b" not in run.stdout + run.stderr


@pytest.mark.parametrize(("flag", "colored"), [((), True), (("--no-color",), False)])
def test_colors_on_a_terminal(pair: tuple[str, ...], flag: tuple[str, ...], colored: bool) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        command(*pair, *N, *flag, "hi"),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        check=True,
        env=environment,
        timeout=SECONDS,
    )
    os.close(theirs)
    text = os.read(ours, 1 << 16)
    os.close(ours)
    assert (b"\x1b[2m" in text) == colored
