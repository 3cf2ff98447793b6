"""Operators on text against ONNX Runtime, or the specification if that has no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses

RNG = np.random.default_rng(16)


def strings(*values):
    return np.array(values, dtype=object)


@pytest.mark.parametrize(
    ("words", "attributes", "expected"),
    [
        (["a", "B"], {}, ["a", "B"]),
        (["a", "B"], {"case_change_action": "UPPER"}, ["A", "B"]),
        (["mon", "MON", "x"], {"stopwords": ("Mon",)}, ["x"]),
        (["mon", "Mon"], {"stopwords": ("Mon",), "is_case_sensitive": 1}, ["mon"]),
        (["Mon", "Éa"], {"stopwords": ("mon",), "case_change_action": "LOWER"}, ["éa"]),
        (["a", "a"], {"stopwords": ("a",)}, [""]),
    ],
    ids=str,
)
def test_string_normalizer(words, attributes, expected):
    check("StringNormalizer", [strings(*words)], attributes, 10, expected=[strings(*expected)])
    wide = strings(*words)[None]
    check("StringNormalizer", [wide], attributes, 10, expected=[strings(*expected)[None]])


def test_string_normalizer_refuses():
    refuses(ValueError, "expected shape", "StringNormalizer", [strings("a", "b").reshape(2, 1)])


# Two 1-grams, three 2-grams and one 3-gram.
GRAMS = {
    "pool_int64s": (1, 2, 1, 2, 2, 2, 3, 1, 1, 2, 3),
    "ngram_counts": (0, 2, 8),
    "ngram_indexes": (4, 0, 2, 1, 5, 6),
    "weights": (0.5, 2.0, 3.0, 0.25, 1.5, 4.0),
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 2), (1, 3), (2, 3)])
@pytest.mark.parametrize("skips", [0, 1, 3])
def test_tf_idf(mode, shortest, longest, skips):
    attributes = GRAMS | {
        "mode": mode,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "max_skip_count": skips,
    }
    check("TfIdfVectorizer", [RNG.integers(1, 5, 12)], attributes, 9)
    check("TfIdfVectorizer", [RNG.integers(1, 4, (3, 9)).astype(np.int32)], attributes, 9)


def test_tf_idf_of_strings():
    attributes = {
        "mode": "TFIDF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "pool_strings": ("a", "long word", "a", "b"),
        "ngram_counts": (0, 2),
        "ngram_indexes": (1, 0, 2),
        "weights": (0.5, 2.0, 3.0),
    }
    check("TfIdfVectorizer", [strings("a", "b", "a", "b", "long word", "c")], attributes, 9)
    check("TfIdfVectorizer", [strings("c")], attributes, 9)


def test_tf_idf_refuses():
    attributes = GRAMS | {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    both = attributes | {"mode": "TF", "pool_strings": ("a",)}
    refuses(ValueError, "exactly one", "TfIdfVectorizer", [np.array([1])], both)


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("a b  c", {}),
        (["a,b", ",,c", ","], {"delimiter": ","}),
        (["a b c", " d ", ""], {"maxsplit": 1}),
        (["  a b  c  ", "d "], {"maxsplit": 1}),
        ([" a "], {"maxsplit": 0}),
        ([["a--b-c"], ["--"]], {"delimiter": "--", "maxsplit": 5}),
        (np.zeros((2, 0)), {}),
    ],
)
def test_string_split(text, attributes):
    check("StringSplit", [np.array(text, object)], attributes, 20, n_outputs=2)
