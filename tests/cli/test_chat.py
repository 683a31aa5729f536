"""minfer chat at a pseudo-terminal, as its user meets it."""

from __future__ import annotations

import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from chain_model import END_THINK, THINK, write_chain
from chat_templates import CHATML, THINKING
from terminal import Terminal

Start = Callable[..., Terminal]
LEAVE, CTRL_C, CTRL_D, UP, ALT_ENTER = "/exit", "\x03", "\x04", "\x1b[A", "\x1b\r"


@pytest.fixture(scope="session")
def yes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `Yes`."""
    return write_chain(tmp_path_factory.mktemp("chat") / "yes.gguf", list("Yes"), CHATML)


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `abcabcabc` and so on."""
    return write_chain(tmp_path_factory.mktemp("chat") / "endless.gguf", list("abc"), CHATML, repeats=True)


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that thinks `hm` and answers `Yes`."""
    answer = [THINK, *"hm", END_THINK, *"Yes"]
    return write_chain(tmp_path_factory.mktemp("chat") / "thinker.gguf", answer, THINKING)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `minfer chat` with a model, in an empty directory with an empty cache."""

    def chat(model: Path, *arguments: str | Path, **environment: str) -> Terminal:
        variables = {"MINFER_CACHE_DIR": str(tmp_path / "cache"), "MINFER_BACKEND": "reference", **environment}
        return Terminal("chat", "--model", model, *arguments, cwd=tmp_path, environment=variables)

    return chat


def test_a_chat_of_several_turns_is_gone_on_with_at_the_next_start(start: Start, yes: Path) -> None:
    with start(yes) as terminal:
        assert terminal.ask("first") == "Yes"
        assert terminal.ask("second") == "Yes"
        assert "context: 50 of 8192 tokens, 4 messages" in terminal.ask("/stats")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "`minfer chat --continue` goes on with this conversation." in terminal.text()
    with start(yes, "--continue") as terminal:
        assert "going on with 2 turns, 50 tokens, ending with assistant: Yes" in terminal.wait_for(">>>")
        assert terminal.ask("third") == "Yes"
        assert "user: first" in terminal.ask("/tokens")
        terminal.ask("/clear")
        assert terminal.ask("anew") == "Yes"
        terminal.wait_for_prompt()
        terminal.type(f"{LEAVE}\r")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text()
    with start(yes, "-c") as terminal:
        assert "going on with 1 turn" in terminal.wait_for(">>>")


def test_a_killed_chat_is_not_lost(start: Start, yes: Path) -> None:
    with start(yes) as terminal:
        terminal.ask("first")
        terminal.signal(signal.SIGKILL)
        assert terminal.end() == -signal.SIGKILL
    with start(yes, "--continue") as terminal:
        assert "going on with 1 turn" in terminal.wait_for(">>>")


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(start: Start, endless: Path) -> None:
    with start(endless) as terminal:
        terminal.wait_for_prompt()
        terminal.type("go\r")
        terminal.wait_for("abcabcabc")
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped)")
        assert "^C" not in terminal.text()
        terminal.wait_for_prompt()
        terminal.type(f"half a message{CTRL_C}")
        terminal.wait_for("(Ctrl-D or /exit leaves)")
        assert "assistant: abcabc" in terminal.ask("/tokens")
        terminal.ask("/set max_tokens 7")
        assert terminal.ask("more").startswith("abcabca\n(stopped after 7 tokens; /set max_tokens changes the limit)")
        assert "user: more" in terminal.ask("/tokens")
        assert "Traceback" not in terminal.text()


def test_what_is_typed_during_an_answer_waits_for_the_prompt(start: Start, endless: Path) -> None:
    with start(endless, "--max-tokens", "600") as terminal:
        terminal.wait_for_prompt()
        terminal.type("go\r")
        terminal.wait_for("abcabcabc")
        terminal.type("typed ahead")
        terminal.wait_for(">>> typed ahead")
        assert terminal.text().count("typed") == 1


def test_ctrl_c_while_the_prompt_is_read_takes_the_message_back(start: Start, yes: Path) -> None:
    with start(yes, "--system", "s" * 30_000, "--n-ctx", "32768") as terminal:
        terminal.wait_for_prompt()
        terminal.type("first\r")
        terminal.wait_for("reading the prompt: 512 of 30")
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped before the answer began; the message is not part of the conversation)")
        assert "user" not in terminal.ask("/tokens")
        terminal.ask("/system none")
        assert terminal.ask("second") == "Yes"
        # It is still there to be sent again.
        terminal.wait_for_prompt()
        terminal.type(UP * 4)
        terminal.wait_for(">>> first", 2)


def test_thinking_is_dimmed_and_left_out_of_the_next_prompt(start: Start, thinker: Path) -> None:
    with start(thinker) as terminal:
        assert terminal.ask("first") == "hm\n\nYes"
        assert b"\x1b[2mhm\r\n\x1b[22m\r\nYes" in terminal.raw
        assert "hm" not in terminal.ask("/tokens")
        n_tokens = terminal.ask("/stats").split()[1]
        assert terminal.ask("/regen") == "hm\n\nYes"
        assert terminal.ask("/stats").split()[1] == n_tokens
        terminal.ask("second")
        # Had the first thought stayed, there would be more than twice as many.
        assert int(terminal.ask("/stats").split()[1]) < 2 * int(n_tokens)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours_thinking_has_its_tags(start: Start, thinker: Path, environment: dict[str, str]) -> None:
    with start(thinker, **environment) as terminal:
        terminal.wait_for(">>>")
        terminal.type("first\r")
        terminal.wait_for("<think>\nhm\n</think>\n\nYes\n")
        terminal.wait_for(">>>", 2)
        terminal.type("/set temperature x\r")
        terminal.wait_for("error: temperature is 'x'; it must be a number")
        terminal.wait_for(">>>", 3)
        terminal.type("/exit\r")
        assert terminal.end() == 0
        for colour_or_style in (b"\x1b[2m", b"\x1b[1;31m", b"\x1b[31m"):
            assert colour_or_style not in terminal.raw
        if "TERM" in environment:
            assert b"\x1b" not in terminal.raw


def test_undo_regenerate_and_the_system_prompt(start: Start, yes: Path) -> None:
    with start(yes, "--system", "be kind") as terminal:
        assert terminal.ask("/system") == "(system prompt: be kind)"
        assert "no answer to generate anew" in terminal.ask("/regen")
        assert "no turn to take back" in terminal.ask("/undo")
        terminal.ask("first")
        terminal.ask("second")
        assert terminal.ask("/undo") == "(taken back: second)"
        assert terminal.ask("/regen") == "Yes"
        assert "4 messages" not in terminal.ask("/stats")
        assert terminal.ask("/system be brief") == "(system prompt: be brief)"
        assert "system: be brief" in terminal.ask("/tokens")
        assert terminal.ask("/system none") == "(system prompt: none)"
        assert "system" not in terminal.ask("/tokens")


def test_parameters_are_shown_changed_and_checked(start: Start, yes: Path) -> None:
    with start(yes, "--temperature", "0.3") as terminal:
        listed = terminal.ask("/set")
        for line in ("temperature = 0.3", "top_k = 40", "max_tokens = 8192", "seed = random", "context_shift = on"):
            assert line in listed
        assert terminal.ask("/set temperature 0") == "(temperature = 0)"
        assert terminal.ask("/set seed 7") == "(seed = 7)"
        assert terminal.ask("/set seed random") == "(seed = random)"
        assert terminal.ask("/set stop es") == "(stop = 'es')"
        assert terminal.ask("first") == "Y"
        assert terminal.ask("/set stop none") == "(stop = none)"
        assert terminal.ask("/set context-shift off") == "(context_shift = off)"
        assert terminal.ask("/set thinking off") == "(thinking = off)"
        assert terminal.ask("/set logit_bias 5=-inf 6=1.5") == "(logit_bias = 5=-inf 6=1.5)"
        assert terminal.ask("/set samplers top_k, temperature").endswith(
            "samplers leaves that stage out; set logit_bias to {}"
        )
        for entry, message in (
            ("/set temperature -1", "temperature is -1.0"),
            ("/set top_k x", "top_k is 'x'; it must be an integer"),
            ("/set top_k 1.5", "top_k is '1.5'; it must be an integer"),
            ("/set max_tokens 0", "max_tokens must be an integer of at least 1"),
            ("/set context_shift maybe", "context_shift is 'maybe'; it must be on, off"),
            ("/set temprature 1", "no parameter 'temprature' (did you mean temperature?)"),
            ("/set logit_bias 5", "logit_bias is '5'"),
            ("/set logit_bias 999=1", "999"),
            ("/undu", "no command /undu (did you mean /undo?)"),
            ("/exit now", "/exit takes nothing after it"),
        ):
            answer = terminal.ask(entry)
            assert answer.startswith("error: ")
            assert message in answer.replace("\n", "")
        assert terminal.ask("/set temperature").startswith("temperature = 0  (0 always takes the likeliest")
        assert terminal.ask("second") == "Yes"


def test_several_lines(start: Start, yes: Path) -> None:
    with start(yes) as terminal:
        terminal.wait_for_prompt()
        terminal.type('"""one\r')
        terminal.wait_for("...")
        terminal.type('two"""\r')
        terminal.wait_for("Yes")
        terminal.wait_for_prompt()
        terminal.type(f"three{ALT_ENTER}four\r")
        terminal.wait_for("Yes", 2)
        shown = terminal.ask("/tokens")
        assert "user: one two" in shown
        assert "user: three four" in shown
        assert terminal.ask("//help me") == "Yes"
        assert "user: /help me" in terminal.ask("/tokens")


def test_a_file_of_another_kind_is_replaced_only_after_a_yes(start: Start, yes: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with start(yes) as terminal:
        terminal.ask("first")
        assert terminal.ask("/save notes.txt") == "notes.txt is not a saved conversation. Replace it? [y/N]"
        assert "is left alone" in terminal.ask("no")
        assert notes.read_text() == "mine"
        terminal.ask("/save notes.txt")
        assert terminal.ask("y") == "(saved to notes.txt)"
        assert notes.read_bytes().startswith(b"MINFERKV")
        assert terminal.ask("/save notes.txt") == "(saved to notes.txt)"
        assert "a device" in terminal.ask("/save /dev/null")


def test_saved_under_a_name_and_loaded(start: Start, yes: Path, tmp_path: Path) -> None:
    with start(yes) as terminal:
        assert "which conversation?; none have been saved yet" in terminal.ask("/load")
        terminal.ask("first")
        assert terminal.ask("/save holiday").startswith("(saved to ")
        assert terminal.ask("/save ./here.chat") == "(saved to here.chat)"
        assert "(saved to " in terminal.ask("/save")
        terminal.ask("second")
        assert "there is no saved conversation 'none'; saved are" in terminal.ask("/load none")
        assert "loaded: 1 turn" in terminal.ask("/load holiday")
        assert "second" not in terminal.ask("/tokens")
        assert "can't be written" in terminal.ask("/save no/such/place")
        (tmp_path / "broken.chat").write_bytes((tmp_path / "here.chat").read_bytes()[:-9])
        assert "damaged" in terminal.ask("/load broken.chat")
        assert "user: first" in terminal.ask("/tokens")
    for saved in (tmp_path / "here.chat", *(tmp_path / "cache" / "chats").rglob("*.chat")):
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    with start(yes, "--load", "holiday") as terminal:
        assert "going on with 1 turn" in terminal.wait_for(">>>")
        assert "tokens in 0" in terminal.ask("more") + terminal.ask("/stats")
        assert "from the cache" in terminal.text()
    with start(yes, "--resume", "./here.chat", "--system", "new") as terminal:
        terminal.wait_for("going on with 1 turn")
        assert terminal.ask("/system") == "(system prompt: new)"


def test_the_history_is_private_and_comes_back(start: Start, yes: Path, tmp_path: Path) -> None:
    history = tmp_path / "cache" / "chat-history"
    with start(yes) as terminal:
        terminal.ask("a secret")
    assert "a secret" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with start(yes) as terminal:
        terminal.wait_for_prompt()
        terminal.type(UP)
        terminal.wait_for(">>> a secret")


def test_without_history_nothing_is_kept(start: Start, yes: Path, tmp_path: Path) -> None:
    with start(yes, "--no-history") as terminal:
        terminal.ask("a secret")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "--continue" not in terminal.text()
    assert not list((tmp_path / "cache").rglob("*chat*"))
    with start(yes, "--continue") as terminal:
        assert terminal.end() == 1
        assert "there is no earlier conversation with this model" in terminal.text()


def test_a_full_context_is_told(start: Start, endless: Path) -> None:
    with start(endless, "--n-ctx", "100", "--max-tokens", "40") as terminal:
        terminal.ask("one")
        shown = terminal.ask("two")
        assert "(the context was full: the model no longer sees the oldest turn, 6" in shown
        terminal.ask("/set context_shift off")
        assert "(stopped: the context of 100 tokens is full; /set context_shift on" in terminal.ask("three")
        assert "error: the conversation has 1" in terminal.ask("four")
        terminal.ask("/set context_shift on")
        assert "no longer sees the oldest" in terminal.ask("five")
        assert "no longer in the context" in terminal.ask("/tokens")
        answer = terminal.ask("x" * 150).replace("\n", "")
        assert "error: the message, with the system prompt and what the chat template adds, has 166 tokens" in answer
        assert "context of 100" in answer
        assert "user: xxx" not in terminal.ask("/tokens")


def test_what_a_model_says_does_not_reach_the_terminal_as_a_command(start: Start, tmp_path: Path) -> None:
    escape = "\u011b"  # byte-level BPE's character for ESC
    model = write_chain(tmp_path / "evil.gguf", ["a", escape, "[", "2", "J", "b"], CHATML)
    with start(model) as terminal:
        assert terminal.ask("first") == "a\ufffd[2Jb"


def test_commands_and_parameters_are_completed(start: Start, yes: Path) -> None:
    with start(yes) as terminal:
        terminal.wait_for_prompt()
        terminal.type("/reg\t")
        terminal.wait_for(">>> /regen")
        terminal.type(f"{CTRL_C}")
        terminal.wait_for("leaves)")
        terminal.wait_for_prompt()
        terminal.type("/set dry_b\t")
        terminal.wait_for(">>> /set dry_base")


def test_bytes_that_are_no_text_are_told_and_the_chat_goes_on(start: Start, yes: Path) -> None:
    with start(yes) as terminal:
        terminal.wait_for_prompt()
        terminal.type(b"caf\xe9\r")
        assert "what was entered is not UTF-8 text" in terminal.wait_for("0xE9")
        assert terminal.ask("cafe") == "Yes"
