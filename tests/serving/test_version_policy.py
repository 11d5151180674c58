"""Which version is loaded or dropped next: decisions over snapshots."""

from hypothesis import given
from hypothesis import strategies as st

from serving.embedded.models.version_policy import Action, Verb, VersionPolicy, next_action

A, B = (("x", 1, 1),), (("x", 2, 2),)


def test_the_newest_is_loaded_before_the_old_one_is_dropped():
    assert next_action({3: A, 4: A}, {3: A}, {}) == Action(Verb.LOAD, 4)
    assert next_action({3: A, 4: A}, {3: A, 4: A}, {}) == Action(Verb.DROP, 3)
    assert next_action({3: A, 4: A}, {4: A}, {}) is None


def test_a_version_that_fails_leaves_the_old_one_answering():
    assert next_action({3: A, 4: A}, {3: A}, {4: A}) is None


def test_a_version_that_failed_is_tried_again_once_its_files_have_changed():
    assert next_action({3: A, 4: B}, {3: A}, {4: A}) == Action(Verb.LOAD, 4)


def test_with_nothing_loaded_an_older_version_is_better_than_none():
    assert next_action({3: A, 4: A}, {}, {4: A}) == Action(Verb.LOAD, 3)


def test_files_that_changed_are_loaded_again():
    assert next_action({3: B}, {3: A}, {}) == Action(Verb.LOAD, 3)
    assert next_action({3: B}, {3: A}, {3: B}) is None, "and what is loaded answers while they fail"


def test_a_model_whose_folder_is_gone_is_dropped():
    assert next_action({}, {3: A}, {}) == Action(Verb.DROP, 3)
    assert next_action({}, {}, {}) is None


def after(action, on_disk, loaded, failed, broken):
    """(loaded, failed) once the action has been carried out on files of which some are broken."""
    if action.verb is Verb.DROP:
        return {version: mark for version, mark in loaded.items() if version != action.version}, failed
    found = {action.version: on_disk[action.version]}
    return (loaded, failed | found) if action.version in broken else (loaded | found, failed)


@given(
    st.dictionaries(st.integers(0, 5), st.sampled_from([A, B]), max_size=4),
    st.dictionaries(st.integers(0, 5), st.sampled_from([A, B]), max_size=3),
    st.sets(st.integers(0, 5)),
)
def test_it_settles_and_never_leaves_a_model_that_could_be_served_without_a_version(on_disk, loaded, broken):
    failed = {}
    for _ in range(40):
        action = next_action(on_disk, loaded, failed)
        if action is None:
            break
        assert action.verb is Verb.LOAD or not on_disk or max(on_disk) in loaded
        loaded, failed = after(action, on_disk, loaded, failed, broken)
    else:
        raise AssertionError("did not settle")
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
def test_every_policy_settles_on_what_it_wants_and_drops_nothing_before(on_disk, loaded, broken, policy):
    failed = {}
    for _ in range(60):
        action = next_action(on_disk, loaded, failed, policy)
        if action is None:
            break
        if action.verb is Verb.DROP:
            wanted = policy.aspired(on_disk)
            assert not on_disk or (action.version not in wanted and all(v in loaded for v in wanted))
        loaded, failed = after(action, on_disk, loaded, failed, broken)
    else:
        raise AssertionError("did not settle")
    assert isinstance(action, Action | None)
    wanted = policy.aspired(on_disk)
    if not wanted & broken and wanted:
        assert set(loaded) == wanted
