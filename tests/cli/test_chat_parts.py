"""The parts of minfer chat that need no terminal."""

from __future__ import annotations

import io
import os
import signal
import stat
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from minfer.cli.chat_commands import COMMANDS
from minfer.cli.chat_input import LineInput, is_open, unquoted
from minfer.cli.chat_store import ChatStore
from minfer.cli.chat_view import AnswerView
from minfer.cli.console import printable
from minfer.cli.interrupts import Interrupts
from minfer.cli.parameters import DEFAULTS, PARAMETERS, parse_value, shown_value
from minfer.engine import AnswerPart, SamplingOptions
from minfer.errors import ParameterError, SessionFileError
from minfer.sampling import SamplingParams
from minfer.sampling.names import ALIASES

NAMES = [field.name for field in fields(SamplingParams)]


def test_every_sampling_parameter_is_an_option_and_can_be_set() -> None:
    assert sorted(PARAMETERS) == sorted(NAMES)
    assert sorted(set(SamplingOptions.__annotations__) - set(ALIASES)) == sorted(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("logit_bias", "dry_sequence_breakers")])
def test_a_default_is_read_as_it_is_shown(name: str) -> None:
    assert parse_value(PARAMETERS[name], [shown_value(DEFAULTS[name])]) == DEFAULTS[name]


def test_values_of_several_parts() -> None:
    biases = parse_value(PARAMETERS["logit_bias"], ["5=-inf", "6=1.5"])
    assert biases == {5: float("-inf"), 6: 1.5}
    assert shown_value(biases) == "5=-inf 6=1.5"
    assert parse_value(PARAMETERS["samplers"], ["top_k, temperature,"]) == ("top_k", "temperature")
    assert parse_value(PARAMETERS["dry_sequence_breakers"], ["\n", "*"]) == ("\n", "*")
    assert parse_value(PARAMETERS["temperature"], ["1", "2"]) == 2.0


def test_the_commands_that_are_promised_are_there() -> None:
    promised = "/help /clear /regen /undo /system /save /load /set /stats /tokens /exit"
    assert list(COMMANDS) == promised.split()


@pytest.mark.parametrize(
    ("entry", "open_", "text"),
    [
        ("hello", False, "hello"),
        ('"""', True, ""),
        ('"""one', True, "one"),
        ('"""one"""', False, "one"),
        ('"""\none\n\ntwo\n"""', False, "one\n\ntwo"),
        ('""""""', False, ""),
        ('say """this"""', False, 'say """this"""'),
        ("  indented", False, "  indented"),
    ],
)
def test_quotes(entry: str, open_: bool, text: str) -> None:
    assert is_open(entry) is open_
    assert unquoted(entry) == text


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> LineInput:
    class Stdin:
        buffer = io.BytesIO(data)

    monkeypatch.setattr(sys, "stdin", Stdin())
    return LineInput()


def test_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    source = piped(monkeypatch, 'one\r\n\n"""two\n\nthree"""\né\n"""open'.encode())
    assert [source.read() for _ in range(6)] == ["one", "", "two\n\nthree", "é", "open", None]


def test_a_pipe_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    source = piped(monkeypatch, b"\xff\nfine\n")
    with pytest.raises(ParameterError, match="not UTF-8"):
        source.read()
    assert source.read() == "fine"


def view_of(capsys: pytest.CaptureFixture[str], *parts: AnswerPart) -> str:
    view = AnswerView()
    for part in parts:
        view.write(part)
    view.end()
    return capsys.readouterr().out


def test_a_pipe_gets_the_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    parts = AnswerPart("hm", True), AnswerPart("a\x1b[2J", False), AnswerPart("b\n", False)
    assert view_of(capsys, *parts) == "a\x1b[2Jb\n"
    assert view_of(capsys, AnswerPart("no end", False)) == "no end\n"
    assert view_of(capsys) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\tb\nc", "a\tb\nc"), ("\x1b[2J", "\ufffd[2J"), ("a\rb\x08\x7f\x9b", "a\ufffdb\ufffd\ufffd\ufffd")],
)
def test_a_terminal_obeys_nothing_that_a_model_says(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_names_of_saved_conversations(tmp_path: Path) -> None:
    store = ChatStore(tmp_path, "model")
    assert store.target("holiday") == tmp_path / "chats" / "holiday.chat"
    assert stat.S_IMODE((tmp_path / "chats").stat().st_mode) == 0o700
    assert store.target("a.chat") == Path("a.chat")
    assert store.target("sub/a") == Path("sub/a")
    assert store.target("~/a") == Path.home() / "a"
    assert store.target("").parent == tmp_path / "chats"
    with pytest.raises(ParameterError, match="none have been saved yet"):
        store.source("holiday")
    store.target("holiday").touch()
    assert store.source("holiday") == store.target("holiday")
    assert store.source("a.chat") == Path("a.chat")
    with pytest.raises(ParameterError, match=r"which conversation.*saved are holiday"):
        store.source("")


@pytest.mark.parametrize("name", [".", "a\0b"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="no name for a conversation"):
        ChatStore(tmp_path, "model").target(name)


def test_a_store_that_can_t_be_made(tmp_path: Path) -> None:
    (tmp_path / "chats").touch()
    with pytest.raises(SessionFileError, match="can't be made"):
        ChatStore(tmp_path, "model").target("holiday")


def test_automatic_saves_are_few_and_the_latest_is_found(tmp_path: Path) -> None:
    store, other = ChatStore(tmp_path, "model"), ChatStore(tmp_path, "other")
    assert store.latest() is None
    directory = store.new_automatic().parent
    for age in range(30):
        path = directory / f"{age}.chat"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    assert store.latest() == directory / "0.chat"
    new = store.new_automatic()
    new.touch()
    assert len(list(directory.iterdir())) == 20
    assert store.latest() == new
    assert (directory / "0.chat").exists()
    assert other.latest() is None


def test_the_first_interrupt_is_noted_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        assert not interrupts.requested
        signal.raise_signal(signal.SIGINT)
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
