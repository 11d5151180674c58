"""The version policy: the next action for a snapshot of versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.embedded.models.version_policy import Operation, ServableAction, VersionPolicy, next_servable_action

A, B = (("x", 1, 1),), (("x", 2, 2),)


LOAD, UNLOAD = Operation.LOAD, Operation.UNLOAD


@pytest.mark.parametrize(
    ("on_disk", "loaded", "failed", "action"),
    [
        # the newest is loaded before the old one is unloaded
        ({3: A, 4: A}, {3: A}, {}, (LOAD, 4)),
        ({3: A, 4: A}, {3: A, 4: A}, {}, (UNLOAD, 3)),
        ({3: A, 4: A}, {4: A}, {}, None),
        # a loaded version stays while the newest fails, which is tried again after its files have changed
        ({3: A, 4: A}, {3: A}, {4: A}, None),
        ({3: A, 4: B}, {3: A}, {4: A}, (LOAD, 4)),
        # one older version is the fallback until the newest loads
        ({2: A, 3: A, 4: A}, {}, {4: A}, (LOAD, 3)),
        ({2: A, 3: A, 4: A}, {}, {3: A, 4: A}, (LOAD, 2)),
        ({2: A, 3: A, 4: A}, {3: A}, {4: A}, None),
        ({2: A, 3: A, 4: B}, {3: A}, {4: A}, (LOAD, 4)),
        ({2: A, 3: A, 4: B}, {3: A, 4: B}, {}, (UNLOAD, 3)),
        # changed files are loaded again; while they fail, the loaded version stays
        ({3: B}, {3: A}, {}, (LOAD, 3)),
        ({3: B}, {3: A}, {3: B}, None),
        # a model without a folder is unloaded
        ({}, {3: A}, {}, (UNLOAD, 3)),
        ({}, {}, {}, None),
    ],
)
def test_the_next_action_follows_from_the_snapshot(on_disk, loaded, failed, action):
    assert next_servable_action(on_disk, loaded, failed) == (action and ServableAction(*action))


def test_specific_versions_have_no_fallback():
    assert next_servable_action({3: A, 4: A}, {}, {4: A}, VersionPolicy(None, (4,))) is None


def after(action, on_disk, loaded, failed, broken):
    """(loaded, failed) after the action; the versions in `broken` fail to load."""
    if action.operation is Operation.UNLOAD:
        return {version: files for version, files in loaded.items() if version != action.version}, failed
    tried = {action.version: on_disk[action.version]}
    return (loaded, failed | tried) if action.version in broken else (loaded | tried, failed)


@given(
    st.dictionaries(st.integers(0, 6), st.sampled_from(["a", "b"]), max_size=5),
    st.dictionaries(st.integers(0, 6), st.sampled_from(["a", "b"]), max_size=4),
    st.sets(st.integers(0, 6)),
    st.one_of(
        st.builds(VersionPolicy, st.integers(1, 4)),
        st.just(VersionPolicy(None)),
        st.builds(lambda v: VersionPolicy(None, tuple(v)), st.sets(st.integers(0, 6), min_size=1)),
    ),
)
def test_every_policy_loads_what_it_wants_before_it_unloads(on_disk, loaded, broken, policy):
    failed = {}
    for _ in range(60):
        action = next_servable_action(on_disk, loaded, failed, policy)
        if action is None:
            break
        if action.operation is Operation.UNLOAD:
            wanted = policy.aspired(on_disk)
            assert not on_disk or (action.version not in wanted and all(v in loaded for v in wanted))
        loaded, failed = after(action, on_disk, loaded, failed, broken)
    else:
        raise AssertionError("the actions did not end")
    wanted = policy.aspired(on_disk)
    if policy.specific is None and set(on_disk) - broken:
        assert loaded, "an older version is the fallback"
    if not wanted & broken and wanted:
        assert set(loaded) == wanted
