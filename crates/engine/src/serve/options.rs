//! Options of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stratann_core::query::wire::{Carry, Results};

use crate::exec::BatchOptions;
use crate::exec::scorer::ScorerOptions;
use crate::kinds::options::LearnOptions;
use crate::parallel;
use crate::search::{Effort, SearchOptions};
use stratann_core::query::ScoringMode;
use stratann_params::choices::Learn;
use stratann_params::search::RemoteSwitches;
use stratann_storage::ledger::Ledger;
use stratann_storage::link::{Log, Tls, Versions};
use stratann_storage::remote_memory::Credentials;
use stratann_storage::tier::IoChoice;
use stratann_storage::{Error, Result};

/// The largest query that a client may ask. A query by recall may come to more, since the curve of the index decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Results.
    pub max_k: usize,
    /// Length of the candidate queue.
    pub max_list: u32,
    /// Inverted lists to visit.
    pub max_nprobe: u32,
}

impl Default for Caps {
    fn default() -> Self {
        Caps { max_k: 2048, max_list: 8192, max_nprobe: 8192 }
    }
}

impl Caps {
    /// Checks what a client asks.
    ///
    /// # Errors
    /// A value above its cap; the error names both.
    pub fn check(&self, options: &SearchOptions) -> Result<()> {
        let above = |name: &str, value: u64, cap: &str, most: u64| {
            Err(Error::bad_input(format!(
                "{name} is {value}, and this server takes up to {most} ({cap}); ask for less, or start it with a \
                 larger {cap}"
            )))
        };
        if options.k > self.max_k {
            return above("k", options.k as u64, "max_k", self.max_k as u64);
        }
        if let Some(ef) = options.switches.own::<RemoteSwitches>().ef.filter(|&ef| ef > self.max_list) {
            return above("ef", ef.into(), "max_list", self.max_list.into());
        }
        match options.effort {
            Effort::SearchList(list, _) if list > self.max_list => {
                above("search_list", list.into(), "max_list", self.max_list.into())
            }
            Effort::Nprobe(nprobe, ..) if nprobe > self.max_nprobe => {
                above("nprobe", nprobe.into(), "max_nprobe", self.max_nprobe.into())
            }
            _ => Ok(()),
        }
    }
}

/// Memory nodes, and what they are shown.
#[derive(Clone, Debug)]
pub struct MemoryNodes {
    /// `HOST:PORT`, `shm:NAME` or `ucx:HOST:PORT` of each.
    pub addresses: Vec<String>,
    /// The key, and certificates.
    pub credentials: Credentials,
}

/// Options of a server.
#[derive(Clone)]
pub struct ServeOptions {
    /// A plain index, an index that is partitioned over servers, or a folder of separate indexes for scatter-gather.
    pub index: PathBuf,
    /// Memory nodes that hold an index, instead of a folder.
    pub memory: Option<MemoryNodes>,
    /// Options of the loads of a batch of a `remote-hnsw`: `batch` is shared by the threads.
    pub batch_options: BatchOptions,
    /// This server's number in a spread index or among separate ones; `None` for a plain index.
    pub server: Option<u8>,
    /// Address for the other servers; `None` when it is alone.
    pub listen: Option<SocketAddr>,
    /// `HOST:PORT` of all servers, by number. This server's entry is not used, nor is an empty one. No entries when it
    /// is alone.
    pub peers: Vec<String>,
    /// The secret of the cluster.
    pub secret: Vec<u8>,
    /// Certificates for encrypted links; `None` for links in the clear.
    pub tls: Option<Tls>,
    /// Driver threads.
    pub threads: usize,
    /// Queries in flight on each thread; `None` chooses.
    pub in_flight: Option<usize>,
    /// Way to read blocks.
    pub io: IoChoice,
    /// Limit of all memory of the server, bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Part of it for the block cache, bytes.
    pub cache_budget: u64,
    /// Make equal reads under way once.
    pub merge: bool,
    /// Whether another version may be opened beside this one: resident list codes of a `hybrid-ivf` then leave room for
    /// it.
    pub may_change: bool,
    /// Ranking of the codes of a `gpu-ivf`.
    pub scorer: ScorerOptions,
    /// Whether, and how, a `hybrid-ivf` learns from its queries.
    pub learning: LearnOptions,
    /// Queries of clients at a time; one more is refused.
    pub queue: usize,
    /// The largest query that a client may ask.
    pub caps: Caps,
    /// Ledger in which the server reserves its memory; `None` for a ledger of its own over `ram_budget`.
    pub ledger: Option<Arc<Ledger>>,
    /// Form of the candidates in batons; `None` for the shortest form that the index allows.
    pub carry: Option<Carry>,
    /// Way that the results of handed-over queries take.
    pub results: Results,
    /// Use of lists and vectors of other servers by queries of this server, where the kind can score them there;
    /// otherwise they are handed over.
    pub remote: ScoringMode,
    /// Time without an answer after which a query's attempt is given up and the next is started: the cost of a lost
    /// frame. A dead server is noticed sooner, by its connection, but others may still send to it then.
    pub patience: Duration,
    /// Interval at which the link to each other server is measured: some 0.7 MB and 2 ms of processor time.
    pub measured_every: Duration,
    /// Versions of frames and states that this server reads and writes: fewer than the program knows, to try a cluster
    /// of servers of several versions.
    pub versions: Versions,
    /// Receives each line of the log.
    pub log: Log,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            index: PathBuf::new(),
            memory: None,
            batch_options: BatchOptions::default(),
            server: None,
            listen: None,
            peers: Vec::new(),
            secret: Vec::new(),
            tls: None,
            threads: parallel::cores(),
            in_flight: None,
            io: IoChoice::Auto,
            ram_budget: None,
            cache_budget: 0,
            merge: true,
            may_change: false,
            scorer: ScorerOptions::default(),
            learning: LearnOptions { learn: Learn::On, ..LearnOptions::default() },
            queue: 4096,
            caps: Caps::default(),
            ledger: None,
            carry: None,
            results: Results::Along,
            remote: ScoringMode::Score,
            patience: Duration::from_millis(500),
            measured_every: Duration::from_secs(10),
            versions: Versions::default(),
            log: Arc::new(|_| {}),
        }
    }
}

impl ServeOptions {
    /// Checks the options as far as possible without the index.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::bad_input(what));
        if self.threads == 0 {
            return wrong("threads is 0; use 1 or more");
        }
        match (self.server, self.listen) {
            (None, Some(_)) => wrong("a server that listens to others needs its number; set server"),
            (Some(_), None) if self.peers.len() > 1 => {
                wrong("a server with peers needs an address for them; set listen")
            }
            _ => Ok(()),
        }
    }
}
