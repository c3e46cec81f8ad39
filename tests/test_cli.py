"""``adaspark-run``: what goes to which stream, exactly one JSON object, exit codes, flags and their variables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tm
from cli_tools import SMALL, Cli
from conftest import ModelFiles

from adaspark import Engine
from adaspark.cli.flags import BENCH, CHAT, DOCTOR, FLAGS, GENERATE, MODELS, REPLAY, STORE

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
SECONDS = 60
N = ("-n", "24", "--ignore-eos")
FOREIGN = "caf\udce9"
"""Bytes that are no UTF-8, as Python has them."""
pytestmark = pytest.mark.usefixtures("environment")


@pytest.fixture(scope="module")
def reply(models: ModelFiles) -> str:
    """The plain reply to "hi", 24 tokens."""
    options: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
    with Engine(models.target_path(SPEC), **options) as engine:
        return engine.generate("hi", n_predict=24, ignore_eos=True).read().text


# ---- the result and the streams


@pytest.mark.parametrize(
    "form", [("hi",), ("generate", "hi"), ("-p", "hi"), ("generate", "--prompt", "hi"), ("-f", "-"), ("--", "hi")]
)
def test_stdout_is_the_reply_and_nothing_else(
    cli: Cli, pair: tuple[str, ...], reply: str, form: tuple[str, ...]
) -> None:
    arguments = (*pair, *N, *form) if form[0] != "generate" else (*form[:1], *pair, *N, *form[1:])
    run = cli(*arguments, stdin="hi\n")
    assert (run.code, run.out) == (0, reply + "\n")
    summary, *details = run.err.splitlines()
    assert re.fullmatch(
        r"\[24 tokens, .* tok/s \| prompt \d+ in \d+ ms \| adaspark(: .* rounds \(.*\)| \(.*\)) \| length\]", summary
    )
    assert re.fullmatch(r"\[\d\.\d\d tokens a round \| \d+ rows \| rounds by rows: 1 \d+%.*\]", details[0])
    assert re.fullmatch(r"\[drafts expected \d+\.\d, accepted \d+( \| .*)*\]", details[-2])
    assert re.fullmatch(r"\[ms: draft .*, inject .*, plan .*, verify .*, walk .*, commit .*\]", details[-1])


def test_prompt_and_system_from_files(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    prompt, system = tmp_path / "prompt.txt", tmp_path / "system.txt"
    prompt.write_text("hé\nho\n", encoding="utf-8")
    system.write_text("Be brief.\n", encoding="utf-8")
    from_files = cli(*pair, *N, "-f", prompt, "-sysf", system, "--json").json
    given = cli(*pair, *N, "-p", "hé\nho", "-sys", "Be brief.", "--json").json
    assert (from_files["prompt_tokens"], from_files["text"]) == (given["prompt_tokens"], given["text"])


@pytest.mark.parametrize(
    ("flags", "arm"),
    [
        ((), "adaspark"),
        (("--arm", "plain"), "plain"),
        (("--arm", "tree:16"), "tree:16"),
        (("--spec-draft-n-max", "5"), "chain:5"),
        (("--spec-draft-n-max", "0"), "plain"),
        (("--spec-draft-n-max", "64"), "chain:7"),
        (("-md", "none"), "adaspark"),
    ],
)
def test_json_is_one_object_with_consistent_numbers(
    cli: Cli, pair: tuple[str, ...], reply: str, flags: tuple[str, ...], arm: str
) -> None:
    run = cli(*pair, *N, *flags, "--json", "hi")
    data = run.json
    assert run.code == 0
    assert set(data) == {
        "text", "token_ids", "finish_reason", "prompt_tokens", "reused_tokens", "completion_tokens", "model", "drafter",
        "kernels", "arm", "seed", "timings", "speculation",
    }  # fmt: skip
    assert (data["text"], data["finish_reason"], data["arm"]) == (reply, "length", arm)
    assert len(data["token_ids"]) == data["completion_tokens"] == 24
    drafts = data["speculation"]
    assert drafts["active"] == (drafts["drafted"] > 0)
    assert (drafts["reason"] is None) == (drafts["active"] and not {"64", "none"} & set(flags))
    assert drafts["rows"] == drafts["rounds"] + drafts["drafted"]
    assert 1 + drafts["rounds"] + drafts["accepted"] == 24
    assert sum(drafts["drafted_by_depth"]) == drafts["drafted"]
    assert sum(drafts["accepted_by_depth"]) == drafts["accepted"]
    assert sum(drafts["width_rounds"].values()) == drafts["rounds"]
    rate = data["timings"]["decode_tok_s"]
    assert rate == pytest.approx(23 / data["timings"]["decode_ms"] * 1e3)
    assert (run.err == "") == ("64" not in flags)  # a clamp warns


def test_raw_prompts(cli: Cli, pair: tuple[str, ...]) -> None:
    raw = cli(*pair, *N, "-no-cnv", "--json", "hi<|im_end|>").json
    assert raw["prompt_tokens"] == 3  # h, i and a control token
    assert cli(*pair, *N, "--json", "hi<|im_end|>").json["prompt_tokens"] > 15


def test_sampling_and_stop(cli: Cli, pair: tuple[str, ...], reply: str) -> None:
    sampling = ("--temp", "1.2", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01")
    first = cli(*pair, *N, *sampling, "-s", "5", "--json", "hi").json
    assert first["seed"] == 5
    assert cli(*pair, *N, *sampling, "--seed", "5", "--json", "hi").json["text"] == first["text"]
    assert isinstance(cli(*pair, *N, *sampling, "-s", "-1", "--json", "hi").json["seed"], int)
    stopped = cli(*pair, *N, "--stop", reply[8:10], "--stop", "no such text", "--json", "hi").json
    assert (stopped["text"], stopped["finish_reason"]) == (reply[: reply.index(reply[8:10])], "stop")


# ---- errors


def usage(*arguments: str) -> Any:
    return pytest.param(arguments, id=" ".join(arguments)[:40])


@pytest.mark.parametrize(
    "arguments",
    [
        usage("--no-such-flag", "hi"),
        usage("hi", "there"),
        usage("hi", "-p", "hi"),
        usage(),
        usage("--arm", "bush:3", "hi"),
        usage("--arm", "tree:65", "hi"),
        usage("--arm", "chain:2", "--spec-draft-n-max", "3", "hi"),
        usage("--spec-draft-n-max", "-1", "hi"),
        usage("-n", "many", "hi"),
        usage("-n", "-2", "hi"),
        usage("-b", "0", "hi"),
        usage("-c", "-1", "hi"),
        usage("-ngl", "some", "hi"),
        usage("-fa", "maybe", "hi"),
        usage("-ctk", "q9_9", "hi"),
        usage("--temp", "-1", "hi"),
        usage("--top-p", "2", "hi"),
        usage("-f", "/no/such/file"),
        usage("-sys", "a", "-sysf", "b", "hi"),
        usage("-no-cnv", "-sys", "a", "hi"),
        usage("-hf", "owner/repo", "hi"),
        *(
            usage(flag, str(number), "hi")
            for number in (2**31, 2**63, 10**30, -(2**31) - 1)
            for flag in ("-n", "-c", "-cd", "-b", "-t", "-tb", "-td", "-ngl", "-ngld", "--top-k", "--spec-draft-n-max")
        ),
        usage("-s", str(2**32), "hi"),
        usage("-c", str(2**31 - 1), "hi"),
        usage("-t", "100000", "hi"),
        usage("--temp", "1e39", "hi"),
        usage("--temp", "nan", "hi"),
        *(usage(flag, FOREIGN, "hi") for flag in ("--stop", "-sys")),
        usage("-p", FOREIGN),
        usage(FOREIGN),
        usage("chat", "-p", FOREIGN),
        *(usage(flag, "", "hi") for flag in ("-m", "-md", "--store", "--trace", "--stop")),
        usage("-p", ""),
        usage(""),
        usage("chat", "-p", ""),
        usage("store", "list", "--store", ""),
        usage("chat", "-f", "file"),
        usage("models", "frobnicate"),
    ],
)
def test_wrong_usage_is_2(cli: Cli, pair: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    files = () if arguments[:1] in (("chat",), ("models",), ("store",)) else pair
    run = cli(*arguments[:1], *files, *arguments[1:]) if not files else cli(*files, *arguments)
    assert (run.code, run.out) == (2, "")
    assert "error:" in run.err
    run = cli(*arguments[:1], "--json", *arguments[1:]) if not files else cli(*files, "--json", *arguments)
    assert run.code == 2
    assert run.json["error"]["type"] == "UsageError"
    assert run.json["error"]["message"]


def test_text_that_is_no_utf8_and_numbers_out_of_range_name_their_option(cli: Cli, pair: tuple[str, ...]) -> None:
    for arguments, words in {
        ("-p", FOREIGN): "'-p'.*UTF-8",
        ("--stop", FOREIGN, "hi"): "'--stop'.*UTF-8",
        ("-b", str(2**31), "hi"): f"'-b'.*at most {2**31 - 1}",
        ("-t", "100000", "hi"): "'-t'.*at most 512",
        ("-p", ""): r"\(-p\) is empty",
    }.items():
        assert re.search(words, cli(*pair, "--json", *arguments).json["error"]["message"]), words


def test_foreign_bytes_on_stdin_are_2(pair: tuple[str, ...]) -> None:
    for command_, data in ((("chat",), b"one\ncaf\xe9\n"), (("generate", "-f", "-"), b"caf\xe9")):
        run = subprocess.run(
            command(*command_, *pair, *N, "--json"), input=data, capture_output=True, check=False, timeout=SECONDS
        )
        error = json.loads(run.stdout)
        assert (run.returncode, error["error"]["type"]) == (2, "UsageError")
        assert "UTF-8" in error["error"]["message"]
        assert command_ != ("chat",) or len(error["turns"]) == 1


def test_a_model_whose_name_is_no_utf8_is_named(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("names are text here")
    path = tmp_path / f"{FOREIGN}.gguf"
    path.write_bytes(Path(pair[1]).read_bytes())
    run = cli("-m", path, "hi")
    assert (run.code, "UTF-8" in run.err) == (2, True)


def test_a_context_without_room_for_drafts_says_so(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli(*pair, "-c", "1", "-no-cnv", "-n", "1", "h")
    assert "one row" in run.err
    assert "take back" not in run.err


def test_top_p_0_is_the_likeliest_token(cli: Cli, pair: tuple[str, ...], reply: str) -> None:
    assert cli(*pair, *N, "--temp", "1.5", "--top-p", "0", "hi").out == reply + "\n"


def test_no_arguments_shows_the_help_and_is_2(cli: Cli) -> None:
    run = cli()
    assert (run.code, run.out) == (2, "")
    assert "generate" in run.err


def test_a_drafter_as_the_model_is_2(cli: Cli, models: ModelFiles) -> None:
    run = cli("-m", models.drafter_path(SPEC, DRAFTER), "--json", "hi")
    assert run.code == 2
    assert "this file is a drafter" in run.json["error"]["message"]


def test_an_arm_without_a_drafter_is_2(cli: Cli, models: ModelFiles) -> None:
    run = cli("-m", models.target_path(SPEC), "--arm", "chain:3", "--json", "hi")
    assert run.code == 2
    assert "needs a drafter" in run.json["error"]["message"]


def test_an_empty_raw_prompt_is_2(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli(*pair, "-no-cnv", "--json", "")
    assert (run.code, "empty" in run.json["error"]["message"]) == (2, True)


def failures(models: ModelFiles, tmp_path: Path) -> dict[str, tuple[str, tuple[str | Path, ...]]]:
    target, drafter = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    return {
        "missing": ("ModelError", ("-m", tmp_path / "gone.gguf")),
        "truncated": ("ModelError", ("-m", tm.truncated(target, tmp_path / "cut.gguf", 0.6))),
        "not gguf": ("ModelError", ("-m", __file__)),
        "missing drafter": ("DrafterError", ("-m", target, "-md", tmp_path / "gone.gguf")),
        "other target's drafter": ("DrafterError", ("-m", models.target_path(tm.WIDE), "-md", drafter)),
        "target as drafter": ("DrafterError", ("-m", target, "-md", target)),
        "context": ("ContextFullError", ("-m", target, "-c", "256", "-sys", "x" * 600)),
        "default pair offline": ("ModelError", ()),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "truncated",
        "not gguf",
        "missing drafter",
        "other target's drafter",
        "target as drafter",
        "context",
        "default pair offline",
    ],
)
def test_failures_are_1_and_typed(cli: Cli, models: ModelFiles, tmp_path: Path, case: str) -> None:
    kind, arguments = failures(models, tmp_path)[case]
    run = cli(*arguments, *SMALL, "hi")
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ")
    assert "Traceback" not in run.err
    run = cli(*arguments, *SMALL, "--json", "hi")
    assert run.code == 1
    assert run.json["error"]["type"] == kind


def test_an_unexpected_error_is_one_object_too(
    cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        msg = "boom"
        raise RuntimeError(msg)

    monkeypatch.setattr(Engine, "generate", fail)
    run = cli(*pair, "--json", "hi")
    assert (run.code, run.json["error"]["type"]) == (1, "RuntimeError")
    assert "Traceback" not in run.err
    assert "Traceback" in cli(*pair, "-v", "hi").err


# ---- chat, doctor, models, version


def test_chat_reads_lines_and_remembers(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli("chat", *pair, *N, "--json", stdin="one\n\ntwo\n/regen\n/clear\nthree\n/exit\nfour\n")
    assert run.code == 0
    turns, messages = run.json["turns"], run.json["messages"]
    assert len(turns) == 4
    assert turns[1]["text"] == turns[2]["text"]
    assert turns[1]["reused_tokens"] > 0
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == "three"
    text = cli("chat", *pair, *N, stdin="one\ntwo\n")
    assert text.out == turns[0]["text"] + "\n" + turns[1]["text"] + "\n"


def test_an_error_in_a_chat_comes_with_the_turns_before_it(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli("chat", *pair, *N, "-c", "256", "--json", stdin="one\n" + "x" * 600 + "\n")
    assert (run.code, run.json["error"]["type"]) == (1, "ContextFullError")
    assert len(run.json["turns"]) == 1
    assert [message["role"] for message in run.json["messages"]] == ["user", "assistant"]


def test_chat_single_turn(cli: Cli, pair: tuple[str, ...], reply: str) -> None:
    run = cli("chat", *pair, *N, "-st", "-p", "hi", stdin="more\n")
    assert (run.code, run.out) == (0, reply + "\n")


def test_doctor(cli: Cli, pair: tuple[str, ...]) -> None:
    report = cli("doctor", *pair, "--json").json
    assert report["pair"]["drafter"]["kernels"] == report["pair"]["target"]["kernels"]
    assert report["ok"]
    assert report["pair"]["drafter"]["matches_target"]
    assert report["pair"]["target"]["supports_tree"]
    assert report["pair"]["default_arm"] == "adaspark"
    assert report["devices"]
    assert "cache" in report
    text = cli("doctor", *pair)
    assert text.code == 0
    for words in ("llama.cpp", "device", "cache", "trees, up to", "matches the target", "default arm  adaspark"):
        assert words in text.out


def test_doctor_finds_a_wrong_pair(cli: Cli, models: ModelFiles) -> None:
    run = cli("doctor", "-m", models.target_path(tm.WIDE), "-md", models.drafter_path(SPEC, DRAFTER), *SMALL, "--json")
    assert (run.code, run.json["ok"]) == (1, False)
    assert run.json["problems"][0].startswith("DrafterError")


def test_doctor_without_models_does_not_download(cli: Cli) -> None:
    run = cli("doctor", "--json")
    assert (run.code, run.json["pair"]) == (0, None)
    assert any("models fetch" in warning for warning in run.json["warnings"])


def test_models_lists_the_default_pair(cli: Cli, tmp_path: Path) -> None:
    data = cli("models", "--json").json
    target, drafter = data["models"]
    assert (target["role"], target["present"], target["bytes"]) == ("target", False, None)
    assert target["path"].startswith(str(tmp_path / "cache"))
    assert (drafter["present"], drafter["bytes"]) == (True, 15_004_736)
    assert "models fetch" in cli("models").out
    assert cli("models", "remove").out == "nothing to remove\n"
    assert cli("models", "fetch", "--json").json["error"]["type"] == "ModelError"


def test_version_names_the_backends(cli: Cli) -> None:
    run = cli("--version")
    assert run.code == 0
    assert re.match(r"adaspark-run \S+\nllama\.cpp .+\nbackends: .*CPU", run.out)


# ---- flags


def test_flags_and_variables_are_unique() -> None:
    for command in (GENERATE, CHAT, DOCTOR, MODELS, STORE, REPLAY, BENCH):
        names = [name for flag in FLAGS if command in flag.commands for name in flag.names]
        assert len(names) == len(set(names))
    variables = [flag.variable for flag in FLAGS if flag.variable]
    assert len(variables) == len(set(variables))
    assert "ADASPARK_CACHE" not in variables


@pytest.mark.parametrize("command", [GENERATE, CHAT, DOCTOR, MODELS, STORE, REPLAY, BENCH])
def test_help_is_made_from_the_table(cli: Cli, command: str) -> None:
    run = cli(command, "--help")
    assert run.code == 0
    for flag in FLAGS:
        for name in flag.names:
            assert (re.search(rf"(^|[\s,]){re.escape(name)}[\s,]", run.out) is not None) == (
                command in flag.commands
            ), name
        if flag.variable and command in flag.commands:
            assert flag.variable in run.out


def test_variables_set_flags_and_flags_win(cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADASPARK_MODEL", pair[1])
    monkeypatch.setenv("ADASPARK_DRAFTER", pair[3])
    monkeypatch.setenv("ADASPARK_N_PREDICT", "5")
    monkeypatch.setenv("ADASPARK_ARM", "chain:2")
    data = cli("--json", "--ignore-eos", "hi").json
    assert (data["completion_tokens"], data["arm"]) == (5, "chain:2")
    data = cli("--json", "--ignore-eos", "-n", "4", "--arm", "plain", "hi").json
    assert (data["completion_tokens"], data["arm"]) == (4, "plain")


def test_verbose_logs_to_stderr(cli: Cli, pair: tuple[str, ...], reply: str) -> None:
    run = cli(*pair, *N, "-vv", "hi")
    assert run.out == reply + "\n"
    assert len(run.err.splitlines()) > 5
    assert "debug" not in cli(*pair, *N, "hi").err


def test_the_summary_tells_what_the_object_has(cli: Cli, pair: tuple[str, ...]) -> None:
    arm = ("--arm", "adaspark:8:no-gating", "-n", "96", "--ignore-eos", "a b c d a b c d a b c d")
    drafts = cli(*pair, *arm, "--json").json["speculation"]
    assert sum(source["accepted"] for source in drafts["sources"].values()) == drafts["accepted"]
    assert set(drafts["sources"]) == {"drafter", "text", "agreed"}
    learning = drafts["learning"]
    assert learning["labelled"] > 0
    assert learning["fitted_log_loss"] > 0
    assert learning["head_log_loss"] > 0
    cli("store", "reset", "all")
    err = cli(*pair, *arm).err
    by_depth = zip(drafts["accepted_by_depth"], drafts["drafted_by_depth"], strict=False)
    for words in (
        f"{drafts['accepted']} of {drafts['drafted']} drafts accepted",
        f"{drafts['tokens_per_round']:.2f} tokens a round",
        "by depth: " + " ".join(f"{hit}/{drafted}" for hit, drafted in by_depth),
        f"accepted {learning['realised_accepted']} |",
        f"log loss {learning['fitted_log_loss']:.3f} fitted",
    ):
        assert words in err
    plain = cli(*pair, "--arm", "plain", *arm[2:]).err
    assert "log loss" not in plain
    assert "1.00 tokens a round" in plain


def test_a_chat_tells_one_line_a_turn(cli: Cli, pair: tuple[str, ...]) -> None:
    assert len(cli("chat", *pair, *N, stdin="one\ntwo\n").err.splitlines()) == 2


# ---- as a process


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


def test_a_name_that_is_no_utf8_is_one_object() -> None:
    name = b"caf\xe9.gguf" if sys.platform == "linux" else b"missing.gguf"
    arguments = [*map(os.fsencode, command("-m")), name, b"-p", b"a", b"--json"]
    got = subprocess.run(arguments, check=False, capture_output=True)
    assert got.returncode == 1
    assert json.loads(got.stdout)["error"]["type"]
    assert b"Traceback" not in got.stderr


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


# ---- the real pair


@pytest.mark.slow
def test_the_default_pair(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads the default target (93 MB) unless the user's cache has it."""
    for name in ("ADASPARK_CACHE", "PIP_NO_INDEX"):
        monkeypatch.delenv(name)
    run = cli("models", "fetch", "--json")
    assert run.code == 0
    assert run.json["models"][0]["present"]
    asked = ("-n", "48", "--store", "none", "--json", "Why is the sky blue?")  # the user's own store stays as it is
    plain = cli("--arm", "plain", *asked).json
    chain = cli("--arm", "chain:3", *asked).json
    assert plain["completion_tokens"] == chain["completion_tokens"] == 48
    assert chain["speculation"]["accepted"] > 0
    assert chain["text"][:20] == plain["text"][:20]
    assert cli("doctor", "--json").json["pair"]["drafter"]["matches_target"]
