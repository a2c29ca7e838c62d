"""Searching on a running server: the real program, when it is there."""

import contextlib
import http.client
import json
import os
import pathlib
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

import stratann

ROOT = pathlib.Path(__file__).parents[2]


def program():
    """The program ``stratann``: named by STRATANN_PROGRAM, or as the build leaves it."""
    named = os.environ.get("STRATANN_PROGRAM")
    places = [named] if named else [ROOT / "target" / kind / "stratann" for kind in ("release", "debug")]
    found = next((str(p) for p in places if pathlib.Path(p).exists()), None)
    if found is None:
        pytest.skip("the program stratann is not built; run `make build`, or set STRATANN_PROGRAM")
    return found


@contextlib.contextmanager
def serving(index, *options):
    """A server of `index`; gives its address."""
    command = [program(), "serve", "--json", "--until-eof", "--index", str(index), "--http", "127.0.0.1:0"]
    # Every read is made and counted.
    command += ["--cache-budget", "0"]
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("{"), process.stderr.read()
        yield json.loads(line)["http"]
    finally:
        process.communicate()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def address(graph_path):
    with serving(graph_path, "--threads", "2") as found:
        yield found


@pytest.fixture
def client(address):
    with stratann.connect(address) as connected:
        yield connected


def free_address():
    """An address where nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def test_answers_are_those_of_the_index(client, index, queries):
    assert (client.rows, client.dim, client.metric, client.dtype) == (4000, 24, "l2", np.float32)
    assert len(client) == 4000 and "4000 rows of 24 f32" in repr(client)
    there = client.search(queries, k=7, search_list=40, width=1)
    here = index.search(queries, k=7, search_list=40, width=1)
    np.testing.assert_array_equal(there.ids, here.ids)
    np.testing.assert_array_equal(there.distances, here.distances)
    assert (there.ids.dtype, there.distances.dtype) == (np.uint64, np.float32)
    for name in ("reads", "pages_read", "bytes_read", "code_comparisons", "full_comparisons", "hops"):
        assert there.stats["per_query"][name] == pytest.approx(here.stats["per_query"][name]), name
    assert there.stats["params"]["search_list"] == 40
    assert there.latency_us.shape == (200,) and (there.latency_us > 0).all()


def test_one_query_has_one_row(client, index, queries):
    r = client.search(queries[3])
    assert r.ids.shape == (1, 10) and r.stats["queries"] == 1
    np.testing.assert_array_equal(r.ids[0, :1], index.search(queries[3]).ids[0, :1])


def test_ids_are_whole_numbers_to_the_last_bit(tmp_path, base):
    ids = np.arange(500, dtype=np.uint64) + np.uint64(2**64 - 1000)
    stratann.build(base[:500], tmp_path / "i", kind="flat", ids=ids)
    with serving(tmp_path / "i") as address, stratann.connect(address) as client:
        np.testing.assert_array_equal(client.search(base[:5], k=1).ids[:, 0], ids[:5])
        with pytest.warns(UserWarning, match="500 columns"):
            assert client.search(base[:1], k=600).ids.shape == (1, 500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"recall": 0.9, "search_list": 30}, "give one of them"),
        ({"recall": 1.5}, "recall is 1.5"),
        ({"mode": "slow"}, "slow"),
        ({"width": 0}, "width"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": 61}, "timeout is 61"),
    ],
)
def test_bad_options(client, queries, options, message):
    with pytest.raises(stratann.InputError, match=message):
        client.search(queries[:2], **options)


def test_bad_queries(client, queries):
    with pytest.raises(stratann.InputError, match="queries have 25 dimensions, the index has 24"):
        client.search(np.zeros((2, 25), np.float32))
    with pytest.raises(stratann.InputError, match=r"astype\(np.float32\)"):
        client.search(np.zeros((2, 24), np.uint8))
    with pytest.raises(stratann.InputError, match="no queries"):
        client.search(queries[:0])
    bad = queries[:5].copy()
    bad[3, 7] = np.nan
    with pytest.raises(stratann.InputError, match="query 3: component 7 is NaN"):
        client.search(bad)


def test_health_and_status(client, address):
    assert client.health() == [
        {"address": address, "healthy": True, "server": 0, "servers": 1, "missing": []}
    ]
    (status,) = client.status()
    assert status["rows"] == 4000 and status["cpu_us"] > 0 and status["memory"]["codes_bytes"] > 0


def test_a_server_that_is_down_is_passed_over(address, queries):
    down = free_address()
    with stratann.connect([down, address]) as client:
        assert client.search(queries, search_list=20).ids.shape == (200, 10)
        states = client.health()
        assert [s["healthy"] for s in states] == [False, True] and "error" in states[0]
    with pytest.raises(stratann.ServerError, match=r"no server answers.*stratann serve"):
        stratann.connect(down)


def test_servers_that_go_away(graph_path, queries):
    with serving(graph_path) as address:
        client = stratann.connect(address)
        client.search(queries[:1])
    with pytest.raises(stratann.ServerError, match="no server answered any of 3 queries"):
        client.search(queries[:3])
    with serving(graph_path, "--queue", "1") as address, stratann.connect(address) as client:
        with pytest.raises(stratann.QueryError, match="ask again later") as raised:
            client.search(queries, search_list=200)
        failed = {number for number, _ in raised.value.failed}
        assert 0 < len(failed) < 200
        lost = np.isinf(raised.value.result.distances[:, 0])
        assert set(np.flatnonzero(lost)) == failed


def test_threads_share_a_client(client, queries):
    expected = client.search(queries, search_list=30, width=1).ids
    found = []

    def search():
        found.append(client.search(queries, search_list=30, width=1).ids)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all((ids == expected).all() for ids in found)


@pytest.mark.parametrize("address", ["", "host", ":80", "host:0", "host:http", "https://host:80", []])
def test_what_is_no_address(address):
    with pytest.raises(stratann.InputError, match="address"):
        stratann.connect(address)


@contextlib.contextmanager
def answering(reply):
    """A server that gives `reply(stream, line)` each connection whose request it has read; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(stream):
        with contextlib.suppress(OSError), stream:
            line = stream.recv(1 << 16).split(b"\r\n")[0].decode()
            reply(stream, line)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def whole(status, body):
    text = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + text


def test_an_endless_reply_ends(monkeypatch):
    monkeypatch.setattr(stratann._connection, "_REPLY_BYTES", 4 << 20)
    sent = []

    def reply(stream, _):
        stream.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            stream.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            sent.append(0x10000)

    with answering(reply) as address, pytest.raises(stratann.ServerError, match="reply of more than"):
        stratann.connect(address)
    assert sum(sent) < 64 << 20


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_a_slow_reply_ends(monkeypatch, head):
    monkeypatch.setattr(stratann._client, "_TRANSFER", 0.5)

    def reply(stream, _):
        stream.sendall(head)
        while True:
            stream.sendall(b" ")
            time.sleep(0.05)

    with answering(reply) as address, pytest.raises(stratann.ServerError, match="no server answers"):
        stratann.connect(address, timeout=0.1)


def test_what_a_server_says_does_not_steer_a_terminal(queries):
    status = {"rows": 9, "dim": queries.shape[1], "dtype": "f32", "metric": "l2"}

    def reply(stream, line):
        is_status = "/v1/status" in line
        bad = json.dumps({"error": "bad\u001b[2J\u009b31m\u0007\u202e"})
        stream.sendall(whole("200 OK", json.dumps(status)) if is_status else whole("400 Bad", bad))

    with answering(reply) as address:
        with stratann.connect(address) as client, pytest.raises(stratann.InputError, match="bad") as raised:
            client.search(queries[:1])
    assert str(raised.value).isprintable()


def test_a_server_refuses_other_hosts_and_pages(address):
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", "/v1/status", headers=headers)
        response = connection.getresponse()
        assert response.status == 403 and "error" in json.loads(response.read())


@contextlib.contextmanager
def cluster(index, folder, servers):
    """Servers of `index`, partitioned; gives their addresses."""
    partition = [program(), "cluster", "partition", str(index), "-o", str(folder), "--servers", str(servers)]
    subprocess.run(partition, check=True, capture_output=True)
    command = [program(), "cluster", "up", str(folder), "--threads", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield [server["address"] for server in json.loads(process.stdout.readline())["servers"]]
    finally:
        process.terminate()
        process.communicate()


def hand_overs(client):
    return sum(status["hand_overs_out"] for status in client.status())


def test_queries_begin_at_the_server_where_they_enter(graph_path, queries, tmp_path):
    with cluster(graph_path, tmp_path / "spread", 3) as servers:
        with stratann.connect(servers, affinity=False) as in_turn:
            expected = in_turn.search(queries, search_list=30, width=1)
            handed = hand_overs(in_turn)
        with stratann.connect(servers) as client:
            found = client.search(queries, search_list=30, width=1)
            assert hand_overs(client) - handed < handed
        with stratann.connect([servers[0], free_address(), servers[2]]) as other:
            other_found = other.search(queries, search_list=30, width=1)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(other_found.ids, expected.ids)
    assert "routed_by_entry" not in expected.stats
    assert len(queries) / 2 < found.stats["routed_by_entry"] <= len(queries)
    assert found.stats["per_query"]["reads"] == expected.stats["per_query"]["reads"]


def every(step, first, rows=4000):
    return np.arange(first, rows, step, dtype=np.uint64)


@pytest.mark.parametrize("count", [1, 200])
def test_filters_are_those_of_the_index(client, index, queries, count):
    asked = queries[:count]
    own = [every(query % 7 + 2, query % 3) for query in range(count)]
    own[0] = np.empty(0, np.uint64)
    shared = ({"only": every(3, 1)}, {"without": every(3, 1)}, {"only": list(range(50))})
    for filters in (*shared, {"only": own}, {"without": own}):
        there = client.search(asked, k=7, search_list=40, width=1, **filters)
        here = index.search(asked, k=7, search_list=40, width=1, **filters)
        np.testing.assert_array_equal(there.ids, here.ids)
        np.testing.assert_array_equal(there.distances, here.distances)
        np.testing.assert_array_equal(there.counts, here.counts)
        for name in ("reads", "code_comparisons", "full_comparisons", "hops"):
            assert there.stats["per_query"][name] == pytest.approx(here.stats["per_query"][name]), name
    assert [one["matches"] for one in there.stats["filter"]] == [4000 - len(ids) for ids in own]
    shared = client.search(asked, only=[3999, 7, 7, 5000]).stats["filter"]
    assert (shared["matches"], shared["unknown_ids"], shared["repeated_ids"]) == (2, 1, 1)
    assert "filter" not in client.search(asked[:1]).stats


def test_a_shared_filter_is_sent_once_a_request(client, queries, monkeypatch):
    bodies = []
    send = type(client)._send
    monkeypatch.setattr(type(client), "_send", lambda self, *how: bodies.append(how[3]) or send(self, *how))
    client.search(queries[:130], only=np.arange(4000, dtype=np.uint64)[::-1])
    assert sorted(len(json.loads(body)["queries"]) for body in bodies) == [2, 64, 64]
    assert all(len(json.loads(body)["only"]) == 4000 for body in bodies)


def test_ids_of_filters_are_exact_on_a_server(tmp_path, base):
    ids = np.arange(500, dtype=np.uint64) + np.uint64(2**53 + 1)
    stratann.build(base[:500], tmp_path / "i", kind="flat", ids=ids)
    with serving(tmp_path / "i") as address, stratann.connect(address) as client:
        r = client.search(base[:3], k=5, only=[2**53 + 7, 2**53 + 8, 2**64 - 1])
        assert sorted(r.ids[0, : r.counts[0]].tolist()) == [2**53 + 7, 2**53 + 8]
        assert r.stats["filter"]["unknown_ids"] == 1


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"only": [1], "without": [2]}, "give one of them"),
        ({"only": np.ones(4000, bool)}, "only is a mask, and servers do not tell"),
        ({"without": [np.ones(4000, bool), np.ones(4000, bool)]}, "without is a mask"),
        ({"only": [[1], [2], [3]]}, "3 filters for 2 queries"),
        ({"only": [-1]}, "negative"),
        ({"only": [1.5]}, "dtype"),
    ],
)
def test_bad_filters_are_refused_before_they_are_sent(client, queries, filters, message):
    with pytest.raises(stratann.InputError, match=message):
        client.search(queries[:2], **filters)
