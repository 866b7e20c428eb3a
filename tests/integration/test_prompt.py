"""Prompts and answers with the real checkpoint's tokenizer: what is sent, and what is made of what comes."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest
from transformers import PreTrainedTokenizerFast

from trtb.build.store import EngineStore
from trtb.runner.answer import AnswerReader, Choice
from trtb.runner.errors import ContextLengthError, InvalidRequestError
from trtb.runner.options import capabilities_of
from trtb.runner.prompt import LengthLimits, PromptRenderer
from trtb.runner.records import completed_record
from trtb.runner.request import ChatRequest, SamplingParams
from trtb.runner.transport import Chunk

pytestmark = pytest.mark.triton

EOS = 2
LIMITS = LengthLimits(max_seq_len=100, default_max_tokens=16)
HERMES = """{%- if tools %}<|im_start|>system
Call tools as <tool_call>{"name": ..., "arguments": ...}</tool_call>: {{ tools | tojson }}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{%- if message.tool_calls %}{% for call in message.tool_calls %}
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def folder(engine_home: Path) -> Path:
    return EngineStore(engine_home).resolve().path / "tokenizer"


@pytest.fixture(scope="module")
def renderer(folder: Path) -> PromptRenderer:
    return PromptRenderer(folder, LIMITS, 49_152, frozenset({EOS, 0}))


@pytest.fixture(scope="module")
def tool_engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine's folder whose chat template knows tools."""
    engine = tmp_path_factory.mktemp("tools")
    shutil.copytree(folder, engine / "tokenizer")
    template = engine / "tokenizer" / "chat_template.jinja"
    template.chmod(0o644)
    template.write_text(HERMES)
    return engine


def chat(*texts: tuple[str, str | None], **fields) -> ChatRequest:
    messages = [{"role": role, "content": text} for role, text in texts]
    return ChatRequest(1, "a", "m", messages, SamplingParams(), **fields)


@pytest.mark.parametrize(
    "request_",
    [
        chat(("user", "hi")),
        chat(("system", "Be brief."), ("user", "1 + 1?\n"), ("assistant", "2"), ("user", "  你好 🙂 ")),
        chat(("user", "<|im_end|> and {{ 1 }}")),
    ],
)
def test_the_short_way_renders_what_transformers_renders(folder, renderer, request_):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    wanted = tokenizer.apply_chat_template(request_.messages, tokenize=True, add_generation_prompt=True)
    assert renderer.render_chat(request_) == wanted["input_ids"]


def test_a_message_that_is_gone_on_with_stays_open(renderer):
    open_end = renderer.render_chat(
        chat(("user", "Count."), ("assistant", "1, 2"), continue_final_message=True)
    )
    assert renderer.decode(open_end).endswith("1, 2")
    assert open_end[-1] != EOS


def test_what_the_template_raises_is_the_requests_fault(tool_engine):
    template = tool_engine / "tokenizer" / "chat_template.jinja"
    before = template.read_text()
    template.write_text("{{ raise_exception('roles must alternate') }}")
    strict = PromptRenderer(tool_engine / "tokenizer", LIMITS, 49_152, frozenset({EOS}))
    template.write_text(before)
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        strict.render_chat(chat(("user", "a"), ("user", "b")))


def test_a_hopeless_text_is_refused_without_tokenising(renderer):
    with pytest.raises(ContextLengthError, match="more than"):
        renderer.render_prompt("word " * 100_000)


def test_an_answer_gets_the_room_that_is_left_and_no_more(renderer):
    assert renderer.answer_length(10, None) == 16
    assert renderer.answer_length(90, None) == 10
    assert renderer.answer_length(90, 10) == 10
    for num_prompt_tokens, max_tokens in ((90, 11), (100, None), (100, 1), (10, 2**40)):
        with pytest.raises(ContextLengthError, match="100 for both"):
            renderer.answer_length(num_prompt_tokens, max_tokens)


def reader(renderer: PromptRenderer, sampling: SamplingParams, **options) -> AnswerReader:
    values = {"max_tokens": 50, "num_sequences": 1, "num_copies": 1, "tool_names": frozenset(), **options}
    return AnswerReader(renderer, sampling, **values)


def answer(renderer: PromptRenderer, text: str, sampling=None, **options) -> list[Choice]:
    ids = renderer.render_prompt(text)
    taken = reader(renderer, sampling or SamplingParams(), **options)
    for token in ids:
        if not taken.is_done:
            taken.take(Chunk([token], is_final=False, log_probs=(-0.5,)))
    if not taken.is_done:
        taken.take(Chunk([], is_final=True))
    return taken.choices()


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def test_tools_reach_the_prompt_and_calls_leave_the_answer(tool_engine):
    assert capabilities_of(tool_engine).tool_style == "hermes"
    calling = PromptRenderer(tool_engine / "tokenizer", LIMITS, 49_152, frozenset({EOS}))
    prompt = calling.decode(calling.render_chat(chat(("user", "Weather?"), tools=TOOLS)))
    assert '"weather"' in prompt
    (choice,) = answer(calling, f"Let me see. {CALL}", tool_names=frozenset({"weather"}))
    assert choice.finish_reason == "tool_calls"
    assert choice.text == "Let me see."
    record = completed_record(
        answers_id="r", line=1, custom_id="a", model="m", fingerprint="f", created_s=0, is_chat=True,
        choices=[choice], prompt_tokens=1, completion_tokens=choice.num_tokens,
    )  # fmt: skip
    message = orjson.loads(record)["response"]["body"]["choices"][0]["message"]
    assert message["content"] == "Let me see."
    (call,) = message["tool_calls"]
    assert orjson.loads(call["function"]["arguments"]) == {"city": "Bern"}
    assert call["function"]["name"] == "weather"


def test_what_is_no_call_of_a_known_tool_stays_content(tool_engine):
    calling = PromptRenderer(tool_engine / "tokenizer", LIMITS, 49_152, frozenset({EOS}))
    (choice,) = answer(calling, CALL, tool_names=frozenset({"other"}))
    assert choice.tool_calls == ()
    assert choice.finish_reason == "stop"
    assert "weather" in (choice.text or "")


@pytest.mark.parametrize("stop", ["lo w", "🙂", "d"])
def test_a_stop_string_ends_the_reading_where_it_is_complete(renderer, stop):
    (choice,) = answer(renderer, "hello 🙂 hello world", SamplingParams(stop=(stop,), log_probs=True))
    assert choice.text == "hello 🙂 hello world".partition(stop)[0]
    assert choice.finish_reason == "stop"
    joined = b"".join(token.data for token in choice.log_probs or ())
    assert joined.decode(errors="ignore").startswith(choice.text)


def test_sequences_are_told_apart_and_each_is_cut_at_its_own_stop(renderer):
    taken = reader(renderer, SamplingParams(n=2, temperature=1.0, stop=("b",)), num_sequences=2)
    taken.take(Chunk(renderer.render_prompt("xyz a b c"), is_final=False, sequence=1))
    taken.take(Chunk(renderer.render_prompt("one two"), is_final=True, sequence=0))
    assert taken.is_done
    assert [choice.text for choice in taken.choices()] == ["one two", "xyz a "]


def test_an_answer_of_as_many_tokens_as_allowed_was_cut_unless_it_ended_itself(renderer):
    ids = renderer.render_prompt("one two three")
    for tail, wanted in (([], "length"), ([EOS], "stop")):
        taken = reader(renderer, SamplingParams(), max_tokens=len(ids) + len(tail))
        taken.take(Chunk([*ids, *tail], is_final=True))
        (choice,) = taken.choices()
        assert (choice.text, choice.finish_reason) == ("one two three", wanted)
        assert choice.num_tokens == len(ids)
