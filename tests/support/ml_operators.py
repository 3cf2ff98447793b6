"""Rows of the table of operators: classical models of `ai.onnx.ml`."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from tests.support.operator_rows import Row

#: A version of the domain in which each row is valid.
ML_VERSION: Final = 4
_row: Final = partial(Row, domain="ai.onnx.ml", oldest=1, rtol=1e-3, atol=1e-4)

_RNG: Final = np.random.default_rng(31)
X: Final = _RNG.standard_normal((5, 3)).astype(np.float32)
WORDS: Final = np.array([["a", "b"], ["c", "a"]], object)
CODES: Final = np.array([[1, 2], [3, 1]])
#: Values equal to thresholds, and missing values.
ROWS: Final = np.array(
    [[0, 1, -1], [np.nan, 0.5, 2], [-0.5, np.nan, 0], [1, 0, 0.5], [0.5, -1, np.nan]], np.float32
)
POST_TRANSFORMS: Final = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
LABELS: Final[dict[str, list[Any]]] = {
    "classlabels_ints": [3, 7, 5, 9],
    "classlabels_strings": ["n", "p", "q", "r"],
}


def numbers(count: int) -> list[float]:
    values: list[float] = _RNG.standard_normal(count).astype(np.float32).tolist()
    return values


def labels(count: int, kind: str = "classlabels_strings") -> dict[str, Any]:
    return {kind: LABELS[kind][:count]}


def _linear_regressors(targets: int) -> list[Row]:
    plain = {"coefficients": numbers(3 * targets), "targets": targets}
    attributes = [plain]
    if targets > 1:  # ONNX Runtime ignores the transformation of one target
        attributes += [
            plain | {"intercepts": numbers(targets), "post_transform": post}
            for post in POST_TRANSFORMS
        ]
    return [_row("LinearRegressor", [X], attributes)]


def _linear_classifier(num_rows: int, kind: str) -> Row:
    attributes = [
        {
            "coefficients": numbers(3 * num_rows),
            "intercepts": numbers(num_rows),
            "post_transform": post,
            **labels(max(num_rows, 2), kind),
        }
        for post in POST_TRANSFORMS
    ]
    return _row("LinearClassifier", [X, X[0]], attributes, num_outputs=2)


def _svm_classifier(classes: int, has_probabilities: bool) -> Row:
    counts = [2, 1, 3, 2][:classes]
    pairs = classes * (classes - 1) // 2
    attributes: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "vectors_per_class": counts,
        "coefficients": numbers(sum(counts) * (classes - 1)),
        "rho": numbers(pairs),
        "support_vectors": numbers(3 * sum(counts)),
        **labels(classes),
    }
    if has_probabilities:
        attributes |= {"prob_a": [-abs(a) for a in numbers(pairs)], "prob_b": numbers(pairs)}
    with_post = [attributes | {"post_transform": post} for post in POST_TRANSFORMS]
    return _row("SVMClassifier", [X], with_post, num_outputs=2)


_KEYS: Final[tuple[tuple[Any, dict[str, Any]], ...]] = (
    (WORDS, {"keys_strings": ["a", "b"]}),
    (CODES, {"keys_int64s": [3, 1]}),
    (ROWS, {"keys_floats": [0.5, np.nan]}),
)
_VALUES: Final[tuple[dict[str, Any], ...]] = (
    {"values_strings": ["u", "v"], "default_string": "no"},
    {"values_int64s": [7, 8], "default_int64": -7},
    {"values_floats": [0.5, 0.25], "default_float": 2.5},
)
_CATEGORIES: Final = [{"cats_int64s": [3, 1], "cats_strings": ["a", "b"]}]

ML_OPERATORS: Final = (
    *_linear_regressors(1),
    *_linear_regressors(2),
    _row(
        "LinearRegressor",
        [X],
        [
            {
                "coefficients": [0.0, 0.1, 0.2, 0.0, 0.0, 0.1],
                "targets": 2,
                "intercepts": [0.5, 0.4],
                "post_transform": "PROBIT",
            }
        ],
    ),
    *(_linear_classifier(num_rows, kind) for num_rows, kind in product((1, 2, 3), LABELS)),
    _row(
        "SVMRegressor",
        [X],
        {
            "kernel_type": ["LINEAR", "POLY", "RBF", "SIGMOID"],
            "kernel_params": [[0.5, 0.3, 3.0]],
            "coefficients": [numbers(4)],
            "support_vectors": [numbers(12)],
            "n_supports": [4],
            "rho": [[0.2]],
            "one_class": [0, 1],
        },
    ),
    *(_svm_classifier(*case) for case in product((2, 3, 4), (False, True))),
    _row(
        "SVMClassifier",
        [X],
        [
            {
                "coefficients": numbers(9),
                "rho": [0.1],
                "kernel_params": [0.0, 0.0, 0.0],
                "kernel_type": "LINEAR",
                **labels(3),
            }
        ],
        num_outputs=2,
    ),
    _row(
        "Scaler",
        [(X * 3).astype(dtype) for dtype in (np.float32, np.float64, np.int64, np.int32)],
        [{"offset": [0.5], "scale": [0.5]}],
    ),
    _row("Scaler", [X], [{"offset": [0.5, 0.0, 1.0], "scale": [0.5, 2.0, 3.0]}]),
    _row(
        "Normalizer",
        [(X * 3).astype(dtype) for dtype in (np.float32, np.float64, np.int64)],
        {"norm": ["MAX", "L1", "L2"]},
    ),
    _row("Normalizer", [np.zeros((2, 3), np.float32)], {"norm": ["L2"]}),
    _row("FeatureVectorizer", [(CODES, CODES[:, :1])], [{"inputdimensions": [2, 1]}]),
    _row("FeatureVectorizer", [(X, X[:, :2].copy())], [{"inputdimensions": [2, 3]}]),
    _row("Binarizer", [X], {"threshold": [0.2]}),
    _row(
        "Imputer",
        [ROWS],
        [
            {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": np.nan},
            {"imputed_value_floats": [1.5], "replaced_value_float": 0.5},
        ],
    ),
    _row("Imputer", [CODES], [{"imputed_value_int64s": [8], "replaced_value_int64": 1}]),
    _row("ArrayFeatureExtractor", [(X, np.array([[2, 0]])), (X[0], np.array([2]))]),
    _row("LabelEncoder", [WORDS], [{"classes_strings": ["b", "a"]}], newest=1),
    _row(
        "LabelEncoder",
        [CODES],
        [{"classes_strings": ["b", "a", "x"], "default_string": "?"}],
        newest=1,
    ),
    *(
        _row("LabelEncoder", [x], [keys | values for values in _VALUES], oldest=2)
        for x, keys in _KEYS
    ),
    _row("CategoryMapper", [WORDS, CODES], _CATEGORIES),
    _row("OneHotEncoder", [WORDS], [{"cats_strings": ["b", "a"]}]),
    _row("OneHotEncoder", [CODES.astype(np.float32)], [{"cats_int64s": [3, 1, 2], "zeros": 0}]),
)
