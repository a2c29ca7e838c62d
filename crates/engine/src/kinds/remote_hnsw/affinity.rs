//! Sends queries to the compute node whose cache fits them best, by a table of the clusters that each has cached.
//!
//! It is the client's part: without I/O, clock or threads. Nothing depends on it but what is loaded how often.

use std::collections::BTreeMap;

use crate::kinds::cluster_set::ClusterSet;

/// Most that a server gets, as a fraction of its even share: 5 / 4.
const SHARE: (u64, u64) = (5, 4);
/// Clusters of a query that count towards the order of clusters, besides its nearest one.
const NEIGHBOURS: usize = 3;

/// State of one server, as far as a client knows it.
#[derive(Clone, Debug, Default)]
struct Server {
    /// The version of what it said last, and the clusters that it had cached then.
    version: u64,
    cached: ClusterSet,
    /// Batches under way that need each cluster: it will be cached.
    expected: Vec<u32>,
    /// Queries that it was sent in this run.
    queries: u64,
}

/// Server of a batch of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Number of the server.
    pub server: usize,
    /// Whether it was chosen because it has more of the clusters in its cache than another.
    pub by_cache: bool,
}

/// The clusters that each server of an index has cached.
#[derive(Clone, Debug)]
pub struct CacheTable {
    /// Bytes of each cluster.
    bytes: Vec<u32>,
    servers: Vec<Server>,
    /// The server that is next where several fit equally well.
    turn: usize,
}

impl CacheTable {
    /// Nothing is known of the servers yet. `bytes` has the size of each cluster.
    pub fn new(bytes: Vec<u32>, servers: usize) -> CacheTable {
        let (cached, expected) = (ClusterSet::new(bytes.len()), vec![0; bytes.len()]);
        let unknown = Server { cached, expected, ..Server::default() };
        CacheTable { bytes, servers: vec![unknown; servers], turn: 0 }
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Begins a run: shares are counted from here on.
    pub fn begin(&mut self) {
        self.servers.iter_mut().for_each(|server| server.queries = 0);
        self.turn = 0;
    }

    /// The version of what a server said last, which it need not repeat.
    pub fn version(&self, server: usize) -> u64 {
        self.servers.get(server).map_or(0, |own| own.version)
    }

    /// Takes over which clusters a server has cached; without a bitmap they are those of the version that is known. A
    /// bitmap of another length is ignored. What is under way stays expected.
    pub fn update(&mut self, server: usize, version: u64, bitmap: Option<Vec<u8>>) {
        let cached = bitmap.and_then(|bits| ClusterSet::from_bytes(bits, self.bytes.len()));
        if let (Some(own), Some(cached)) = (self.servers.get_mut(server), cached) {
            (own.version, own.cached) = (version, cached);
        }
    }

    /// Ends what [`CacheTable::choose`] noted for a batch: its reply is there, or none will come.
    pub fn end(&mut self, server: usize, needs: &[u32]) {
        let Some(own) = self.servers.get_mut(server) else { return };
        for &cluster in needs {
            if let Some(batches) = own.expected.get_mut(cluster as usize) {
                *batches = batches.saturating_sub(1);
            }
        }
    }

    /// Chooses the server for a batch that needs these clusters, each named once: of those that `answers` the one whose
    /// cache holds the most bytes of them. None gets more than 1.25 of its even share, unless it has the least. Notes
    /// that the clusters will be cached there, until [`CacheTable::end`].
    pub fn choose(&mut self, needs: &[u32], queries: usize, answers: impl Fn(usize) -> bool) -> Choice {
        let answering: Vec<usize> = (0..self.servers.len()).filter(|&server| answers(server)).collect();
        let all = if answering.is_empty() { (0..self.servers.len()).collect() } else { answering };
        let sent = |server: &usize| self.servers[*server].queries;
        let (least, total) =
            (all.iter().map(sent).min().unwrap_or(0), all.iter().map(sent).sum::<u64>() + queries as u64);
        let may = |server: &usize| {
            let own = sent(server);
            own == least || (own + queries as u64) * all.len() as u64 * SHARE.1 <= total * SHARE.0
        };
        let count = self.servers.len().max(1);
        let mut fitting: Vec<(u64, usize)> = all
            .iter()
            .filter(|server| may(server))
            .map(|&server| (self.held(server, needs), server))
            .collect();
        fitting.sort_by_key(|&(held, server)| {
            (std::cmp::Reverse(held), (server + count - self.turn % count) % count)
        });
        let server = fitting.first().map_or(0, |best| best.1);
        let by_cache = matches!(fitting[..], [best, .., last] if best.0 > last.0);
        self.turn = (server + 1) % count;
        if let Some(own) = self.servers.get_mut(server) {
            own.queries += queries as u64;
            for &cluster in needs {
                if let Some(batches) = own.expected.get_mut(cluster as usize) {
                    *batches += 1;
                }
            }
        }
        Choice { server, by_cache }
    }

    /// Bytes of these clusters that a server has cached, or will have.
    fn held(&self, server: usize, needs: &[u32]) -> u64 {
        let Server { cached, expected, .. } = &self.servers[server];
        let is_cached = |cluster: u32| {
            cached.has(cluster as usize) || expected.get(cluster as usize).is_some_and(|&batches| batches > 0)
        };
        let held = needs.iter().filter(|&&cluster| is_cached(cluster));
        held.filter_map(|&cluster| self.bytes.get(cluster as usize)).map(|&bytes| u64::from(bytes)).sum()
    }
}

/// A part of a request: queries, and the clusters that any of them needs, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Numbers of the queries.
    pub queries: Vec<usize>,
    /// Clusters of the batch, ascending.
    pub needs: Vec<u32>,
}

/// Divides queries into batches of up to `each`, so that those that need the same clusters are together. `needs` has
/// the clusters of each query, the nearest first. Consecutive batches are far from each other: each of the `servers`
/// can work on an end of its own.
pub fn divide(needs: &[Vec<u32>], each: usize, servers: usize) -> Vec<Batch> {
    let rank = order_of_clusters(needs);
    let place = |query: &usize| {
        let own = &needs[*query];
        (own.first().and_then(|cluster| rank.get(cluster)).copied(), own, *query)
    };
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by(|a, b| place(a).cmp(&place(b)));
    let batches: Vec<Batch> = order
        .chunks(each.max(1))
        .map(|queries| {
            let mut own: Vec<u32> = queries.iter().flat_map(|&query| needs[query].iter().copied()).collect();
            own.sort_unstable();
            own.dedup();
            Batch { queries: queries.to_vec(), needs: own }
        })
        .collect();
    // One of each part in turn.
    let part = batches.len().div_ceil(servers.max(1)).max(1);
    let mut taken: Vec<(usize, Batch)> = batches.into_iter().enumerate().collect();
    taken.sort_by_key(|&(number, _)| (number % part, number / part));
    taken.into_iter().map(|(_, batch)| batch).collect()
}

/// An order of clusters in which those that queries need together are near each other: a walk that goes on to the
/// cluster which the most queries need with the present one.
fn order_of_clusters(needs: &[Vec<u32>]) -> BTreeMap<u32, usize> {
    let mut together = BTreeMap::<u32, BTreeMap<u32, u64>>::new();
    for own in needs {
        let Some((&nearest, others)) = own.split_first() else { continue };
        together.entry(nearest).or_default();
        for &other in others.iter().take(NEIGHBOURS) {
            *together.entry(nearest).or_default().entry(other).or_default() += 1;
            *together.entry(other).or_default().entry(nearest).or_default() += 1;
        }
    }
    let mut rank = BTreeMap::new();
    let mut open = Vec::new();
    for &start in together.keys() {
        open.push(start);
        while let Some(cluster) = open.pop() {
            if rank.contains_key(&cluster) {
                continue;
            }
            rank.insert(cluster, rank.len());
            let mut next: Vec<(u64, u32)> =
                together[&cluster].iter().map(|(&other, &count)| (count, other)).collect();
            // The last one is visited first.
            next.sort_unstable_by_key(|&(count, other)| (count, std::cmp::Reverse(other)));
            open.extend(next.into_iter().map(|(_, other)| other).filter(|other| !rank.contains_key(other)));
        }
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(clusters: &[u32], all: usize) -> Vec<u8> {
        let mut set = ClusterSet::new(all);
        clusters.iter().for_each(|&cluster| set.insert(cluster as usize));
        set.bytes().to_vec()
    }

    fn chosen(table: &mut CacheTable, needs: &[u32]) -> (usize, bool) {
        let Choice { server, by_cache } = table.choose(needs, 4, |_| true);
        (server, by_cache)
    }

    #[test]
    fn the_most_cached_bytes_win_and_ties_go_in_turn() {
        let mut table = CacheTable::new(vec![10, 10, 10, 50, 1, 1, 1, 1, 1, 1], 3);
        assert_eq!(
            [&[0][..], &[8], &[9]].map(|needs| chosen(&mut table, needs)),
            [(0, false), (1, false), (2, false)]
        );
        table.begin();
        table.update(0, 7, Some(bits(&[0, 1, 2], 10)));
        table.update(2, 8, Some(bits(&[3], 10)));
        assert_eq!((table.version(0), table.version(1), table.version(2)), (7, 0, 8));
        // Bytes count, not clusters.
        assert_eq!(chosen(&mut table, &[0, 1, 2, 3]), (2, true));
        assert_eq!(chosen(&mut table, &[0, 4]), (0, true));
        // What is under way there is expected to be cached, until its own reply.
        table.begin();
        assert_eq!(chosen(&mut table, &[4]), (0, true));
        table.end(0, &[0, 4]);
        table.update(0, 7, None);
        table.begin();
        assert_eq!(chosen(&mut table, &[4]), (0, true), "another batch with it is under way");
        (0..2).for_each(|_| table.end(0, &[4]));
        table.update(1, 9, Some(vec![0xFF]));
        table.begin();
        assert_eq!(chosen(&mut table, &[4]), (0, false), "a bitmap of another length is ignored");
        table.begin();
        assert_eq!(chosen(&mut table, &[5, 1]), (0, true));
    }

    #[test]
    fn a_reply_leaves_what_other_requests_will_bring() {
        let mut table = CacheTable::new(vec![1; 8], 3);
        let batches = [[0u32, 1], [2, 3], [4, 5]];
        assert_eq!(batches.each_ref().map(|needs| chosen(&mut table, needs).0), [0, 1, 2]);
        // Server 1 answers a batch of its own; the one before it is still under way there.
        assert_eq!(chosen(&mut table, &[2, 6]), (1, true));
        table.update(1, 5, Some(bits(&[2, 6], 8)));
        table.end(1, &[2, 6]);
        table.begin();
        assert_eq!(chosen(&mut table, &[3]), (1, true));
        // A batch that fails brings nothing.
        table.end(2, &[4, 5]);
        table.begin();
        assert_eq!(chosen(&mut table, &[4, 5]), (0, false));
    }

    #[test]
    fn no_server_gets_much_more_than_its_share() {
        let mut table = CacheTable::new(vec![1; 8], 3);
        table.update(1, 1, Some(bits(&[0, 1, 2, 3, 4, 5, 6, 7], 8)));
        let mut counts = [0u64; 3];
        for sent in 1..=300u64 {
            let needs = [(sent % 8) as u32];
            let Choice { server, .. } = table.choose(&needs, 1, |_| true);
            table.end(server, &needs);
            counts[server] += 1;
            // One batch above the even share, or a quarter of that.
            assert!(
                counts.iter().all(|&own| own <= (sent / 3 + 1).max(sent * 5 / 12)),
                "{counts:?} of {sent}"
            );
        }
        assert!(counts[1] > 110, "{counts:?}");
        // One that does not answer gets nothing; where none does, all are tried.
        table.begin();
        assert!((0..9).all(|_| table.choose(&[0], 1, |server| server != 1).server != 1));
        assert!(table.choose(&[0], 1, |_| false).server < 3);
    }

    #[test]
    fn queries_with_equal_needs_are_together() {
        let kinds = [vec![3u32, 4], vec![0, 1], vec![4, 3], vec![1, 0], vec![7]];
        let needs: Vec<Vec<u32>> = (0..40).map(|query| kinds[query % 5].clone()).collect();
        let batches = divide(&needs, 8, 2);
        let mut all: Vec<usize> = batches.iter().flat_map(|batch| batch.queries.iter().copied()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        assert!(
            batches.iter().all(|batch| batch.queries.len() == 8 && batch.needs.len() <= 2),
            "{batches:?}"
        );
        // Of five batches the first three are one part: the two that need 0 and 1 are in it, and not one after the other.
        let places: Vec<usize> = (0..5).filter(|&at| batches[at].needs == [0, 1]).collect();
        assert_eq!(places, [0, 2]);
        assert!(divide(&[], 8, 2).is_empty());
        assert_eq!(divide(&[vec![], vec![]], 1, 0).len(), 2);
    }
}
