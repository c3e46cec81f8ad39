"""The arms of a comparison, each a process of its own that stays alive: ours, and llama.cpp's server."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from kit.engine import Load

LOAD_LIMIT_S = 300.0  # a large model from a slow disk
REPLY_LIMIT_S = 1800.0


class Arm(Protocol):
    """One side of a comparison."""

    name: str

    def run(self, prompt: Sequence[int], n_predict: int) -> dict[str, Any]:
        """Decode a reply greedily. Keys: ``tokens``, ``steps`` (tokens after the first, an end-of-generation token
        included), ``decode_ms`` (first token to last), and whatever else the side tells."""
        ...

    def close(self) -> None: ...


class OurArm:
    """One of our arms in a worker process."""

    def __init__(self, arm: str, load: Load) -> None:
        self.name = arm
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._ask(load.to_dict())

    def tokenize(self, text: str) -> list[int]:
        tokens: list[int] = self._ask({"text": text})["tokens"]
        return tokens

    def run(self, prompt: Sequence[int], n_predict: int) -> dict[str, Any]:
        return self._ask({"prompt": list(prompt), "n_predict": n_predict, "arm": self.name})

    def forget(self) -> None:
        """Begin with nothing learned."""
        self._ask({"forget": True})

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _ask(self, data: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(data) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            msg = f"the process of arm {self.name} ended with status {self._process.wait()}; its message is above"
            raise RuntimeError(msg)
        answer: dict[str, Any] = json.loads(line)
        return answer


def server_flags(arm: str, drafter: str | None) -> list[str]:
    """llama-server's flags for an arm: ``plain``, a ``--spec-type``, or that with ``:N``, its most drafts."""
    kind, _, n = arm.partition(":")
    if kind == "plain":
        return []
    flags = ["--spec-type", kind]
    if kind.startswith("draft-"):
        if drafter is None:
            msg = f"llama.cpp's {kind} needs --drafter"
            raise ValueError(msg)
        flags += ["-md", drafter]
    if n:
        flags += ["--spec-draft-n-max", n]
    return flags


class ServerArm:
    """llama.cpp's server. Prompts go in as token ids, so both sides read exactly the same."""

    def __init__(self, arm: str, load: Load, program: Path, threads: int, extra: Sequence[str] = ()) -> None:
        self.name = f"llama.cpp/{arm}"
        self._port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        command = [
            *(str(program), "-m", load.target, "-c", str(load.ctx), "-t", str(threads), "-tb", str(threads)),
            *("-fa", load.flash_attention, "--host", "127.0.0.1", "--port", str(self._port)),
            *("-np", "1", "--no-ui", "--cache-ram", "0"),
            *server_flags(arm, load.drafter),
            *extra,
        ]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REPLY_LIMIT_S)
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise

    def run(self, prompt: Sequence[int], n_predict: int) -> dict[str, Any]:
        body = {
            "prompt": list(prompt),
            "n_predict": n_predict,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": False,
        }
        self._connection.close()  # the server drops idle connections, and arms wait for their turn: connect anew
        start = time.perf_counter()
        self._connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        data = json.loads(response.read())
        wall_ms = (time.perf_counter() - start) * 1e3
        if response.status != 200:
            msg = f"{self.name}: status {response.status}: {data}"
            raise RuntimeError(msg)
        timings = data["timings"]
        return {
            "tokens": data["tokens"],
            "finish": "stop" if data.get("stop_type") == "eos" else "length",
            "decode_ms": timings["predicted_ms"],  # from the first token to the last, as the server's source has it
            "prefill_ms": timings["prompt_ms"],
            "wall_ms": wall_ms,
            "steps": timings["predicted_n"] - 1,
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
        }

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def _wait_ready(self) -> None:
        end = time.monotonic() + LOAD_LIMIT_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                self._log.seek(0)
                tail = self._log.read().decode("utf-8", "replace")[-2000:]
                msg = f"{self.name}: llama-server ended with status {self._process.returncode}:\n{tail}"
                raise RuntimeError(msg)
            try:
                self._connection.request("GET", "/health")
                response = self._connection.getresponse()
                response.read()
                if response.status == 200:
                    return
            except OSError:
                self._connection.close()
            time.sleep(0.1)
        msg = f"{self.name}: llama-server was not ready after {LOAD_LIMIT_S:.0f} s"
        raise RuntimeError(msg)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
