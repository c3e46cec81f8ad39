"""``adaspark-run``: what goes to which stream, exactly one JSON object, commands, flags and their variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tm
from cli_tools import SMALL, Cli
from conftest import ModelFiles

from adaspark import Engine
from adaspark.cli.flags import BENCH, CHAT, DOCTOR, FLAGS, GENERATE, MODELS, REPLAY, STORE

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
N = ("-n", "24", "--ignore-eos")
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


def test_top_p_0_is_the_likeliest_token(cli: Cli, pair: tuple[str, ...], reply: str) -> None:
    assert cli(*pair, *N, "--temp", "1.5", "--top-p", "0", "hi").out == reply + "\n"


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
