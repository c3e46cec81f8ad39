"""The flags: one table from which the parser, the environment variables and the help are made.

Names are llama.cpp's where the meaning is the same. A flag with an environment variable reads ``ADASPARK_`` and its
destination in capitals; the flag wins over the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import click

from adaspark.cli.types import COUNT, TEXT, ArmName, ArmNames, Layers, Whole
from adaspark.config import CACHE_TYPES, FLASH_ATTENTION, KERNELS, MAX_CONTEXT, MAX_SEED, MAX_THREADS

GENERATE: Final = "generate"
CHAT: Final = "chat"
DOCTOR: Final = "doctor"
MODELS: Final = "models"
STORE: Final = "store"
REPLAY: Final = "replay"
BENCH: Final = "bench"

_RUN = frozenset({GENERATE, CHAT})
_ONE_ARM = frozenset({GENERATE, CHAT, DOCTOR})
_LOAD = _ONE_ARM | {BENCH}
_ALL = frozenset({GENERATE, CHAT, DOCTOR, MODELS, STORE, REPLAY, BENCH})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    dest: str  # the keyword of the command's function
    names: tuple[str, ...]
    help: str
    commands: frozenset[str]
    type: Any = str
    metavar: str | None = None
    env: bool = True  # read ADASPARK_<DEST>
    is_flag: bool = False
    multiple: bool = False
    count: bool = False

    @property
    def variable(self) -> str | None:
        return f"ADASPARK_{self.dest.upper()}" if self.env else None


def _switch(dest: str, names: tuple[str, ...], text: str, commands: frozenset[str], *, env: bool = False) -> Flag:
    return Flag(dest, names, text, commands, bool, is_flag=True, env=env)


_CONTEXT: Final = Whole(0, MAX_CONTEXT)
_THREADS: Final = Whole(0, MAX_THREADS)

FLAGS: Final = (
    Flag("model", ("-m", "--model"), "Target model, a GGUF file. Default: the default pair.", _LOAD, metavar="FILE"),
    Flag(
        "drafter",
        ("-md", "--model-draft"),
        "DSpark drafter, a GGUF file; 'none' for no drafter. Default: the one that belongs to the default target.",
        _LOAD,
        metavar="FILE",
    ),
    Flag(
        "hf_repo",
        ("-hf", "-hfr", "--hf-repo"),
        "Target from a Hugging Face repository (needs the extra 'hub').",
        _LOAD,
        metavar="OWNER/REPO[:QUANT]",
    ),
    Flag(
        "hf_repo_draft",
        ("-hfd", "-hfrd", "--hf-repo-draft"),
        "Drafter from a Hugging Face repository.",
        _LOAD,
        metavar="OWNER/REPO[:QUANT]",
    ),
    Flag(
        "arm",
        ("--arm",),
        "adaspark (learns what pays), adaspark:N (N rows a round), plain, chain:N (N drafts a round), tree:N (N rows a "
        "round) or cost; adaspark may end in :no-text, :no-acceptance, :no-gating. Default: adaspark.",
        _ONE_ARM,
        ArmName(),
        metavar="ARM",
    ),
    Flag("draft_max", ("--spec-draft-n-max",), "The same as --arm chain:N.", _ONE_ARM, COUNT, metavar="N"),
    Flag(
        "store",
        ("--store",),
        "File that keeps what is learned; 'none' keeps nothing. Default: one in the user's cache folder.",
        _RUN | {STORE},
        metavar="FILE",
    ),
    Flag(
        "trace", ("--trace",), "File that every round's record is appended to (docs/traces.md).", _RUN, metavar="FILE"
    ),
    _switch(
        "full_trace",
        ("--full-trace",),
        "Have the drafter propose at every position of the reply, for --trace; decodes plainly.",
        _RUN,
    ),
    Flag(
        "prompt",
        ("-p", "--prompt"),
        "The prompt (in a chat, its first message).",
        _RUN,
        TEXT,
        env=False,
        metavar="TEXT",
    ),
    Flag(
        "file", ("-f", "--file"), "File with the prompt; - is stdin.", frozenset({GENERATE}), env=False, metavar="FILE"
    ),
    Flag("system", ("-sys", "--system-prompt"), "System message.", _RUN, TEXT, metavar="TEXT"),
    Flag("system_file", ("-sysf", "--system-prompt-file"), "File with the system message.", _RUN, metavar="FILE"),
    Flag(
        "n_predict",
        ("-n", "--predict", "--n-predict"),
        "Tokens to write; -1 = until the context ends.",
        _RUN | {BENCH},
        Whole(-1),
    ),
    Flag(
        "conversations",
        ("--conversations",),
        "Conversations of each file, spread evenly over it. Default: all.",
        frozenset({BENCH}),
        Whole(1),
        env=False,
        metavar="N",
    ),
    Flag(
        "turns",
        ("--turns",),
        "Turns of each conversation. Default: 1.",
        frozenset({BENCH}),
        Whole(1),
        env=False,
        metavar="N",
    ),
    Flag(
        "order",
        ("--order",),
        "Seed of the order of conversations and arms. Default: 0.",
        frozenset({BENCH}),
        COUNT,
        env=False,
        metavar="N",
    ),
    Flag("n_ctx", ("-c", "--ctx-size"), "Context, tokens; 0 = the model's. Default: at most 4096.", _LOAD, _CONTEXT),
    Flag("n_ctx_draft", ("-cd", "--ctx-size-draft"), "Tokens the drafter remembers; 0 = the context.", _LOAD, _CONTEXT),
    Flag("n_batch", ("-b", "--batch-size"), "Prompt tokens read at once.", _LOAD, Whole(1)),
    Flag("n_threads", ("-t", "--threads"), "Threads; 0 = the physical cores.", _LOAD, _THREADS),
    Flag("n_threads_batch", ("-tb", "--threads-batch"), "Threads that read the prompt; 0 = -t.", _LOAD, _THREADS),
    Flag("n_threads_draft", ("-td", "--threads-draft"), "Threads of the drafter; 0 = -t.", _LOAD, _THREADS),
    Flag(
        "n_gpu_layers",
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "Layers on the GPU.",
        _LOAD,
        Layers(-1),
        metavar="N",
    ),
    Flag(
        "n_gpu_layers_draft",
        ("-ngld", "--gpu-layers-draft"),
        "The drafter's layers there.",
        _LOAD,
        Layers(-1),
        metavar="N",
    ),
    Flag("kernels", ("--kernels",), "What runs the model: own (CPU), ggml or llama.", _LOAD, click.Choice(KERNELS)),
    Flag("flash_attention", ("-fa", "--flash-attn"), "Flash attention.", _LOAD, click.Choice(FLASH_ATTENTION)),
    Flag("cache_type_k", ("-ctk", "--cache-type-k"), "Type of K in the cache.", _LOAD, click.Choice(CACHE_TYPES)),
    Flag("cache_type_v", ("-ctv", "--cache-type-v"), "Type of V in the cache.", _LOAD, click.Choice(CACHE_TYPES)),
    _switch("no_mmap", ("--no-mmap",), "Read the weights instead of mapping the file.", _LOAD, env=True),
    Flag(
        "temperature",
        ("--temp", "--temperature"),
        "Temperature; 0 = always the likeliest token (default).",
        _RUN,
        float,
    ),
    Flag("top_k", ("--top-k",), "Sample among the K likeliest; 0 = off (default).", _RUN, COUNT),
    Flag("top_p", ("--top-p",), "Sample within this share of probability; 1 = off (default).", _RUN, float),
    Flag("min_p", ("--min-p",), "Sample above this share of the likeliest; 0 = off (default).", _RUN, float),
    Flag("seed", ("-s", "--seed"), "Seed of the sampler; -1 = a new one (default).", _RUN, Whole(-1, MAX_SEED)),
    Flag(
        "stop",
        ("--stop",),
        "Text that ends the reply; may be repeated.",
        _RUN,
        TEXT,
        env=False,
        multiple=True,
        metavar="TEXT",
    ),
    _switch("ignore_eos", ("--ignore-eos",), "Do not stop at the end-of-generation token.", _RUN),
    _switch(
        "raw",
        ("-no-cnv", "--no-conversation", "--no-chat-template"),
        "No chat template: the model continues the prompt, and control tokens written in it count.",
        frozenset({GENERATE}),
    ),
    Flag(
        "chat_template_file", ("--chat-template-file",), "Jinja template instead of the model's.", _RUN, metavar="FILE"
    ),
    _switch("single_turn", ("-st", "--single-turn"), "Stop after one reply.", frozenset({CHAT})),
    Flag(
        "arms",
        ("--arms",),
        "Arms to compare, separated by commas; ratios are to the first.",
        frozenset({REPLAY, BENCH}),
        ArmNames(),
        env=False,
        metavar="ARM,...",
    ),
    Flag(
        "costs",
        ("--costs",),
        "JSON table of what rounds cost (docs/traces.md), in place of the trace's own law.",
        frozenset({REPLAY}),
        env=False,
        metavar="FILE",
    ),
    Flag(
        "plot",
        ("--plot",),
        "Folder to write plots to (needs the extra 'bench').",
        frozenset({REPLAY, BENCH}),
        env=False,
        metavar="DIR",
    ),
    _switch("json", ("--json",), "Print one JSON object on stdout, also for an error.", _ALL),
    _switch("no_color", ("--no-color",), "No colours (as with NO_COLOR set).", _ALL),
    Flag("verbose", ("-v", "--verbose"), "Log more to stderr; twice for everything.", _ALL, env=False, count=True),
)


def flags_of(command: str) -> list[Flag]:
    return [flag for flag in FLAGS if command in flag.commands]


def options(command: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator that gives a command its flags."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(list(_click_options(flags_of(command)))):
            function = option(function)
        return function

    return decorate


def _click_options(flags: Iterable[Flag]) -> Iterable[Callable[[Callable[..., int]], Callable[..., int]]]:
    for flag in flags:
        keywords: dict[str, Any] = {"help": flag.help, "envvar": flag.variable, "show_envvar": flag.env}
        if flag.is_flag:
            keywords |= {"is_flag": True, "default": False}
        elif flag.count:
            keywords |= {"count": True}
        else:
            keywords |= {"type": flag.type, "default": () if flag.multiple else None, "multiple": flag.multiple}
            keywords["metavar"] = flag.metavar
        yield click.option(flag.dest, *flag.names, **keywords)
