"""The evaluation engine against a small local server."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from winnowrl.agents.engines.base import Engine, Sampling
from winnowrl.agents.engines.openai import OpenAIEngine
from winnowrl.agents.errors import DeadlineExceeded, EngineFailure


class Server(BaseHTTPRequestHandler):
    """Answers what the test put into ``answers``, a list of (status, body), after ``delay_s``; remembers what was asked."""

    answers: list[tuple[int, Any]]
    asked: list[tuple[str, Any, str | None]]
    delay_s = 0.0
    num_lost_bytes = 0

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body, self.headers.get("Authorization")))
        time.sleep(self.delay_s)
        self._answer(*self.answers.pop(0))

    def _answer(self, status: int, body: Any) -> None:
        if status == 0:
            threading.Event().wait(1.0)
            return
        self.send_response(status)
        if self.num_lost_bytes:
            self.send_header("Content-Length", str(len(json.dumps(body)) + self.num_lost_bytes))
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"answers": [], "asked": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield handler, f"http://127.0.0.1:{http.server_address[1]}/v1"
    http.shutdown()
    http.server_close()
    thread.join(5)


@pytest.fixture(scope="module")
def codec(tiny_model_path):
    from transformers import AutoTokenizer

    from winnowrl.agents.text_codec import TextCodec

    return TextCodec(AutoTokenizer.from_pretrained(str(tiny_model_path)))


def ask(engine: OpenAIEngine, codec: Any, sampling: Sampling, prompt_ids: list[int] | None = None):
    async def run():
        prompt = codec.encode_markup("<|im_start|>hello") if prompt_ids is None else prompt_ids
        try:
            return await engine.generate(prompt, sampling, (1 << 62) + 7)
        finally:
            await engine.close()

    return asyncio.run(run())


def answer(text: str | None, reason: str = "stop", **more: Any) -> tuple[int, Any]:
    return 200, {"choices": [{"text": text, "finish_reason": reason, **more}]}


def test_text_comes_back_as_ids_without_logprobs(server, codec, monkeypatch):
    handler, url = server
    monkeypatch.setenv("TEST_KEY", "secret")
    handler.answers.append(answer("It is 2."))
    engine = OpenAIEngine(url, codec, api_key_env="TEST_KEY", end_token_id=2)
    assert isinstance(engine, Engine)
    completion = ask(engine, codec, Sampling(16, 0.5, top_p=0.9, top_k=5, stop=("\n\n", "END")))
    assert completion.token_ids == [*codec.encode_text("It is 2."), 2]
    assert all(math.isnan(logprob) for logprob in completion.logprobs)
    assert completion.finish_reason == "stop"
    [(path, body, key)] = handler.asked
    assert (path, key) == ("/v1/completions", "Bearer secret")
    expected = {"model": "tiny", "prompt": "<|im_start|>hello", "max_tokens": 16, "temperature": 0.5, "top_p": 0.9}
    assert {**body, **expected, "top_k": 5, "stop": ["\n\n", "END"]} == body
    assert 0 <= body["seed"] < 2**31


@pytest.mark.parametrize("template", ["plain", "tokenizer"])
def test_a_tokenizer_that_begins_every_text_turns_the_sent_prompt_into_the_same_ids(
    server, tiny_model_path, tmp_path, template
):
    import shutil

    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from winnowrl.agents.conversation import build_template

    tokenizer = AutoTokenizer.from_pretrained(str(shutil.copytree(tiny_model_path, tmp_path / "model")))
    begin = "<|endoftext|>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, 0)])
    # Chat templates of models with a begin token write it.
    tokenizer.chat_template = begin + tokenizer.chat_template
    made = build_template(template, tokenizer)
    prompt = made.first_prompt(None, "Q: 1+1?")
    assert prompt.count(0) == 1
    handler, url = server
    handler.answers.append(answer("2"))
    ask(OpenAIEngine(url, made.codec, end_token_id=2), made.codec, Sampling(4), prompt)
    [(_, body, _)] = handler.asked
    # The tokenizer's default puts the begin token before any text, as a server does.
    assert tokenizer(body["prompt"])["input_ids"] == prompt


@pytest.mark.parametrize(
    ("reply", "stop", "text", "reason"),
    [
        (answer("so", "length"), (), "so", "length"),
        (answer("so", stop_reason="END"), ("END", "!"), "soEND", "stop"),
        (answer("so"), ("END",), "soEND", "stop"),
        (answer("soEND"), ("END",), "soEND", "stop"),
        (answer("so", stop_reason=None), ("END",), "so<|im_end|>", "stop"),  # the server says: an end token
        (answer("so", stop_reason=2), ("END",), "so<|im_end|>", "stop"),
        (answer(None, stop_reason=None), (), "<|im_end|>", "stop"),
    ],
)
def test_what_ended_the_reply_is_kept(server, codec, reply, stop, text, reason):
    handler, url = server
    handler.answers.append(reply)
    completion = ask(OpenAIEngine(url, codec, end_token_id=2), codec, Sampling(16, stop=stop))
    assert (codec.decode(completion.token_ids), completion.finish_reason) == (text, reason)


def test_a_busy_server_is_asked_again(server, codec):
    handler, url = server
    handler.answers += [(503, {}), answer("ok")]
    assert codec.decode(ask(OpenAIEngine(url, codec), codec, Sampling(4)).token_ids) == "ok"


@pytest.mark.parametrize(("status", "message"), [(200, "cannot be reached: IncompleteRead"), (503, "answered 503")])
def test_an_answer_that_breaks_off_is_asked_for_again_and_then_a_failure(server, codec, status, message, monkeypatch):
    from winnowrl.agents.engines import openai

    monkeypatch.setattr(openai, "pause", lambda attempt: None)
    handler, url = server
    handler.num_lost_bytes = 50
    handler.answers += [(status, answer("ok")[1])] * 3
    with pytest.raises(EngineFailure, match=message):
        ask(OpenAIEngine(url, codec, model="m"), codec, Sampling(4))
    assert len(handler.asked) == 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [((400, {"error": "prompt too long"}), "answered 400: .*prompt too long"), ((200, {}), "without a completion")],
)
def test_a_refusal_says_what_the_server_said(server, codec, reply, message):
    handler, url = server
    handler.answers.append(reply)
    with pytest.raises(EngineFailure, match=message):
        ask(OpenAIEngine(url, codec), codec, Sampling(4))


def test_no_server_is_named(codec):
    with pytest.raises(EngineFailure, match=r"http://127\.0\.0\.1:9/v1/completions cannot be reached"):
        ask(OpenAIEngine("http://127.0.0.1:9/v1", codec, model="m"), codec, Sampling(4))


def test_a_silent_server_ends_at_the_deadline(server, codec):
    handler, url = server
    handler.answers += [(0, {})] * 3
    with pytest.raises((EngineFailure, DeadlineExceeded), match=r"cannot be reached|no reply within"):
        ask(OpenAIEngine(url, codec, timeout_s=0.1), codec, Sampling(4))


def test_waiting_for_a_free_thread_is_no_wait_for_the_server(server, codec):
    handler, url = server
    # One request at a time, 0.1 s each: the last waits 1.1 s for its thread, longer than the 0.9 s an answer may take.
    handler.delay_s, num_requests, events = 0.1, 12, []
    handler.answers += [answer("ok")] * num_requests
    engine = OpenAIEngine(url, codec, max_concurrent_requests=1, timeout_s=0.3)

    async def request(number: int):
        await engine.generate([5], Sampling(4), number, lambda: events.append("begin"))
        events.append("end")

    async def run():
        await asyncio.gather(*[request(number) for number in range(num_requests)])
        await engine.close()

    asyncio.run(run())
    assert (events.count("begin"), events.count("end")) == (num_requests, num_requests)
    # The thread may have taken the next one before the event loop hears of an answer.
    assert all(events[:end].count("begin") - events[:end].count("end") <= 2 for end in range(len(events)))


def test_it_refuses_to_train(codec):
    engine = OpenAIEngine("http://127.0.0.1:9/v1", codec)
    with pytest.raises(ValueError, match="for evaluation only"):
        asyncio.run(engine.load_weights([], 1))
    with pytest.raises(ValueError, match="for evaluation only"):
        asyncio.run(engine.score([1, 2]))
    asyncio.run(engine.close())
    asyncio.run(engine.close())


def test_address_must_be_one(codec):
    with pytest.raises(ValueError, match=r"engine\.base_url is 'localhost:8000'; allowed: an address"):
        OpenAIEngine("localhost:8000", codec)
