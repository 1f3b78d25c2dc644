"""The contract between the embedding scorer and whatever turns texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

VectorArray: TypeAlias = NDArray[np.float32]

# Which prompt stands before a text: models that tell queries from documents have one for each.
Role: TypeAlias = Literal["query", "document"]


class Encoder(Protocol):
    """Turns texts into vectors. A text's vector depends on the text and its role alone."""

    def encode(self, texts: Sequence[str], role: Role) -> VectorArray:
        """One vector a text, shape (n, d), as the model gives it (normalised only if the model does so itself).

        Called with the texts of one batch, the longest first.

        :raises EncodingError: where the model or server gave no vectors; its text says what was wrong with which text.
        """
        ...

    def cut(self, texts: Sequence[str], role: Role) -> list[bool] | None:
        """Which texts are longer than the model's maximum length and so lose their end; None where it cannot tell."""
        ...

    @property
    def batch_size(self) -> int:
        """How many texts one call of :meth:`encode` should bring; it may shrink when memory runs out."""
        ...

    def identity(self) -> dict[str, Any]:
        """Everything that changes a vector, JSON-serialisable: what the cache is keyed by, and the results record."""
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...
