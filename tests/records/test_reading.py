"""The reader of records: whole files as MCAP's own reader has them, and files that are cut off, damaged or of
others."""

import io
import json
import os
import struct
import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.writer import Writer

from city.errors import InputError
from controller.recording.record_writer import CITY, PROFILE, STEP, TL, RecordWriter
from protos import record_pb2 as record
from records import mcap_file
from records import record_reader as record_file
from records.record_reader import RecordReader
from tests.records import mcap_bytes
from tests.records.recorded_city import BEGIN_UNIX_NS

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def whole(recorded_city, folder):
    return recorded_city.write(folder / "whole.mcap", 0, STEPS, flush_every=2)


@pytest.fixture(scope="module")
def killed(recorded_city, folder):
    """The same file as a killed controller leaves it."""
    return recorded_city.write(folder / "killed.mcap", 0, STEPS, flush_every=2, is_finished=False)


def read(path):
    with RecordReader(path) as reader:
        return list(reader.steps()), reader.missing


def written(path, data):
    # a file that is truncated and written again is flushed to the disk by some file systems
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def test_whole_file_has_the_messages_that_mcaps_own_reader_has(whole):
    ours = []
    with RecordReader(whole) as reader:
        ours.append((CITY, reader.city.SerializeToString(deterministic=True)))
        for recorded in reader.steps():
            ours.append((STEP, recorded.step.SerializeToString(deterministic=True)))
            ours += [(TL + tl, message.SerializeToString(deterministic=True)) for tl, message in recorded.tls.items()]
        assert reader.missing == ""
    kinds = {CITY: record.City, STEP: record.Step}
    theirs = []
    with whole.open("rb") as file:
        for _, channel, message in make_reader(file, validate_crcs=True).iter_messages(log_time_order=False):
            decoded = kinds.get(channel.topic, record.TlStep).FromString(message.data)
            theirs.append((channel.topic, decoded.SerializeToString(deterministic=True)))
    assert ours == theirs and len(ours) > STEPS * 5


def test_file_cut_at_every_byte_of_its_last_chunk_keeps_all_steps_before(recorded_city, tmp_path):
    path = recorded_city.write(tmp_path / "cut.mcap", 0, 4, flush_every=2, is_finished=False)
    last = mcap_bytes.chunks(path.read_bytes())[-1]
    for size in reversed(range(last.begin, last.end)):
        os.truncate(path, size)
        steps, missing = read(path)
        assert len(steps) == 2
        assert missing == f"cut off after byte {last.begin:,}"


def test_file_cut_in_its_index_loses_no_step(recorded_city, tmp_path):
    path = recorded_city.write(tmp_path / "cut.mcap", 0, 4, flush_every=2)
    data = path.read_bytes()
    end = next(each.end for each in mcap_bytes.records(data) if each.opcode == Opcode.DATA_END)
    for size in sorted({*range(end, len(data), 101), *range(len(data) - 30, len(data))}, reverse=True):
        os.truncate(path, size)
        steps, missing = read(path)
        assert len(steps) == 4 and missing == "its index is cut off or damaged: no step is lost by that"


@pytest.mark.parametrize("damage", [slice(-20, -19), slice(0, 200)], ids=["a byte", "zeros over its begin"])
def test_damaged_chunk_is_skipped_and_its_steps_are_named(whole, tmp_path, damage):
    data = bytearray(whole.read_bytes())
    # the first chunk is the head
    chunk = mcap_bytes.chunks(data)[3]
    begin, end, _ = damage.indices(chunk.end - chunk.begin)
    data[chunk.begin + begin : chunk.begin + end] = bytes(end - begin)
    steps, missing = read(written(tmp_path / "damaged.mcap", data))
    assert [s.step.number for s in steps] == [0, 1, 2, 3, *range(6, STEPS)]
    assert (
        missing == f"bytes {chunk.begin:,} to {chunk.end:,} are damaged (not a valid record); steps 4 to 5 are missing"
    )


@pytest.mark.parametrize("is_finished", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("damaged_copies", [0, 1])
def test_head_that_is_damaged_is_read_from_its_next_copy(recorded_city, tmp_path, is_finished, damaged_copies):
    path = recorded_city.write(tmp_path / "head.mcap", 0, STEPS, flush_every=1, is_finished=is_finished)
    data = path.read_bytes()
    assert len(mcap_bytes.head_copies(data)) == 2
    for damaged in (mcap_bytes.chunks(data)[0], *mcap_bytes.head_copies(data)[:damaged_copies]):
        data = mcap_bytes.flipped(data, damaged.end - 20)
    with RecordReader(written(path, data)) as reader:
        assert [(s.step, s.tls, s.publish_ns) for s in reader.steps()] == recorded_city.steps[:STEPS]
        assert list(reader.city.contracts) == list(recorded_city.start.contracts)
        assert reader.damage and reader.missing.count("are damaged (") == 1 + damaged_copies


@pytest.mark.parametrize("is_finished", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("at", [0, 1, 2, 8], ids=["opcode", "length", "length by 256", "length beyond the file"])
@pytest.mark.parametrize("bit", [1, 128])
@pytest.mark.parametrize("number", [0, 3, STEPS])
def test_a_flipped_bit_before_a_chunk_loses_that_chunk_alone(recorded_city, tmp_path, is_finished, at, bit, number):
    path = recorded_city.write(tmp_path / "bit.mcap", 0, STEPS, flush_every=1, is_finished=is_finished)
    data = path.read_bytes()
    chunk = mcap_bytes.chunks(data)[number]
    steps, missing = read(written(path, mcap_bytes.flipped(data, chunk.begin + at, bit)))
    assert [s.step.number for s in steps] == [k for k in range(STEPS) if k != number - 1]
    assert f"bytes {chunk.begin:,} to " in missing or missing.startswith(f"cut off after byte {chunk.begin:,}")


@pytest.mark.parametrize("opcode", [Opcode.CHUNK, Opcode.MESSAGE_INDEX])
def test_damaged_indexes_of_messages_and_chunk_times_are_named_and_lose_no_step(whole, tmp_path, opcode, run):
    data = whole.read_bytes()
    places = [each for each in mcap_bytes.records(data) if each.opcode == opcode]
    at = places[3].content if opcode == Opcode.CHUNK else places[-1].end - 2
    path = written(tmp_path / "damaged.mcap", mcap_bytes.flipped(data, at))
    steps, missing = read(path)
    assert len(steps) == STEPS and missing.endswith("no step is lost by that")
    run("repair", path)
    again, missing = read(tmp_path / "damaged.repaired.mcap")
    assert again == steps and missing.startswith("repaired: ")
    info = json.loads(run("info", path, "--json"))
    assert not info["whole"] and "no step is lost" in info["missing"][0]


@pytest.mark.parametrize("name", ["whole", "killed"])
def test_damaged_header_or_attachment_loses_no_step(name, request, tmp_path):
    data = request.getfixturevalue(name).read_bytes()
    for place in mcap_bytes.records(data)[:3]:
        for at in (place.begin, place.begin + 1, place.content + 4):
            for bit in (1, 8, 128):
                steps, missing = read(written(tmp_path / "damaged.mcap", mcap_bytes.flipped(data, at, bit)))
                assert len(steps) == STEPS and ("damaged" in missing or "profile" in missing)


def test_viewers_see_one_head(recorded_city, tmp_path):
    with recorded_city.write(tmp_path / "head.mcap", 0, STEPS, flush_every=1).open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert [channel.topic for _, channel, _ in reader.iter_messages(topics=[CITY])] == [CITY]
        assert len(reader.get_summary().chunk_indexes) == STEPS + 1


@given(st.data())
def test_damage_in_a_file_without_an_index_keeps_the_steps_before_it(killed, folder, recorded_city, data):
    content = killed.read_bytes()
    head, *chunks = mcap_bytes.chunks(content)
    edges = [each.begin for each in mcap_bytes.records(content) if each.begin >= head.end]
    begin = data.draw(st.one_of(st.integers(head.end, len(content) - 1), st.sampled_from(edges)))
    end = min(begin + data.draw(st.integers(1, 300)), len(content))
    noise = data.draw(st.one_of(st.just(bytes(end - begin)), st.binary(min_size=end - begin, max_size=end - begin)))
    steps, missing = read(written(folder / "noise.mcap", content[:begin] + noise + content[end:]))
    before = 2 * sum(chunk.end <= begin for chunk in chunks)
    assert [s.step.number for s in steps][:before] == list(range(before))
    assert all((s.step, s.tls, s.publish_ns) == recorded_city.steps[s.step.number] for s in steps)
    assert missing, "it is cut off at least"


@pytest.mark.parametrize("name", ["whole", "killed"])
def test_steps_from_a_second_on_are_those_of_the_whole_file(name, request, recorded_city):
    path = request.getfixturevalue(name)
    moments = [step.at_s for step, _, _ in recorded_city.steps[:STEPS]]
    for from_s in (-1.0, *moments, moments[4] + 0.5, moments[-1] + 1):
        with RecordReader(path) as reader:
            steps = list(reader.steps(from_s=from_s))
            assert [(s.step, s.tls, s.publish_ns) for s in steps] == [
                s for s in recorded_city.steps[:STEPS] if s[0].at_s >= from_s
            ]
            assert "are missing" not in reader.missing


def test_steps_before_a_second_are_not_read_if_there_is_an_index(whole, recorded_city, tmp_path):
    data = whole.read_bytes()
    for before in mcap_bytes.chunks(data)[1:4]:
        data = mcap_bytes.flipped(data, before.end - 20)
    path = written(tmp_path / "before.mcap", data)
    with RecordReader(path) as reader:
        steps = list(reader.steps({"SA101"}, recorded_city.steps[6][0].at_s))
        assert [s.step.number for s in steps] == list(range(6, STEPS)) and reader.missing == ""
        assert {tl for s in steps for tl in s.tls} == {"SA101"}, "selected TLs alone"
    assert "are missing" in read(path)[1]


@pytest.mark.parametrize("field", ["offset", "checksum"])
def test_index_that_is_damaged_is_not_used(whole, tmp_path, field):
    data = whole.read_bytes()
    entry = next(each for each in mcap_bytes.records(data) if each.opcode == Opcode.CHUNK_INDEX)
    at = entry.content + 16 if field == "offset" else len(data) - len(mcap_file.MAGIC) - 1
    steps, missing = read(written(tmp_path / "index.mcap", mcap_bytes.flipped(data, at)))
    assert len(steps) == STEPS and missing == "its index is cut off or damaged: no step is lost by that"


def test_chunk_that_the_index_names_and_the_file_does_not_have_is_a_loss(whole, tmp_path):
    """An index with a right checksum, which is wrong."""
    data = whole.read_bytes()
    *_, footer = mcap_bytes.records(data)
    (begin,) = struct.unpack_from("<Q", data, footer.content)
    last = [each for each in mcap_bytes.records(data) if each.opcode == Opcode.CHUNK_INDEX][-1]
    beyond = struct.pack("<QQ", len(data), 1 << 62)
    index = data[begin : last.content + 16] + beyond + data[last.content + 32 : footer.end - 4]
    forged = data[:begin] + index + struct.pack("<I", zlib.crc32(index)) + mcap_file.MAGIC
    steps, missing = read(written(tmp_path / "forged.mcap", forged))
    assert len(steps) == STEPS - 2 and "are not read: more than the limit" in missing


def test_names_of_channels_that_are_lost_are_named(whole, tmp_path):
    message = mcap_bytes.record(Opcode.MESSAGE, struct.pack("<HIQQ", 77, 0, 0, 0))
    chunk = mcap_bytes.chunk(zstandard.compress(message), len(message))
    steps, missing = read(mcap_bytes.with_record_after_city(whole, tmp_path / "unnamed.mcap", chunk))
    assert len(steps) == STEPS and "the name of channel 77 is lost, and its messages with it" in missing


def test_zeros_at_the_end_are_damage_and_not_an_error(killed, tmp_path):
    data = killed.read_bytes()
    steps, missing = read(written(tmp_path / "zeros.mcap", data + bytes(4096)))
    assert len(steps) == STEPS
    assert missing == f"damaged after byte {len(data):,}, so that the rest cannot be read"


@given(st.data())
def test_flipped_bytes_lose_steps_but_never_change_one(whole, folder, recorded_city, data):
    content = whole.read_bytes()
    in_chunks = [st.integers(each.content, each.end - 1) for each in mcap_bytes.chunks(content)]
    places = st.one_of(st.integers(0, len(content) - 1), *in_chunks)
    for _ in range(data.draw(st.integers(1, 3))):
        content = mcap_bytes.flipped(content, data.draw(places), data.draw(st.integers(1, 255)))
    try:
        steps, missing = read(written(folder / "flipped.mcap", content))
    except InputError as error:
        assert len(str(error)) < 1000
        return
    numbers = [s.step.number for s in steps]
    assert all(s.step == recorded_city.steps[s.step.number][0] for s in steps)
    assert missing or numbers == list(range(STEPS))


@given(st.binary(max_size=400))
def test_arbitrary_records_are_an_input_error(folder, content):
    path = written(folder / "arbitrary.mcap", mcap_file.MAGIC + content)
    with pytest.raises(InputError, match="cannot be read as a record"):
        RecordReader(path)


@given(opcode=st.sampled_from([*Opcode]), content=st.binary(max_size=80))
def test_malformed_record_does_not_hide_the_steps_after_it(whole, folder, opcode, content):
    if opcode in (Opcode.FOOTER, Opcode.DATA_END):
        return  # end the file
    steps, _ = read(
        mcap_bytes.with_record_after_city(whole, folder / "malformed.mcap", mcap_bytes.record(opcode, content))
    )
    assert len(steps) == STEPS


def another_programs_file(profile, library="", schema=None):
    """An MCAP file of another program or version. `schema`: of its city."""
    stream = io.BytesIO()
    writer = Writer(stream)
    writer.start(profile, library)
    if schema is not None:
        channel = writer.register_channel(CITY, "protobuf", writer.register_schema(schema, "protobuf", b""))
        writer.add_message(channel, 0, b"", 0)
    writer.finish()
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it does not begin as an MCAP file does"),
        (b"<net>", "it does not begin"),
        (mcap_file.MAGIC, "cut off after byte 8"),
        (None, r"none\.mcap: cannot be read: No such file or directory; name a file that greenserve"),
        (another_programs_file("ros2", "rosbag"), "it is an MCAP file of profile 'ros2', not 'greenserve'"),
        (another_programs_file(PROFILE), "it has no city"),
        (
            another_programs_file(PROFILE, "greenserve 9.1", "greenserve.record.v2.City"),
            r"v2\.City, not greenserve\.record\.v1\.City.*written by greenserve 9\.1",
        ),
    ],
)
def test_file_that_is_not_a_record_is_an_input_error(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        RecordReader(tmp_path / "none.mcap" if content is None else written(tmp_path / "x.mcap", content))


def test_fields_and_topics_of_a_later_version_are_ignored(tmp_path, recorded_city):
    path = recorded_city.write(tmp_path / "later.mcap", 0, 3)
    later = record.Step(number=3)
    later.MergeFromString(b"\xfa\x3f\x03new")  # field 1023
    copy = tmp_path / "copy.mcap"
    with RecordReader(path) as reader, copy.open("wb") as file:
        writer = RecordWriter(file, reader.city, {}, BEGIN_UNIX_NS)
        for recorded in reader.steps():
            writer.add(recorded.step, recorded.tls, 0)
        writer.add(later, {}, 0)
        channel = writer._writer.register_channel("/operator", "protobuf", 1)
        writer._writer.add_message(channel, 0, record.Step(number=99).SerializeToString(), 0)
        writer.finish()
    steps, missing = read(copy)
    assert [s.step.number for s in steps] == [0, 1, 2, 3] and missing == ""
    assert steps[3].step.SerializeToString() == later.SerializeToString()


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [
        ((4, 5, 6), "steps 4 to 6 are missing"),
        ((0,), "step 0 is missing"),
        ((2, 7), "step 2 is missing; step 7 is missing"),
    ],
)
def test_missing_step_numbers_are_named(recorded_city, tmp_path, numbers, missing):
    kept = [each for each in recorded_city.steps[:STEPS] if each[0].number not in numbers]
    assert read(type(recorded_city)(recorded_city.start, kept).write(tmp_path / "hole.mcap"))[1] == missing


def test_tl_that_decided_without_a_message_is_named(recorded_city, tmp_path):
    step, tl_steps, publish_ns = recorded_city.steps[0]
    others = {tl: message for tl, message in tl_steps.items() if tl != "SA101"}
    path = type(recorded_city)(recorded_city.start, [(step, others, publish_ns)]).write(tmp_path / "hole.mcap")
    assert read(path)[1] == "step 0 lacks SA101"


def test_names_of_a_file_do_not_reach_the_terminal_as_they_are(whole, tmp_path, monkeypatch):
    path = mcap_bytes.with_record_after_city(whole, tmp_path / "x.mcap", attachment("\x1b[2J", bytes(100_000)))
    monkeypatch.setattr(record_file, "MAX_RECORD_BYTES", 60_000)
    missing = read(path)[1]
    assert "attachment \ufffd[2J is not read" in missing and missing.isprintable()


def test_losses_beyond_the_limit_are_counted_up_to_another(recorded_city, tmp_path, monkeypatch):
    kept = recorded_city.steps[::2]
    path = type(recorded_city)(recorded_city.start, kept).write(tmp_path / "holes.mcap")
    missing = read(path)[1]
    assert missing.count("is missing") == mcap_file.MAX_LOSSES
    assert missing.endswith(f"and {len(kept) - 1 - mcap_file.MAX_LOSSES} more losses")
    monkeypatch.setattr(mcap_file, "MAX_COUNTED_LOSSES", mcap_file.MAX_LOSSES + 7)
    assert read(path)[1].endswith("and 7 more losses")


LARGE = bytes(8 << 20)
"""Of 8 MiB, which a few bytes can promise."""


@pytest.mark.parametrize(
    "bomb",
    [
        mcap_bytes.chunk(zstandard.compress(LARGE), 100),
        mcap_bytes.chunk(lz4.frame.compress(LARGE), 100, "lz4"),
        mcap_bytes.chunk(b"", 1 << 62),
        mcap_bytes.chunk(zstandard.compress(b"few"), 1 << 27),
    ],
    ids=["zstd", "lz4", "more than the limit", "less than it says"],
)
def test_chunk_that_unpacks_to_another_size_than_it_says_is_skipped_unread(whole, tmp_path, bomb):
    path = mcap_bytes.with_record_after_city(whole, tmp_path / "bomb.mcap", bomb)
    tracemalloc.start()
    steps, missing = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(steps) == STEPS and "are damaged (a chunk" in missing
    assert peak < 4 << 20 or bomb.endswith(zstandard.compress(b"few"))


def test_record_beyond_the_limit_is_skipped(whole, tmp_path, monkeypatch):
    path = mcap_bytes.with_record_after_city(
        whole, tmp_path / "large.mcap", mcap_bytes.record(Opcode.METADATA, bytes(1 << 20))
    )
    monkeypatch.setattr(mcap_file, "MAX_RECORD_BYTES", 1 << 19)
    steps, missing = read(path)
    assert len(steps) == STEPS and "are not read: more than the limit of 524,288 bytes" in missing


def attachment(name, data, crc=None):
    text = name.encode()
    content = struct.pack("<QQ", 0, 0) + struct.pack("<I", len(text)) + text + struct.pack("<I", 0)
    content += struct.pack("<Q", len(data)) + data
    return mcap_bytes.record(
        Opcode.ATTACHMENT, content + struct.pack("<I", zlib.crc32(content) if crc is None else crc)
    )


def test_attachments_are_kept_up_to_a_limit_and_without_damaged_ones(whole, tmp_path, monkeypatch):
    more = attachment("a", b"first") + attachment("b", bytes(100_000)) + attachment("c", b"damaged", crc=1)
    path = mcap_bytes.with_record_after_city(whole, tmp_path / "attached.mcap", more)
    monkeypatch.setattr(record_file, "MAX_RECORD_BYTES", 60_000)
    with RecordReader(path) as reader:
        assert len(list(reader.steps())) == STEPS
        assert "a" in reader.attachments and not {"b", "c"} & reader.attachments.keys()
        assert "attachment b is not read" in reader.missing and "its checksum differs" in reader.missing
