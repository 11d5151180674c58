"""The version policy: the next action for a snapshot of versions."""

from hypothesis import given
from hypothesis import strategies as st

from serving.embedded.models.version_policy import Operation, ServableAction, VersionPolicy, next_servable_action

A, B = (("x", 1, 1),), (("x", 2, 2),)


def test_the_newest_version_is_loaded_before_the_old_one_is_unloaded():
    assert next_servable_action({3: A, 4: A}, {3: A}, {}) == ServableAction(Operation.LOAD, 4)
    assert next_servable_action({3: A, 4: A}, {3: A, 4: A}, {}) == ServableAction(Operation.UNLOAD, 3)
    assert next_servable_action({3: A, 4: A}, {4: A}, {}) is None


def test_a_loaded_version_stays_while_the_newest_fails():
    assert next_servable_action({3: A, 4: A}, {3: A}, {4: A}) is None


def test_a_failed_version_is_tried_again_after_its_files_have_changed():
    assert next_servable_action({3: A, 4: B}, {3: A}, {4: A}) == ServableAction(Operation.LOAD, 4)


def test_an_older_version_is_the_fallback_if_the_newest_fails_to_load():
    assert next_servable_action({2: A, 3: A, 4: A}, {}, {4: A}) == ServableAction(Operation.LOAD, 3)
    assert next_servable_action({2: A, 3: A, 4: A}, {}, {3: A, 4: A}) == ServableAction(Operation.LOAD, 2)
    assert next_servable_action({2: A, 3: A, 4: A}, {3: A}, {4: A}) is None, "one fallback is enough"
    assert next_servable_action({2: A, 3: A, 4: B}, {3: A}, {4: A}) == ServableAction(Operation.LOAD, 4), (
        "the newest has changed"
    )
    assert next_servable_action({2: A, 3: A, 4: B}, {3: A, 4: B}, {}) == ServableAction(Operation.UNLOAD, 3)


def test_specific_versions_have_no_fallback():
    assert next_servable_action({3: A, 4: A}, {}, {4: A}, VersionPolicy(None, (4,))) is None


def test_changed_files_are_loaded_again():
    assert next_servable_action({3: B}, {3: A}, {}) == ServableAction(Operation.LOAD, 3)
    assert next_servable_action({3: B}, {3: A}, {3: B}) is None, "the loaded version stays while they fail"


def test_a_model_without_a_folder_is_unloaded():
    assert next_servable_action({}, {3: A}, {}) == ServableAction(Operation.UNLOAD, 3)
    assert next_servable_action({}, {}, {}) is None


def after(action, on_disk, loaded, failed, broken):
    """(loaded, failed) after the action; the versions in `broken` fail to load."""
    if action.operation is Operation.UNLOAD:
        return {version: files for version, files in loaded.items() if version != action.version}, failed
    tried = {action.version: on_disk[action.version]}
    return (loaded, failed | tried) if action.version in broken else (loaded | tried, failed)


@given(
    st.dictionaries(st.integers(0, 5), st.sampled_from([A, B]), max_size=4),
    st.dictionaries(st.integers(0, 5), st.sampled_from([A, B]), max_size=3),
    st.sets(st.integers(0, 5)),
)
def test_actions_end_with_a_loaded_version_if_one_can_be_loaded(on_disk, loaded, broken):
    failed = {}
    for _ in range(40):
        action = next_servable_action(on_disk, loaded, failed)
        if action is None:
            break
        assert action.operation is Operation.LOAD or not on_disk or max(on_disk) in loaded
        loaded, failed = after(action, on_disk, loaded, failed, broken)
    else:
        raise AssertionError("the actions did not end")
    if set(on_disk) - broken:
        assert loaded


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
    assert isinstance(action, ServableAction | None)
    wanted = policy.aspired(on_disk)
    if not wanted & broken and wanted:
        assert set(loaded) == wanted
