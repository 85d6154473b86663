"""Download of one image by HTTP, which trusts no server: bounded in bytes and seconds, to checked addresses.

    URL ──resolve, check, connect to the address that was checked──▶ request ──▶ headers ──▶ at most url_max_bytes

After the name is resolved, a try takes at most url_timeout seconds, from the connection to the last byte: a watchdog
shuts the socket of a server that trickles headers or body. What may succeed later, such as a 503 or a reset connection,
raises TryAgain; a fault of the URL or its content raises Rejected.

Proxies that the environment names are not used: they would connect in our place, to addresses that we have not checked.
Messages name neither query nor user info of a URL, nor what a server has sent.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import ipaddress
import itertools
import socket
import ssl
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from beam_pipelines.options import UrlOptions
from beam_pipelines.sources.url_names import is_url
from tpu_input.command_line.distribution import __version__
from tpu_input.stored_images.check import Rejected

AGENT = "jpeg2tpu"  # also the name by which X-Robots-Tag can address this program
_HEADERS = {"User-Agent": f"{AGENT}/{__version__}", "Accept": "image/*,*/*;q=0.8", "Accept-Encoding": "identity"}
_MOST_REDIRECTS = 5
_PIECE_BYTES = 1 << 16
_NUM_POOLS = 16  # hosts whose connections are kept open
_TICK = 0.1  # seconds between two looks of the watchdog
# As img2dataset 1.47 has them in --disallowed_header_directives.
_DISALLOWED = {"noai", "noimageai", "noindex", "noimageindex"}
_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_REDIRECTS = {301, 302, 303, 307, 308}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class TryAgain(Exception):
    """Raised if another try may succeed.

    Attributes:
      rejected: What the URL is rejected with if there is no other try.
      after: Seconds after which the server asks to try again; None if it does not say.
      answered: Whether a server has answered by HTTP.
    """

    def __init__(self, reason: str, detail: str, after: float | None = None, answered: bool = False) -> None:
        super().__init__(reason, detail)
        self.rejected, self.after, self.answered = Rejected(reason, detail), after, answered


def is_public(address: str) -> bool:
    """Returns whether an IP address is one of the internet, also where it holds an IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


class Downloader:
    """Downloads images, in any number of threads; its connections are kept open between them."""

    def __init__(self, options: UrlOptions) -> None:
        """Makes a downloader with these limits, which opens a connection when it needs one."""
        self._options = options
        self._tries = _Watchdog()
        context, allow, tries = ssl.create_default_context(), options.allow_private_addresses, self._tries

        class Unencrypted(_Checked, HTTPConnection):
            allow_private, watchdog = allow, tries

        class Encrypted(_Checked, HTTPSConnection):
            allow_private, watchdog = allow, tries

        class UnencryptedPool(HTTPConnectionPool):
            ConnectionCls = Unencrypted

        class EncryptedPool(HTTPSConnectionPool):
            ConnectionCls = Encrypted

        self._pools = urllib3.PoolManager(
            _NUM_POOLS, maxsize=options.url_host_concurrency, retries=False, ssl_context=context
        )
        self._pools.pool_classes_by_scheme = {"http": UnencryptedPool, "https": EncryptedPool}

    def read(self, url: str) -> bytes:
        """Returns the bytes behind a URL.

        Raises:
          Rejected: The URL gives no image.
          TryAgain: There may be later.
        """
        trial = self._tries.begin(self._options.url_timeout)
        response: urllib3.BaseHTTPResponse | None = None
        try:
            response = self._answer(url, trial)
            body = self._body(response, trial)
            response.release_conn()
            response = None
            return body
        except (Rejected, TryAgain):
            raise
        except Exception as error:
            if trial.is_over:
                limit = f"{self._options.url_timeout:g} s"
                raise TryAgain("timeout", f"not complete within {limit}", answered=trial.answered) from error
            raise _failure(error, trial.answered) from error
        finally:
            self._tries.end(trial)
            if response:
                response.close()

    def _answer(self, url: str, trial: _Try) -> urllib3.BaseHTTPResponse:
        """Returns the answer of the URL that redirects lead to; its body is an image's by its headers."""
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._ask(url, trial)
            trial.answered = True
            if response.status not in _REDIRECTS:
                try:
                    self._check(response)
                except BaseException:
                    response.close()
                    raise
                return response
            target = response.headers.get("Location", "")
            response.close()  # its body, which may be endless, is not read
            if not target:
                raise Rejected(f"http_{response.status}", "a redirect to nowhere")
            try:
                target = urllib.parse.urljoin(url, target)
            except ValueError:
                target = ""
            if not is_url(target):
                raise Rejected("bad_url", "a redirect to something other than http:// and https://")
            url = target
        raise Rejected("too_many_redirects", f"more than {_MOST_REDIRECTS} redirects")

    def _ask(self, url: str, trial: _Try) -> urllib3.BaseHTTPResponse:
        try:
            parsed = urllib3.util.parse_url(url.partition("#")[0])
            if not parsed.host or parsed.port == 0:
                raise ValueError
            pool = self._pools.connection_from_url(f"{parsed.scheme}://{parsed.netloc}")
        except (ValueError, urllib3.exceptions.HTTPError) as error:
            raise Rejected("bad_url", "it has no valid host or port") from error
        headers = dict(_HEADERS)
        if parsed.auth:  # of this URL alone: a redirect has none, unless it names its own
            headers |= urllib3.make_headers(basic_auth=urllib.parse.unquote(parsed.auth))
        return pool.urlopen(
            "GET",
            parsed.request_uri,
            headers=headers,
            redirect=False,
            retries=False,
            timeout=urllib3.Timeout(connect=trial.remaining, read=trial.remaining),
            preload_content=False,
            decode_content=False,
        )

    def _check(self, response: urllib3.BaseHTTPResponse) -> None:
        status = response.status
        if status in _TRY_AGAIN:
            after = _seconds(response.headers.get("Retry-After", ""))
            raise TryAgain(f"http_{status}", f"the server answers {status}", after, answered=True)
        if status != 200:
            raise Rejected(f"http_{status}", f"the server answers {status}")
        if not self._options.ignore_robots and (word := _refusal(response.headers.getlist("X-Robots-Tag"))):
            raise Rejected("robots", f"the server sends X-Robots-Tag: {word}")
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) > self._options.url_max_bytes:
            raise self._too_large()

    def _too_large(self) -> Rejected:
        return Rejected("too_large", f"more than --url_max_size={self._options.url_max_bytes} bytes")

    def _body(self, response: urllib3.BaseHTTPResponse, trial: _Try) -> bytes:
        most = self._options.url_max_bytes
        pieces, num_bytes = list[bytes](), 0
        for piece in _decoded(_pieces(response, most), response.headers.get("Content-Encoding", ""), most):
            num_bytes += len(piece)
            if num_bytes > most:
                raise self._too_large()
            if trial.is_over:
                raise TimeoutError
            pieces.append(piece)
        if trial.is_over:  # the watchdog has ended what has no length
            raise TimeoutError
        return b"".join(pieces)


def _pieces(response: urllib3.BaseHTTPResponse, most: int) -> Iterator[bytes]:
    """Yields the body as it was sent; a piece may have as few bytes as one packet, as a larger read would wait."""
    num_bytes = 0
    while piece := response.read1(_PIECE_BYTES):
        yield piece
        num_bytes += len(piece)
        if num_bytes > most:  # packed, which is hardly smaller than what is in it
            return


def _decoded(pieces: Iterable[bytes], encoding: str, most: int) -> Iterator[bytes]:
    """Yields a body without the compression that a server adds though it was not asked to."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        yield from pieces
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Rejected("bad_response", "it is sent in a compression that was not asked for")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    for piece in pieces:
        while piece and not inflater.eof:
            yield inflater.decompress(piece, most + 1)  # a bomb ends with the first piece
            piece = inflater.unconsumed_tail
    if not inflater.eof:
        raise http.client.IncompleteRead(b"")


def _refusal(headers: Iterable[str]) -> str:
    """Returns the word of an X-Robots-Tag by which a site refuses such use of its images; "" if there is none.

    As img2dataset reads them: of all programs, or of the one that is named before a colon.
    """
    for header in headers:
        agent, colon, words = header.partition(":")
        if not colon or agent.strip().lower() in ("", AGENT):
            for word in (words if colon else agent).split(","):
                if word.strip().lower() in _DISALLOWED:
                    return word.strip().lower()
    return ""


def _seconds(text: str) -> float | None:
    """Returns the seconds in a Retry-After, which may be a date; None if there are none."""
    if text.strip().isdecimal():
        return min(float(text), 1e9)
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _failure(error: Exception, answered: bool) -> Exception:
    """Returns why a connection failed, in words of our own: an error's may have the URL, or differ each time."""
    causes = list(itertools.islice(_causes(error), 10))

    def is_caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if rejected := next((cause for cause in causes if isinstance(cause, Rejected)), None):
        return rejected
    if is_caused_by(socket.gaierror, UnicodeError):
        return TryAgain("unreachable", "the name of its host has no address")
    if is_caused_by(ssl.SSLCertVerificationError, ssl.CertificateError):
        return Rejected("unreachable", "the certificate of its host is not valid")
    if is_caused_by(ssl.SSLError):
        return TryAgain("unreachable", "the encrypted connection fails")
    if is_caused_by(TimeoutError, urllib3.exceptions.TimeoutError):
        return TryAgain("timeout", "no answer in time", answered=answered)
    if is_caused_by(zlib.error):
        return Rejected("bad_response", "its compression is damaged")
    if answered or is_caused_by(http.client.IncompleteRead):
        return TryAgain("bad_response", "it ends before its length", answered=True)
    if is_caused_by(ConnectionRefusedError):
        return TryAgain("unreachable", "its host refuses the connection")
    is_no_http = is_caused_by(http.client.HTTPException, urllib3.exceptions.InvalidHeader, ValueError)
    if is_no_http and not is_caused_by(http.client.RemoteDisconnected, OSError):
        return TryAgain("bad_response", "what its host answers is not HTTP", answered=True)
    return TryAgain("unreachable", "the connection is closed without an answer")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        inner = error.args[-1] if error.args else None
        error = error.__cause__ or error.__context__ or (inner if isinstance(inner, BaseException) else None)


class _Try:
    """One try of a download.

    Attributes:
      answered: Whether a server has sent the headers of an answer.
      socket: The socket that it waits for now, None if there is none.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.answered = False
        self.socket: socket.socket | None = None

    @property
    def remaining(self) -> float:
        """Seconds that are left; more than 0, as a socket without any does not block."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def postpone(self, seconds: float) -> None:
        """Leaves out the time in which a name was resolved, which has its own limit."""
        self._end += seconds


class _Watchdog:
    """Shuts the sockets of all tries that are over.

    The timeout of a socket starts again with each packet, so a slow answer would never reach it.
    """

    def __init__(self) -> None:
        self._current = threading.local()
        self._tries = set[_Try]()
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, seconds: float) -> _Try:
        """Returns a try of this thread, which begins now."""
        trial = _Try(seconds)
        self._current.trial = trial
        with self._lock:
            self._tries.add(trial)
            if not self._thread:
                self._thread = threading.Thread(target=self._watch, daemon=True)
                self._thread.start()
            self._lock.notify_all()
        return trial

    def end(self, trial: _Try) -> None:
        with self._lock:
            self._tries.discard(trial)
        self._current.trial = None

    def current(self) -> _Try | None:
        """Returns the try of this thread."""
        return getattr(self._current, "trial", None)

    def _watch(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._tries)
                for trial in self._tries:
                    if trial.is_over and trial.socket:
                        with contextlib.suppress(OSError):  # it is closed
                            # Not SSLSocket's own, which changes what another thread is reading with.
                            socket.socket.shutdown(trial.socket, socket.SHUT_RDWR)
            time.sleep(_TICK)


class _Checked:
    """A connection to an address that was checked, whatever the name of its host resolves to a moment later."""

    allow_private: bool
    watchdog: _Watchdog
    sock: Any
    timeout: Any
    port: int
    host: str
    _dns_host: str
    socket_options: Any

    def _new_conn(self) -> socket.socket:
        trial = self.watchdog.current()
        start = time.monotonic()
        # A name with a label that is empty or too long is a UnicodeError, for _failure() a host without an address.
        infos = socket.getaddrinfo(self._dns_host.strip("[]"), self.port, type=socket.SOCK_STREAM)
        if trial:
            trial.postpone(time.monotonic() - start)
        addresses = [info for info in infos if self.allow_private or is_public(str(info[4][0]))]
        if not addresses:
            raise Rejected("private_address", "its host is in a private network; --allow_private_addresses reads it")
        failure: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            connection = socket.socket(family, kind, protocol)
            try:
                for option in self.socket_options or ():
                    connection.setsockopt(*option)
                connection.settimeout(trial.remaining if trial else self.timeout)
                if trial:
                    trial.socket = connection
                connection.connect(address)
                return connection
            except OSError as error:
                failure = error
                connection.close()
        raise failure or OSError("no address")

    def request(self, *arguments: Any, **keywords: Any) -> None:
        if (trial := self.watchdog.current()) and self.sock:
            trial.socket = self.sock
        super().request(*arguments, **keywords)  # type: ignore[misc]

    def getresponse(self) -> Any:
        if (trial := self.watchdog.current()) and self.sock:
            trial.socket = self.sock
            self.sock.settimeout(trial.remaining)
        return super().getresponse()  # type: ignore[misc]
