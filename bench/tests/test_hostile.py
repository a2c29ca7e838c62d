"""The load program without its load: what it reads, and what it judges."""

import copy
import socket
import struct
import threading

import hostile
import pytest

REPORT = {
    "quiet": {"answered": 5, "wrong": 0}, "under_load": {"answered": 5, "wrong": 0},
    "killed": False, "exit_status": 0, "peak_rss_bytes": 100,
}


@pytest.mark.parametrize("change, word", [
    (lambda r: None, None),
    (lambda r: r.update(peak_rss_bytes=201), "MiB"),
    (lambda r: r.update(exit_status=-9), "-9"),
    (lambda r: r.update(killed=True), "ended"),
    (lambda r: r["under_load"].update(wrong=2), "2 wrong"),
    (lambda r: r["quiet"].update(wrong=1), "1 wrong"),
    (lambda r: r["under_load"].update(answered=0), "no honest"),
])
def test_faults_are_named(change, word):
    report = copy.deepcopy(REPORT)
    change(report)
    faults = hostile.judge(report, 200)
    assert (faults == []) if word is None else (len(faults) == 1 and word in faults[0])


def test_sizes_and_percentiles():
    assert (hostile.size("256MiB"), hostile.size("4096")) == (256 << 20, 4096)
    assert hostile.percentile(range(100), 0.99) == 99
    assert hostile.percentile([], 0.5) is None


def test_vector_files_are_read(tmp_path):
    path = tmp_path / "base.u8bin"
    path.write_bytes(struct.pack("<ii", 2, 3) + bytes(range(6)))
    assert hostile.read_rows(path, 10) == [b"\x00\x01\x02", b"\x03\x04\x05"]
    (tmp_path / "ids").write_bytes(struct.pack("<ii4i", 2, 2, 5, 6, 7, 8))
    assert hostile.read_ids(tmp_path / "ids") == [(5, 6), (7, 8)]


def test_the_client_reads_answers_in_pieces_and_sees_the_end():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            stream, _ = listener.accept()
            with stream:
                stream.recv(4096)
                for piece in (b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 4\r\n\r\nab", b"cd"):
                    stream.sendall(piece)
                stream.recv(4096)
        server = threading.Thread(target=serve)
        server.start()
        client = hostile.Client(listener.getsockname(), 10)
        assert client.ask("GET", "/v1/health") == (200, b"abcd")
        with pytest.raises(ConnectionError):
            client.ask("GET", "/v1/health")
        server.join()
