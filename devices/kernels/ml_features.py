"""Operators on features and labels of `ai.onnx.ml`: scaling, imputation, encoding, maps."""

from __future__ import annotations

from typing import Any

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, is_string
from hetero.devices.kernels.ml_scores import ML, Floats, Ints, Strings, rows_of
from hetero.devices.kernels.registry import ALL, op


@op("Scaler", since=1, domain=ML)
def scaler(xp: Xp, x: Array, *, offset: Floats | None = None, scale: Floats | None = None) -> Array:
    """Return ``(x - offset) * scale`` as float32; both are one number or one per feature."""
    y = x.astype(xp.float64 if x.dtype == xp.float64 else xp.float32)
    y = y - xp.asarray(offset or (0.0,), dtype=y.dtype)
    return (y * xp.asarray(scale or (1.0,), dtype=y.dtype)).astype(xp.float32)


@op("Normalizer", since=1, domain=ML, choices={"norm": ("MAX", "L1", "L2")})
def normalizer(xp: Xp, x: Array, *, norm: str = "MAX") -> Array:
    """Return each row divided by its maximum, its L1 or its L2 norm, unless that is zero."""
    rows = rows_of(xp, x)
    if norm == "MAX":
        divisor = xp.max(rows, axis=1, keepdims=True)
    else:
        total = xp.sum(xp.absolute(rows) if norm == "L1" else rows * rows, axis=1, keepdims=True)
        divisor = total if norm == "L1" else xp.sqrt(total)
    return (rows / xp.where(divisor == 0, 1, divisor)).astype(xp.float32).reshape(x.shape)


@op("FeatureVectorizer", since=1, domain=ML)
def feature_vectorizer(xp: Xp, *inputs: Array, inputdimensions: Ints | None = None) -> Array:
    """Concatenate the rows of the inputs, each truncated or padded with zeros to its dimension."""
    parts = [x.reshape(x.shape[0] if x.ndim > 1 else 1, -1).astype(xp.float32) for x in inputs]
    sizes = inputdimensions or [part.shape[1] for part in parts]
    if len(sizes) != len(parts):
        raise ValueError(f"inputdimensions: expected {len(parts)} numbers, got {len(sizes)}")
    y = xp.zeros((parts[0].shape[0], sum(sizes)), xp.float32)
    first = 0
    for part, size in zip(parts, sizes, strict=True):
        columns = part[:, :size]
        y[:, first : first + columns.shape[1]] = columns
        first += size
    return y


@op("Binarizer", since=1, domain=ML)
def binarizer(xp: Xp, x: Array, *, threshold: float = 0.0) -> Array:
    """Return 1 where x is greater than the threshold, else 0, in x's type."""
    return (x > threshold).astype(x.dtype)


@op("Imputer", since=1, domain=ML)
def imputer(
    xp: Xp,
    x: Array,
    *,
    imputed_value_floats: Floats | None = None,
    imputed_value_int64s: Ints | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    """Replace one value, which may be NaN, by another value or by one per feature."""
    is_real = x.dtype.kind == "f"
    values = imputed_value_floats if is_real else imputed_value_int64s
    if not values or len(values) not in (1, x.shape[-1]):
        raise ValueError(
            f"imputed values: expected one or {x.shape[-1]} numbers of {x.dtype}, got {values}"
        )
    missing = replaced_value_float if is_real else replaced_value_int64
    is_missing = xp.isnan(x) if missing != missing else x == x.dtype.type(missing)
    return xp.where(is_missing, xp.asarray(values, dtype=x.dtype), x)


@op("ArrayFeatureExtractor", since=1, domain=ML)
def array_feature_extractor(xp: Xp, x: Array, indices: Array) -> Array:
    """Return the elements at some positions of the last axis; those of a vector as one row."""
    places = indices.reshape(-1)
    if not are_within(places, 0, x.shape[-1]):
        raise IndexError(f"expected indices from 0 to {x.shape[-1] - 1}")
    y = xp.take(x, places, axis=-1)
    return y.reshape(1, -1) if x.ndim == 1 else y


def _look_up(
    xp: Xp, x: Array, keys: Array, values: Array, default: Array, *, nan_is_key: bool = False
) -> Array:
    """Return for each element of x the value of the first key that equals it, or the default."""
    order = xp.argsort(keys, kind="stable")
    place = order[xp.clip(xp.searchsorted(keys[order], x), 0, keys.size - 1)]
    has_key = keys[place] == x
    if nan_is_key and keys.dtype.kind == "f":
        has_key |= xp.isnan(x) & xp.isnan(keys[place])
    return xp.where(has_key, values[place], default)


@op("LabelEncoder", since=1, domain=ML, host=(ALL,))
def label_encoder_1(
    xp: Xp,
    x: Array,
    *,
    classes_strings: Strings = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """Return the index of each string's class, or the class at each index."""
    names = xp.asarray(classes_strings, dtype=object)
    places = xp.arange(names.size)
    if is_string(x):
        return _look_up(xp, x, names, places, xp.int64(default_int64))
    return _look_up(xp, x, places, names, xp.asarray(default_string, dtype=object))


@op(
    "LabelEncoder",
    since=2,
    domain=ML,
    host=(ALL,),
    additions={"default_tensor": 4, "keys_tensor": 4, "values_tensor": 4},
)
def label_encoder_2(
    xp: Xp,
    x: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Floats | None = None,
    keys_int64s: Ints | None = None,
    keys_strings: Strings | None = None,
    keys_tensor: Array | None = None,
    values_floats: Floats | None = None,
    values_int64s: Ints | None = None,
    values_strings: Strings | None = None,
    values_tensor: Array | None = None,
    version: int,
) -> Array:
    """Return the value of each key, or the default; since version 4 NaN may be a key."""
    keys, values = keys_tensor, values_tensor
    if keys is None:
        keys = _column(xp, keys_floats, keys_int64s, keys_strings)
    if values is None:
        values = _column(xp, values_floats, values_int64s, values_strings)
    default = default_tensor
    if default is None:
        scalars = {"f": default_float, "i": default_int64, "O": default_string}
        default = xp.asarray(scalars[values.dtype.kind], dtype=values.dtype)
    return _encode(xp, x, keys, values, default.reshape(()), nan_is_key=version >= 4)


def _column(xp: Xp, floats: Floats | None, ints: Ints | None, strings: Strings | None) -> Array:
    if strings is not None:
        return xp.asarray(strings, dtype=object)
    if ints is not None:
        return xp.asarray(ints, dtype=xp.int64)
    return xp.asarray(floats or (), dtype=xp.float32)


def _encode(
    xp: Xp, x: Array, keys: Array, values: Array, default: Array, *, nan_is_key: bool = False
) -> Array:
    if keys.size != values.size or not keys.size or is_string(x) != is_string(keys):
        raise ValueError(
            f"expected keys of {x.dtype} and as many values, got {keys.size} keys of {keys.dtype} "
            f"and {values.size} values"
        )
    return _look_up(xp, x, keys, values, default, nan_is_key=nan_is_key)


@op("CategoryMapper", since=1, domain=ML, host=(ALL,))
def category_mapper(
    xp: Xp,
    x: Array,
    *,
    cats_int64s: Ints = (),
    cats_strings: Strings = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """Return the number of each category's name, or the name of each number."""
    numbers = xp.asarray(cats_int64s, dtype=xp.int64)
    names = xp.asarray(cats_strings, dtype=object)
    if is_string(x):
        return _encode(xp, x, names, numbers, xp.int64(default_int64))
    return _encode(xp, x, numbers, names, xp.asarray(default_string, dtype=object))


@op("OneHotEncoder", since=1, domain=ML, host=(ALL,))
def one_hot_encoder(
    xp: Xp,
    x: Array,
    *,
    cats_int64s: Ints | None = None,
    cats_strings: Strings | None = None,
    zeros: int = 1,
) -> Array:
    """Return 1 at each element's category along a new last axis, only zeros for no category."""
    if is_string(x):
        categories = xp.asarray(cats_strings or (), dtype=object)
    else:
        categories, x = xp.asarray(cats_int64s or (), dtype=xp.int64), x.astype(xp.int64)
    y = (x[..., None] == categories).astype(xp.float32)
    if not zeros and not bool(y.any(axis=-1).all()):
        raise ValueError("expected values of the categories only, because zeros is 0")
    return y


@op("ZipMap", since=1, domain=ML, host=(ALL,))
def zip_map(
    xp: Xp,
    x: Array,
    *,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: Strings | None = None,
) -> list[dict[int | str, float]]:
    """Return each row of scores as a map from label to score."""
    labels: tuple[int | str, ...] = tuple(classlabels_strings or classlabels_int64s or ())
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[1] != len(labels):
        raise ValueError(f"expected {rows.shape[1]} labels, got {len(labels)}")
    return [dict(zip(labels, row, strict=True)) for row in rows.tolist()]


@op("DictVectorizer", since=1, domain=ML, host=(ALL,))
def dict_vectorizer(
    xp: Xp,
    x: dict[int | str, float | str],
    *,
    int64_vocabulary: Ints | None = None,
    string_vocabulary: Strings | None = None,
) -> Array:
    """Return the map's values in the vocabulary's order as a row, zero for missing words."""
    words = string_vocabulary or int64_vocabulary or ()
    kinds = {type(value) for value in x.values()}
    empty: float | str = "" if str in kinds else 0
    dtype = object if str in kinds else xp.float32 if float in kinds else xp.int64
    return xp.asarray([[x.get(word, empty) for word in words]], dtype=dtype)


_CASTS: dict[str, tuple[Any, Any]] = {
    "TO_FLOAT": (float, "float32"),
    "TO_INT64": (int, "int64"),
    "TO_STRING": (str, object),
}


@op(
    "CastMap",
    since=1,
    domain=ML,
    host=(ALL,),
    choices={"cast_to": tuple(_CASTS), "map_form": ("DENSE", "SPARSE")},
)
def cast_map(
    xp: Xp,
    x: dict[int, float | str],
    *,
    cast_to: str = "TO_FLOAT",
    map_form: str = "DENSE",
    max_map: int = 1,
) -> Array:
    """Return the map's values in the order of keys as a row.

    SPARSE has one value per key from 0 to `max_map`, zero for missing keys.
    """
    to, dtype = _CASTS[cast_to]
    if map_form == "DENSE":
        values = [to(x[key]) for key in sorted(x)]
    else:
        values = [to(x[key]) if key in x else to() for key in range(max_map)]
    return xp.asarray([values], dtype=dtype)
