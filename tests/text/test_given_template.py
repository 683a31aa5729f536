"""Chat templates in place of a file's own. The renderings are written by hand, after what their makers publish."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from minfer.errors import MinferWarning, ParameterError, TemplateError
from minfer.text import TEMPLATE_NAMES, ChatTemplate, TokenType, build_tokenizer
from minfer.text.template.given import find_template
from text_vocabularies import CONTROL, NORMAL, bpe_metadata, spm_metadata

TALK = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "bye"},
]

WRITTEN = {
    "chatml": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
        "<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    ),
    "command-r": (
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>yo<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>bye<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "deepseek2": "<s>S\n\nUser: hi\n\nAssistant: yo</s>User: bye\n\nAssistant:",
    "deepseek3": "<s>S<｜User｜>hi<｜Assistant｜>yo</s><｜User｜>bye<｜Assistant｜>",
    "gemma": (
        "<s><start_of_turn>user\nS\n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n"
        "<start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\n"
    ),
    "glm4": "[gMASK]<sop><|system|>\nS<|user|>\nhi<|assistant|>\nyo<|user|>\nbye<|assistant|>\n",
    "granite": (
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>hi<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>yo<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>bye<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
    ),
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nhi [/INST] yo </s><s>[INST] bye [/INST]",
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nyo<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nbye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "llama4": (
        "<s><|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user<|header_end|>\n\nhi<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\nyo<|eot|><|header_start|>user<|header_end|>\n\nbye<|eot|>"
        "<|header_start|>assistant<|header_end|>\n\n"
    ),
    "mistral-v1": "<s>[INST] S\n\nhi [/INST] yo</s>[INST] bye [/INST]",
    "mistral-v3": "<s>[INST] S\n\nhi[/INST] yo</s>[INST] bye[/INST]",
    "mistral-v3-tekken": "<s>[INST]S\n\nhi[/INST]yo</s>[INST]bye[/INST]",
    "mistral-v7": "<s>[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] hi[/INST] yo</s>[INST] bye[/INST]",
    "mistral-v7-tekken": "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]hi[/INST]yo</s>[INST]bye[/INST]",
    "phi3": (
        "<|system|>\nS<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\nyo<|end|>\n<|user|>\nbye<|end|>\n<|assistant|>\n"
    ),
    "phi4": (
        "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>hi<|im_end|>"
        "<|im_start|>assistant<|im_sep|>yo<|im_end|><|im_start|>user<|im_sep|>bye<|im_end|>"
        "<|im_start|>assistant<|im_sep|>"
    ),
    "phi4-mini": "<|system|>S<|end|><|user|>hi<|end|><|assistant|>yo<|end|><|user|>bye<|end|><|assistant|>",
    "vicuna": "<s>S USER: hi ASSISTANT: yo</s>USER: bye ASSISTANT:",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nhi</s>\n<|assistant|>\nyo</s>\n<|user|>\nbye</s>\n<|assistant|>\n",
}


def test_every_named_template_has_a_rendering_here() -> None:
    assert set(WRITTEN) == set(TEMPLATE_NAMES)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_named_template_writes_as_its_family_does(name: str) -> None:
    given = find_template(name)
    template = ChatTemplate(given.source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(TALK) == WRITTEN[name]
    question = template.render(TALK[-1:])
    assert question.endswith(WRITTEN[name][-9:])
    assert all(marker in WRITTEN[name] for marker in (*given.markers, *given.ends))
    # A vocabulary without BOS and EOS has no variables for them.
    assert ChatTemplate(given.source).render(TALK) == WRITTEN[name].replace("</s>", "").replace("<s>", "")


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_named_templates_know_no_tools_and_say_so(name: str) -> None:
    template = ChatTemplate(find_template(name).source)
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
    with pytest.raises(TemplateError, match="leaves out the tool calls"):
        template.render([*TALK, {"role": "assistant", "content": "", "tool_calls": [call]}])


def test_the_end_of_a_named_template_ends_an_answer() -> None:
    tokens = [("<|im_start|>", NORMAL), ("<|END_OF_TURN_TOKEN|>", NORMAL), ("<|user|>", NORMAL), ("<|im_end|>", NORMAL)]
    tokens += [(text, CONTROL) for text in ("<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>")]
    metadata = bpe_metadata([*tokens, ("<|CHATBOT_TOKEN|>", CONTROL)])
    start, end_of_turn = 256, 257
    assert end_of_turn not in build_tokenizer(metadata).eog_ids
    tokenizer = build_tokenizer(metadata, "command-r")
    assert end_of_turn in tokenizer.eog_ids
    assert tokenizer.vocabulary.token_type(end_of_turn) is TokenType.CONTROL
    assert end_of_turn not in build_tokenizer(metadata, "chatml").eog_ids
    tokenizer = build_tokenizer(metadata, "chatml")
    assert tokenizer.encode_chat(TALK[1:2])[:3] == [start, *b"us"]
    assert tokenizer.tokenize("<|im_start|>") == [*b"<|im_start|>"]  # what a user writes is no marker


def test_markers_that_the_vocabulary_lacks_are_told() -> None:
    metadata = bpe_metadata([("<|im_end|>", CONTROL)])
    with pytest.warns(MinferWarning, match=r"no tokens for <\|im_start\|>, which the chat template 'chatml' writes"):
        tokenizer = build_tokenizer(metadata, "chatml")
    assert tokenizer.apply_template(TALK) == WRITTEN["chatml"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_tokenizer(metadata, "vicuna")


def test_a_given_template_takes_the_place_of_all_of_the_file_s() -> None:
    own = {"tokenizer.chat_template": "{% if %}", "tokenizer.chat_template.tool_use": "{% if %}"}
    tokenizer = build_tokenizer(bpe_metadata() | own, "{{ messages[-1].content }}!")
    assert list(tokenizer.chat_templates) == ["default"]
    assert tokenizer.apply_template(TALK[1:2], tools=[{"name": "f"}]) == "hi!"


def test_bos_and_eos_are_the_vocabulary_s() -> None:
    words = [("▁", -1.0), ("h", -2.0), ("▁h", -3.0)]
    tokenizer = build_tokenizer(spm_metadata(words, add_bos_token=True), "mistral-v1")
    ids = tokenizer.encode_chat([{"role": "user", "content": "h"}])
    assert ids.count(1) == 1
    assert tokenizer.apply_template(TALK) == WRITTEN["mistral-v1"]


@pytest.mark.parametrize("as_path", [True, False])
def test_a_template_may_be_a_file(as_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.jinja"
    path.write_bytes("\ufeff{{ messages[0].content }}é".encode())
    given: Any = path if as_path else str(path)
    assert build_tokenizer(bpe_metadata(), given).apply_template(TALK[1:2]) == "hié"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    given = Path("~/mine.jinja") if as_path else "~/mine.jinja"
    assert build_tokenizer(bpe_metadata(), given).apply_template(TALK[1:2]) == "hié"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_template_may_come_from_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("{{ messages[0].content }}",))
    writer.start()
    assert find_template(path).source == "{{ messages[0].content }}"
    writer.join()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("chatlm", r"'chatlm' is no file that can be read \(.*\), and none of the known names: chatml, command-r, "),
        ("folder", "'.*folder' is no file that can be read"),
        ("large", "more than 1,000,000 bytes"),
        ("binary", "is not UTF-8 text: invalid start byte at byte 0"),
        ("a\0b", "is no file that can be read"),
        ("", "must be a name, a path or a template, not ''"),
        (3, "must be a name, a path or a template, not 3"),
    ],
)
def test_what_is_no_template_is_refused(given: Any, problem: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 1_000_001)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ParameterError, match=problem):
        build_tokenizer(bpe_metadata(), str(tmp_path / given) if given in ("folder", "large", "binary") else given)


def test_a_given_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(TemplateError, match=r"does not compile, line 1.*--chat-template.*chatml"):
        build_tokenizer(bpe_metadata(), "{% if %}")
