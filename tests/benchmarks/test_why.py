"""Reasons to split: the comparison runs, checks its results, and names the refusal."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import why


@pytest.mark.slow
def test_faster_compares_split_with_single_devices():
    pytest.importorskip("openvino")
    rows = {(row["case"], row["variant"]): row for row in why.faster(0.1, 1)}
    for case in ("faster: image classifier", "faster: text encoder"):
        assert "LabelEncoder" in rows[case, "hetero, OV"]["outcome"]
        assert rows[case, "onnxruntime, plain session"]["times_as_fast"] == 1
        assert rows[case, "hetero, HETERO:OV,ORT"]["p50_ms"] > 0


def test_difference_rejects_unequal_results():
    expected = np.array([1.0, -2.0], np.float32)
    assert why._difference(expected + 2e-4, expected) == pytest.approx(1e-4, rel=1e-2)
    with pytest.raises(RuntimeError, match=r"got 0\.5"):
        why._difference(np.array([2.0, -2.0]), expected)
    with pytest.raises(RuntimeError, match="nan"):
        why._difference(np.array([np.nan, -2.0]), expected)
    names = np.array(["class 1", "class 2"], object)
    assert why._difference(names.copy(), names) == 0
    with pytest.raises(RuntimeError, match=r"got 1\.0"):
        why._difference(names[::-1], names)
