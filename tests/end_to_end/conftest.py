"""Fixtures of whole programs: an operator's own files, a browser."""

import tempfile

import pytest


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """A folder for modes, guards, logs and the token: those of other runs are not found."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def browser():
    from tests.end_to_end.browser import chromium  # skips its tests without playwright

    with chromium() as browser:
        yield browser
