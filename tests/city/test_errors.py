"""Errors of the user's input name their file once."""

import pickle

import pytest

from city.errors import InputError, errors_about


def test_the_innermost_subject_begins_the_message_once():
    with pytest.raises(InputError) as refusal, errors_about("outer"), errors_about("in\nner"):
        raise InputError("is wrong;  fix it")
    assert str(refusal.value) == "in ner: is wrong; fix it"


def test_an_error_of_another_process_is_not_named_twice():
    with pytest.raises(InputError) as refusal, errors_about("file"):
        raise InputError("is wrong")
    with pytest.raises(InputError) as copy, errors_about("file"):
        raise pickle.loads(pickle.dumps(refusal.value))
    assert str(copy.value) == "file: is wrong"
