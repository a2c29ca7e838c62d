"""A client of a data folder and one of a server have the same abilities, and bad input is refused alike by both."""

import asyncio
import contextlib
import http.client
import inspect
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import numpy as np
import pytest
from folders import DOORS, opened, serving

import stratann
from stratann import _stratann
from stratann._remote import RemoteFolder

DIM = 2
ROW = [[1.0, 0.0]]


@pytest.fixture(params=DOORS)
def points(request, tmp_path):
    with opened(request.param, tmp_path / "data") as client:
        yield client.create_collection("c", dim=DIM)


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_neither_door_has_an_ability_that_the_other_lacks():
    # A client is one class; what it opens has the same methods with the same arguments.
    embedded, remote = _stratann.DataFolder, RemoteFolder
    assert public(embedded) == public(remote)
    for name in public(embedded):
        own, other = getattr(embedded, name), getattr(remote, name)
        if callable(own):
            assert [*inspect.signature(own).parameters] == [*inspect.signature(other).parameters], name


def test_the_client_for_asyncio_has_the_same_methods():
    for plain, later in [
        (stratann.Client, stratann.AsyncClient),
        (stratann.Collection, stratann.AsyncCollection),
        (stratann.Job, stratann.AsyncJob),
    ]:
        assert public(plain) == public(later)
        for name in public(plain):
            own, other = getattr(plain, name), getattr(later, name)
            assert own.__doc__ == other.__doc__, name
            if inspect.isfunction(own):
                assert inspect.iscoroutinefunction(other), name
                # The types of what is returned differ alone.
                parameters = [inspect.signature(one).parameters for one in (own, other)]
                assert list(parameters[0].items()) == list(parameters[1].items()), name
    options = [inspect.signature(one).parameters for one in (stratann.Client, stratann.AsyncClient)]
    assert list(options[0].items()) == list(options[1].items())


@pytest.mark.parametrize("door", DOORS)
def test_coroutines_do_what_the_methods_do(door, tmp_path):
    async def work(place):
        async with stratann.AsyncClient(place) as client:
            points = await client.create_collection("c", dim=DIM)
            writes = [points.upsert([at], [[at, 1]], [{"n": at}]) for at in range(40)]
            assert sum([done.new for done in await asyncio.gather(*writes)]) == 40
            found = await points.search([[3, 1]], k=2, filter="n != 3", with_payload=True)
            assert found.ids == [[2, 4]] and found[0][0].payload == {"n": 2}
            job = await points.compact_later()
            assert (await job.wait()).state == "done" and await job.is_done() and job.kind == "compact"
            assert await points.count() == 40 and (await points.info())["delta_points"] == 0
            assert await client.read_only() is None and not client.closed and points.dim == DIM
            with pytest.raises(stratann.MissingError):
                await client.collection("d")
            with pytest.raises(TypeError):
                await points.search([[3, 1]], what=1)
        assert client.closed and "closed" in repr(client) and "'c'" in repr(points)
        with pytest.raises(stratann.InputError, match="closed"):
            await points.count()

    path = tmp_path / "data"
    with contextlib.nullcontext(path) if door == "embedded" else serving(path) as place:
        asyncio.run(work(place))


def deep(levels):
    payload = {"a": 1}
    for _ in range(levels - 1):
        payload = {"a": payload}
    return payload


def nested_filter(levels):
    inner = {"must": [{"key": "a", "match": {"value": 1}}]}
    for _ in range(levels - 1):
        inner = {"must": [inner]}
    return inner


def test_bad_payloads_are_refused_and_change_nothing(points):
    for payload, why in [
        ({"text": "x" * (10 << 20)}, "1048576|longer than"),
        (deep(101), "100 levels"),
        (deep(1000), "levels"),
        (deep(100_000), "levels"),
        ({"a": float("nan")}, "finite"),
        ({"a": float("inf")}, "finite"),
        ({"a": "\ud800"}, "Unicode"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            points.upsert([1], ROW, [payload])
        with pytest.raises(stratann.InputError, match=why):
            points.set_payload(payload, [1])
    assert points.info()["seq"] == 0


def test_odd_payloads_and_ids_come_back(points):
    payloads = [deep(100), {"nul": "a\0b", "\0": [True]}, {"wide": {f"f{at}": at for at in range(20_000)}}]
    ids = [2**53 + 1, 2**64 - 1, "a\0b"]
    points.upsert(ids, ROW * 3, payloads)
    assert [point.payload for point in points.get(ids)] == payloads
    assert points.count(filter={"must": [{"key": "nul", "match": {"value": "a\0b"}}]}) == 1
    assert points.count(filter={"must": [{"has_id": ids}]}) == 3
    assert points.search(ROW, k=3).ids == [ids]
    assert points.delete([2**53]).unknown == 1 and points.delete([2**53 + 1]).deleted == 1
    for wrong in ([2**64], [-1], [""], ["x" * 256], ["\ud800"]):
        with pytest.raises(stratann.InputError):
            points.get(wrong)


def test_large_and_deep_filters_are_answered_and_larger_ones_refused(points):
    points.upsert([1, 2], ROW * 2, [{"a": 1}, {"a": 20_000}])
    many = {"should": [{"key": "a", "match": {"value": at}} for at in range(10_000)]}
    assert points.count(filter=many) == 1 and points.search(ROW, filter=many).ids == [[1]]
    assert points.count(filter=nested_filter(100)) == 1
    for filter, why in [
        (nested_filter(129), "128"),
        ({"must": [{"has_id": []}] * 100_001}, "100000|longer than"),
        ({"must": [{"geo_radius": {}}]}, "places"),
        ({"must": [{"key": "a", "range": {"lt": float("nan")}}]}, "finite"),
        ({"musst": []}, "musst"),
        ("a = ", "column"),
        (7, "type int"),
    ]:
        with pytest.raises(stratann.InputError, match=why):
            points.count(filter=filter)


def exchange(url, method, path, body, kind="application/json"):
    """A request as it is, and its reply."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body, {"Content-Type": kind})
    reply = connection.getresponse()
    read = json.loads(reply.read())
    connection.close()
    return reply.status, read, reply.headers["Content-Type"]


def test_bodies_that_are_no_json_are_refused(tmp_path):
    with serving(tmp_path / "data") as url:
        exchange(url, "PUT", "/v1/collections/c", b'{"dim": 2}')
        points, query = "/v1/collections/c/points", "/v1/collections/c/query"
        levels = b'{"a":' * 1000 + b"1" + b"}" * 1000
        for method, path, body, why in [
            ("PUT", points, b'{"ids": [1], "vectors": [[1, NaN]]}', "vectors|expected|body"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1e400]]}', "number|infinite"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1]], "payloads": [{"a": 1e400}]}', "number"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1]], "payloads": [{"a": NaN}]}', "expected"),
            ("PUT", points, b'{"ids": ["\xff"], "vectors": [[1, 1]]}', "UTF-8|unicode"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1]], "payloads": [{"a": "\xff"}]}', "UTF-8|unicode"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1]], "payloads": [' + levels + b"]}", "100 levels"),
            ("PUT", points, b'{"ids": [1], "vectors": "AAAA"}', "3 bytes"),
            ("PUT", points, b'{"ids": [1], "vectors": "A*=="}', "base64"),
            ("PUT", points, b'{"ids": [1], "vectors": "AADAfwAAAAA="}', "NaN"),
            ("PUT", points, b'{"ids": [1], "vectors": [[1, 1]], "more": 1}', "unknown field `more`"),
            ("PUT", points, b'{"ids": [18446744073709551616], "vectors": [[1, 1]]}', "whole number"),
            ("PUT", points, b"[" * 100_000, "body"),
            ("PUT", points, b"x" * (9 << 20), "longer than"),
            ("POST", query, b'{"vectors": [[1, 1]], "vectors_as": "hex"}', "base64"),
            ("POST", query, b'{"vectors": [[1, 1]], "recall": 1e400}', "number"),
        ]:
            status, reply, kind = exchange(url, method, path, body)
            assert (status, kind) == (400, "application/problem+json"), reply
            assert reply["code"] in ("bad_input", "body_too_long") and reply["status"] == 400, reply
            assert any(one in reply["detail"] for one in why.split("|")), reply
            assert reply["type"] == f"urn:stratann:error:{reply['code']}" and reply["title"]
        assert exchange(url, "GET", "/v1/collections/c", None)[1]["seq"] == 0


class Deaf:
    """A server that replies as a test wants, and closes the connection for None."""

    def __init__(self, *replies, context=None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.listener = context.wrap_socket(self.listener, server_side=True) if context else self.listener
        self.heads = []
        threading.Thread(target=self.work, args=(list(replies),), daemon=True).start()

    def work(self, replies):
        # A client may end the connection as it likes.
        with contextlib.suppress(OSError):
            self.answer(replies)

    def answer(self, replies):
        while replies:
            connection, _ = self.listener.accept()
            with connection:
                while replies:
                    head = b""
                    while b"\r\n\r\n" not in head:
                        part = connection.recv(65536)
                        if not part:
                            break
                        head += part
                    if not head:
                        break
                    self.heads.append(head)
                    reply = replies.pop(0)
                    if reply is None:
                        break
                    status, body = reply
                    text = json.dumps(body).encode() if not isinstance(body, bytes) else body
                    length = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\nRetry-After: 7\r\n\r\n"
                    connection.sendall(length.encode() + text)


STATUS = (200, {"limits": {"body_bytes": 1 << 20, "queries": 10}})
WHOLE = (200, {"collections": [], "read_only": None})
SHAPE = (200, {"dim": 2, "metric": "l2", "dtype": "f32", "kind": "auto"})


def test_a_connection_that_breaks_leaves_a_change_unknown():
    server = Deaf(STATUS, WHOLE, SHAPE, None, SHAPE)
    client = stratann.Client(server.url, token="secret")
    points = client.collection("c")
    with pytest.raises(stratann.UnknownOutcomeError, match="broke before the reply"):
        points.delete([1])
    assert client.collection("c").dim == 2, "reads are asked again by another connection"
    assert all(b"Authorization: Bearer secret\r\n" in head for head in server.heads)


def test_https_asks_for_a_certificate_that_is_trusted(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [*make.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = Deaf(STATUS, WHOLE, SHAPE, context=context)
    assert stratann.Client(server.url, timeout=20).collection("c").dim == DIM
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(stratann.ServerError, match="certificate"):
        stratann.Client(Deaf(STATUS, context=context).url, timeout=20)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("bad_input", 400, stratann.InputError),
        ("missing_collection", 404, stratann.MissingError),
        ("busy", 429, stratann.BusyError),
        ("corrupt", 500, stratann.CorruptIndexError),
        ("io", 500, stratann.DiskError),
        ("no_memory", 503, stratann.BudgetError),
        ("overloaded", 503, stratann.ServerError),
        ("read_only", 503, stratann.CorruptIndexError),
        ("unknown_outcome", 503, stratann.UnknownOutcomeError),
        ("disk_full", 507, stratann.DiskError),
        ("of_later", 418, stratann.InputError),
    ],
)
def test_each_code_has_its_exception(code, status, kind):
    server = Deaf(STATUS, WHOLE, SHAPE, (status, {"code": code, "detail": "why", "seq": 9}))
    points = stratann.Client(server.url).collection("c")
    with pytest.raises(stratann.Error, match="why") as raised:
        points.upsert([1], ROW)
    assert type(raised.value) is kind
    assert getattr(raised.value, "retry_after_s", 7) == 7 and getattr(raised.value, "seq", 9) == 9


def test_what_is_no_server_of_collections_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(stratann.ServerError, match="does not answer"):
        stratann.Client(url)
    for reply, kind, why in [
        ((200, {"rows": 5}), stratann.InputError, "serves no collections"),
        ((404, {"code": "no_path", "detail": "no such path"}), stratann.InputError, "serves no collections"),
        ((200, b"<html>"), stratann.ServerError, "no stratann server"),
        ((401, b"go away"), stratann.InputError, "serves no collections|token"),
        ((502, b""), stratann.ServerError, "status 502"),
    ]:
        with pytest.raises(kind, match=why):
            stratann.Client(Deaf(reply).url)


def test_a_child_of_a_fork_goes_on_with_a_server(tmp_path):
    with serving(tmp_path / "data") as url, stratann.Client(url) as client:
        points = client.create_collection("c", dim=DIM)
        points.upsert([1], ROW)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(int(points.count())).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert pipe.read() == "1"
        os.waitpid(child, 0)
        assert points.count() == 1


def test_small_servers_get_small_requests(tmp_path):
    options = ("--http-memory", "96KiB", "--max-batch", "7")
    with serving(tmp_path / "data", *options) as url, stratann.Client(url) as client:
        points = client.create_collection("c", dim=64)
        base = np.random.default_rng(1).standard_normal((500, 64), np.float32)
        assert points.upsert(np.arange(500), base, [{"n": at} for at in range(500)]).seq > 5
        found = points.search(base[:100], k=100, recall=1.0)
        assert [ids[0] for ids in found.ids] == list(range(100)) and found.distances.shape == (100, 100)
        with pytest.raises(stratann.InputError, match="--http-memory"):
            points.search(base[:1], k=2000, with_vectors=True)
