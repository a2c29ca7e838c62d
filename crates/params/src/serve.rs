//! Parameters of servers: options of `serve`, and keys of its file of options.
//!
//! Threads, reads, learning, the scorer and batches are rows of searches and of open indexes, which say so.

use std::path::PathBuf;

use crate::choices::IndexKind::HybridIvf;
use crate::choices::{CarryName, RemoteName, ResultsName};
use crate::{AutoOr, Level, Place, Unit};

params! {
    /// Server
    #[derive()]
    pub struct ServeSettings: Serve of [] {
        /// Folder of the index
        index: Option<PathBuf> = None,
            { shown: "INDEX", usual: "from a store, in memory nodes, or collections", places: Place::FOLDERS,
              level: Level::Usual };
        /// HTTP address for clients; port 0 takes a free one
        http: String = "127.0.0.1:8700".into(),
            { shown: "HOST:PORT", places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Name by which clients address this server, beside IP addresses, localhost and the host of --http; repeatable
        host_name: Vec<String> = Vec::new(),
            { shown: "NAME", usual: "none", places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Origin of a web page that may use this server, such as https://search.example; repeatable
        allow_origin: Vec<String> = Vec::new(),
            { shown: "ORIGIN", usual: "none", places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Memory that caches blocks: a size, or auto for up to half of the memory that is available
        cache_budget: Option<AutoOr<u64>> = None,
            { shown: "auto|SIZE", unit: Unit::Bytes, usual: "auto; 0 with --ram-budget", level: Level::Usual };
        /// Most queries that wait or are in flight; more are refused
        queue: usize = 4096, { shown: "N", range: 1.0..=1_048_576.0, level: Level::Usual };
        /// Store that has the index: s3://BUCKET/PREFIX, or a folder that all servers read
        store: Option<String> = None, { shown: "STORE", option: Some(""), places: Place::FOLDERS };
        /// Data folder whose collections are served, instead of an index; beside `store`, the folder for an index from
        /// there
        data: Option<PathBuf> = None,
            { shown: "DIR", usual: "an index", places: Place::FOLDERS_AND_COLLECTIONS, level: Level::Usual };
        /// Seconds between checks for a new version; 0 for never
        poll_s: u64 = 10, { option: Some(""), range: 0.0..=86_400.0, places: Place::FOLDERS };
        /// Addresses of etcd, which has the addresses of the other servers
        etcd: Vec<String> = Vec::new(), { shown: "URL", option: Some(""), places: Place::FOLDERS };
        /// Name of the cluster in etcd
        cluster: Option<String> = None, { shown: "NAME", option: Some(""), places: Place::FOLDERS };
        /// Address at which the other servers reach this one, when it is not `listen`
        advertise: Option<String> = None, { shown: "HOST:PORT", option: Some(""), places: Place::FOLDERS };
    }
}

params! {
    /// What clients may take
    #[derive(Copy)]
    pub struct CapSettings: Serve of [] {
        /// Most results of a query
        max_k: usize = 2048,
            { shown: "N", range: 1.0..=16_384.0, places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Longest candidate queue of a query
        max_list: u32 = 8192, { shown: "N", range: 1.0..=65_536.0, level: Level::Usual };
        /// Most inverted lists of a query
        max_nprobe: u32 = 8192, { shown: "N", range: 1.0..=65_536.0, level: Level::Usual };
        /// Most queries of a request
        max_batch: usize = 1024,
            { shown: "N", range: 1.0..=1_048_576.0, places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Longest time that a request may ask for, milliseconds
        max_timeout_ms: u64 = 60_000, { option: Some(""), range: 1.0..=86_400_000.0 };
        /// Memory for bodies and answers of large requests; a body has up to a third of it
        http_memory: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "3/64 of the RAM budget, at most 24MiB",
              places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Connections of one address
        connections_per_address: Option<usize> = None,
            { option: Some(""), usual: "half of all", places: Place::ALL_AND_COLLECTIONS };
        /// Seconds until the header of a request must have come
        header_time_s: Option<u64> = None,
            { option: Some(""), range: 1.0..=86_400.0, usual: "5", places: Place::ALL_AND_COLLECTIONS };
        /// Seconds after which a connection without requests is closed
        idle_time_s: Option<u64> = None,
            { option: Some(""), range: 1.0..=86_400.0, usual: "60", places: Place::ALL_AND_COLLECTIONS };
    }
}

params! {
    /// Servers of a partitioned index
    #[derive()]
    pub struct PeerSettings: Serve of [] {
        /// Number of this server
        server: Option<u8> = None, { option: Some(""), usual: "given by etcd", places: &[Place::Part] };
        /// Address for the other servers
        listen: Option<String> = None, { shown: "HOST:PORT", option: Some(""), places: &[Place::Part] };
        /// Addresses of all servers, by number
        peers: Vec<String> = Vec::new(), { shown: "HOST:PORT", option: Some(""), places: &[Place::Part] };
        /// File of the secret that the servers share
        secret_file: Option<PathBuf> = None, { shown: "FILE", option: Some(""), places: &[Place::Part] };
        /// PEM file of the certificate that encrypts traffic between servers
        tls_certificate: Option<PathBuf> = None, { shown: "FILE", option: Some(""), places: &[Place::Part] };
        /// PEM file of its key
        tls_key: Option<PathBuf> = None, { shown: "FILE", option: Some(""), places: &[Place::Part] };
        /// PEM file of the authority whose servers are trusted
        tls_authority: Option<PathBuf> = None, { shown: "FILE", option: Some(""), places: &[Place::Part] };
        /// What a hand-over contains of its candidates
        carry: Option<CarryName> = None,
            { usual: "ids; distances where codes are on disk", places: &[Place::Part] };
        /// Where partial results go at a hand-over
        results: ResultsName = ResultsName::Along, { places: &[Place::Part] };
        /// How a query uses lists and vectors of other servers
        remote: RemoteName = RemoteName::Score, { kinds: &[HybridIvf], places: &[Place::Part] };
    }
}

params! {
    /// Memory nodes of remote-hnsw
    #[derive()]
    pub struct NodeSettings: Serve of [RemoteHnsw] {
        /// Addresses of the memory nodes that hold the index: HOST:PORT, shm:NAME or ucx:HOST:PORT of each, or
        /// etcd:CLUSTER@URL, with --key-file
        memory: Vec<String> = Vec::new(),
            { shown: "ADDRESS", usual: "a folder", conflicts: &["index", "store"],
              places: &[Place::MemoryNodes], level: Level::Usual };
        /// File with the key of the memory nodes: 64 hexadecimal digits
        key_file: Option<PathBuf> = None,
            { shown: "FILE", requires: &["memory"], places: &[Place::MemoryNodes], level: Level::Usual };
        /// PEM file of the certificate for encrypted connections to memory nodes
        memory_certificate: Option<PathBuf> = None,
            { shown: "FILE", requires: &["memory"], places: &[Place::MemoryNodes] };
        /// PEM file of the key of --memory-certificate
        memory_certificate_key: Option<PathBuf> = None,
            { shown: "FILE", requires: &["memory"], places: &[Place::MemoryNodes] };
        /// PEM file of the authority whose memory nodes are trusted
        memory_authority: Option<PathBuf> = None,
            { shown: "FILE", requires: &["memory"], places: &[Place::MemoryNodes] };
    }
}
