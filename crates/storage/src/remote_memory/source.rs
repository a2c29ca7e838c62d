//! Memory nodes as the place where an open index reads, in the place of a file.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::format::region::node_offset;
use stratann_core::query::{Extent, Loss};

use super::known::{Dialed, Known};
use super::tier::IdleConnections;
use super::{Credentials, MemoryError, Nodes, RemoteCounters, RemoteMemory, RemoteTier};
use crate::tier::{FileIds, Tier};

/// The memory nodes of an open index.
pub struct RemoteSource {
    known: Vec<Known>,
    ids: FileIds,
    /// Reason why an address gave no node.
    missed: Option<MemoryError>,
    credentials: Credentials,
    nodes: Mutex<Nodes>,
    counters: Arc<RemoteCounters>,
    /// Connections of tiers that have ended, so that a short search need not connect.
    idle: IdleConnections,
}

impl RemoteSource {
    /// Connects.
    ///
    /// # Errors
    /// As [`Nodes::new`].
    pub fn new(addresses: &[String], credentials: &Credentials) -> Result<RemoteSource, MemoryError> {
        let nodes = Nodes::new(addresses, credentials)?;
        Ok(RemoteSource {
            known: nodes.known(),
            ids: FileIds::take(),
            missed: nodes.last_error().cloned(),
            nodes: Mutex::new(nodes),
            credentials: credentials.clone(),
            counters: Arc::default(),
            idle: Arc::default(),
        })
    }

    /// Reason why the load that was opened is over, once that was noticed.
    pub fn replaced(&self) -> Option<&MemoryError> {
        self.counters.replaced()
    }

    /// Looks whether the nodes still have the load that was opened. One that does not answer says nothing.
    pub fn look(&self) {
        let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
        for own in &self.known {
            let looked = nodes.read(own.facts.node.0, 0, 8);
            looked.err().iter().for_each(|e| self.counters.note(e));
        }
    }

    /// Connects again to what the nodes have now.
    ///
    /// # Errors
    /// As [`Nodes::new`].
    pub fn again(&self) -> Result<RemoteSource, MemoryError> {
        let addresses: Vec<String> = self.known.iter().map(|own| own.address.clone()).collect();
        RemoteSource::new(&addresses, &self.credentials)
    }

    /// Reason why an address gave no node when the index was opened.
    pub fn missed(&self) -> Option<&MemoryError> {
        self.missed.as_ref()
    }

    /// Connections of its own, to the regions that it was opened with. A node that has another one now is lost.
    pub fn connect(&self) -> Nodes {
        Nodes::dialed(&self.known, &self.credentials).counted(&self.counters)
    }

    /// The addresses, by number of the node.
    pub fn addresses(&self) -> Vec<&str> {
        self.known.iter().map(|own| own.address.as_str()).collect()
    }

    /// A tier for one thread. A node that does not answer now is dialed when something is read of it.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn tier(&self, depth: usize, doorbell: usize) -> io::Result<Box<dyn Tier>> {
        let idle = self.idle().pop();
        let dialed = || self.known.iter().map(|own| Dialed::boxed(own, &self.credentials)).collect();
        let tier = RemoteTier::new(idle.unwrap_or_else(dialed), depth, doorbell, &self.counters)?;
        Ok(Box::new(tier.numbered(self.ids).returning(self.idle.clone())))
    }

    /// The numbers of the nodes' regions in this process.
    pub fn file_ids(&self) -> FileIds {
        self.ids
    }

    /// Place of an extent in the region of its node. Regions are smaller than 1 TiB: upper bits of an offset tell
    /// versions of what is there apart.
    pub fn locate(at: Extent) -> Extent {
        Extent { offset: node_offset(at.offset), ..at }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<Box<dyn RemoteMemory>>>> {
        self.idle.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes that were read of each node, by number.
    pub fn bytes_by_node(&self) -> Vec<u64> {
        let mut bytes = self.counters.bytes_by_node();
        let nodes = self.known.iter().map(|own| usize::from(own.facts.node.0) + 1).max().unwrap_or(0);
        bytes.resize(bytes.len().max(nodes), 0);
        bytes
    }

    /// Reason why the last read failed, if one has.
    pub fn last_error(&self) -> Option<MemoryError> {
        self.counters.last_error()
    }

    /// The reason why a query has no answer that lacks this extent.
    pub fn failure(&self, at: Extent, loss: Loss) -> String {
        let (node, offset) = (at.store.0, node_offset(at.offset));
        let place = format!("memory node {node} at byte {offset} ({} bytes)", at.bytes);
        match loss {
            Loss::Damaged => format!("{place} is damaged; load the index again"),
            Loss::Failed | Loss::Short | Loss::Expired => {
                let why = self.last_error().map_or(String::new(), |e| format!(": {e}"));
                format!("{place} was not read{why}; check that the node runs")
            }
        }
    }

    /// Replaces `out` by the bytes of an extent. The upper bits of its offset are a version and no place.
    ///
    /// # Errors
    /// Why there are none.
    pub fn read_extent(&self, at: Extent, out: &mut Vec<u8>) -> Result<(), Loss> {
        let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
        let offset = node_offset(at.offset);
        *out = nodes.read(at.store.0, offset, at.bytes.into()).map_err(|_| Loss::Failed)?;
        Ok(())
    }
}
