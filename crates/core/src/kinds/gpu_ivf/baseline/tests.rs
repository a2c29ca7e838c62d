//! Searches as other systems do them, of the same small indexes.

use proptest::prelude::*;
use stratann_kernel::{DType, Metric};

use super::Source;
use crate::kinds::gpu_ivf::Params as Own;
use crate::kinds::gpu_ivf::tests::{DIM, Index, ROWS, params, results, settings};
use crate::query::{Params, QueryState, Scratch};
use crate::search::{Loss, Outcome};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_candidates_of_all_lists_give_the_exact_answer((metric, dtype, seed, k) in settings(), batch in 1u32..40) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        let want = index.plain(&query, k as usize, 0..ROWS);
        type Change = fn(&mut Own);
        let changes: [Change; 4] = [
            |own| own.compared.by_rows = true,
            |own| own.compared.source = Source::Lists,
            |own| (own.compared.source, own.compared.copies) = (Source::CodeLists, true),
            |own| own.compared.source = Source::ResidentLists,
        ];
        for change in changes {
            let params = params(k, |own| { own.batch = batch; change(own) });
            prop_assert_eq!(&results(&index.run(&query, params, seed)), &want, "{:?}", params);
        }
        // A vector that is not admitted is nowhere among the results.
        let excluded = want[0].external_id as u32 / 3;
        let without = index.plain(&query, k as usize, (0..ROWS).filter(|&id| id as u32 != excluded));
        for change in changes {
            let params = Params { exclude: excluded, ..params(k, |own| { own.batch = batch; change(own) }) };
            prop_assert_eq!(&results(&index.run(&query, params, seed)), &without, "{:?}", params);
        }
    }

    #[test]
    fn sources_of_equal_lists_agree((metric, dtype, seed, k) in settings(), nprobe in 1u32..6, n in 30u32..80) {
        let index = Index::new(metric, dtype, seed);
        let query = index.query(seed);
        let change = |source| move |own: &mut Own| {
            (own.nprobe, own.candidates, own.compared.source) = (nprobe, n, source);
        };
        let of_codes = index.run(&query, params(k, change(Source::Codes)), seed);
        let of_code_lists = index.run(&query, params(k, change(Source::CodeLists)), seed);
        prop_assert_eq!(results(&of_codes), results(&of_code_lists));
        let of_lists = index.run(&query, params(k, change(Source::Lists)), seed);
        let resident = index.run(&query, params(k, change(Source::ResidentLists)), seed);
        prop_assert_eq!(results(&of_lists), results(&resident));
        let (stats, lists) = (of_codes.stats(), of_lists.stats());
        prop_assert_eq!((stats.lists, lists.lists, resident.stats().reads), (nprobe.into(), nprobe.into(), 0));
        prop_assert_eq!(lists.reads, u64::from(nprobe));
        prop_assert_eq!(stats.reads, stats.record_reads);
        // Only ids go to the scorer: runs take 8 bytes, replicas 4, results 8.
        let kept = u64::from(n).min(stats.code_comparisons);
        let sent = 4 * DIM as u64 + 8 * u64::from(nprobe) + 4 * 17 * u64::from(nprobe);
        prop_assert!(stats.gpu_bytes <= sent + 8 * kept && stats.gpu_bytes > sent);
    }
}

#[test]
fn a_lost_list_ends_the_query() {
    let index = Index::new(Metric::L2, DType::F32, 3);
    let (view, query) = (index.view(), index.query(3));
    let params = params(5, |own| own.compared.source = Source::Lists);
    let (mut state, mut scratch) = (QueryState::new(params, view.budget()), Scratch::default());
    scratch.prepare(&view, &query);
    crate::query::run(&mut state, &view, &mut scratch, |at| match at.offset {
        0..8192 => Ok(index.read(at)),
        _ => Err(Loss::Failed),
    });
    assert!(matches!(state.outcome(), Outcome::Lost { loss: Loss::Failed, .. }));
}
