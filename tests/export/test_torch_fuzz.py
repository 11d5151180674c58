"""Damaged PyTorch files: whatever a byte says, one line and exit code 2, or the same answer as before."""

import contextlib
import io
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.checkpoints import (
    pickles,
    rllib,
    stable_baselines3,
    torch_state,
    torch_tensors,
)

TORCH = Path(__file__).resolve().parents[3] / "shared" / "checkpoints" / "torch"
FILES = {
    "cleanrl_state_dict/agent.pt": torch_state,
    "cleanrl_state_dict/agent_legacy.pt": torch_state,
    "cleanrl_state_dict/agent.safetensors": torch_state,
    "sb3_ppo_small/model.zip": stable_baselines3,
    "sb3_ppo_vecnormalize/vecnormalize.pkl": stable_baselines3,
    "rllib_ppo/checkpoint/learner_group/learner/rl_module/default_policy/module_state.pkl": rllib,
}
damage = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", FILES)
@damage
@given(place=st.floats(0, 1, exclude_max=True), flips=st.integers(1, 255), cut=st.booleans())
def test_flipped_bytes_and_cut_files_raise_only_errors_of_the_input(shared, tmp_path, name, place, flips, cut):
    """Without the helper process, whose limits would hide an endless loop or a crash as a refusal."""
    data = bytearray((shared / "checkpoints" / "torch" / name).read_bytes())
    at = int(place * len(data))
    data[at] ^= flips
    damaged = tmp_path / Path(name).name
    damaged.write_bytes(data[:at] if cut else data)
    if name.startswith("rllib"):
        settings_file = (shared / "checkpoints" / "torch" / name).with_name(rllib.CONFIG_FILE)
        (tmp_path / rllib.CONFIG_FILE).write_bytes(settings_file.read_bytes())
    # the helper turns these into one line
    with contextlib.suppress(ValueError, TypeError, LookupError, MemoryError):
        FILES[name].contents(damaged)


@pytest.mark.parametrize("name", ["cleanrl_state_dict/agent.pt", "sb3_ppo_small/model.zip"])
@pytest.mark.parametrize("flips", [255, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_directory_of_a_zip_raises_only_errors_of_the_input(shared, tmp_path, name, flips):
    """Every byte at the archive's end, where the members are listed."""
    whole = (shared / "checkpoints" / "torch" / name).read_bytes()
    for at in range(len(whole) - 600, len(whole)):
        data = bytearray(whole)
        data[at] ^= flips
        damaged = tmp_path / Path(name).name
        damaged.write_bytes(data)
        with contextlib.suppress(ValueError, TypeError, LookupError, MemoryError):
            FILES[name].contents(damaged)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_tensors(data):
    for read in (torch_tensors.read, torch_state._safetensors):
        with pytest.raises(ValueError):
            read(data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.sampled_from([3, 4]))
def test_plain_values_are_read_as_pickle_reads_them(value, protocol):
    assert pickles.load(pickle.dumps(value, protocol), {}) == value


@given(st.binary(min_size=1, max_size=60))
def test_random_pickles_raise_only_pickle_refused(data):
    with contextlib.suppress(pickles.PickleRefused):
        pickles.load(b"\x80\x04" + data + b".", pickles.REBUILDERS, ("gymnasium",))


def test_functions_of_the_reader_cannot_be_changed_by_a_pickle():
    """BUILD on a function: it has no attributes that a state could set."""
    dtype = b"\x8c\x05numpy\x8c\x05dtype\x93"
    for state in (b"}\x8c\x05_callK\x01s", b"N}\x8c\x05_callK\x01s\x86"):
        with pytest.raises(pickles.PickleRefused):
            pickles.load(b"\x80\x04" + dtype + state + b"b.", pickles.REBUILDERS)


def test_zip_of_a_zip_is_read_within_its_limits(tmp_path, monkeypatch):
    """A member that unpacks to more than the limit is refused before it is unpacked."""
    monkeypatch.setattr(stable_baselines3, "MAX_DATA_BYTES", 1 << 20)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b" " * (stable_baselines3.MAX_DATA_BYTES + 1))
        archive.writestr("policy.pth", b"")
    (tmp_path / "SA101.zip").write_bytes(packed.getvalue())
    with pytest.raises(ValueError, match=r"member data has .* bytes, more than any actor's"):
        stable_baselines3.contents(tmp_path / "SA101.zip")
