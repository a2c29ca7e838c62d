//! A server over one open index: queries come one by one, from any thread, and answers go back as they are found.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use stratann_core::query::{Params, QueryStats};

use crate::budget::{self, Account};
use crate::driver::Width;
use crate::index::{Index, OpenOptions};
use crate::manifest::Manifest;
use crate::search::SearchOptions;
use crate::tier::IoChoice;
use crate::{Error, Quiet, Result};

/// What a server serves, and with what.
#[derive(Clone)]
pub struct ServeOptions {
    /// A plain index, or one made by `cluster partition`.
    pub index: PathBuf,
    /// Its number in a spread index; `None` for a plain index.
    pub server: Option<u8>,
    /// Where the other servers reach it; `None` when alone.
    pub listen: Option<SocketAddr>,
    /// Addresses HOST:PORT of all servers, by number (its own is ignored); empty when alone.
    pub peers: Vec<String>,
    /// Shared by the servers of a cluster.
    pub secret: Vec<u8>,
    /// Threads that search.
    pub threads: usize,
    /// Queries in flight on each thread; `None` picks.
    pub in_flight: Option<usize>,
    /// How blocks are read.
    pub io: IoChoice,
    /// All memory that it may take, bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Of it, what may cache blocks.
    pub cache_budget: u64,
    /// Queries of clients that are held at a time.
    pub queue: usize,
    /// Takes one line for each event.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            index: PathBuf::new(),
            server: None,
            listen: None,
            peers: Vec::new(),
            secret: Vec::new(),
            threads: 1,
            in_flight: None,
            io: IoChoice::Auto,
            ram_budget: None,
            cache_budget: 0,
            queue: 1024,
            log: Arc::new(|_| {}),
        }
    }
}

/// One query of a client.
pub struct Question<'a> {
    /// Components of the index' element type, as bytes.
    pub vector: &'a [u8],
    /// As [`Server::params`] gives them.
    pub params: Params,
    /// How long the client waits.
    pub timeout: Duration,
    /// Accept an answer that lacks what no live server holds.
    pub partial: bool,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// External ids, closest first.
    pub ids: Vec<u64>,
    /// Their distances.
    pub distances: Vec<f32>,
    /// True when a part of the index was not reachable.
    pub is_partial: bool,
    /// Counters of this query.
    pub stats: QueryStats,
    /// From the question to the answer, microseconds.
    pub latency_us: u64,
    /// The server that was asked.
    pub server: u8,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// As many queries are held as may be.
    Overloaded,
    /// The client's time ran out.
    Expired,
    /// No live server holds a part of the index.
    Unreachable,
    /// Anything else.
    Failed(String),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Overloaded => {
                write!(f, "the server holds as many queries as it may; ask again later")
            }
            Unanswered::Expired => {
                write!(f, "no answer within the time allowed; allow more, or ask for a lower recall")
            }
            Unanswered::Unreachable => {
                write!(f, "no live server holds a part of the index; start it, or accept partial answers")
            }
            Unanswered::Failed(why) => write!(f, "{why}"),
        }
    }
}

type Reply = Box<dyn FnOnce(std::result::Result<Answer, Unanswered>) + Send>;

/// Counters since the start, and how the server is.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say it")]
pub struct Status {
    pub server: u8,
    pub servers: usize,
    pub live: Vec<bool>,
    pub is_complete: bool,
    pub build_id: String,
    pub rows: u64,
    pub dim: usize,
    pub dtype: String,
    pub metric: String,
    pub queries: u64,
    pub answered: u64,
    pub refused: u64,
    pub hand_overs_out: u64,
    pub hand_overs_in: u64,
    pub bytes_sent: u64,
    pub dropped_frames: u64,
    pub cpu_us: u64,
    pub peak_rss_bytes: u64,
    pub in_flight: usize,
    pub io_backend: String,
    pub memory: Account,
    pub uptime_s: f64,
}

struct Job {
    vector: Vec<u8>,
    params: Params,
    asked: Instant,
    timeout: Duration,
    reply: Reply,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    held: usize,
    stopped: bool,
}

struct Shared {
    index: Index,
    options: ServeOptions,
    jobs: Mutex<Jobs>,
    wake: Condvar,
    queries: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    started: Instant,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn work(&self) {
        loop {
            let mut jobs = self.jobs();
            let job = loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                if jobs.stopped {
                    return;
                }
                jobs = self.wake.wait(jobs).unwrap_or_else(|e| e.into_inner());
            };
            drop(jobs);
            let answer = self.answer(&job);
            self.jobs().held -= 1;
            self.answered.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
            (job.reply)(answer);
        }
    }

    fn answer(&self, job: &Job) -> std::result::Result<Answer, Unanswered> {
        if job.asked.elapsed() >= job.timeout {
            return Err(Unanswered::Expired);
        }
        let options = SearchOptions {
            threads: 1,
            in_flight: Some(1),
            width: Width::Fixed(job.params.width),
            io: self.options.io,
            ..SearchOptions::default()
        };
        let found = self.index.search_each(&job.vector, job.params, &|_| u32::MAX, &options, &Quiet);
        let answers = found.map_err(|e| Unanswered::Failed(e.message))?;
        if let Some((_, why)) = answers.failed.into_iter().next() {
            return Err(Unanswered::Failed(why));
        }
        let found = answers.ids.iter().take_while(|&&id| id != u64::MAX).count();
        Ok(Answer {
            ids: answers.ids[..found].to_vec(),
            distances: answers.distances[..found].to_vec(),
            is_partial: false,
            stats: answers.stats,
            latency_us: job.asked.elapsed().as_micros() as u64,
            server: 0,
        })
    }
}

/// Running threads over an open index; [`Server::stop`] or drop ends them.
pub struct Server {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Opens the index and starts the threads.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn start(options: ServeOptions) -> Result<Server> {
        let budgets = OpenOptions { ram_budget: options.ram_budget, cache_budget: options.cache_budget };
        let index = Index::open(&options.index, budgets)?;
        if options.server.is_some() || options.listen.is_some() || !options.peers.is_empty() {
            return Err(Error::bad_input(format!(
                "{} is not spread over servers; leave out server, listen and peers",
                options.index.display()
            )));
        }
        let threads = options.threads.clamp(1, 1024);
        let shared = Arc::new(Shared {
            index,
            options,
            jobs: Mutex::default(),
            wake: Condvar::new(),
            queries: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            started: Instant::now(),
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work())
        };
        let workers = (0..threads).map(start).collect();
        Ok(Server { shared, workers })
    }

    /// The address for the other servers.
    pub fn listening(&self) -> Option<SocketAddr> {
        None
    }

    /// What is served.
    pub fn manifest(&self) -> &Manifest {
        self.shared.index.manifest()
    }

    /// The parameters that `options` come to, the width by the present load.
    ///
    /// # Errors
    /// As [`Index::params`].
    pub fn params(&self, options: &SearchOptions) -> Result<Params> {
        let mut params = self.shared.index.params(options)?;
        let load = self.shared.jobs().held / self.workers.len().max(1) + 1;
        (params.approach_width, params.width) = options.width.at_load(load);
        Ok(params)
    }

    /// Takes a query. `reply` is called once, from a thread of the server, or at once when the query is refused.
    pub fn ask(&self, question: Question<'_>, reply: Reply) {
        self.shared.queries.fetch_add(1, Ordering::Relaxed);
        let mut jobs = self.shared.jobs();
        if jobs.held >= self.shared.options.queue {
            drop(jobs);
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return reply(Err(Unanswered::Overloaded));
        }
        jobs.held += 1;
        let Question { vector, params, timeout, .. } = question;
        jobs.waiting.push_back(Job {
            vector: vector.to_vec(),
            params,
            asked: Instant::now(),
            timeout,
            reply,
        });
        drop(jobs);
        self.shared.wake.notify_one();
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let (shared, manifest, process) = (&self.shared, self.manifest(), budget::process());
        Status {
            server: 0,
            servers: 1,
            live: vec![true],
            is_complete: true,
            build_id: manifest.build_id.clone(),
            rows: manifest.rows,
            dim: manifest.dim,
            dtype: manifest.dtype.clone(),
            metric: manifest.metric.clone(),
            queries: shared.queries.load(Ordering::Relaxed),
            answered: shared.answered.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            hand_overs_out: 0,
            hand_overs_in: 0,
            bytes_sent: 0,
            dropped_frames: 0,
            cpu_us: process.cpu_us,
            peak_rss_bytes: process.peak_rss_bytes,
            in_flight: shared.jobs().held,
            io_backend: shared.index.backend_name("stub"),
            memory: shared.index.account(),
            uptime_s: shared.started.elapsed().as_secs_f64(),
        }
    }

    /// Ends what runs.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.jobs().stopped = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing left to say.
            let _ = worker.join();
        }
    }
}
