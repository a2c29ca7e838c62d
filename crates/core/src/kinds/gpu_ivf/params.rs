//! The parameters of one query.

#[cfg(feature = "lab")]
use super::baseline::Compared;
use crate::codec::{Reader, Refused, Writer};

/// Most lists that a query can visit.
pub const MAX_PROBES: u32 = 65_536;
/// Most candidates that are kept for re-ranking.
pub const MAX_CANDIDATES: u32 = 65_536;
/// Most candidates of a mini-batch.
pub const MAX_BATCH: u32 = 1024;

/// The flags on the wire. Those of searches as other systems do them, and the numbers of their sources up to the
/// largest, are reserved where the feature `lab` is off.
const MERGE: u8 = 1;
const REUSE: u8 = 1 << 1;
const WHOLE_BLOCKS: u8 = 1 << 2;
pub(super) const BY_ROWS: u8 = 1 << 3;
pub(super) const COPIES: u8 = 1 << 4;
const EXACT: u8 = 1 << 5;
const SOURCE_MAX: u8 = 3;

/// Rules that end re-ranking before the last candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// Nothing: a fixed number of candidates is re-ranked.
    Static = 0,
    /// Mini-batches that change few of the results (FusionANNS §4.2, algorithm 1).
    Changes = 1,
    /// The code distance of the next candidate: it exceeds what is to be expected of a result by a margin. Errors of
    /// code distances grow with the root of the distance, and so does the margin: a share of the distance that is
    /// enough for far queries is too little for near ones.
    #[default]
    Margin = 2,
}

impl Rule {
    /// Every rule, in the order of its number.
    pub const ALL: [Rule; 3] = [Rule::Static, Rule::Changes, Rule::Margin];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Static => "static",
            Rule::Changes => "changes",
            Rule::Margin => "margin",
        }
    }

    /// The rule of this name.
    pub fn from_name(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// Lists whose members are candidates: m in FusionANNS.
    pub nprobe: u32,
    /// Candidates that may be re-ranked: n in FusionANNS.
    pub candidates: u32,
    /// Candidates of a mini-batch.
    pub batch: u32,
    /// Rule that ends re-ranking.
    pub rule: Rule,
    /// Share of the results that a mini-batch without effect changes at most (ε), of [`Rule::Changes`].
    pub epsilon: f32,
    /// Mini-batches without effect in a row that end re-ranking (β), of [`Rule::Changes`].
    pub beta: u32,
    /// Standard errors of a code distance by which that of the next candidate must exceed the distance to the k-th
    /// result, of [`Rule::Margin`]. With trained codes, the share of the expected code distance of that result.
    pub margin: f32,
    /// Whether candidates of a mini-batch share the read of a block.
    pub merge: bool,
    /// Whether candidates of later mini-batches are scored with the block that an earlier one reads.
    pub reuse: bool,
    /// Whether all vectors of a block that is read become results.
    pub whole_blocks: bool,
    /// Search of another system that is made instead.
    #[cfg(feature = "lab")]
    pub compared: Compared,
    /// Whether every vector is read and scored, whatever else is given.
    pub exact: bool,
}

impl Params {
    /// The defaults of everything else for `k` results from `nprobe` lists.
    pub fn new(k: u32, nprobe: u32) -> Params {
        Params {
            nprobe: nprobe.clamp(1, MAX_PROBES),
            candidates: (16 * k + 128).min(MAX_CANDIDATES),
            batch: 16,
            rule: Rule::Margin,
            epsilon: 0.0,
            beta: 1,
            margin: 3.0,
            merge: true,
            reuse: true,
            whole_blocks: true,
            #[cfg(feature = "lab")]
            compared: Compared::default(),
            exact: false,
        }
    }

    /// Whether every parameter is within its limit, for `k` results.
    pub fn is_valid(&self, k: u32) -> bool {
        (1..=MAX_PROBES).contains(&self.nprobe)
            && (k..=MAX_CANDIDATES).contains(&self.candidates)
            && (1..=MAX_BATCH).contains(&self.batch)
            && (0.0..=1.0).contains(&self.epsilon)
            && self.margin >= -1.0
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        [self.nprobe, self.candidates, self.batch, self.beta].into_iter().for_each(|x| w.u32(x));
        w.u32(self.epsilon.to_bits());
        w.u32(self.margin.to_bits());
        w.u8(self.rule as u8);
        #[cfg(feature = "lab")]
        let (source, compared) = self.compared.numbers();
        #[cfg(not(feature = "lab"))]
        let (source, compared) = (0, 0);
        w.u8(source);
        let flags = [
            (MERGE, self.merge),
            (REUSE, self.reuse),
            (WHOLE_BLOCKS, self.whole_blocks),
            (EXACT, self.exact),
        ];
        w.u8(flags.into_iter().fold(compared, |all, (bit, is_set)| if is_set { all | bit } else { all }));
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Params, Refused> {
        let [nprobe, candidates, batch, beta] = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
        let [epsilon, margin] = [f32::from_bits(r.u32()?), f32::from_bits(r.u32()?)];
        let rule = Rule::ALL.get(usize::from(r.u8()?)).copied().ok_or(Refused::Content)?;
        let (source, flags) = (r.u8()?, r.u8()?);
        if source > SOURCE_MAX || flags >= 64 {
            return Err(Refused::Content);
        }
        #[cfg(feature = "lab")]
        let compared = Compared::from_numbers(source, flags).ok_or(Refused::Content)?;
        #[cfg(not(feature = "lab"))]
        if source != 0 || flags & (BY_ROWS | COPIES) != 0 {
            return Err(Refused::Laboratory);
        }
        let is_set = |bit: u8| flags & bit != 0;
        Ok(Params {
            nprobe,
            candidates,
            batch,
            rule,
            epsilon,
            beta,
            margin,
            merge: is_set(MERGE),
            reuse: is_set(REUSE),
            whole_blocks: is_set(WHOLE_BLOCKS),
            #[cfg(feature = "lab")]
            compared,
            exact: is_set(EXACT),
        })
    }
}
