"""The errors' family, texts and passage between processes."""

from __future__ import annotations

import pickle

import pytest

from fm3_core import errors

EVERY = [
    errors.MaskError,
    errors.PartitionError,
    errors.PlanError,
    errors.ExchangeError,
    errors.UnknownNameError,
    errors.UnsupportedError,
]


@pytest.mark.parametrize("kind", EVERY)
def test_every_user_mistake_is_an_fm3_error_and_a_value_error(kind):
    assert issubclass(kind, errors.Fm3Error)
    assert issubclass(kind, ValueError)


def test_unsupported_names_all_reasons():
    error = errors.UnsupportedError("attention", iter(["dropout is not computed", "head dim 7 is odd"]))
    assert str(error) == "attention: dropout is not computed; head dim 7 is odd"
    assert error.reasons == ("dropout is not computed", "head dim 7 is odd")


@pytest.mark.parametrize(
    "error", [errors.UnsupportedError("attention", ["a", "b"]), errors.MaskError("column 1")]
)
def test_errors_cross_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
