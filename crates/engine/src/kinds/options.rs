//! The options of the kinds.

use stratann_params::{Given, Group, IndexKind, Value};

#[cfg(feature = "lab")]
pub use super::gpu_ivf::baseline::{Baseline, OpenBaselines};
use super::gpu_ivf::options as gpu_ivf;
pub use super::hybrid_ivf::learning::options::LearnOptions;
pub use super::hybrid_ivf::options::LocalPlan;
use crate::record::Recorded;

/// Makes the sums of options.
macro_rules! options {
    ($($variant:ident $room:ident,)*) => {
        /// Build options of the kind of an index.
        #[derive(Clone, Debug)]
        #[allow(clippy::large_enum_variant, reason = "a build has one")]
        pub enum KindOptions {
            $(#[doc = concat!("Of `", stringify!($room), "`.")] $variant(super::$room::options::Options),)*
        }

        impl KindOptions {
            /// The kind.
            pub fn kind(&self) -> IndexKind {
                match self { $(KindOptions::$variant(_) => IndexKind::$variant,)* }
            }

            /// The options of the kind, which are checked and recorded.
            pub(crate) fn own(&self) -> &dyn Recorded {
                match self { $(KindOptions::$variant(own) => own,)* }
            }

            /// The same, to choose what nobody gave.
            pub(crate) fn own_mut(&mut self) -> &mut dyn Recorded {
                match self { $(KindOptions::$variant(own) => own,)* }
            }
        }

        /// Build options of every kind, as a command line gives them before the kind is known.
        #[derive(Clone, Debug, Default)]
        pub struct OptionsByKind {
            $(#[doc = concat!("Of `", stringify!($room), "`.")] pub $room: super::$room::options::Options,)*
        }

        impl OptionsByKind {
            /// Reads what a user gave.
            pub fn read(given: &Given) -> OptionsByKind {
                OptionsByKind { $($room: given.read(),)* }
            }

            /// Those of one kind.
            pub fn of(self, kind: IndexKind) -> KindOptions {
                match kind { $(IndexKind::$variant => KindOptions::$variant(self.$room),)* }
            }
        }

        /// Techniques of a search that may be switched. Those of another kind than the index are ignored.
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub enum Switches {
            /// The defaults of every kind.
            #[default]
            Default,
            $(#[doc = concat!("Of `", stringify!($room), "`.")] $variant(super::$room::options::Switches),)*
        }

        impl Switches {
            /// Reads what a user gave for an index of this kind.
            pub fn read(given: &Given, kind: IndexKind) -> Switches {
                match kind { $(IndexKind::$variant => Switches::$variant(given.read()),)* }
            }

            /// The fields of a request that differ from their defaults.
            pub fn differing(&self) -> Vec<(&'static str, Value)> {
                match self {
                    Switches::Default => Vec::new(),
                    $(Switches::$variant(own) => own.differing(),)*
                }
            }
        }

        $(
            impl From<super::$room::options::Switches> for Switches {
                fn from(own: super::$room::options::Switches) -> Switches {
                    Switches::$variant(own)
                }
            }

            impl OfKind for super::$room::options::Switches {
                fn of(all: &Switches) -> Option<Self> {
                    if let Switches::$variant(own) = all { Some(*own) } else { None }
                }
            }
        )*
    };
}

with_kinds!(options);

/// The defaults of a kind.
impl From<IndexKind> for KindOptions {
    fn from(kind: IndexKind) -> KindOptions {
        OptionsByKind::default().of(kind)
    }
}

/// The switches of one kind.
pub trait OfKind: Default {
    /// Returns them; `None` where those of another kind, or the defaults, are set.
    fn of(all: &Switches) -> Option<Self>;
}

impl Switches {
    /// The families of recall curves among which a search takes the cheapest; `None` is the usual one.
    pub(crate) fn families(&self) -> Vec<Option<&'static str>> {
        gpu_ivf::families(&self.own())
    }

    /// The switches of one kind; its defaults where those of another are set.
    pub fn own<S: OfKind>(&self) -> S {
        S::of(self).unwrap_or_default()
    }
}
