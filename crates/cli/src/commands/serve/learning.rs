//! Whether a server learns from its queries.

use stratann_engine::kinds::options::LearnOptions;
use stratann_engine::serve::Server;
use stratann_params::choices::Learn;
use stratann_storage::{Error, Result};

use super::Args;
use super::config::Config;

/// How a server was asked to learn.
pub(super) fn learning(args: &Args, config: &Config) -> Result<LearnOptions> {
    let learn = match (args.no_learning, args.frozen, config.learning.as_deref()) {
        (true, ..) | (_, false, Some("off")) => Learn::Off,
        (_, true, _) | (_, _, Some("frozen")) => Learn::Frozen,
        (_, _, None | Some("on")) => Learn::On,
        (_, _, Some(other)) => {
            return Err(Error::bad_input(format!(
                "learning is {other:?}; use \"on\", \"frozen\" or \"off\""
            )));
        }
    };
    let usual = LearnOptions::default();
    let epoch_queries = args.epoch_queries.or(config.epoch_queries).unwrap_or(usual.epoch_queries);
    if epoch_queries == 0 {
        return Err(Error::bad_input("epoch_queries is 0; use 1 or more"));
    }
    Ok(LearnOptions { learn, epoch_queries, ..usual })
}

/// Whether options say how to learn.
pub(super) fn is_asked(args: &Args, config: &Config) -> bool {
    args.no_learning
        || args.frozen
        || args.epoch_queries.or(config.epoch_queries).is_some()
        || config.learning.is_some()
}

/// Why options of learning have no effect on this server; `None` where they have one.
pub(super) fn why_ignored(server: &Server) -> Option<String> {
    let kind = server.kind();
    (!kind.learns()).then(|| {
        format!(
            "a {} does not learn from queries: --frozen, --no-learning, --epoch-queries and learning have no effect",
            kind.name()
        )
    })
}
