"""Names of images behind URLs: what is stored and shown of a URL, which is never its user info, query or fragment.

    https://me:word@example.com/1.jpg?size=2&Signature=… ──key_of()───▶ https://example.com/1.jpg#5f70bf18a0860070
                                                         ──origin()──▶ https://example.com/1.jpg

The key of a record is the URL without user info, query and fragment. With a query, # and the first 16 digits of its
SHA-256 follow, without what is a signature, so that an image has the same key when its URL is signed again.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse

from beam_pipelines import storage

_URL = re.compile(r"https?://", re.IGNORECASE)
_IN_TEXT = re.compile(r"""https?://[^\s"'<>,;]+""", re.IGNORECASE)
# Parameters of signed URLs: of S3 (X-Amz-…), Google Cloud Storage (X-Goog-…), CloudFront, Azure (sv, se, sig, …). They
# change with each signature, and have no part in what the URL names.
_SIGNATURE = re.compile(
    r"x-(?:amz|goog)-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id|hash-algorithm"
    r"|s[vretpi]|sig|spr|sip|srt|sdd|sks|skt|ske|skv|skoid|sktid|token|access_token|api_?key",
    re.IGNORECASE,
)
_DIGITS = 16


def is_url(uri: str) -> bool:
    """Returns whether a URI is a whole file that is read by HTTP: not a member of an archive on the web."""
    return bool(_URL.match(uri)) and not storage.byte_range(uri)


def origin(url: str) -> str:
    """Returns a URL without user info, query and fragment; other URIs and paths unchanged."""
    if not is_url(url):
        return url
    scheme, _, rest = url.partition("://")
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    # Also backslashes end the host for some clients, so that user info might hide behind one.
    host, slash, path = re.match(r"([^/\\]*)([/\\]?)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{scheme.lower()}://{host.rpartition('@')[2]}{slash}{path}"


def key_of(url: str) -> str:
    """Returns the key of the record of an image behind a URL."""
    query = url.partition("#")[0].partition("?")[2]
    parameters = [part for part in query.split("&") if part and not _SIGNATURE.fullmatch(part.partition("=")[0])]
    digits = hashlib.sha256("&".join(parameters).encode()).hexdigest()[:_DIGITS] if parameters else ""
    return f"{origin(url)}#{digits}" if digits else origin(url)


def domain(url: str) -> str:
    """Returns the host of a URL in lower case, without a port; "" for other URIs and paths, and if there is none."""
    if not is_url(url):
        return ""
    try:
        return urllib.parse.urlsplit(origin(url)).hostname or ""
    except ValueError:  # no valid IPv6 address in brackets
        return ""


def without_secrets(text: str) -> str:
    """Returns a message in which all URLs are as origin() has them."""
    return _IN_TEXT.sub(lambda match: origin(match[0]), text)
