"""Arms and options: what is accepted, what is clamped, what is refused and with which words."""

from __future__ import annotations

import dataclasses
import logging
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaspark.arms import ArmResolver
from adaspark.config import MAX_ROWS, Arm, EngineOptions, EngineParams, GenerateOptions, GenerateParams


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("plain", Arm()),
        ("adaspark", Arm("adaspark")),
        ("adaspark:8", Arm("adaspark", 8)),
        ("adaspark:1", Arm()),  # pinned to the anchor alone
        ("cost", Arm("adaspark", text=False, acceptance=False)),
        ("adaspark:no-text", Arm("adaspark", text=False)),
        ("adaspark:16:no-gating:no-acceptance", Arm("adaspark", 16, acceptance=False, gating=False)),
        ("chain:3", Arm("chain", 3)),
        ("CHAIN:7 ", Arm("chain", 7)),
        ("tree:16", Arm("tree", 16)),
        ("tree:64", Arm("tree", 64)),
        ("chain:0", Arm()),
        ("tree:0", Arm()),
        ("tree:1", Arm()),  # the anchor alone
    ],
)
def test_arm_parse(text: str, arm: Arm) -> None:
    assert Arm.parse(text) == arm


@pytest.mark.parametrize(
    "text",
    [
        *("", "chain", "chain:", "chain:-1", "tree:x", "tree:1.5", "plain:2", "adaspark:x", "adaspark:", "chain:3:4"),
        *("cost:3", "chain:3:no-text", "adaspark:no-wings", "adaspark:no-text:8", "plain:no-text"),
    ],
)
def test_arm_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown arm .* give adaspark, .* chain:N .* cost"):
        Arm.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("adaspark:no-text:no-acceptance", "cost"),
        ("adaspark:8:no-text:no-acceptance", "adaspark:8:no-text:no-acceptance"),
        ("adaspark:no-gating:no-text:no-acceptance", "adaspark:no-text:no-acceptance:no-gating"),
        ("adaspark:no-gating:no-gating", "adaspark:no-gating"),
    ],
)
def test_an_arm_has_one_name(text: str, canonical: str) -> None:
    assert str(Arm.parse(text)) == canonical
    assert Arm.parse(canonical) == Arm.parse(text)


@pytest.mark.parametrize("text", ["tree:65", "tree:1000000", "adaspark:65"])
def test_arm_parse_refuses_more_rows_than_a_verify_takes(text: str) -> None:
    with pytest.raises(ValueError, match="at most 64"):
        Arm.parse(text)


@given(st.sampled_from(["chain", "tree"]), st.integers(2, MAX_ROWS))
def test_arm_text_round_trips(kind: str, n: int) -> None:
    arm = Arm.parse(f"{kind}:{n}")
    assert Arm.parse(str(arm)) == arm
    assert arm.rows == (n + 1 if kind == "chain" else n)


@dataclasses.dataclass
class Shape:
    """The part of a target or a drafter that arms depend on."""

    architecture: str = "llama"
    supports_tree: bool = True
    max_chain: int = 63
    max_rows: int = MAX_ROWS
    n_draft: int = 7


def resolver(target: Shape, drafter: Shape | None, default: str | None = None) -> ArmResolver:
    return ArmResolver(target, drafter, default)  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "ran"), [(1, 1), (6, 6), (7, 7), (8, 7), (64, 7), (1_000_000, 7)])
def test_chain_is_clamped_to_the_block_with_one_warning(caplog: pytest.LogCaptureFixture, asked: int, ran: int) -> None:
    arms = resolver(Shape(), Shape())
    with caplog.at_level(logging.WARNING, "adaspark"):
        plans = [arms.resolve(f"chain:{asked}") for _ in range(3)]
    assert {str(plan.arm) for plan in plans} == {f"chain:{ran}"}
    assert len(caplog.records) == (asked > ran)
    assert all(plan.active for plan in plans)
    assert (plans[0].reason is not None) == (asked > ran)


def test_tree_is_clamped_to_the_widest_verify(caplog: pytest.LogCaptureFixture) -> None:
    assert str(resolver(Shape(max_rows=8), Shape()).resolve("tree:64").arm) == "tree:8"
    assert len(caplog.records) == 1


def test_recurrent_target_runs_chains_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    arms = resolver(Shape("lfm2", supports_tree=False, max_chain=4), Shape())
    plans = [arms.resolve("tree:16"), arms.resolve("tree:16")]
    assert [str(plan.arm) for plan in plans] == ["chain:4", "chain:4"]
    assert "chains only" in (plans[0].reason or "")
    assert len(caplog.records) == 1


def test_target_that_cannot_roll_back_decodes_plainly(caplog: pytest.LogCaptureFixture) -> None:
    arms = resolver(Shape("mamba", supports_tree=False, max_chain=0), Shape())
    plan = arms.resolve(None)
    assert (plan.arm, plan.active) == (Arm(), False)
    assert "mamba" in (plan.reason or "")
    assert len(caplog.records) == 1


def test_default_arm(caplog: pytest.LogCaptureFixture) -> None:
    assert resolver(Shape(), Shape()).default == Arm("adaspark")
    assert resolver(Shape(), Shape(), "tree:8").default == Arm("tree", 8)
    alone = resolver(Shape(), None).resolve(None)
    assert (str(alone.arm), alone.active) == ("adaspark", True)
    assert "no drafter" in (alone.reason or "")
    assert not caplog.records
    hybrid = Shape("lfm2", supports_tree=False, max_chain=8)
    assert str(resolver(hybrid, Shape()).default) == "chain:3"
    assert str(resolver(hybrid, None).default) == "plain"
    assert len(caplog.records) == 2


def test_an_arm_that_drafts_needs_a_drafter() -> None:
    with pytest.raises(ValueError, match="chain:3 needs a drafter"):
        resolver(Shape(), None, "chain:3")
    with pytest.raises(ValueError, match="tree:8 needs a drafter"):
        resolver(Shape(), None).resolve("tree:8")


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_ctx": -1},
        {"n_batch": 0},
        {"n_threads": -2},
        {"n_gpu_layers": -2},
        {"max_rows": 0},
        {"max_rows": 10**6},
        {"flash_attention": "maybe"},
        {"cache_type_k": "q9_9"},
        {"cache_type_v": ""},
    ],
)
def test_engine_options_refuse(wrong: dict[str, typing.Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EngineOptions(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_predict": -2},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"seed": -1},
        {"seed": 2**32},
        {"stop": [""]},
        {"arm": "bush:3"},
        {"raw": True, "system": "x"},
    ],
)
def test_generate_options_refuse(wrong: dict[str, typing.Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GenerateOptions(**wrong)


def test_one_stop_string_may_be_given_bare() -> None:
    assert GenerateOptions(stop="###").stop == ("###",)
    assert GenerateOptions(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize(("options", "keywords"), [(EngineOptions, EngineParams), (GenerateOptions, GenerateParams)])
def test_keywords_are_the_fields(options: type, keywords: type) -> None:
    assert set(keywords.__annotations__) | set(getattr(keywords, "__required_keys__", ())) <= {
        field.name for field in dataclasses.fields(options)
    }
    assert {field.name for field in dataclasses.fields(options)} == set(keywords.__optional_keys__)


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineOptions().n_ctx = 1  # type: ignore[misc]
