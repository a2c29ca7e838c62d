//! Names that are read from outside and become names of files and folders. Each is checked where it is read: none leads
//! out of its folder.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::path::Path;

use serde::{Deserialize, Serialize, Serializer};

/// The id of a build: the hash of its content, 16 hexadecimal digits in text. It names folders of stores and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct BuildId(u64);

impl BuildId {
    /// The id of content with this hash.
    pub fn of(hash: u64) -> BuildId {
        BuildId(hash)
    }

    /// Reads an id, as it is written.
    pub fn parse(text: &str) -> Option<BuildId> {
        let id = BuildId(u64::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for BuildId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl TryFrom<String> for BuildId {
    type Error = String;

    fn try_from(text: String) -> Result<BuildId, String> {
        BuildId::parse(&text)
            .ok_or_else(|| format!("{text:?} is no id of a build, which has 16 hexadecimal digits"))
    }
}

/// The name of a data file, such as `v1-blocks.bin`: a version, and a role of small letters, digits and dashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct FileName(String);

impl FileName {
    /// The name of a role's file in a version.
    pub fn of(version: u64, role: &str) -> FileName {
        FileName(format!("v{version}-{role}"))
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Option<FileName> {
        let (version, role) = text.strip_prefix('v')?.split_once('-')?;
        let stem = role.strip_suffix(".bin")?;
        let is_version = version.parse::<u64>().is_ok_and(|number| number.to_string() == version);
        let is_stem = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (is_version && !stem.is_empty() && stem.bytes().all(is_stem)).then(|| FileName(text.into()))
    }
}

impl TryFrom<String> for FileName {
    type Error = String;

    fn try_from(text: String) -> Result<FileName, String> {
        FileName::parse(&text)
            .ok_or_else(|| format!("{text:?} is no name of a data file, such as v1-blocks.bin"))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for FileName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for FileName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<Path> for FileName {
    fn as_ref(&self) -> &Path {
        self.0.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_sixteen_digits() {
        let id = BuildId::parse("0123456789abcdef").unwrap();
        assert_eq!(id.to_string(), "0123456789abcdef");
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"0123456789abcdef\"");
        for text in [
            "",
            "0",
            "0123456789abcde",
            "0123456789ABCDEF",
            "+123456789abcdef",
            "../../../../../xx",
            "/tmp/1",
        ] {
            assert_eq!(BuildId::parse(text), None, "{text}");
            assert!(serde_json::from_value::<BuildId>(text.into()).is_err());
        }
    }

    #[test]
    fn names_of_files_are_no_paths() {
        for text in ["v1-blocks.bin", "v12-blocks-07.bin", "v3-head-codes.bin"] {
            assert_eq!(&*FileName::parse(text).unwrap(), text);
        }
        let bad = [
            "",
            "v1-.bin",
            "v1-blocks",
            "v01-blocks.bin",
            "1-blocks.bin",
            "v1-../blocks.bin",
            "../v1-blocks.bin",
        ];
        for text in bad.into_iter().chain([
            "/v1-blocks.bin",
            "v1-a/b.bin",
            "v1-a\\b.bin",
            "v1-\u{1b}.bin",
            "v1-..bin",
        ]) {
            assert_eq!(FileName::parse(text), None, "{text}");
        }
    }
}
