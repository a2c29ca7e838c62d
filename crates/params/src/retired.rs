//! Parameters of earlier versions. Whoever still gives one reads what replaces it.

use crate::given::Wrong;
use crate::param::{Stage, Surface};

/// A parameter that the table had once.
#[derive(Clone, Copy, Debug)]
pub struct Retired {
    /// Name of the field, of the field of a request and of the keyword in Python.
    pub name: &'static str,
    /// The stage that had it.
    pub stage: Stage,
    /// What holds now.
    why: &'static str,
    /// What to do, up to the name of the parameter for it.
    remedy: &'static str,
    /// The parameter that replaces it.
    pub instead: &'static str,
}

/// Every retired parameter.
pub static RETIRED: &[Retired] = &[Retired {
    name: "code_kind",
    stage: Stage::Build,
    why: "every kind builds codes of bits after a rotation, which need no training",
    remedy: "choose their size by",
    instead: "code_bytes",
}];

/// The error for a retired parameter of these stages, by any of its names; `None` for every other name.
pub fn retired(stages: &[Stage], name: &str, surface: Surface) -> Option<Wrong> {
    let plain = name.trim_start_matches('-').replace('-', "_");
    let old = RETIRED.iter().find(|old| old.name == plain && stages.contains(&old.stage))?;
    let shown = |name: &str| match surface {
        Surface::CommandLine => format!("--{}", name.replace('_', "-")),
        _ => name.to_string(),
    };
    let (name, instead) = (shown(old.name), shown(old.instead));
    Some(Wrong(format!("{name} is gone: {}; {} {instead}", old.why, old.remedy)))
}
