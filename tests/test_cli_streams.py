"""``adaspark-run`` as a process among others: streams that are closed or full, signals at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adaspark.store import Store

SECONDS = 60
N = ("-n", "24", "--ignore-eos", "--store", "none")
pytestmark = [
    pytest.mark.usefixtures("environment"),
    pytest.mark.skipif(os.name != "posix", reason="shells and signals as in POSIX"),
]


def shell(redirection: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run the program with a shell's redirections."""
    script = f'exec "$@" {redirection}'
    command = [sys.executable, "-m", "adaspark", *map(str, arguments)]
    return subprocess.run(["sh", "-c", script, "sh", *command], check=False, capture_output=True, timeout=SECONDS)


# ---- streams


@pytest.mark.parametrize("redirection", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_without_stdout_the_result_is_lost_and_that_is_1(
    pair: tuple[str, ...], redirection: str, flags: tuple[str, ...]
) -> None:
    run = shell(redirection, *pair, *N, *flags, "hi")
    assert (run.returncode, run.stdout, run.stderr) == (1, b"", b"")


def test_without_stderr_the_result_is_still_there(pair: tuple[str, ...]) -> None:
    expected = shell("", *pair, *N, "hi")
    assert expected.returncode == 0
    for redirection in ("2>&-", "2>/dev/full") if sys.platform == "linux" else ("2>&-",):
        run = shell(redirection, *pair, *N, "hi")
        assert (run.returncode, run.stdout) == (0, expected.stdout)


def test_without_stdin_there_is_nothing_to_read(pair: tuple[str, ...]) -> None:
    run = shell("<&-", "chat", *pair, *N)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    run = shell("<&-", *pair, *N, "-f", "-")
    assert run.returncode == 2
    assert b"is empty" in run.stderr


def test_no_file_of_ours_takes_a_standard_descriptor(pair: tuple[str, ...], tmp_path: Path) -> None:
    """What a library prints to descriptor 1 must not land in the store or the trace."""
    store, trace = tmp_path / "learned.sqlite", tmp_path / "rounds.trace"
    shell("<&- >&- 2>&-", *pair, *N[:-1], store, "--trace", trace, "-vv", "--json", "hi")
    assert trace.read_bytes().startswith(b"ADTR")
    with Store(store, look=True) as opened:
        assert len(opened.rows()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="there is no device that is always full")
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_full_disk_is_one_error(pair: tuple[str, ...], flags: tuple[str, ...]) -> None:
    run = shell(">/dev/full", *pair, *N, *flags, "hi")
    assert run.returncode == 1
    assert run.stderr.count(b"No space left") == 1
    assert b"Traceback" not in run.stderr
    assert b"Exception" not in run.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("store",), ("hi",), ("--frobnicate", "--json")])
def test_a_reader_that_has_gone_hears_nothing(pair: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    files = (*pair, *N) if arguments == ("hi",) else ()
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "adaspark", *files, *arguments]
    run = subprocess.run(command, check=False, stdout=writer, stderr=subprocess.PIPE, timeout=SECONDS)
    os.close(writer)
    assert run.returncode == 1
    assert b"Traceback" not in run.stderr
    assert b"Exception" not in run.stderr


def test_foreign_bytes_in_an_interactive_chat_are_told_and_it_goes_on(pair: tuple[str, ...]) -> None:
    import pty

    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "adaspark", "chat", *pair, *N],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(ours, b"caf\xe9\nhi\n/exit\n")
        out, err = process.communicate(timeout=SECONDS)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert err.count(b"is not UTF-8") == 1
    assert len(out) > 10


# ---- signals


def running(*arguments: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "adaspark", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE)


@pytest.mark.parametrize("command", [(), ("chat",)])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_sigterm_ends_the_reply_and_keeps_what_was_learned(
    pair: tuple[str, ...], tmp_path: Path, command: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    store = tmp_path / "own.sqlite"
    endless = (*command, *pair, "-c", "60000", "--ignore-eos", "--store", store, "-p", "hi")
    trace = tmp_path / "rounds.trace"
    with running(*endless, *flags, "--trace", trace) as process:
        assert process.stdout is not None
        if flags:  # nothing is written until the end: wait for the reply in another way
            while not store.exists():
                assert process.poll() is None
        else:
            process.stdout.read(20)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert b"Traceback" not in err
    if flags:
        assert isinstance(json.loads(out), dict)
    else:
        assert b"| cancel]" in err
        assert trace.read_bytes().startswith(b"ADTR")
        with Store(store, look=True) as opened:
            (row,) = opened.rows()
        assert row.requests == 1


def test_sigterm_while_a_chat_waits(pair: tuple[str, ...]) -> None:
    with running("chat", *pair, *N) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert b"Traceback" not in err


EARLY = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from adaspark.__main__ import main
sys.argv = ["adaspark-run", "--version"]
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["adaspark.cli", "numpy", "click", "jinja2", "adaspark._engine", "adaspark.cli.app"])
def test_ctrl_c_while_the_program_loads_is_quiet(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", EARLY.format(module)], check=False, capture_output=True, timeout=SECONDS
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")


def test_an_ignored_ctrl_c_stays_ignored(pair: tuple[str, ...]) -> None:
    """As in a shell's background job."""
    code = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, "-m", "adaspark", *pair, "-n", "400", "--ignore-eos", "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert b"| length]" in err
