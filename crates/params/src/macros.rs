//! The two macros of the table. They write what one would write by hand: a struct and a list, an enum and its names.

/// Declares one group of parameters: a struct of options, and the rows that surfaces walk.
///
/// ```text
/// params! {
///     /// Build options of a `disk-graph`                  heading of the group
///     #[derive(Copy)]                                      more derives, or nothing: #[derive()]
///     pub struct GraphOptions: Build of [DiskGraph] {      its stage, and the kinds that have it
///         /// Most neighbours of a node                    help; a paragraph after an empty line is the long help
///         degree: usize = 64, { shown: "R", range: 4.0..=250.0 };
///     }                                                    braces: facts of `Param` that differ from the usual ones
///     shorthands {
///         /// Rank lists by their centroids alone          another name on the command line for a value, or some
///         no_reorder: [("order", Fixed::Name("centroid"))];
///     }
/// }
/// ```
macro_rules! params {
    (
        $(#[doc = $about:literal])+
        #[derive($($derive:ident),*)]
        pub struct $group:ident: $stage:ident of [$($kind:ident),*] {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $type:ty = $default:expr
                $(, { $($fact:ident: $value:expr),+ $(,)? })?;
            )*
        }
        $(shorthands {
            $(
                $(#[doc = $short_help:literal])+
                $short:ident: $sets:expr;
            )*
        })?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, $($derive),*)]
        pub struct $group {
            $($(#[doc = $help])+ pub $name: $type,)*
        }

        impl Default for $group {
            fn default() -> $group {
                $group { $($name: $default,)* }
            }
        }

        #[allow(non_upper_case_globals, reason = "a key is the name of its field")]
        impl $crate::Key<$group> {
            $(#[doc = concat!("`", stringify!($name), "`")]
            pub const $name: &'static str = stringify!($name);)*
        }

        impl $crate::Group for $group {
            const NAME: &'static str = stringify!($group);
            const ABOUT: &'static str = concat!($($about, "\n"),+);
            const STAGE: $crate::Stage = $crate::Stage::$stage;
            const KINDS: &'static [$crate::IndexKind] = &[$($crate::IndexKind::$kind),*];
            const PARAMS: &'static [$crate::Param] = &[$(
                $crate::Param {
                    $($($fact: $value,)+)?
                    ..$crate::Param::row::<$type>(stringify!($name), concat!($($help, "\n"),+))
                }
            ),*];
            const SHORTHANDS: &'static [$crate::Shorthand] = &[$($(
                $crate::Shorthand {
                    name: stringify!($short),
                    help: concat!($($short_help, "\n"),+),
                    sets: &$sets,
                }
            ),*)?];

            fn set(&mut self, name: &str, value: &$crate::Value) -> bool {
                match name {
                    $(stringify!($name) => $crate::Parameter::put(&mut self.$name, value),)*
                    _ => false,
                }
            }

            fn get(&self, name: &str) -> Option<$crate::Value> {
                match name {
                    $(stringify!($name) => $crate::Parameter::show(&self.$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// Declares the names that a parameter may have as its value, with a line of help for each.
macro_rules! choices {
    (
        $(#[doc = $about:literal])+
        pub enum $enum:ident {
            $($(#[doc = $help:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum {
            $($(#[doc = $help])+ $variant,)+
        }

        impl $enum {
            /// Every choice, in the order of the help.
            pub const ALL: [$enum; [$($name),+].len()] = [$($enum::$variant),+];
            /// Names and help of the choices.
            pub const CHOICES: &'static [$crate::Choice] =
                &[$($crate::Choice { name: $name, help: concat!($($help, "\n"),+) }),+];

            /// The name on every surface.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)+
                }
            }

            /// The choice of this name.
            pub fn parse(name: &str) -> Option<$enum> {
                $enum::ALL.into_iter().find(|choice| choice.name() == name)
            }
        }

        impl $crate::Parameter for $enum {
            const TYPE: $crate::Type = $crate::Type::Choice($enum::CHOICES);

            fn read(value: &$crate::Value) -> Option<$enum> {
                match value {
                    $crate::Value::Text(name) => $enum::parse(name),
                    _ => None,
                }
            }

            fn show(&self) -> Option<$crate::Value> {
                Some($crate::Value::Text(self.name().into()))
            }
        }
    };
}
