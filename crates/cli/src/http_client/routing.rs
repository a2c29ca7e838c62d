//! Choice of the server that a query is sent to first: one that has its clusters cached, of a `remote-hnsw`, or the one
//! where its search enters, of a partitioned `disk-graph`.

use stratann_engine::kinds::disk_graph::landmarks::{Landmarks, Nearest};
use stratann_engine::kinds::remote_hnsw::affinity::Batch;
use stratann_engine::kinds::remote_hnsw::router::{Needs, Routed, Router};
use ureq::Agent;

use super::{REPLY_BYTES, STATUS_TIME, get_raw};
use crate::queries::Wanted;

/// Asks all servers for the vectors at which searches enter there; `None` where none has any. Returns as well whether
/// all of them said so or answered.
pub(super) fn landmarks(
    agent: &Agent,
    addresses: &[String],
    wanted: Wanted,
    answers: impl Fn(usize) -> bool,
) -> (Option<Landmarks>, bool) {
    let mut has_failed = false;
    let get = |address: &str| get_raw(agent, address, "/v1/landmarks", (STATUS_TIME, REPLY_BYTES));
    let of = |(server, address): (usize, &String)| match answers(server).then(|| get(address)) {
        Some(Ok((200, rows))) => (server, rows),
        found => {
            has_failed |= !matches!(found, Some(Ok((404, _))));
            (server, Vec::new())
        }
    };
    let Wanted { dim, metric, dtype } = wanted;
    let found = Landmarks::new((dim, metric, dtype), addresses.len(), addresses.iter().enumerate().map(of));
    (found, !has_failed)
}

/// A way to choose servers.
#[derive(Clone, Copy)]
pub(crate) enum Routing<'a> {
    /// By what servers have cached, where a query needs so many clusters.
    Caches(&'a Router, u32),
    /// By the vectors at which searches enter.
    Entries(&'a Landmarks),
}

/// The server that a request begins with.
pub(crate) struct Target<'a> {
    /// Its number.
    pub(crate) server: usize,
    /// Holds what is expected in its cache.
    _routed: Option<Routed<'a>>,
}

impl Target<'_> {
    /// A server by its turn.
    pub(crate) fn turn(server: usize) -> Target<'static> {
        Target { server, _routed: None }
    }
}

impl<'a> Routing<'a> {
    /// Begins a run: queries are counted from here on.
    pub(super) fn begin(self) -> Routing<'a> {
        if let Routing::Entries(own) = self {
            own.begin();
        }
        self
    }

    /// Divides queries into batches of up to `each` that are sent together.
    pub(crate) fn divide(self, rows: &[u8], each: usize, threads: usize) -> Vec<Batch> {
        match self {
            Routing::Caches(own, nprobe) => own.divide(rows, nprobe, each, threads),
            Routing::Entries(own) => {
                let batch = |(queries, server)| Batch { queries, needs: vec![server as u32] };
                own.divide(rows, each).into_iter().map(batch).collect()
            }
        }
    }

    /// The server of a batch, among those that answer.
    pub(crate) fn route(self, batch: &'a Batch, answers: impl Fn(usize) -> bool) -> Target<'a> {
        self.target(&batch.needs, batch.queries.len(), answers)
    }

    fn target<'b>(self, needs: &'b [u32], queries: usize, answers: impl Fn(usize) -> bool) -> Target<'b>
    where
        'a: 'b,
    {
        match self {
            Routing::Caches(own, _) => {
                let routed = own.route(needs, queries, answers);
                Target { server: routed.server, _routed: Some(routed) }
            }
            Routing::Entries(own) => {
                let entry = needs.first().map_or(0, |&server| server as usize);
                Target::turn(own.choose(entry, queries, answers))
            }
        }
    }

    /// Finder of servers for one thread; `None` where the meta-HNSW is damaged.
    pub(crate) fn finder(self) -> Option<Finder<'a>> {
        let rule = match self {
            Routing::Caches(own, nprobe) => Rule::Needs(Box::new(own.needs()?), nprobe),
            Routing::Entries(own) => Rule::Nearest(own.nearest()),
        };
        Some(Finder { routing: self, rule, needs: Vec::new() })
    }

    /// Queries of this run that went to a server because of its cache; `None` where that is not considered.
    pub(crate) fn by_cache(self) -> Option<u64> {
        if let Routing::Caches(own, _) = self { Some(own.by_cache()) } else { None }
    }

    /// Queries of this run that went to the server where they enter; `None` where that is not considered.
    pub(crate) fn by_entry(self) -> Option<u64> {
        if let Routing::Entries(own) = self { Some(own.by_entry()) } else { None }
    }
}

/// What a finder goes by.
enum Rule<'a> {
    Needs(Box<Needs<'a>>, u32),
    Nearest(Nearest<'a>),
}

/// See [`Routing::finder`].
pub(crate) struct Finder<'a> {
    routing: Routing<'a>,
    rule: Rule<'a>,
    needs: Vec<u32>,
}

impl Finder<'_> {
    /// The server of one query, among those that answer.
    pub(crate) fn route(&mut self, query: &[u8], answers: impl Fn(usize) -> bool) -> Target<'_> {
        self.needs.clear();
        match &mut self.rule {
            Rule::Needs(found, nprobe) => found.of(query, *nprobe, &mut self.needs),
            Rule::Nearest(nearest) => self.needs.push(nearest.server(query) as u32),
        }
        self.routing.target(&self.needs, 1, answers)
    }
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};

    use super::*;

    #[test]
    fn a_query_is_sent_where_it_enters_unless_that_server_is_silent() {
        let row = |x: f32| [x.to_le_bytes(), 0f32.to_le_bytes()].concat();
        let of_servers = [(0, row(0.0)), (1, row(5.0)), (2, row(9.0))];
        let own = Landmarks::new((2, Metric::L2, DType::F32), 3, of_servers.into_iter()).unwrap();
        let routing = Routing::Entries(&own);
        let mut finder = routing.finder().unwrap();
        assert_eq!(finder.route(&row(6.0), |_| true).server, 1);
        assert_ne!(finder.route(&row(8.0), |server| server != 2).server, 2);
        assert_eq!((routing.by_entry(), routing.by_cache()), (Some(1), None));
        assert_eq!(routing.begin().by_entry(), Some(0));
    }
}
