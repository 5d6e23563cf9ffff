"""The table of answers in docs/buckets.md: each row has examples here, which a server on loopback gives."""

import re
import time

import pytest

import gristmill as gm
from gristmill import _core
from helpers import ROOT
from object_store import Server, tag

pytestmark = pytest.mark.skipif(not hasattr(_core, "Stores"), reason="a build for local files only")

LINE = b'{"text": "a"}\n'
PAGE = b"<html><body>Log in</body></html>"
HEADERS = {"ETag": tag(LINE), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}


def status(code, text="", **headers):
    """An answer with a status, a text, and headers, with _ in place of - in their names."""

    def answer(handler, is_listing):
        del is_listing
        body = text.encode()
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value.format(path=handler.path))
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


def code(name):
    return f"<Error><Code>{name}</Code></Error>"


def reset(handler, is_listing):
    del is_listing
    handler._reset()


def short(handler, is_listing):
    del is_listing
    start = int(handler.headers["Range"].removeprefix("bytes=").split("-")[0])
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {start}-{len(LINE) - 1}/{len(LINE)}")
    for name, value in {**HEADERS, "Content-Length": str(len(LINE) - start)}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(LINE[start : start + 1])
    handler.close_connection = True


def part(content_range, **headers):
    """A part of the object under another range or tag, or a page of the web where a listing was asked for."""

    def answer(handler, is_listing):
        if is_listing:
            status(200, PAGE.decode())(handler, is_listing)
            return
        body = b"" if handler.command == "HEAD" else LINE
        handler.send_response(206 if content_range else 200)
        if content_range:
            handler.send_header("Content-Range", content_range)
        for name, value in {**HEADERS, "Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


WHOLE = f"bytes 0-{len(LINE) - 1}/{len(LINE)}"
OUTAGE = (gm.GristmillError, "the store did not answer")
DENIED = (gm.GristmillError, "the store denied access")
MISSING = (gm.ShardError, "expected the object of the manifest, found none")
CHANGED = (gm.ShardError, "has changed since")
ODD = (gm.GristmillError, "found another answer")
REFUSED = (
    gm.GristmillError,
    "the server refuses such requests|a redirect without an address|set storage_options=|storage",
)

# For the start of each row: the error that the answer becomes, whether it is requested again, and examples.
ROWS = {
    "5xx but the three below": (
        OUTAGE,
        True,
        [
            *map(status, (500, 502, 503, 504, 507, 520, 408, 425, 429)),
            status(503, code("SlowDown")),
            status(400, code("RequestTimeout")),
        ],
    ),
    "a connection that is refused": (OUTAGE, True, [reset, short]),
    "401, 403, 407": (
        DENIED,
        True,
        [*map(status, (401, 403, 407, 400)), status(403, code("AccessDenied")), status(400, code("ExpiredToken"))],
    ),
    "404, 410": (MISSING, True, [status(404), status(404, code("NoSuchKey")), status(410)]),
    "416; another size": (
        CHANGED,
        True,
        [status(416), part(f"bytes 0-{len(LINE) - 1}/{len(LINE) + 5}"), part(WHOLE, ETag='"other"')],
    ),
    "an answer that is none of the store's protocol": (
        ODD,
        True,
        [
            part(None),
            part(f"bytes 3-{len(LINE) + 2}/{len(LINE)}"),
            part("nonsense"),
            part(WHOLE, **{"Last-Modified": "?"}),
        ],
    ),
    "any other status": (
        REFUSED,
        False,
        [
            *(status(number, code("Never")) for number in (400, 402, 405, 406, 409, 411, 418, 451, 501, 505, 511)),
            status(301),
            status(307, x_amz_bucket_region="eu-west-1"),
            status(302, Location="{path}"),
        ],
    ),
}


def table():
    """The rows of the table in the page."""
    text = (ROOT / "docs" / "buckets.md").read_text()
    body = text.partition("| answer, or none |")[2].partition("\n\n")[0]
    return [row.strip("| ").split(" | ") for row in body.splitlines()[2:]]


def test_each_row_has_examples():
    assert [next(start for start in ROWS if row[0].startswith(start)) for row in table()] == list(ROWS)
    for (_, attempts, _), (_, is_again, _) in zip(table(), ROWS.values(), strict=True):
        assert (attempts != "not at all") == is_again


EXAMPLES = [
    pytest.param(error, is_again, answer, id=f"{start[:12]}-{number}")
    for start, (error, is_again, examples) in ROWS.items()
    for number, answer in enumerate(examples)
]


def served(answer, first=None):
    """A server that answers so, and its requests. With `first`, only so many times, and then as a store."""
    asked = []

    def respond(handler, key, query):
        del key
        asked.append(handler.path)
        if first is not None and len(asked) > first:
            return False
        answer(handler, "list-type" in query)
        return True

    return Server({"bucket/a.jsonl": LINE}, answer=respond), asked


def read(encoder, server, scheme, **options):
    url = f"{server.url}/bucket/a.jsonl" if scheme == "http" else f"{scheme}://bucket/a.jsonl"
    dataset = gm.PackedDataset(
        gm.Manifest((url,), (len(LINE),), e_tags=(tag(LINE),)), tokenizer=encoder, sequence_length=16, packing="pad",
        epochs=1, lanes=1, eos=False, layout="grain", storage_options=server.options(**options),
    )  # fmt: skip
    return [encoder.decode(row["tokens"][row["tokens_segment_ids"] > 0]) for row in dataset]


@pytest.mark.parametrize(("error", "is_again", "answer"), EXAMPLES)
@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_answer_while_a_shard_is_read(encoder, scheme, error, is_again, answer):
    kind, message = error
    server, asked = served(answer)
    with server, pytest.raises(kind, match=message) as raised:
        read(encoder, server, scheme, retry_timeout="0.3")
    assert type(raised.value) is kind
    # A redirect in a circle is one request that the client follows.
    assert (len({*asked}) == 1 and len(asked) >= 3) if is_again else "attempts" not in str(raised.value)
    assert ("did not answer" in str(raised.value)) == (error is OUTAGE)


@pytest.mark.parametrize(
    "answer", [pytest.param(example.values[2], id=example.id) for example in EXAMPLES if example.values[1]]
)
def test_answer_that_passes_costs_nothing(encoder, answer):
    server, asked = served(answer, first=2)
    with server:
        assert read(encoder, server, "s3", retry_timeout="20") == ["a"]
    assert len(asked) == 3


# Nothing was listed yet that could differ, or that could be a part.
OF_LISTINGS = [example for example in EXAMPLES if example.values[0] is not CHANGED and example.values[2] is not short]


@pytest.mark.parametrize(("error", "is_again", "answer"), OF_LISTINGS)
def test_answer_while_shards_are_listed(error, is_again, answer):
    _, message = error
    server, asked = served(answer)
    wanted = (gm.GristmillError, "expected a bucket or container to list, found none" if error is MISSING else message)
    with server, pytest.raises(wanted[0], match=wanted[1]) as raised:
        gm.Manifest.find("s3://bucket/*.jsonl", server.options(retry_timeout="0.3"))
    assert ("did not answer" in str(raised.value)) == (error is OUTAGE)
    assert len(asked) >= 3 if is_again and error is not MISSING else "attempts" not in str(raised.value)


def test_servers_without_tls_need_an_option(encoder):
    server, asked = served(status(200))
    options = {name: value for name, value in server.options().items() if name != "allow_http"}
    start = time.monotonic()
    with server, pytest.raises(gm.GristmillError, match='"allow_http": "true"'):
        gm.Manifest.find("s3://bucket/*.jsonl", {**options, "retry_timeout": "60"})
    assert not asked
    assert time.monotonic() - start < 30


def test_region_of_a_redirect_is_named():
    server, _ = served(status(301, x_amz_bucket_region="eu-west-1"))
    with server, pytest.raises(gm.GristmillError, match=re.escape('{"aws_region": ...}, here eu-west-1')):
        gm.Manifest.find("s3://bucket/*.jsonl", server.options())
