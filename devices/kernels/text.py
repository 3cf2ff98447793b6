"""Operators on text: strings to split, tokens to drop or count. They run on the host.

StringConcat and RegexFullMatch have no kernel: ONNX's own evaluator has them right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devices.kernels.element_types import Array, Xp, is_string
from devices.kernels.registry import ALL, op

CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@op("StringSplit", since=20, host=(ALL,))
def string_split(
    xp: Xp, x: Array, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[Array, Array]:
    """Cut each string at the delimiter, or at white space if that is empty.

    Return the pieces (*x.shape, K), empty strings where there are fewer than K, and their numbers,
    int64 of x's shape.
    """
    most = -1 if maxsplit is None else maxsplit
    pieces = [str(text).split(delimiter or None, most) for text in x.reshape(-1).tolist()]
    counts = [len(each) for each in pieces]
    y = xp.full((len(pieces), max(counts, default=0)), "", dtype=object)
    for row, each in zip(y, pieces, strict=True):
        row[: len(each)] = each
    numbers = xp.asarray(counts, dtype=xp.int64)
    return y.reshape(*x.shape, y.shape[1]), numbers.reshape(x.shape)


@op("StringNormalizer", since=10, host=(ALL,), choices={"case_change_action": tuple(CASES)})
def string_normalizer(
    xp: Xp, x: Array, *,
    case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Array:  # fmt: skip
    """Drop the stop words, then change the case of the rest; one empty string if nothing is left.

    x is (C,) or (1, C). `locale` is not used: letters change case as Unicode says.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"strings of shape {x.shape} are neither (C,) nor (1, C)")
    same: Callable[[str], str] = str if is_case_sensitive else str.lower
    dropped = {same(word) for word in stopwords or ()}
    change = CASES[case_change_action]
    kept = [change(word) for word in x.reshape(-1).tolist() if same(word) not in dropped]
    y = xp.asarray(kept or [""], dtype=object)
    return y if x.ndim == 1 else y.reshape(1, -1)


@op("TfIdfVectorizer", since=9, host=(ALL,), choices={"mode": ("TF", "IDF", "TFIDF")})
def tf_idf_vectorizer(
    xp: Xp, x: Array, *,
    max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: Sequence[int], ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None, pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:  # fmt: skip
    """Count the pool's n-grams in each row of tokens: (C,) or (N, C) to float32 (M,) or (N, M).

    N-grams of `min_gram_length` to `max_gram_length` count; their tokens may stand apart, evenly,
    with up to `max_skip_count` between. ``"TF"`` counts, ``"IDF"`` gives the weight of what occurs,
    ``"TFIDF"`` both multiplied. `ngram_counts` says where in the pool the 1-grams, 2-grams, ...
    start; `ngram_indexes` each n-gram's place in the output, M being one more than the largest;
    `weights` what its count is multiplied by (1 if absent).
    """
    if (pool_int64s is None) == (pool_strings is None):
        raise ValueError("exactly one of pool_int64s and pool_strings is wanted")
    if x.ndim not in (1, 2):
        raise ValueError(f"tokens of shape {x.shape} are neither (C,) nor (N, C)")
    pool = xp.asarray(pool_int64s if pool_strings is None else pool_strings)
    rows = x.reshape(-1, x.shape[-1])
    if is_string(x) == (pool_strings is None):
        rows = rows[:, :0]  # no number is a word
    kind = pool.dtype if pool_strings is None else str
    tokens = xp.concatenate([pool, rows.reshape(-1).astype(kind)])
    # From here on a token is a number, equal for equal tokens of pool and text.
    codes = xp.unique(tokens, return_inverse=True)[1].reshape(-1)
    pool, rows = codes[: pool.size], codes[pool.size :].reshape(rows.shape)
    places = xp.asarray(ngram_indexes, dtype=xp.int64)
    counts = xp.zeros((rows.shape[0], max(ngram_indexes, default=-1) + 1), dtype=xp.float32)
    scale = xp.zeros(counts.shape[1], dtype=xp.float32)
    scale[places] = 1 if weights is None or mode == "TF" else xp.asarray(weights, xp.float32)
    first = 0
    ends = [*ngram_counts[1:], pool.size]
    for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        grams = pool[start:end].reshape(-1, length)
        own, first = places[first : first + len(grams)], first + len(grams)
        if min_gram_length <= length <= max_gram_length:
            for step in range(1, 2 if length == 1 else max_skip_count + 2):
                row, gram = _matches(xp, rows, grams, step)
                xp.add.at(counts, (row, own[gram]), 1)
    if mode == "IDF":
        counts = xp.minimum(counts, 1)
    return (counts * scale).reshape(*x.shape[:-1], -1)


def _matches(xp: Xp, rows: Array, grams: Array, step: int) -> tuple[Array, Array]:
    """Return the row and the n-gram of each match, tokens `step` apart."""
    length = grams.shape[1]
    starts = max(rows.shape[1] - (length - 1) * step, 0)
    place = xp.arange(starts)[:, None] + step * xp.arange(length)
    both = xp.concatenate([grams, rows[:, place].reshape(-1, length)])
    # Each whole n-gram becomes one number too, token by token.
    base = int(both.max()) + 1 if both.size else 1
    key = both[:, 0]
    for column in range(1, length):
        key = xp.unique(key * base + both[:, column], return_inverse=True)[1].reshape(-1)
    which = xp.full(int(key.max()) + 1 if key.size else 1, -1)
    which[key[: len(grams)]] = xp.arange(len(grams))
    found = which[key[len(grams) :]]
    (hit,) = xp.nonzero(found >= 0)
    return hit // max(starts, 1), found[hit]
