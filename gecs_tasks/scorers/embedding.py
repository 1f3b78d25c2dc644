"""Bi-encoder scoring: each distinct text becomes a vector once, a pair's score is their vectors' similarity."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gecs_tasks.errors import EncodingError, SettingError
from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray
from gecs_tasks.scorers.cache import Entry, VectorCache
from gecs_tasks.scorers.encoders.base import Encoder, Role, VectorArray

logger = logging.getLogger(__name__)

SIMILARITIES: Final = ("cosine", "dot")
_FLOATS_AT_ONCE: Final = 1 << 24  # 64 MiB of each side's vectors while scores are computed


class Encoded(NamedTuple):
    """The vectors of some texts, shape (n, d), and which texts lost their end; ``cut`` is -1 where nobody knows."""

    vectors: VectorArray
    cut: np.ndarray[Any, np.dtype[np.int8]]


class EmbeddingScorer:
    """Scores pairs by the similarity of an encoder's vectors. It ranks, and decides nothing without a threshold.

    Processes that share an evaluation (``group``) encode a part of all their texts each.

    Memory: one float32 vector for each distinct text, and 64 MiB; never all queries against all codes.

    :param encoder: what turns texts into vectors.
    :param model: the model's name for the results file, where the encoder's identity has none.
    :param similarity: ``cosine`` or ``dot``.
    :param normalize: scale every vector to length 1 first, which makes ``dot`` the cosine.
    :param cache_dir: folder of the persistent vector cache; None for no cache.
    :param progress: show a progress bar; None shows one where stderr is a terminal.
    :raises SettingError: where the similarity is unknown or the cache's folder cannot be used.
    """

    threshold = None
    group: RankGroup | None = None

    def __init__(
        self,
        encoder: Encoder,
        *,
        model: str | None = None,
        similarity: str = "cosine",
        normalize: bool = False,
        cache_dir: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        if similarity not in SIMILARITIES:
            raise SettingError(f"similarity is {similarity!r}: expected one of {', '.join(SIMILARITIES)}")
        self.encoder = encoder
        self.model = model
        self.similarity = similarity
        self.normalize = normalize
        self._progress = progress
        self._cache = None if cache_dir is None else VectorCache(Path(cache_dir), encoder.identity())
        self._counts = {"queries": 0, "codes": 0, "encoded": 0, "from_cache": 0, "cut": 0, "not_a_number": 0}
        self._cut_is_known = True
        self._dimension: int | None = None

    def score(self, batch: PairBatch) -> ScoreArray:
        """Each pair's similarity, shape (n,); NaN where a vector is not finite, or has no direction for the cosine."""
        queries, codes = self._encode_all(batch.queries, batch.codes)
        if self.similarity == "cosine" or self.normalize:
            queries, codes = _normalized(queries), _normalized(codes)
        scores = np.empty(len(batch), dtype=np.float64)
        step = max(1, _FLOATS_AT_ONCE // queries.shape[1])
        for start in range(0, len(batch), step):
            left, right = batch.pairs[start : start + step].T
            # Row by row rather than by a matrix product: a pair's score must not depend on its neighbours.
            with np.errstate(over="ignore", invalid="ignore"):
                scores[start : start + step] = np.einsum("ij,ij->i", queries[left], codes[right])
        return np.where(np.isfinite(scores), scores, np.nan)

    def _encode_all(self, queries: Sequence[str], codes: Sequence[str]) -> tuple[VectorArray, VectorArray]:
        texts: dict[Role, Sequence[str]] = {"document": codes, "query": queries}
        shared = {role: self._union(texts[role]) for role in texts}
        parts = {role: self._own_part(shared[role]) for role in texts}
        encoded: dict[Role, VectorArray] = {}
        found = {role: self._from_cache(parts[role], role) for role in texts}
        n_cached = sum(map(len, found.values()))
        n_missing = sum(map(len, parts.values())) - n_cached
        totals = [(n_missing, n_cached)] if self.group is None else self.group.gather((n_missing, n_cached))
        self._counts["encoded"] += sum(missing for missing, _ in totals)
        self._counts["from_cache"] += sum(cached for _, cached in totals)
        logger.info(
            "Encoding %d queries and %d codes: %d vectors from the cache, %d to encode in batches of %d",
            len(shared["query"]),
            len(shared["document"]),
            n_cached,
            n_missing,
            self.encoder.batch_size,
        )
        with self._bar(n_missing) as bar:
            for role in texts:
                part = self._encode_part(parts[role], role, found[role], bar)
                encoded[role] = self._gathered(shared[role], part, texts[role])
        if encoded["query"].shape[1] != encoded["document"].shape[1]:
            raise EncodingError(
                f"queries have {encoded['query'].shape[1]} dimensions and codes {encoded['document'].shape[1]}: "
                "the model gives vectors that cannot be compared"
            )
        self._counts["queries"] += len(shared["query"])
        self._counts["codes"] += len(shared["document"])
        return encoded["query"], encoded["document"]

    def _union(self, texts: Sequence[str]) -> list[str]:
        """The distinct texts of all processes, longest first: what memory cannot hold fails at once."""
        everyone = [texts] if self.group is None else self.group.gather(list(texts))
        distinct = dict.fromkeys(text for part in everyone for text in part)
        return sorted(distinct, key=lambda text: (-len(text), text))

    def _own_part(self, texts: list[str]) -> list[str]:
        return texts if self.group is None else texts[self.group.rank :: self.group.size]

    def _from_cache(self, texts: list[str], role: Role) -> dict[str, Entry]:
        if self._cache is None:
            return {}
        found = self._cache.get([_key(text, role) for text in texts])
        return {text: found[key] for text in texts if (key := _key(text, role)) in found}

    def _encode_part(self, texts: list[str], role: Role, found: dict[str, Entry], bar: Any) -> Encoded:
        """The vectors of this process's texts; every batch is in the cache before the next is begun."""
        vectors: VectorArray | None = None
        cut = np.full(len(texts), -1, dtype=np.int8)
        for position, text in enumerate(texts):
            if (entry := found.get(text)) is not None:
                vectors = self._room(vectors, len(texts), entry.vector[None, :], text)
                vectors[position] = entry.vector
                cut[position] = -1 if entry.cut is None else int(entry.cut)
        missing = [position for position, text in enumerate(texts) if text not in found]
        start = 0
        while start < len(missing):
            positions = missing[start : start + self.encoder.batch_size]
            batch = [texts[position] for position in positions]
            encoded = self._encode_batch(batch, role)
            vectors = self._room(vectors, len(texts), encoded.vectors, batch[0])
            vectors[positions] = encoded.vectors
            cut[positions] = encoded.cut
            start += len(positions)
            bar.update(len(positions))
        if vectors is None:
            vectors = np.empty((0, self._dimension or 0), dtype=np.float32)
        return Encoded(vectors, cut)

    def _encode_batch(self, texts: list[str], role: Role) -> Encoded:
        vectors = np.array(self.encoder.encode(texts, role), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EncodingError(
                f"{len(texts)} texts were given to the model and an array of shape {vectors.shape} came back, expected "
                f"({len(texts)}, d); the first text begins {texts[0][:60]!r}"
            )
        vectors[~np.isfinite(vectors).all(axis=1)] = np.nan  # an infinity is no more a direction than a NaN
        known = self.encoder.cut(texts, role)
        cut = np.full(len(texts), -1, dtype=np.int8) if known is None else np.array(known, dtype=np.int8)
        if self._cache is not None:
            entries = {
                _key(text, role): Entry(vector, None if flag < 0 else bool(flag))
                for text, vector, flag in zip(texts, vectors, cut.tolist(), strict=True)
            }
            self._cache.put(entries)
        return Encoded(vectors, cut)

    def _room(self, vectors: VectorArray | None, n: int, some: VectorArray, text: str) -> VectorArray:
        """The array of all vectors, made once the dimension is known and held against every later vector."""
        if self._dimension is None:
            self._dimension = some.shape[1]
        if some.shape[1] != self._dimension:
            raise EncodingError(
                f"a vector of {some.shape[1]} dimensions came after vectors of {self._dimension}; the text begins "
                f"{text[:60]!r}"
            )
        return np.empty((n, self._dimension), dtype=np.float32) if vectors is None else vectors

    def _gathered(self, shared: list[str], part: Encoded, wanted: Sequence[str]) -> VectorArray:
        """The vectors of the wanted texts, in their order, from all processes' parts."""
        if self.group is None:
            vectors, cut = part
        else:
            parts = [each for each in self.group.gather(tuple(part)) if len(each[0])]
            vectors = np.empty((len(shared), parts[0][0].shape[1]), dtype=np.float32)
            cut = np.empty(len(shared), dtype=np.int8)
            for rank, (some, flags) in enumerate(parts):  # only the last ranks can have no part
                if some.shape[1] != vectors.shape[1]:
                    raise EncodingError(
                        f"process {rank} gave vectors of {some.shape[1]} dimensions, the first {vectors.shape[1]}"
                    )
                vectors[rank :: self.group.size] = some
                cut[rank :: self.group.size] = flags
        self._cut_is_known &= not (cut < 0).any()
        self._counts["cut"] += int((cut == 1).sum())
        self._counts["not_a_number"] += int(np.isnan(vectors).any(axis=1).sum())
        position = {text: number for number, text in enumerate(shared)}
        return vectors[[position[text] for text in wanted]]

    def _bar(self, total: int) -> Any:
        from tqdm import tqdm

        shown = sys.stderr.isatty() if self._progress is None else self._progress
        first = self.group is None or self.group.rank == 0
        return tqdm(total=total, desc="Encoding", unit=" texts", disable=not (shown and first), smoothing=0)

    def identity(self) -> dict[str, Any]:
        """The model and every setting that changes a score."""
        return {**self.encoder.identity(), "similarity": self.similarity, "normalize": self.normalize}

    def info(self) -> dict[str, Any]:
        """The model, the settings, and what was encoded; ``cut`` is None where the backend cannot tell."""
        counts: dict[str, Any] = dict(self._counts)
        if not self._cut_is_known:
            counts["cut"] = None
        return {
            "scorer": "embedding",
            **({"model": self.model} if self.model else {}),
            **self.identity(),
            "dimension": self._dimension,
            "texts": counts,
            **({"cache_degraded": self._cache.degraded} if self._cache is not None and self._cache.degraded else {}),
        }

    def close(self) -> None:
        """Release the encoder's processes and connections, and close the cache."""
        self.encoder.close()
        if self._cache is not None:
            self._cache.close()


def _key(text: str, role: Role) -> str:
    return f"{role}\0{text}"


def _normalized(vectors: VectorArray) -> VectorArray:
    """The same directions with length 1; a vector without a direction becomes NaN."""
    out = np.empty_like(vectors)
    for rows in _slices(len(vectors), max(1, _FLOATS_AT_ONCE // max(1, vectors.shape[1]))):
        exact = vectors[rows].astype(np.float64)  # squares of float32 numbers may not fit into float32
        lengths = np.linalg.norm(exact, axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            out[rows] = np.where(lengths > 0, exact / lengths, np.nan)
    return out


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, length, step))
