"""A loopback OpenAI-compatible server that answers as it is told to, well or badly, and counts its calls."""

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

Json: TypeAlias = dict[str, Any]


class Reply(NamedTuple):
    """A response. `hang`: none ever comes. `drip`: a byte and then silence. `cut`: it breaks off in the middle."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    hang: bool = False
    drip: bool = False
    cut: bool = False


Behaviour: TypeAlias = Callable[[Json], Reply]

DIMENSIONS = 64


def reply(content: object, **rest: Any) -> Reply:
    """A response with a JSON body."""
    return Reply(json.dumps(content).encode(), **rest)


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Words as directions: texts with words in common are similar, which is all that a test needs of a model."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.sha256(word.encode()).digest()
        vector[digest[0] % dimensions] += 1.0 if digest[1] % 2 else -1.0
    return vector if any(vector) else [1.0] * dimensions


def embeddings(payload: Json, dimensions: int = DIMENSIONS, model: str = "standin-embedding") -> Json:
    """What a good endpoint answers."""
    data = [
        {"object": "embedding", "index": index, "embedding": embed(text, dimensions)}
        for index, text in enumerate(payload["input"])
    ]
    return {"object": "list", "model": model, "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def completion(content: object, *, finish: str = "stop", tokens: tuple[int, int] = (800, 40), **message: Any) -> Json:
    """A chat completion with this content."""
    return {
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
        ],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]},
    }


def offered(payload: Json) -> list[str]:
    """The ids that a request for a choice offers, the best-ranked first."""
    ids: list[str] = payload["response_format"]["json_schema"]["schema"]["properties"]["agent_id"]["enum"]
    return ids


def choose(agent_id: str) -> Behaviour:
    """Pick this agent, rightly or not."""
    return lambda _: reply(completion(json.dumps({"agent_id": agent_id, "reasoning": "it knows best"})))


def choose_last(payload: Json) -> Reply:
    """Pick the lowest-ranked: what no fallback would pick."""
    return choose(offered(payload)[-1])(payload)


class StandIn:
    """Use it as an asynchronous context manager; `embedding` and `chat` may be changed at any time."""

    def __init__(self) -> None:
        self.embedding: Behaviour = lambda payload: reply(embeddings(payload))
        self.chat: Behaviour = choose_last
        self.embedding_calls: list[Json] = []
        self.chat_calls: list[Json] = []
        self.authorizations: set[str] = set()
        self.base_url = ""
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def embedded(self) -> int:
        """How many texts were asked for."""
        return sum(len(call["input"]) for call in self.embedding_calls)

    @property
    def batches(self) -> Sequence[int]:
        """The size of each call for embeddings."""
        return [len(call["input"]) for call in self.embedding_calls]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = {name.lower(): value.strip() for name, _, value in (h.partition(":") for h in head.split("\r\n")[1:])}
        payload = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.authorizations.add(headers.get("authorization", ""))
        if head.startswith("POST /v1/embeddings "):
            self.embedding_calls.append(payload)
            said = self.embedding(payload)
        else:
            assert head.startswith("POST /v1/chat/completions ")
            self.chat_calls.append(payload)
            said = self.chat(payload)
        if said.hang:
            await asyncio.Event().wait()
        lines = [f"HTTP/1.1 {said.status} X", f"content-length: {len(said.body)}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in said.headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if said.drip:
            writer.write(said.body[:1])
            await asyncio.Event().wait()
        writer.write(said.body[: len(said.body) // 2] if said.cut else said.body)
        await writer.drain()
        return not said.cut
