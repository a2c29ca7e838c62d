//! Checks of the files of a `gpu-ivf`.

use stratann_storage::Result;

#[cfg(feature = "lab")]
use super::baseline::OpenBaselines;
use super::open::GpuIndex;
use crate::base::OpenOptions;
use crate::files;
use crate::findings::Verification;
use crate::kinds::blocks;
use crate::kinds::questions::OpenKind;

/// Checks every block, and that lists name every vector once as their own.
pub(crate) fn check(check: &mut Verification<'_>) -> Result<()> {
    let open = |options: OpenOptions| move |base: &_| GpuIndex::open(base, &options, &mut Vec::new());
    blocks::verify::check(check, open(OpenOptions::default()), |index, base| index.checked(base))?;
    let options = OpenOptions {
        #[cfg(feature = "lab")]
        baselines: OpenBaselines::of(check.manifest.section.gpu()),
        ..OpenOptions::default()
    };
    let index = match check.open(open(options)) {
        Ok((_, index)) => index,
        Err(e) => {
            check.found("manifest", e.message);
            return Ok(());
        }
    };
    let lists = &index.lists;
    check.lists(files::POSTINGS, lists.count(), |list| {
        let mut ids = Vec::new();
        let (first, count) = lists.own(list);
        let is_read = lists.replicas_of(list, &mut ids).is_some();
        let is_wrong = !is_read || ids.iter().any(|id| (first..first + count).contains(id));
        is_wrong.then(|| (None, "a replica is a member of the list itself".into()))
    })
}
