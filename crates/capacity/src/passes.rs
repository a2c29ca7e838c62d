//! Runs all queries once in one mode on several servers: exact counters, results, and traces to replay.

use rayon::prelude::*;
use stratann_core::place::{LocalShard, Others, SERVERS_MAX};
use stratann_core::query::wire::{Carry, Results};
use stratann_core::query::{Budget, Extent, Hit, Params, QueryState, QueryStats, Scratch};
use stratann_engine::dataset::GroundTruth;
use stratann_engine::index::Index;
use stratann_engine::kinds;
use stratann_engine::search::recall;
use stratann_engine::spread::Placed;
use stratann_sim::{
    BaselineResult, Cluster, FaultModel, Partition, Reply, Report, Stores, SubmittedQuery, Timed, Trace,
    fetch, record, scatter_gather, time,
};
use stratann_storage::{Progress, Result};

use crate::Queries;

/// Queries that are read at a time, and those of them that share a simulated cluster, because results are in memory.
const PART: usize = 1000;
const TOGETHER: usize = 125;
/// Queries whose traces are kept.
const TRACES: usize = 1000;
/// Microseconds between two queries, and the client's timeout.
const EVERY_US: u64 = 100;
const TIME_US: u64 = 60_000_000;

struct FromFile<'a>(&'a Index);

impl Stores for FromFile<'_> {
    fn read(&self, at: Extent, out: &mut Vec<u8>) -> bool {
        self.0.read_extent(at, out).is_ok()
    }
}

/// The server that receives a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Round robin.
    Any,
    /// A server that holds the first block: a client that knows the head graph could choose it.
    Nearest,
}

/// Sums over all queries.
#[derive(Clone, Default)]
pub struct Pass {
    pub stats: QueryStats,
    pub baton_bytes: u64,
    pub vector_bytes: u64,
    pub bytes: u64,
    pub messages: u64,
    pub fetched: u64,
    pub reads: Vec<u64>,
    pub found: f64,
    pub queries: usize,
    pub failed: usize,
    pub search_list: u32,
    pub nprobe: Option<u32>,
    pub traces: Vec<Trace>,
}

impl Pass {
    fn new(servers: usize, params: &Params) -> Pass {
        let setting = kinds::setting(params);
        let (search_list, nprobe) = (setting.search_list, setting.nprobe);
        Pass { reads: vec![0; servers], search_list, nprobe, ..Pass::default() }
    }

    /// Share of the true neighbours that were found.
    pub fn recall(&self) -> f64 {
        self.found / self.queries.max(1) as f64
    }

    /// Adds the sums of other queries.
    fn add(&mut self, other: Pass) {
        self.stats.add(&other.stats);
        self.baton_bytes += other.baton_bytes;
        self.vector_bytes += other.vector_bytes;
        self.bytes += other.bytes;
        self.messages += other.messages;
        self.fetched += other.fetched;
        self.reads.iter_mut().zip(&other.reads).for_each(|(all, reads)| *all += reads);
        self.found += other.found;
        self.queries += other.queries;
        self.failed += other.failed;
        let room = TRACES.saturating_sub(self.traces.len());
        self.traces.extend(other.traces.into_iter().take(room));
    }
}

/// Queries and their options.
pub struct Passes<'a> {
    pub index: &'a Index,
    pub queries: &'a dyn Queries,
    pub truth: Option<&'a GroundTruth>,
    pub entry: Entry,
    pub seed: u64,
    pub carry: Carry,
    pub results: Results,
    pub progress: &'a dyn Progress,
}

impl Passes<'_> {
    /// Runs every query with hand-overs.
    pub fn baton(&self, placed: &Placed, params: Params) -> Result<Pass> {
        self.all("handing over", placed.placement.servers(), params, &|first, rows| {
            let asked = self.submitted(placed, params, first, rows);
            let blocks = FromFile(self.index);
            let cluster =
                Cluster { view: placed.view(self.index), placement: &placed.placement, stores: &blocks };
            let (report, traces) = record(&cluster, &asked, &self.no_faults());
            self.handed_over(&report, first, &params, traces)
        })
    }

    /// Runs queries with hand-overs and takes the time of all work.
    pub fn time(
        &self,
        placed: &Placed,
        params: Params,
        rows: &[&[u8]],
        clock: &dyn Fn() -> u64,
    ) -> Vec<Timed> {
        let mut timed = Vec::new();
        for (part, rows) in rows.chunks(TOGETHER).enumerate() {
            let asked = self.submitted(placed, params, part * TOGETHER, rows);
            let blocks = FromFile(self.index);
            let cluster =
                Cluster { view: placed.view(self.index), placement: &placed.placement, stores: &blocks };
            timed.extend(time(&cluster, &asked, &self.no_faults(), clock));
        }
        timed
    }

    /// Vectors one by one.
    pub fn rows_of<'r>(&self, rows: &'r [u8]) -> Vec<&'r [u8]> {
        rows.chunks_exact(self.queries.row_bytes()).collect()
    }

    fn no_faults(&self) -> FaultModel {
        FaultModel { seed: self.seed, carry: self.carry, results: self.results, ..FaultModel::default() }
    }

    fn submitted<'r>(
        &self,
        placed: &Placed,
        params: Params,
        first: usize,
        rows: &[&'r [u8]],
    ) -> Vec<SubmittedQuery<'r>> {
        let submitted = |(q, &vector): (usize, &&'r [u8])| SubmittedQuery {
            at_us: EVERY_US * q as u64,
            origin: self.origin(placed, params, vector, first + q),
            vector,
            params,
            budget: Budget::default(),
            time_us: TIME_US,
        };
        rows.iter().enumerate().map(submitted).collect()
    }

    /// Runs every query on one server that fetches remote blocks.
    pub fn fetch(&self, placed: &Placed, params: Params) -> Result<Pass> {
        self.all("fetching", placed.placement.servers(), params, &|first, rows| {
            let blocks = FromFile(self.index);
            let cluster =
                Cluster { view: placed.view(self.index), placement: &placed.placement, stores: &blocks };
            let answer = |(q, &vector): (usize, &&[u8])| {
                let origin = self.origin(placed, params, vector, first + q);
                fetch(&cluster, &asked(vector, origin, params))
            };
            let answers = rows.iter().enumerate().map(answer);
            self.answered(answers, first, placed.placement.servers(), &params)
        })
    }

    /// Runs every query on all indexes.
    pub fn scatter(&self, indexes: &[&Index], params: Params) -> Result<Pass> {
        self.all("scattering", indexes.len(), params, &|first, rows| {
            let files: Vec<FromFile<'_>> = indexes.iter().map(|i| FromFile(i)).collect();
            let parts: Vec<Partition<'_>> =
                files.iter().map(|file| Partition { view: file.0.view(), stores: file }).collect();
            let answer = |(q, &vector): (usize, &&[u8])| {
                let origin = ((first + q) % indexes.len()) as u8;
                scatter_gather(&parts, &asked(vector, origin, params))
            };
            let answers = rows.iter().enumerate().map(answer);
            self.answered(answers, first, indexes.len(), &params)
        })
    }

    /// Runs all queries, several at a time on each core. `run` receives the number of its first query, and its queries.
    fn all(
        &self,
        what: &str,
        servers: usize,
        params: Params,
        run: &(dyn Fn(usize, &[&[u8]]) -> Pass + Sync),
    ) -> Result<Pass> {
        let count = self.queries.count();
        self.progress.stage(&format!("{what} on {servers} servers"), count as u64, "queries");
        let (mut sum, mut rows) = (Pass::new(servers, &params), Vec::new());
        for first in (0..count).step_by(PART) {
            self.queries.read(first, PART.min(count - first), &mut rows)?;
            let rows: Vec<&[u8]> = rows.chunks_exact(self.queries.row_bytes()).collect();
            let parts: Vec<Pass> = rows
                .par_chunks(TOGETHER)
                .enumerate()
                .map(|(i, rows)| {
                    let part = run(first + i * TOGETHER, rows);
                    self.progress.advance(rows.len() as u64);
                    part
                })
                .collect();
            parts.into_iter().for_each(|part| sum.add(part));
            self.progress.check_interrupted()?;
        }
        Ok(sum)
    }

    /// Server that receives a query.
    fn origin(&self, placed: &Placed, params: Params, vector: &[u8], query: usize) -> u8 {
        let turn = query % placed.placement.servers();
        if self.entry == Entry::Any {
            return turn as u8;
        }
        let view = placed.view(self.index);
        let mut scratch = Scratch::default();
        scratch.prepare(&view, vector);
        let mut state = QueryState::new(params, Budget::default());
        state.step(&view, &mut scratch, &[]);
        let first = state.fetches().next().and_then(|(tag, _)| state.read_of(tag));
        let Some(block) = first.map(|read| read.unit()) else { return turn as u8 };
        let shard =
            LocalShard { placement: &placed.placement, server: turn as u8, others: Others::live(u64::MAX) };
        if shard.holds(block) {
            return turn as u8;
        }
        let replicas = placed.placement.replicas(block).rotate_right(turn as u32);
        ((replicas.trailing_zeros() as usize + turn) % SERVERS_MAX) as u8
    }

    fn handed_over(&self, report: &Report, first: usize, params: &Params, traces: Vec<Trace>) -> Pass {
        let mut pass = Pass {
            baton_bytes: report.baton_bytes + report.report_bytes,
            vector_bytes: report.vector_bytes,
            bytes: report.baton_bytes
                + report.job_bytes
                + report.score_bytes
                + report.report_bytes
                + report.vector_bytes
                + report.other_bytes,
            messages: report.batons + 2 * report.jobs + report.reports + report.other_frames,
            reads: report.reads.clone(),
            queries: report.replies.len(),
            traces,
            ..Pass::new(0, params)
        };
        for (q, replies) in report.replies.iter().enumerate() {
            let [(_, Reply::Answer(state))] = replies.as_slice() else {
                pass.failed += 1;
                continue;
            };
            pass.stats.add(state.stats());
            let is_whole = stratann_core::peer::is_answer(state.outcome()) && state.unreadable().is_none();
            pass.failed += usize::from(!is_whole);
            pass.found += self.found(first + q, state.results(), params);
        }
        pass
    }

    fn answered(
        &self,
        answers: impl Iterator<Item = BaselineResult>,
        first: usize,
        servers: usize,
        params: &Params,
    ) -> Pass {
        let mut pass = Pass::new(servers, params);
        for (q, answer) in answers.enumerate() {
            pass.stats.add(&answer.stats);
            pass.bytes += answer.bytes;
            pass.messages += answer.messages;
            pass.fetched += answer.fetched;
            pass.reads.iter_mut().zip(&answer.reads).for_each(|(all, reads)| *all += reads);
            pass.failed += usize::from(!stratann_core::peer::is_answer(answer.outcome));
            pass.found += self.found(first + q, &answer.results, params);
            pass.queries += 1;
            if first + q < TRACES {
                pass.traces.push(answer.trace);
            }
        }
        pass
    }

    /// Computes the recall of one query; 0 without ground truth.
    fn found(&self, query: usize, results: &[Hit], params: &Params) -> f64 {
        let Some(truth) = self.truth else { return 0.0 };
        let mut ids: Vec<u64> = results.iter().map(|h| h.external_id).collect();
        ids.resize(params.k as usize, u64::MAX);
        let known: Vec<u64> = truth.ids_of(query).iter().map(|&id| u64::from(id)).collect();
        recall((&ids, &[results.len() as u32]), ids.len(), &known, truth.k)
    }
}

fn asked(vector: &[u8], origin: u8, params: Params) -> SubmittedQuery<'_> {
    SubmittedQuery { at_us: 0, origin, vector, params, budget: Budget::default(), time_us: TIME_US }
}
