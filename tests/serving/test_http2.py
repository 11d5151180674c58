"""HTTP/2 without sockets: two ends of one connection, whatever the pieces, and what no end may be surprised by."""

import struct

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import http2
from serving.grpc_wire import Garbled, header_block
from serving.http2 import Connection

HEAD = header_block((":method", "POST"), (":path", "/a.B/C"))
STATUS, TRAILER = header_block((":status", "200")), header_block(("grpc-status", "0"))


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!IBI", len(payload) << 8 | kind, flags, stream) + payload


def ends():
    return Connection(is_client=True), Connection(is_client=False)


def flush(one, other, sizes=None):
    """Pass on what one end has to send, in pieces of the sizes in turn; the events at the other."""
    data, events = bytes(one.outgoing), []
    one.outgoing.clear()
    for k in range(len(data) + 1):
        if not data:
            return events
        size = sizes[k % len(sizes)] if sizes else len(data)
        events += other.feed(data[:size])
        data = data[size:]
    return events


def exchange(client, server, sizes=None):
    """Pass on in both directions until nobody has more to say; (events at the client, events at the server)."""
    at_client, at_server = [], []
    while client.outgoing or server.outgoing:
        at_server += flush(client, server, sizes)
        at_client += flush(server, client, sizes)
    return at_client, at_server


def data_of(events, stream):
    return b"".join(event.data for event in events if event.stream == stream and event.kind == http2.DATA)


def headers_of(events, stream):
    return tuple(pair for event in events if event.stream == stream for pair in event.headers)


pieces = st.lists(st.integers(1, 4000), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(min_size=1, max_size=300)), min_size=1, max_size=5), pieces)
def test_calls_and_answers_come_as_they_were_sent_whatever_the_pieces(calls, sizes):
    client, server = ends()
    streams = [client.begin() for _ in calls]
    for stream, (request, _) in zip(streams, calls, strict=True):
        client.send(stream, HEAD, request)
    _, asked = exchange(client, server, sizes)
    for stream, (request, response) in zip(streams, calls, strict=True):
        assert headers_of(asked, stream) == ((":method", "POST"), (":path", "/a.B/C"))
        assert data_of(asked, stream) == request
        server.send(stream, STATUS, response, TRAILER)
    answered, _ = exchange(client, server, sizes)
    for stream, (_, response) in zip(streams, calls, strict=True):
        assert data_of(answered, stream) == response
        assert headers_of(answered, stream) == ((":status", "200"), ("grpc-status", "0"))
        assert [event.is_end for event in answered if event.stream == stream][-1]
        assert sum(event.is_end for event in answered if event.stream == stream) == 1
        client.end(stream)
    assert client.under_way == server.under_way == 0


@settings(deadline=None)
@given(
    size=st.integers(0, 200_000),
    first=st.integers(1, 100_000),
    updates=st.lists(st.integers(1, 50_000), min_size=1, max_size=4),
    settings_to=st.integers(0, 50_000),
)
def test_never_more_is_sent_than_the_other_end_takes(size, first, updates, settings_to):
    """The other end is played here: it grants bytes of the stream and of the connection bit by bit."""
    client = Connection(is_client=True)
    stream = client.begin()
    client.feed(frame(http2.SETTINGS, 0, 0, struct.pack("!HI", http2.INITIAL_WINDOW_SIZE, first)))
    client.outgoing.clear()
    message = bytes(k % 251 for k in range(size))
    client.send(stream, HEAD, message)
    got, of_stream, of_all, is_ended = b"", first, http2.DEFAULT_WINDOW, False

    def take():
        nonlocal got, of_stream, of_all, is_ended
        at, sent = 0, bytes(client.outgoing)
        client.outgoing.clear()
        while at < len(sent):
            size_and_kind, flags, _ = struct.unpack_from("!IBI", sent, at)
            assert size_and_kind >> 8 <= http2.FRAME_BYTES
            if size_and_kind & 0xFF == http2.DATA:
                got += sent[at + 9 : at + 9 + (size_and_kind >> 8)]
                of_stream -= size_and_kind >> 8
                of_all -= size_and_kind >> 8
            assert not is_ended or size_and_kind & 0xFF == http2.SETTINGS
            is_ended |= bool(flags & http2.END_STREAM) and size_and_kind & 0xFF != http2.SETTINGS
            at += 9 + (size_and_kind >> 8)
        assert of_all >= 0
        assert of_stream >= min(0, settings_to - first)

    take()
    client.feed(frame(http2.SETTINGS, 0, 0, struct.pack("!HI", http2.INITIAL_WINDOW_SIZE, settings_to)))
    of_stream += settings_to - first
    take()
    for k in range(2 * size):
        if is_ended:
            break
        grant = updates[k % len(updates)]
        client.feed(frame(http2.WINDOW_UPDATE, 0, stream, struct.pack("!I", grant)))
        client.feed(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack("!I", grant)))
        of_stream += grant
        of_all += grant
        take()
    assert got == message and is_ended


def test_room_in_the_connection_alone_lets_every_stream_go_on():
    client = Connection(is_client=True)
    client.feed(frame(http2.SETTINGS, 0, 0, struct.pack("!HI", http2.INITIAL_WINDOW_SIZE, http2.MOST_NUMBER)))
    client.outgoing.clear()
    for _ in range(2):
        client.send(client.begin(), HEAD, bytes(50_000))
    assert sent_data(client) == {1: 50_000, 3: http2.DEFAULT_WINDOW - 50_000}
    client.feed(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack("!I", 10)))
    assert sent_data(client) == {3: 10}
    client.feed(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack("!I", 50_000)))
    assert sent_data(client) == {3: 100_000 - http2.DEFAULT_WINDOW - 10}


def sent_data(end):
    """Bytes of data by stream in what an end has to send; takes it out."""
    sizes, at, sent = {}, 0, bytes(end.outgoing)
    end.outgoing.clear()
    while at < len(sent):
        size_and_kind, _, stream = struct.unpack_from("!IBI", sent, at)
        if size_and_kind & 0xFF == http2.DATA:
            sizes[stream] = sizes.get(stream, 0) + (size_and_kind >> 8)
        at += 9 + (size_and_kind >> 8)
    return sizes


def test_an_end_that_takes_data_for_long_tells_that_it_took_it():
    """Else the other end would stop for ever after 2 GB."""
    client, server = ends()
    exchange(client, server)
    stream = client.begin()
    client.send(stream, HEAD, b"x")
    exchange(client, server)
    piece = frame(http2.DATA, 0, stream, bytes(http2.FRAME_BYTES))
    granted = 0
    pieces_of_it = http2.MOST_NUMBER // 2 // http2.FRAME_BYTES + 10
    for _ in range(pieces_of_it):
        server.feed(piece)
    at, sent = 0, bytes(server.outgoing)
    while at < len(sent):
        size_and_kind, _, of = struct.unpack_from("!IBI", sent, at)
        if size_and_kind & 0xFF == http2.WINDOW_UPDATE and of == 0:
            granted += struct.unpack_from("!I", sent, at + 9)[0]
        at += 9 + (size_and_kind >> 8)
    assert http2.MOST_NUMBER // 2 < granted <= pieces_of_it * http2.FRAME_BYTES


@settings(deadline=None, max_examples=300)
@given(st.booleans(), st.binary(max_size=200), st.booleans())
def test_garbage_is_garbled_and_nothing_else(is_client, data, has_preface):
    end = Connection(is_client=is_client)
    try:
        end.feed(http2.PREFACE if has_preface and not is_client else b"")
        end.feed(data)
        end.feed(data)
    except Garbled:
        pass


frames = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from([0, 1, 3, 2, 5, http2.MOST_NUMBER]),
    st.one_of(st.binary(max_size=20), st.just(HEAD), st.just(STATUS + TRAILER), st.just(struct.pack("!HI", 4, 10))),
)


@settings(deadline=None, max_examples=500)
@given(st.booleans(), st.lists(frames, max_size=8))
def test_frames_in_any_order_are_taken_or_garbled_and_nothing_else(is_client, several):
    end = Connection(is_client=is_client)
    if is_client:
        stream = end.begin()
        end.send(stream, HEAD, bytes(100_000))
    else:
        end.feed(http2.PREFACE)
    try:
        for one in several:
            for event in end.feed(one):
                if not is_client and event.kind == http2.HEADERS:
                    end.send(event.stream, STATUS, bytes(100_000), TRAILER)
    except Garbled:
        pass


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(http2.DATA, http2.PADDED, 1, b"\x09abc"), "padding"),
        (frame(http2.CONTINUATION, http2.END_HEADERS, 1, HEAD), "without having begun"),
        (frame(http2.HEADERS, 0, 1, HEAD) + frame(http2.PING, 0, 0, bytes(8)), "do not go on"),
        (frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff"), "cannot be read"),
        (frame(http2.HEADERS, http2.END_HEADERS, 2, HEAD), "no client's"),
        (frame(http2.SETTINGS, 0, 0, b"12345"), "settings of 5 bytes"),
        (frame(http2.SETTINGS, 0, 0, struct.pack("!HI", http2.INITIAL_WINDOW_SIZE, 1 << 31)), "a window of"),
        (frame(http2.WINDOW_UPDATE, 0, 0, b"1"), "a number of 1 bytes"),
        (frame(http2.PUSH_PROMISE, 0, 1), "promise"),
        (struct.pack("!IBI", (http2.FRAME_BYTES + 1) << 8, 0, 1), "at most 16384"),
    ],
)
def test_what_is_wrong_is_told(data, words):
    server = Connection(is_client=False)
    server.feed(http2.PREFACE)
    server.feed(frame(http2.HEADERS, http2.END_HEADERS, 1, HEAD) if data[3] == http2.DATA else b"")
    with pytest.raises(Garbled, match=words):
        server.feed(data)


def test_what_is_no_http2_is_told_at_its_first_bytes():
    with pytest.raises(Garbled, match="not HTTP/2"):
        Connection(is_client=False).feed(b"GET / HTTP/1.1\r\n")


def test_headers_without_an_end_are_not_kept_for_ever():
    server = Connection(is_client=False)
    server.feed(http2.PREFACE + frame(http2.HEADERS, 0, 1, bytes(10_000)))
    with pytest.raises(Garbled, match="headers of more than"):
        for _ in range(10):
            server.feed(frame(http2.CONTINUATION, 0, 1, bytes(10_000)))


def test_calls_that_never_end_are_not_kept_for_ever():
    server = Connection(is_client=False)
    server.feed(http2.PREFACE)
    with pytest.raises(Garbled, match="more than 1000 calls at once"):
        for k in range(http2.MOST_STREAMS + 1):
            server.feed(frame(http2.HEADERS, http2.END_HEADERS, 2 * k + 1, HEAD))


def test_headers_in_parts_padded_and_with_a_priority_are_read():
    server = Connection(is_client=False)
    padded = b"\x02" + bytes(5) + HEAD[:3] + b"\0\0"
    events = server.feed(http2.PREFACE + frame(http2.HEADERS, http2.PADDED | http2.PRIORITY | http2.END_STREAM, 1, padded))
    assert events == []
    (event,) = server.feed(frame(http2.CONTINUATION, http2.END_HEADERS, 1, HEAD[3:]))
    assert event.headers == ((":method", "POST"), (":path", "/a.B/C")) and event.is_end


def test_a_ping_is_answered_and_settings_are_acknowledged():
    _, server = ends()
    server.feed(http2.PREFACE)
    server.outgoing.clear()
    server.feed(frame(http2.PING, 0, 0, b"12345678") + frame(http2.SETTINGS, 0, 0))
    assert server.outgoing == frame(http2.PING, http2.ACK, 0, b"12345678") + frame(http2.SETTINGS, http2.ACK, 0)
    server.outgoing.clear()
    server.feed(frame(http2.PING, http2.ACK, 0, b"12345678") + frame(http2.SETTINGS, http2.ACK, 0))
    assert not server.outgoing


def test_what_comes_of_a_call_that_was_given_up_is_left_alone():
    client, server = ends()
    stream = client.begin()
    client.send(stream, HEAD, b"x")
    exchange(client, server)
    server.send(stream, STATUS, b"answer", TRAILER)
    client.reset(stream, http2.CANCEL)
    assert exchange(client, server) == ([], [])
    server.send(stream, STATUS, b"answer", TRAILER)
    assert not server.outgoing, "nobody waits for it any more"


def test_a_reset_is_told_and_ends_the_call():
    client, server = ends()
    stream = client.begin()
    client.send(stream, HEAD, b"x")
    exchange(client, server)
    client.reset(stream, http2.CANCEL)
    _, events = exchange(client, server)
    assert [(event.kind, event.stream, event.is_end) for event in events] == [(http2.RST_STREAM, stream, True)]
    assert not server.has(stream)


def test_going_away_tells_the_last_call_that_is_answered():
    client, server = ends()
    for _ in range(2):
        client.send(client.begin(), HEAD, b"x")
    exchange(client, server)
    server.go_away(http2.NO_ERROR)
    events, _ = exchange(client, server)
    assert [(event.kind, event.stream) for event in events] == [(http2.GOAWAY, 3)]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", ":path"]), st.sampled_from(["1", "2", "3"])), max_size=4), max_size=12
    ),
    st.lists(st.sampled_from([0, 60, 4096]), min_size=12, max_size=12),
)
def test_headers_mean_the_same_whatever_the_table_held_before(blocks, sizes):
    """The other end may use its table, resize it, or leave it: what is remembered of a block must not depend on it."""
    server, encoder = Connection(is_client=False), Encoder()
    server.feed(http2.PREFACE)
    for k, (pairs, size) in enumerate(zip(blocks, sizes, strict=False)):
        encoder.header_table_size = size
        plain = header_block(*pairs)
        for n, block in enumerate((encoder.encode(pairs), plain)):
            stream = 4 * k + 2 * n + 1
            (event,) = server.feed(frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, bytes(block)))
            assert event.headers == tuple(pairs)
            server.send(stream, STATUS)


ADD = b"\x40\x01a\x011"  # ("a", "1"), which goes into the table
NEWEST = b"\xbe"  # what went into the table last
NONE, FULL = b"\x20", b"\x3f\xe1\x1f"  # the table holds nothing from here on; its 4096 bytes again
PLAIN = header_block(("b", "2"))


def read(blocks):
    server = Connection(is_client=False)
    server.feed(http2.PREFACE)
    found = []
    for k, block in enumerate(blocks):
        (event,) = server.feed(frame(http2.HEADERS, http2.END_HEADERS, 2 * k + 1, block))
        found.append(event.headers)
    return found


def test_a_block_that_was_read_with_a_table_of_no_size_still_adds_to_a_larger_one():
    assert read([NONE + PLAIN, ADD, FULL + PLAIN, ADD, NEWEST])[-1] == (("a", "1"),)


def test_a_block_that_empties_the_table_does_so_every_time():
    empty = NONE + FULL + PLAIN
    with pytest.raises(Garbled, match="cannot be read"):
        read([empty, ADD, empty, NEWEST])


def test_more_blocks_than_are_remembered_are_read_all_the_same():
    blocks = [header_block(("n", str(k))) for k in range(600)]
    assert read(blocks + blocks[:5]) == [(("n", str(k)),) for k in [*range(600), *range(5)]]
    server = Connection(is_client=False)
    server.feed(http2.PREFACE + b"".join(frame(http2.HEADERS, 5, 2 * k + 1, block) for k, block in enumerate(blocks[:600])))
    assert len(server._headers._known) <= 256
