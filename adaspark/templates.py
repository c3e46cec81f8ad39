"""Prompts: the chat template of the GGUF, rendered in a sandbox and tokenised without letting users write control tokens.

A template's own control tokens must become tokens; the same text typed by a user must stay text. A message without such
text is rendered and tokenised as it is, together with the template around it (what the model was trained on). In a
message with such text, each occurrence is replaced by a placeholder before rendering; the rendered text is then cut at
the placeholders, and what they stand for is tokenised as plain text.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypedDict

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adaspark.config import check_text
from adaspark.errors import ModelError, OptionError

log = logging.getLogger("adaspark")

ROLES = ("system", "user", "assistant", "tool")

FALLBACK_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}
{%- else %}{{ message.role | capitalize }}: {{ message.content }}
{%- endif %}{{ '\n\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
"""For a model without a chat template: a plain transcript, which any language model can continue."""

FALLBACK_STOP = "\nUser:"
"""Ends a reply under the fallback template, where the model would play the user."""


# What a template can raise by itself: its own refusals, and Python's errors for operations on the wrong values.
_RENDER_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Message(TypedDict):
    """One message of a conversation."""

    role: str  # one of ROLES
    content: str


class Tokenizer(Protocol):
    """What a prompt needs of a target."""

    @property
    def bos_token(self) -> int: ...
    @property
    def eos_token(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]: ...
    def token_bytes(self, token: int, special: bool = False) -> bytes: ...
    def token_text(self, token: int) -> str: ...


def raw_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[int]:
    """Token ids of a text taken as it is, with exactly one BOS where the model asks for one. OptionError when empty."""
    check_text("the prompt", text)
    return _with_bos(tokenizer, tokenizer.tokenize(text, False, parse_special))


class ChatTemplate:
    """A compiled chat template; ``owner`` names it in errors. Raises ModelError when it does not compile."""

    def __init__(self, source: str | None, tokenizer: Tokenizer, owner: str = "the model's chat template") -> None:
        self.is_fallback = source is None
        self._owner = owner
        self._tokenizer = tokenizer
        self._special = {
            "bos_token": _token_text(tokenizer, tokenizer.bos_token),
            "eos_token": _token_text(tokenizer, tokenizer.eos_token),
        }
        try:
            self._template = _environment().from_string(FALLBACK_TEMPLATE if source is None else source)
        except TemplateError as error:
            msg = f"{owner} does not compile: {error}; use a raw prompt"
            raise ModelError(msg) from error

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings the template needs besides the model's own end tokens."""
        return (FALLBACK_STOP,) if self.is_fallback else ()

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation. Raises ModelError when the template refuses the messages or fails."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **self._special
            )
        except _RENDER_ERRORS as error:
            msg = f"{self._owner} refuses these messages: {error}; use a raw prompt"
            raise ModelError(msg) from error

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, ready for the reply. Control tokens written in a message stay text."""
        check_messages(messages)
        guard = _Guard(self._tokenizer)
        rendered = self.render([guard.protect(message) for message in messages])
        return _with_bos(self._tokenizer, guard.tokenize(rendered))


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """OptionError unless these are messages with a known role and text."""
    if not messages:
        msg = "the conversation is empty: give at least one message"
        raise OptionError(msg)
    for message in messages:
        if message.get("role") not in ROLES:
            msg = f"unknown role {message.get('role')!r}: give one of {', '.join(ROLES)}"
            raise OptionError(msg)
        check_text(f"the content of a {message['role']} message", message.get("content"))


class _Guard:
    """Keeps control tokens written in messages apart from the template's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A nonce, so that a message cannot contain a placeholder, between two code points that are no characters.
        self._nonce = secrets.token_hex(8)
        self._texts: list[str] = []

    def protect(self, value: Any) -> Any:
        """A message, or a part of one, with placeholders for the control tokens in its texts (its role excepted)."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, Mapping):
            return {key: item if key == "role" else self.protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        return value

    def tokenize(self, rendered: str) -> list[int]:
        check_text("the text that the chat template makes", rendered)
        pieces = re.split(f"\ufdd0{self._nonce}:(\\d+)\ufdd1", rendered)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                ids += self._tokenizer.tokenize(self._texts[int(piece)], False, False)
            elif piece:
                ids += self._tokenizer.tokenize(piece, False, True)
        return ids

    def _protect_text(self, text: str) -> str:
        check_text("a message's text", text)
        pieces = [(text, False)]  # (text, is a control token's spelling)
        while True:
            controls = {control for piece, found in pieces if not found for control in self._controls(piece)}
            if not controls:
                break
            # The longest first: one spelling may contain another.
            pattern = re.compile("|".join(re.escape(c) for c in sorted(controls, key=len, reverse=True)))
            pieces = [part for piece in pieces for part in (_cut(piece[0], pattern) if not piece[1] else [piece])]
        return "".join(self._placeholder(piece) if found else piece for piece, found in pieces)

    def _controls(self, text: str) -> set[str]:
        """The spellings of control tokens that the tokeniser would find in a text."""
        parsed = self._tokenizer.tokenize(text, False, True)
        if parsed == self._tokenizer.tokenize(text, False, False):
            return set()
        controls = {self._tokenizer.token_text(t) for t in set(parsed) if not self._tokenizer.token_bytes(t)}
        found = {control for control in controls if control and control in text}
        return found or {text}  # a spelling we cannot name: the whole text stays text

    def _placeholder(self, text: str) -> str:
        self._texts.append(text)
        return f"\ufdd0{self._nonce}:{len(self._texts) - 1}\ufdd1"


def _cut(text: str, pattern: re.Pattern[str]) -> list[tuple[str, bool]]:
    parts, last = [], 0
    for match in pattern.finditer(text):
        parts += [(text[last : match.start()], False), (match[0], True)]
        last = match.end()
    return [part for part in [*parts, (text[last:], False)] if part[0]]


def _with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """One BOS at the front where the model asks for it, and never two: templates often write it as well."""
    bos = tokenizer.bos_token
    if tokenizer.add_bos and bos >= 0:
        written = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        ids = [bos, *ids[written:]]
    if not ids:
        msg = "the prompt is empty: give some text"
        raise OptionError(msg)
    return ids


def _token_text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_text(token) if token >= 0 else ""


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it only holds its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates come with model files, so they are untrusted. The names are those that published templates use."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    # Not jinja2's own filter: that one escapes for HTML, and models were trained on plain JSON.
    keywords: dict[str, Any] = {"ensure_ascii": False, "indent": indent, **options}
    dump: Callable[..., str] = json.dumps
    return dump(value, **keywords)
