//! The indexes of a simulated cluster, and what each server sees of them.

use stratann_core::kinds::IndexView;
use stratann_core::peer::{Peer, Served};
use stratann_core::place::{LocalShard, Parts};
use stratann_core::query::wire::Carry;
use stratann_core::view::Base;

use crate::{Cluster, FaultModel, Part, Partition, Stores};

/// The build that all servers serve.
pub(crate) const BUILD: u64 = 0x5EED;

/// The indexes of the servers.
pub(crate) struct Setting<'a> {
    indexes: Vec<Part<'a>>,
    parts: Parts,
}

impl<'a> Setting<'a> {
    /// One index for each part.
    pub(crate) fn new(indexes: &[Part<'a>]) -> Setting<'a> {
        let parts = match indexes {
            [_] => Some(Parts::ONE),
            _ => Parts::new(indexes.iter().map(Part::servers)),
        };
        let parts = parts.expect("1 to 64 servers");
        Setting { indexes: indexes.to_vec(), parts }
    }

    pub(crate) fn servers(&self) -> usize {
        self.indexes.iter().map(Part::servers).sum()
    }

    /// A bit for every server.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.servers().clamp(1, 64))
    }

    pub(crate) fn of(&self, server: u8) -> &Part<'a> {
        &self.indexes[usize::from(self.parts.of(server))]
    }

    pub(crate) fn view(&self, server: u8, peer: &Peer) -> IndexView<'a> {
        match *self.of(server) {
            Part::Placed(Cluster { view, placement, .. }) => {
                let others = self.parts.within(server, &peer.known());
                let server = server - self.parts.first(self.parts.of(server));
                let shard = LocalShard { placement, server, others };
                IndexView { base: Base { here: Some(shard), ..view.base }, ..view }
            }
            Part::Whole(Partition { view, .. }, _) => view,
        }
    }

    pub(crate) fn stores(&self, server: u8) -> &'a dyn Stores {
        match *self.of(server) {
            Part::Placed(Cluster { stores, .. }) | Part::Whole(Partition { stores, .. }, _) => stores,
        }
    }

    pub(crate) fn served(&self, server: usize, faults: &FaultModel) -> Served {
        let (Part::Placed(Cluster { view, .. }) | Part::Whole(Partition { view, .. }, _)) =
            self.of(server as u8);
        Served {
            build: BUILD,
            kind: view.kind_number(),
            vector_bytes: view.base.dim * view.base.dtype.size(),
            size: view.size(),
            carry: if view.rescores() { faults.carry } else { Carry::Distances },
            results: faults.results,
            rescores: view.rescores(),
            jobs_have_queries: view.jobs_have_queries(),
            parts: self.parts,
        }
    }
}
