"""Answers of stores that differ from those of the large ones: listings, sizes, encodings, names and URLs."""

import gzip
import re
import time
from xml.sax.saxutils import escape

import pytest

import gristmill as gm
from object_store import Server, tag

LINE = b'{"text": "a"}\n'


def page(names, more=""):
    """A page of a listing as S3 has it."""
    contents = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<Size>{len(LINE)}</Size></Contents>"
        for name in names
    )
    return f"<ListBucketResult>{more}{contents}</ListBucketResult>"


def find(server, *shards, **options):
    return gm.Manifest.find(list(shards), storage_options=server.options(retry_timeout="3", **options))


def refused(server, match, *shards, error=gm.GristmillError, **options):
    """Finding shards is an error, and no outage that is waited out."""
    start = time.monotonic()
    with pytest.raises(error, match=match) as raised:
        find(server, *shards, **options)
    assert "did not answer" not in str(raised.value)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("pattern", ["*.jsonl", "**/*.jsonl"])
def test_listing_that_is_cut_off_without_a_token_is_an_error(scheme, pattern):
    """As the first version of S3's interface answers, whose next page begins at NextMarker."""
    names = [f"x{number:03}.jsonl" for number in range(5)]

    def answer(handler, key, query):
        if "list-type" in query:
            more = f"<IsTruncated>true</IsTruncated><NextMarker>{names[1]}</NextMarker>"
            handler.xml(page(names[:2], more))
        return "list-type" in query

    with Server({f"bucket/{name}": LINE for name in names}, answer=answer) as server:
        refused(server, "is cut off .IsTruncated. without one: .* without globs", f"{scheme}://bucket/{pattern}")
        named = [f"{scheme}://bucket/{name}" for name in names]
        assert list(find(server, *named).paths) == named


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("tokens", [["t"], ["t", "u", "v"], None])
def test_listing_without_end_is_an_error(scheme, tokens):
    """A token again, tokens in turn, or always another one for the same page."""
    asked = []

    def answer(handler, key, query):
        if "list-type" in query:
            asked.append(query)
            token = tokens[len(asked) % len(tokens)] if tokens else str(len(asked))
            names = [f"{len(asked)}.jsonl"] if tokens else ["0.jsonl"]
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>"
            handler.xml(page(names, more))
        return "list-type" in query

    with Server({}, answer=answer) as server:
        refused(server, "expected further pages of the listing, found one again", f"{scheme}://bucket/*.jsonl")
    assert len(asked) < 6


def test_pages_without_objects_are_no_end():
    def answer(handler, key, query):
        if "list-type" not in query:
            return False
        number = int(query.get("continuation-token", "0"))
        more = f"<NextContinuationToken>{number + 1}</NextContinuationToken>" if number < 3 else ""
        handler.xml(page(["x.jsonl"] if number == 3 else [], more))
        return True

    with Server({}, answer=answer) as server:
        assert list(find(server, "s3://bucket/*.jsonl").paths) == ["s3://bucket/x.jsonl"]


@pytest.mark.parametrize("failure", [500, 503, "reset"])
@pytest.mark.parametrize("pattern", ["*.jsonl", "**"])
def test_failure_within_a_listing_costs_one_page(failure, pattern):
    asked = []

    def answer(handler, key, query):
        if "list-type" not in query:
            return False
        asked.append(query.get("continuation-token"))
        if len(asked) % 3:
            return False
        if failure == "reset":
            handler._reset()
        else:
            handler.status(failure, has_body=True)
        return True

    objects = {f"bucket/{number:04}.jsonl": LINE for number in range(60)}
    with Server(objects, answer=answer, page=5) as server:
        assert len(find(server, f"s3://bucket/{pattern}")) == 60
    assert (asked.count(None), len(set(asked))) == (1, 12)
    assert len(asked) == 12 + len(asked) // 3


def test_denied_listing_says_so():
    def answer(handler, key, query):
        if "list-type" in query:
            handler.status(403, has_body=True)
        return "list-type" in query

    with Server({}, answer=answer) as server, pytest.raises(gm.GristmillError, match="the store denied access: 403"):
        find(server, "s3://bucket/*.jsonl")


# Globs that name an odd key among others.
MATCHES = {
    ("data/*.jsonl", "data/tab\tx.jsonl"),
    ("data/**/*.jsonl", "data/tab\tx.jsonl"),
    ("data/**/*.jsonl", "data//x.jsonl"),
}
ODD = ["data//x.jsonl", "data/./x.jsonl", "data/../x.jsonl", "data/tab\tx.jsonl", "/lead.jsonl", "data//"]


@pytest.mark.parametrize("odd", ODD)
def test_keys_that_no_request_can_name_do_not_hide_others(odd):
    objects = {"bucket/data/plain.jsonl": LINE, f"bucket/{odd}": LINE}
    with Server(objects) as server:
        for pattern in ("data/*.jsonl", "data/**/*.jsonl", "*/plain.jsonl", "**/plain.jsonl"):
            if (pattern, odd) in MATCHES:
                match = re.escape(f"matches {f's3://bucket/{odd}'!r}, a name with an empty part or a control character")
                refused(server, match, f"s3://bucket/{pattern}", error=gm.MissingShardError)
            else:
                assert list(find(server, f"s3://bucket/{pattern}").paths) == ["s3://bucket/data/plain.jsonl"]
        name = "data//x" if odd == "data//" else odd
        refused(server, "expected a key without empty parts", f"s3://bucket/{name}")


def test_objects_that_stand_for_folders_are_no_shards():
    with Server({"bucket/data/": b"", "bucket/data/x.jsonl": LINE, "bucket/x.jsonl": LINE}) as server:
        assert sorted(find(server, "gs://bucket/**").paths) == ["gs://bucket/data/x.jsonl", "gs://bucket/x.jsonl"]


def texts(server, encoder, url, **options):
    dataset = gm.PackedDataset(
        url, tokenizer=encoder, sequence_length=64, packing="pad", epochs=1, lanes=1, eos=False,
        storage_options=server.options(retry_timeout="3", **options),
    )  # fmt: skip
    return [encoder.decode(row["inputs"][row["inputs_segmentation"] > 0]) for row in dataset]


def test_objects_that_are_inflated_on_the_way_are_read_as_they_are_stored(encoder):
    """As Google serves an object that `gsutil cp -z` stored, unless the request accepts gzip."""
    data = gzip.compress(b"".join(b'{"text": "%d"}\n' % number for number in range(2000)))

    def answer(handler, key, query):
        if key != "bucket/a.jsonl" or "gzip" in handler.headers.get("Accept-Encoding", ""):
            return False
        body = gzip.decompress(data)
        handler.send_response(200)
        handler.send_header("ETag", tag(data))
        handler.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        return True

    with Server({"bucket/a.jsonl": data}, answer=answer) as server:
        for url in ("gs://bucket/a.jsonl", "gs://bucket/*.jsonl"):
            assert texts(server, encoder, url) == [str(number) for number in range(2000)]


def web(answers):
    """A server of the web: its answer to each method and target, as it is on the wire."""
    asked = []

    def answer(handler, key, query):
        asked.append((handler.command, handler.path))
        answered = answers(handler)
        if not answered:
            handler.status(404, has_body=handler.command == "GET")
        return True

    return Server({}, answer=answer), asked


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/a.jsonl?sig=a%2Bb%2Fc%3D%3D&x=1", None),
        ("/a%20b/c%2Bd%25.jsonl", None),
        ("/a b/é.jsonl", "/a%20b/%C3%A9.jsonl"),
        ("/100%.jsonl", "/100%25.jsonl"),
        ("/c#/x.jsonl", "/c%23/x.jsonl"),
        ("/x//y.jsonl", None),
    ],
)
def test_urls_of_the_web_are_sent_as_they_are(encoder, target, sent):
    def answers(handler):
        handler._object(LINE, None, 0.0, has_body=handler.command == "GET")
        return True

    server, asked = web(answers)
    with server:
        assert texts(server, encoder, f"{server.url}{target}") == ["a"]
    assert {path for _, path in asked} == {sent or target}


@pytest.mark.parametrize("status", [403, 405, 501])
def test_server_that_refuses_head_is_asked_for_the_first_byte(encoder, status):
    """As signed URLs are for GET alone."""

    def answers(handler):
        if handler.command == "HEAD":
            handler.status(status, has_body=False)
        else:
            handler._object(LINE * 3, None, 0.0, has_body=True)
        return True

    server, asked = web(answers)
    with server:
        assert texts(server, encoder, f"{server.url}/a.jsonl") == ["a"] * 3
    assert [command for command, _ in asked][:2] == ["HEAD", "GET"]


def without_length(handler, body):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    return True


def test_answers_without_a_length_are_refused_at_once():
    server, _ = web(lambda handler: without_length(handler, LINE))
    with server:
        refused(
            server, "found an answer without Content-Length and Content-Range; download it", f"{server.url}/a.jsonl"
        )


def test_server_that_ignores_ranges_is_no_outage(encoder):
    def answers(handler):
        handler._object(LINE, "no range", 0.0, has_body=handler.command == "GET")
        return True

    server, _ = web(answers)
    with server, pytest.raises(gm.GristmillError, match=r"the server does not serve parts, .*; download the object"):
        texts(server, encoder, f"{server.url}/a.jsonl")


@pytest.mark.parametrize("status", [404, 410])
def test_object_that_is_gone_is_no_outage(status):
    def answers(handler):
        handler.status(status, has_body=handler.command == "GET")
        return True

    server, _ = web(answers)
    with server:
        refused(server, "no such object", f"{server.url}/a.jsonl", error=gm.MissingShardError)
        refused(server, "so name each URL", f"{server.url}/*.jsonl", error=gm.MissingShardError)


def test_urls_with_a_password_are_refused_without_showing_it():
    with pytest.raises(gm.GristmillError, match=r"http://host/a\.jsonl: expected a URL without a name and password"):
        gm.Manifest.find("http://me:secret@host/a.jsonl")


@pytest.mark.parametrize("name", ["aws_endpoint", "endpoint", "google_base_url", "hf_endpoint"])
def test_endpoint_without_a_scheme_is_an_error(name):
    with pytest.raises(gm.ArgumentError, match=f"{name}: expected a URL with a scheme, such as http://localhost:9000"):
        gm.Manifest.find("s3://bucket/a.jsonl", storage_options={name: "localhost:9000"})


def test_endpoint_of_the_environment_without_a_scheme_is_an_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    options = {"aws_region": "us-east-1", "aws_skip_signature": "true", "allow_http": "true", "retry_timeout": "1"}
    with pytest.raises(gm.GristmillError, match=r'found: .* the endpoint "localhost:9000" without a scheme'):
        gm.Manifest.find("s3://bucket/a.jsonl", storage_options=options)
