//! Vectors of a `remote-hnsw`, as they are in the data set.

use stratann_core::format::hnsw::SubHnsw;
use stratann_core::kinds::remote_hnsw::View;
use stratann_storage::{Error, Progress, Result};

use super::open::RemoteIndex;
use crate::base::Base;
use crate::kinds::answers::{Member, SeeMembers};
use crate::kinds::questions::Members;

/// Replaces `out` by the sub-HNSW of a cluster, verified.
///
/// # Errors
/// A disk that fails, a damaged cluster, which is named.
pub(crate) fn read(base: &Base, view: &View<'_>, cluster: u32, out: &mut Vec<u8>) -> Result<()> {
    let bad = |why: &str| {
        Error::corrupt(format!(
            "cluster {cluster} of {} {why}; restore the file or build the index again",
            base.blocks_path.display()
        ))
    };
    let located = view.clusters.get(cluster as usize).ok_or_else(|| bad("does not exist"))?;
    base.read_extent(&[], located.base, out).map_err(|_| bad("cannot be read"))?;
    let is_sound = view.name(cluster).is_some_and(|name| SubHnsw::verify(view.layout, &name, out));
    if is_sound { Ok(()) } else { Err(bad("is damaged: its checksum does not match")) }
}

impl Members for RemoteIndex {
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        let view = self.view();
        let cluster = self.first.partition_point(|&first| first <= id).saturating_sub(1);
        let mut bytes = Vec::new();
        let missing = || Error::bad_input(format!("vector {id} is not in {}", base.folder.display()));
        read(base, &view, cluster as u32, &mut bytes)?;
        let found = SubHnsw::open(view.layout, &bytes).ok_or_else(missing)?;
        let member = id - self.first[cluster];
        if member >= found.members() {
            return Err(missing());
        }
        Ok((found.external_id(member), found.vector(member).to_vec()))
    }

    fn for_each_member(&self, base: &Base, progress: &dyn Progress, see: &mut SeeMembers<'_>) -> Result<()> {
        let view = self.view();
        let mut bytes = Vec::new();
        for (cluster, &first) in (0..self.facts.clusters()).zip(&self.first) {
            progress.check_interrupted()?;
            read(base, &view, cluster, &mut bytes)?;
            let Some(found) = SubHnsw::open(view.layout, &bytes) else { continue };
            let members: Vec<Member<'_>> = (0..found.members())
                .map(|member| Member {
                    id: first + member,
                    vector: found.vector(member),
                    inverse_norm: found.inverse_norm(member),
                    external_id: found.external_id(member),
                })
                .collect();
            see(&members);
            progress.advance(members.len() as u64);
        }
        Ok(())
    }

    fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        (base.manifest.rows, "rows")
    }
}
