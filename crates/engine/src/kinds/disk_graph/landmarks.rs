//! Choice of the server of a partitioned `disk-graph` that a client asks: the one where the search enters.

use std::sync::atomic::{AtomicU64, Ordering};

use stratann_kernel::distance::{Exact, inverse_norm};

use crate::{DType, Metric};

/// Vectors of each server at which searches enter.
pub struct Landmarks {
    dim: usize,
    metric: Metric,
    dtype: DType,
    rows: Vec<u8>,
    /// Of each row, under cosine.
    inverse_norms: Vec<f32>,
    /// Of each row.
    servers: Vec<usize>,
    /// Queries of this run that each server got, and those that got there because they enter there.
    got: Vec<AtomicU64>,
    by_entry: AtomicU64,
}

/// A server gets up to so many times its even share of the queries, or one request more.
const SHARE_MAX: f64 = 1.25;

impl Landmarks {
    /// Landmarks of `count` servers for vectors of such a dimension, metric and type: the rows of each, as it gives
    /// them. `None` where none has any.
    pub fn new(
        (dim, metric, dtype): (usize, Metric, DType),
        count: usize,
        of_servers: impl Iterator<Item = (usize, Vec<u8>)>,
    ) -> Option<Landmarks> {
        let row_bytes = dim * dtype.size();
        if row_bytes == 0 {
            return None;
        }
        let (mut rows, mut servers) = (Vec::new(), Vec::new());
        for (server, own) in of_servers {
            let whole = own.len() / row_bytes;
            rows.extend_from_slice(&own[..whole * row_bytes]);
            servers.extend(std::iter::repeat_n(server, whole));
        }
        let inverse_norms = match metric {
            Metric::Cosine => rows.chunks_exact(row_bytes).map(|row| inverse_norm(dtype, row)).collect(),
            _ => Vec::new(),
        };
        let got = (0..count).map(|_| AtomicU64::new(0)).collect();
        let by_entry = AtomicU64::new(0);
        (!rows.is_empty()).then_some(Landmarks {
            dim,
            metric,
            dtype,
            rows,
            inverse_norms,
            servers,
            got,
            by_entry,
        })
    }

    /// Begins a run: queries are counted from here on.
    pub fn begin(&self) {
        self.got.iter().chain([&self.by_entry]).for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// Queries of this run that went to the server where they enter.
    pub fn by_entry(&self) -> u64 {
        self.by_entry.load(Ordering::Relaxed)
    }

    /// The server of queries that enter at `server`: that one, as long as it gets no more than its share.
    pub fn choose(&self, server: usize, queries: usize, answers: impl Fn(usize) -> bool) -> usize {
        let got = |server: usize| self.got[server].load(Ordering::Relaxed);
        let open: Vec<usize> = (0..self.got.len()).filter(|&server| answers(server)).collect();
        let all = open.iter().map(|&server| got(server)).sum::<u64>() + queries as u64;
        let share = SHARE_MAX * all as f64 / open.len().max(1) as f64;
        let is_fair = got(server) as f64 <= share;
        let chosen = match answers(server) && is_fair {
            true => server,
            false => open.into_iter().min_by_key(|&server| got(server)).unwrap_or(server),
        };
        self.got[chosen].fetch_add(queries as u64, Ordering::Relaxed);
        if chosen == server {
            self.by_entry.fetch_add(queries as u64, Ordering::Relaxed);
        }
        chosen
    }

    /// A finder for one thread.
    pub fn nearest(&self) -> Nearest<'_> {
        Nearest { landmarks: self, query: Exact::default(), distances: Vec::new() }
    }

    /// Batches of up to `each` queries that enter at the same server, each before its server; consecutive ones go to
    /// different servers.
    pub fn divide(&self, rows: &[u8], each: usize) -> Vec<(Vec<usize>, usize)> {
        let mut nearest = self.nearest();
        let row_bytes = self.dim * self.dtype.size();
        let mut of_server: Vec<Vec<usize>> = vec![Vec::new(); self.got.len()];
        for (query, row) in rows.chunks_exact(row_bytes).enumerate() {
            of_server[nearest.server(row)].push(query);
        }
        let mut batches = Vec::new();
        for (server, queries) in of_server.iter().enumerate() {
            for (turn, queries) in queries.chunks(each).enumerate() {
                batches.push((turn, (queries.to_vec(), server)));
            }
        }
        batches.sort_by_key(|&(turn, _)| turn);
        batches.into_iter().map(|(_, batch)| batch).collect()
    }
}

/// Finds the server of a query.
pub struct Nearest<'a> {
    landmarks: &'a Landmarks,
    query: Exact,
    distances: Vec<f32>,
}

impl Nearest<'_> {
    /// The server of the landmark that is nearest to a query.
    pub fn server(&mut self, query: &[u8]) -> usize {
        let Landmarks { dim, metric, dtype, rows, inverse_norms, servers, .. } = self.landmarks;
        self.query.set(*metric, *dtype, *dim, query);
        self.query.distances(rows, inverse_norms, &mut self.distances);
        let nearest = self.distances.iter().zip(servers).min_by(|a, b| a.0.total_cmp(b.0));
        nearest.map_or(0, |(_, &server)| server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[[f32; 2]]) -> Vec<u8> {
        of.iter().flatten().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn landmarks(metric: Metric) -> Landmarks {
        let own = [(0, rows(&[[0.0, 1.0], [0.0, 9.0]])), (2, rows(&[[5.0, 5.0]])), (3, Vec::new())];
        Landmarks::new((2, metric, DType::F32), 4, own.into_iter()).unwrap()
    }

    #[test]
    fn queries_go_to_the_server_of_the_nearest_landmark() {
        let queries = rows(&[[0.0, 8.0], [6.0, 5.0], [0.1, 0.0], [4.0, 4.0], [0.0, 7.0]]);
        for (metric, expected) in
            [(Metric::L2, [0, 2, 0, 2, 0]), (Metric::Ip, [0, 2, 2, 2, 0]), (Metric::Cosine, [0, 2, 2, 2, 0])]
        {
            let own = landmarks(metric);
            let mut nearest = own.nearest();
            let found: Vec<usize> = queries.chunks_exact(8).map(|query| nearest.server(query)).collect();
            assert_eq!(found, expected, "{metric:?}");
        }
    }

    #[test]
    fn a_server_where_all_queries_enter_gets_its_share() {
        let own = landmarks(Metric::L2);
        let mut got = [0u64; 4];
        for _ in 0..1000 {
            got[own.choose(2, 1, |server| server != 3)] += 1;
        }
        assert!((410..=420).contains(&got[2]), "{got:?}");
        assert!(got[0].abs_diff(got[1]) <= 1 && got[3] == 0, "{got:?}");
        assert_eq!(own.by_entry.load(Ordering::Relaxed), got[2]);
    }

    #[test]
    fn batches_have_queries_of_one_server_and_alternate() {
        let own = landmarks(Metric::L2);
        let queries = rows(&[[0.0, 8.0], [6.0, 5.0], [0.0, 0.0], [4.0, 4.0], [0.0, 7.0]]);
        assert_eq!(own.divide(&queries, 2), [(vec![0, 2], 0), (vec![1, 3], 2), (vec![4], 0)]);
    }

    #[test]
    fn less_than_a_vector_is_no_landmark() {
        let none = [(0, Vec::new()), (1, vec![1, 2, 3])];
        assert!(
            Landmarks::new((2, Metric::L2, DType::F32), 2, none.into_iter()).is_none(),
            "less than a vector is none"
        );
    }
}
