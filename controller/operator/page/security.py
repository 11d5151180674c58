"""Who may ask the page: names of this machine alone (DNS rebinding), its own origin (CSRF), commands with a token.

- Any page that a browser shows may send requests to 127.0.0.1. A page whose name was pointed there has that name in
  `Host`, so requests with another host are refused; other pages have another `Origin`.
- The token is in the fragment of the printed address, which browsers send to no server. Commands carry it in a header,
  which another site's form cannot set.
- The answers forbid to be framed (clickjacking) and to run any script that is not a file of the page.
"""

from collections.abc import Mapping

from controller.operator import operator_token

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of every answer."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Gate:
    """Decides whether a request is answered."""

    def __init__(self, host: str, port: int, token: str) -> None:
        """`host`, `port`: where the page listens."""
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self._hosts = {f"{name}:{port}" for name in (bracketed, *LOOPBACK_NAMES)}
        if port == 80:
            self._hosts |= {bracketed, *LOOPBACK_NAMES}
        self.token = token

    def refusal(self, headers: Mapping[str, str], needs_origin: bool) -> str:
        """Return why a request is refused, or "".

        `needs_origin`: for a WebSocket or a command, for which every browser sends its page's origin. A program that
        sends none is no browser, so that no other site can be behind it.
        """
        host = headers.get("Host", "").lower()
        if host not in self._hosts:
            return f"the host {host[:100]!r} is not this page; open the printed address"
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}:
            return f"the origin {origin[:100]!r} is not this page; open the printed address"
        if needs_origin and headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return "another site's page sent this request; open the printed address"
        return ""

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Tell if a command's request carries the token."""
        return operator_token.is_permitted(headers.get("Authorization", ""), self.token)
