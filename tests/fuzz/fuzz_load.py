"""Fuzzes the loading of GGUF files: damaged targets and drafters are opened as the program does, and decoded from.

Each case runs in a process of its own, forked from a warm one, with two GiB of memory. It may run, or be refused with an
error that names the file; a signal, an abort (also one that was caught), a hang or any other error is a finding, kept with
its file. README.md says how to run it.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import mutate
import parts
import seeds

import adaspark.templates  # noqa: F401 - loaded here, it need not be in every case
from adaspark import Engine, _engine
from adaspark.cli.doctor import describe_pair
from adaspark.errors import AdaSparkError, BackendError, ContextFullError

_SECONDS = 10  # of processor time a case may take
_MEMORY = 2 << 30  # bytes a case may take
_RAN, _REFUSED, _WRONG = 0, 3, 4  # exit codes of a case
_ODD_PAIRS = 40


@dataclass(frozen=True)
class Case:
    pair: str
    target: bytes
    drafter: bytes | None
    changes: list[str]  # of the file of the two that was changed
    options: dict[str, Any]


def make_case(seed: int, number: int, pairs: list[seeds.Pair]) -> Case:
    """The same seed and number give the same case."""
    rng = Random(f"{seed}:{number}")
    pair = rng.choice(pairs)
    with_drafter = rng.random() < 0.5
    mutated = "drafter" if with_drafter and rng.random() < 0.6 else "target"
    files = {"target": pair.target, "drafter": pair.drafter}
    changes = [mutated]
    if pair.name != "odd" or rng.random() < 0.7:  # odd ones are worth a run as they are
        changed = mutate.Mutator(rng).mutate(files[mutated])
        changes += parts.differences(files[mutated], changed)
        files[mutated] = changed
    cache = rng.choice(("f16", "f16", "f32", "q8_0"))
    options = {
        "kernels": rng.choice(("auto", "auto", "own", "ggml", "ggml", "llama", "llama")),
        "n_ctx": rng.choice((96, 96, 96, None)),
        "use_mmap": rng.random() < 0.5,
        "flash_attention": rng.choice(("auto", "off")) if cache != "q8_0" else "auto",
        "cache_type_k": cache,
        "cache_type_v": cache,
    }
    return Case(
        pair.name, files["target"].bytes(), files["drafter"].bytes() if with_drafter else None, changes, options
    )


def run(target: Path, drafter: Path | None, options: dict[str, Any]) -> None:
    """What a user of the files would do: open them, look at them, and have a short reply."""
    with Engine(
        target, drafter, store=None, n_threads=1, n_threads_batch=1, n_threads_draft=1, n_gpu_layers=0, max_rows=16,
        **options,
    ) as engine:  # fmt: skip
        describe_pair(engine)
        engine.generate("The cat sat", n_predict=8, arm="adaspark" if drafter is None else "tree:8").read()
        engine.generate("on", n_predict=2, raw=True, arm="plain").read()


def judged(error: BaseException, paths: list[str]) -> str | None:
    """What is wrong with an error that ended a case; None when it is one in words."""
    text = str(error)
    if isinstance(error, ContextFullError) or (isinstance(error, ValueError) and "prompt is empty" in text):
        return None  # of the prompt, not of the file
    if not isinstance(error, AdaSparkError):
        return "not an error of ours"
    if isinstance(error, BackendError) and "ggml stopped" in text:
        return "an abort"  # on another thread it would have been the end
    if not any(path in text and len(text) > len(path) + 10 for path in paths):
        return "does not name the file"
    return None if len(text) < 4000 else "far too long"


def child(case: Case, target: Path, drafter: Path | None, report: Path) -> int:
    """Runs a case; its exit code."""
    out = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # of processor time, and the default action ends the process
    signal.alarm(40 * _SECONDS)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        run(target, drafter, case.options)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is judged
        fault = judged(error, [str(target), str(drafter)])
        if fault is None:
            return _REFUSED
        traceback.print_exc()
        print(f"FINDING {type(error).__name__} {fault}: {str(error)[:1000]}", flush=True)
        return _WRONG
    return _RAN


def signature(outcome: str, report: str) -> str:
    """One name for findings of one cause: how it ended and the first line of the report that says where."""
    lines = report.splitlines()
    patterns = (r"^FINDING", r"ASSERT|ggml aborted|terminate called|what\(\):")
    found = next((line for p in patterns for line in lines if re.search(p, line)), lines[-1] if lines else "")
    return outcome + " " + re.sub(r"0x[0-9a-f]+|/\S*/|==\d+==", "", re.sub(r"'[^']*'|-?\d+", "#", found))[:300]


class Fuzzer:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.seed: int = arguments.seed
        self.out: Path | None = arguments.out
        self.folder = folder
        self.pairs = seeds.pairs(folder)
        rng = Random(self.seed)
        odd = (seeds.odd_pair(rng, folder) for _ in range(_ODD_PAIRS))
        self.pairs += [pair for pair in odd if pair is not None]
        self.ends: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()

    def case(self, number: int) -> str | None:
        """Runs a case. The signature of what was found, if anything was."""
        case = make_case(self.seed, number, self.pairs)
        target, drafter = self.folder / "target.gguf", self.folder / "drafter.gguf"
        target.write_bytes(case.target)
        if case.drafter is not None:
            drafter.write_bytes(case.drafter)
        report = self.folder / "report"
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = child(case, target, None if case.drafter is None else drafter, report)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code in (_RAN, _REFUSED):
            self.ends["ran" if code == _RAN else "refused"] += 1
            return None
        hang = code in (-signal.SIGPROF, -signal.SIGALRM)
        outcome = "hang" if hang else signal.Signals(-code).name if code < 0 else f"exit {code}"
        text = report.read_text(errors="replace") if report.exists() else ""
        name = signature(outcome, text)
        self.ends["found"] += 1
        self.findings[name] += 1
        self.keep(name, number, case, text)
        return name

    def keep(self, name: str, number: int, case: Case, report: str) -> None:
        if self.out is None or self.findings[name] > 3:
            return
        folder = self.out / f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{self.seed}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "target.gguf").write_bytes(case.target)
        if case.drafter is not None:
            (folder / "drafter.gguf").write_bytes(case.drafter)
        about = [name, f"{case.pair} {case.options}", *case.changes, "", report]
        (folder / "report.txt").write_text("\n".join(about))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the cases (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument("--cases", type=int, default=1 << 62, help="cases to run (default: until stopped)")
    parser.add_argument("--hours", type=float, default=1e9, help="of processor time to run (default: until stopped)")
    parser.add_argument("--out", type=Path, help="folder to keep what is found in (default: not kept)")
    arguments = parser.parse_args()
    logging.disable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was counted is told then, too
    os.environ["GGML_NO_BACKTRACE"] = "1"
    _engine.backend_info()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(arguments, Path(folder))
        gc.freeze()
        began, told, number = time.monotonic(), 0.0, arguments.first

        def progress() -> str:
            hours = (
                sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 3600
            )
            ends = ", ".join(f"{n} {end}" for end, n in sorted(fuzzer.ends.items()))
            text = f"{number - arguments.first} cases ({ends}), {hours:.3f} processor hours, "
            return text + f"{len(fuzzer.findings)} kinds of finding, {time.monotonic() - began:.0f} s"

        try:
            while number < arguments.first + arguments.cases:
                found = fuzzer.case(number)
                number += 1
                if found is not None and fuzzer.findings[found] == 1:
                    print(f"case {number - 1} (seed {arguments.seed}): {found}", flush=True)
                if time.monotonic() - told > 60:
                    told = time.monotonic()
                    print(progress(), flush=True)
                    used = sum(sum(resource.getrusage(w)[:2]) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
                    if used > 3600 * arguments.hours:
                        break
        except KeyboardInterrupt:
            pass
        print(progress())
    for name, n in fuzzer.findings.most_common():
        print(f"{n:6d}  {name}")
    return 1 if fuzzer.findings else 0


if __name__ == "__main__":
    sys.exit(main())
