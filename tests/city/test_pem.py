"""Expiry of certificates."""

import datetime

import pytest

from city import pem
from tests.serving.certificates import pair


@pytest.mark.parametrize("days", [-1, 10, 365 * 40])
def test_expiry_is_the_earliest_of_all_certificates(days):
    certificates = [pair("a", valid=datetime.timedelta(days=each)) for each in (days, days + 5)]
    content = b"".join(certificate[1] for certificate in certificates)
    assert pem.earliest_expiry_s(content) == certificates[0][3].not_valid_after_utc.timestamp()


def test_file_without_a_readable_certificate_has_no_expiry():
    key = pair("a")[0]
    broken = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    assert pem.earliest_expiry_s(key) is None and pem.earliest_expiry_s(broken) is None
