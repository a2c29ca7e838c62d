//! Groups of a `remote-hnsw` are placed on memory nodes by the traffic that is expected of them. Bytes that are read of
//! each node are counted.

mod common;

use stratann_params::build::RemoteOptions;

use common::nodes::{addresses, credentials, nodes};
use common::{Set, clustered, quick};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, build};
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::memory_nodes::{LoadOptions, Loaded, load_with};
use stratann_engine::search::{Effort, SearchOptions, TrafficOptions};
use stratann_engine::{DType, Metric};
use stratann_storage::remote_memory::{Credentials, Node};
use stratann_storage::{ErrorKind, Quiet};
use tempfile::TempDir;

const CLUSTERS: usize = 48;

/// An index and memory nodes for it.
struct Home {
    folder: TempDir,
    nodes: Vec<Node>,
    credentials: Credentials,
}

impl Home {
    fn new(count: u8) -> Home {
        let set = Set::new(DType::F32, 16, &clustered(4000, 16, 24, 1));
        let own = RemoteOptions {
            partitions: Some(CLUSTERS),
            m: 8,
            ef_construction: 60,
            ..RemoteOptions::default()
        };
        let options =
            BuildOptions { kind: KindOptions::RemoteHnsw(own), ..quick(IndexKind::RemoteHnsw, Metric::L2) };
        let folder = tempfile::tempdir().unwrap();
        build(&set.reader(), folder.path(), &options, &Quiet).unwrap();
        Home { folder, nodes: nodes(count, 4 << 20), credentials: credentials() }
    }

    fn addresses(&self) -> Vec<String> {
        addresses(&self.nodes)
    }

    fn load(&self, by_bytes: bool, traffic: TrafficOptions<'_>) -> Loaded {
        let options = LoadOptions { by_bytes, traffic };
        load_with(self.folder.path(), &self.addresses(), &self.credentials, &options, &Quiet).unwrap()
    }

    /// Bytes that these queries read of each node, in batches of a length, and the bytes of the search.
    fn read(&self, queries: &[u8], batch: usize) -> (Vec<u64>, u64) {
        let mut index =
            Index::open_memory(&self.addresses(), &self.credentials, OpenOptions::default()).unwrap();
        index.set_cache_budget(0);
        let before = index.memory_node_bytes();
        let batch_options = BatchOptions { batch, ..BatchOptions::default() };
        let options = SearchOptions {
            effort: Effort::Nprobe(1, None, None),
            batch_options,
            ..SearchOptions::default()
        };
        let answers = index.search(queries, &options, &Quiet).unwrap();
        assert!(answers.failed.is_empty(), "{:?}", answers.failed);
        let read: Vec<u64> =
            index.memory_node_bytes().iter().zip(before).map(|(all, old)| all - old).collect();
        // What is counted for a query are extents. Buffers are whole pages, and all of a buffer is read.
        let (sum, bytes_read) = (read.iter().sum::<u64>(), answers.stats.bytes_read);
        assert!(read.len() == self.nodes.len() && (bytes_read..2 * bytes_read).contains(&sum), "{read:?}");
        (read, bytes_read)
    }
}

fn busiest(read: &[u64]) -> u64 {
    read.iter().copied().max().unwrap()
}

#[test]
fn the_busiest_node_is_relieved_of_skewed_queries() {
    let home = Home::new(2);
    home.load(true, TrafficOptions::default());
    let all = Set::new(DType::F32, 16, &clustered(400, 16, 24, 2));
    // Queries of clusters that the division by bytes has put on node 1: all that they load is there.
    let is_on_second = |query: &[u8]| {
        let (read, _) = home.read(query, 1);
        read[1] > read[0]
    };
    let skewed: Vec<u8> =
        (0..100).map(|at| all.row(at)).filter(|query| is_on_second(query)).flatten().copied().collect();
    let count = skewed.len() / all.shape.row_bytes();
    assert!(count >= 20, "{count}");
    for batch in [2000, 1] {
        let placed = home.load(true, TrafficOptions::default());
        assert!(placed.traffic.queries == 0 && placed.traffic.nprobe >= 1, "{:?}", placed.traffic);
        let (by_bytes, _) = home.read(&skewed, batch);
        let traffic = TrafficOptions { queries: Some(&skewed), nprobe: Some(1), batch: Some(batch) };
        let placed = home.load(false, traffic);
        assert_eq!((placed.traffic.queries, placed.traffic.batch), (count, batch));
        let (by_traffic, bytes_read) = home.read(&skewed, batch);
        assert!(10 * busiest(&by_traffic) < 7 * busiest(&by_bytes), "{by_traffic:?} {by_bytes:?}");
        // Both have about as many bytes as before.
        let (used, traffic): (Vec<u64>, Vec<u64>) =
            placed.nodes.iter().map(|own| (own.used_bytes, own.traffic_bytes)).unzip();
        assert!(8 * busiest(&used) <= 9 * used.iter().sum::<u64>() / 2 + 8, "{used:?}");
        assert!(10 * busiest(&traffic) < 7 * traffic.iter().sum::<u64>(), "{traffic:?}");
        // Where batches are single queries, what is expected is the mean of what they read.
        if batch == 1 {
            let (each, expected) = (bytes_read / count as u64, traffic.iter().sum::<u64>());
            assert!(each.abs_diff(expected) < 100, "{each} {traffic:?}");
        }
        // The same queries give the same places.
        let again = home.load(false, placed_by(&skewed, batch));
        assert_eq!(again.nodes, placed.nodes);
    }
}

fn placed_by(queries: &[u8], batch: usize) -> TrafficOptions<'_> {
    TrafficOptions { queries: Some(queries), nprobe: Some(1), batch: Some(batch) }
}

#[test]
fn the_index_itself_tells_the_traffic_of_usual_queries() {
    let home = Home::new(3);
    let asked = Set::new(DType::F32, 16, &clustered(400, 16, 24, 2));
    let usual = TrafficOptions { nprobe: Some(4), batch: Some(1), ..TrafficOptions::default() };
    let index = Index::open(home.folder.path(), OpenOptions::default()).unwrap();
    let own = index.expected_traffic(&usual).unwrap();
    let queries = index.expected_traffic(&TrafficOptions { queries: Some(&asked.bytes), ..usual }).unwrap();
    let sums = [&own, &queries].map(|of| of.cluster_bytes.iter().sum::<u64>());
    assert!(sums[0].abs_diff(sums[1]) < sums[1] / 5, "{sums:?}");
    let apart: u64 = own.cluster_bytes.iter().zip(&queries.cluster_bytes).map(|(a, b)| a.abs_diff(*b)).sum();
    assert!(apart < sums[1] / 2, "{apart} of {sums:?}");
    // What loads bring in a batch is bounded by what there is.
    let all = index.expected_traffic(&TrafficOptions { batch: Some(65_536), ..usual }).unwrap();
    let bytes = index.cluster_bytes();
    assert!(all.cluster_bytes.iter().zip(&bytes).all(|(&expected, &own)| expected <= u64::from(own)));
    let placed = home.load(false, usual);
    let traffic: Vec<u64> = placed.nodes.iter().map(|own| own.traffic_bytes).collect();
    assert!(10 * busiest(&traffic) < 11 * traffic.iter().sum::<u64>() / 3, "{traffic:?}");
}

#[test]
fn traffic_that_makes_no_sense_is_refused() {
    let home = Home::new(1);
    let index = Index::open(home.folder.path(), OpenOptions::default()).unwrap();
    let refused = |options: TrafficOptions<'_>| {
        let e = index.expected_traffic(&options).unwrap_err();
        assert_eq!(e.kind, ErrorKind::BadInput);
        e.message
    };
    assert!(refused(TrafficOptions { batch: Some(0), ..TrafficOptions::default() }).contains("--batch is 0"));
    assert!(
        refused(TrafficOptions { nprobe: Some(0), ..TrafficOptions::default() }).contains("--nprobe is 0")
    );
    for queries in [&[][..], &[0; 63]] {
        let message = refused(TrafficOptions { queries: Some(queries), ..TrafficOptions::default() });
        assert!(message.contains("rows of 64 bytes"), "{message}");
    }
}
