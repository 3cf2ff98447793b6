"""Operators on text, which run on the host: splitting, normalising and counting.

StringConcat and RegexFullMatch have no kernel; onnx's own evaluator runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import ALL, op

CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@op("StringSplit", since=20, host=(ALL,))
def string_split(
    xp: Xp, x: Array, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[Array, Array]:
    """Split each string at the delimiter, or at white space if the delimiter is empty.

    White space at both ends is removed in the latter case. Return the pieces (*x.shape, K), padded
    with empty strings, and the number of pieces of each string, int64 of x's shape.
    """
    most = -1 if maxsplit is None else maxsplit
    texts = map(str, x.reshape(-1).tolist())
    if delimiter:
        pieces = [text.split(delimiter, most) for text in texts]
    else:  # Python keeps white space at the end of the last piece
        pieces = [text.strip().split(None, most) for text in texts]
    counts = [len(each) for each in pieces]
    y = xp.full((len(pieces), max(counts, default=0)), "", dtype=object)
    for row, each in zip(y, pieces, strict=True):
        row[: len(each)] = each
    numbers = xp.asarray(counts, dtype=xp.int64)
    return y.reshape(*x.shape, y.shape[1]), numbers.reshape(x.shape)


@op("StringNormalizer", since=10, host=(ALL,), choices={"case_change_action": tuple(CASES)})
def string_normalizer(
    xp: Xp,
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Array:
    """Remove the stop words and change the case of the other words.

    x is (C,) or (1, C). If no word remains, the result is one empty string. `locale` is not used:
    Unicode's rules change the case.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"strings: expected shape (C,) or (1, C), got {x.shape}")
    key: Callable[[str], str] = str if is_case_sensitive else str.lower
    stops = {key(word) for word in stopwords or ()}
    change = CASES[case_change_action]
    words = [change(word) for word in x.reshape(-1).tolist() if key(word) not in stops]
    y = xp.asarray(words or [""], dtype=object)
    return y if x.ndim == 1 else y.reshape(1, -1)


@op("TfIdfVectorizer", since=9, host=(ALL,), choices={"mode": ("TF", "IDF", "TFIDF")})
def tf_idf_vectorizer(
    xp: Xp,
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    """Count the pool's n-grams in each row of tokens: (C,) or (N, C) to float32 (M,) or (N, M).

    N-grams have `min_gram_length` to `max_gram_length` tokens, with an equal number of up to
    `max_skip_count` other tokens between them. Mode ``"TF"`` returns counts, ``"IDF"`` the weights
    of the n-grams that occur, and ``"TFIDF"`` the product of both. `ngram_counts` are the starts of
    the 1-grams, 2-grams, ... in the pool, `ngram_indexes` the positions of the n-grams in the
    output, whose size M is the greatest position plus 1, and `weights` the n-grams' weights (1 if
    absent).
    """
    if (pool_int64s is None) == (pool_strings is None):
        raise ValueError("expected exactly one of pool_int64s and pool_strings")
    if x.ndim not in (1, 2):
        raise ValueError(f"tokens: expected shape (C,) or (N, C), got {x.shape}")
    pool = pool_int64s if pool_strings is None else pool_strings
    grams: dict[tuple[int | str, ...], int] = {}
    places = iter(ngram_indexes)
    for length, ends in enumerate(pairwise([*ngram_counts, len(pool or ())]), 1):
        own = zip(*[iter((pool or ())[slice(*ends)])] * length, strict=True)
        grams |= zip(own, places, strict=False)
    rows = x.reshape(-1, x.shape[-1]).tolist()
    y = xp.zeros((len(rows), max(ngram_indexes, default=-1) + 1), dtype=xp.float32)
    for row, tokens in zip(y, rows, strict=True):
        for length in range(min_gram_length, max_gram_length + 1):
            for step in range(1, 2 if length == 1 else max_skip_count + 2):
                count = max(len(tokens) - (length - 1) * step, 0)
                columns = [tokens[i * step :][:count] for i in range(length)]
                counts = Counter(map(grams.get, zip(*columns, strict=True)))
                for place in counts.keys() - {None}:
                    row[place] += counts[place]
    if mode == "IDF":
        y = xp.minimum(y, 1)
    if mode != "TF" and weights is not None:
        scale = xp.zeros(y.shape[1], dtype=xp.float32)
        scale[list(ngram_indexes)] = weights
        y *= scale
    return y.reshape(*x.shape[:-1], -1)
