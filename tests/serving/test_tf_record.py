"""TFRecord files, as TensorFlow reads and writes them."""

import io

import pytest
import tensorflow as tf

from serving import tf_record


def test_checksum_of_the_standards_example():
    # RFC 3720, B.4: 32 bytes of zeros have the CRC 8a9136aa
    crc = 0x8A9136AA
    assert tf_record.masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("sizes", [[0], [1, 3, 4, 5], [255, 256, 257, 65_536, 70_000]])
def test_tensorflow_reads_the_records_and_writes_the_same_bytes(tmp_path, sizes):
    records = [bytes(k * 7 % 256 for k in range(size)) for size in sizes]
    file = io.BytesIO()
    for record in records:
        tf_record.write(file, record)
    (tmp_path / "ours").write_bytes(file.getvalue())
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in records:
            writer.write(record)
    assert list(tf.compat.v1.io.tf_record_iterator(str(tmp_path / "ours"))) == records
    assert (tmp_path / "theirs").read_bytes() == file.getvalue()
