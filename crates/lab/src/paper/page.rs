//! The page of the book that has the tables of a paper.

use std::path::{Path, PathBuf};

use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result, input};

const END: &str = "<!-- /paper -->";

/// A page with the marks of a paper.
pub(super) struct Page {
    path: PathBuf,
    before: String,
    after: String,
}

impl Page {
    /// Reads a page.
    ///
    /// # Errors
    /// When it cannot be read, or has no marks.
    pub(super) fn open(path: &Path, paper: &str) -> Result<Page> {
        let text = input::read_text(path)?;
        let mark = format!("<!-- paper:{paper} -->\n");
        let parts = text.split_once(&mark).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
        let Some((before, (_, after))) = parts else {
            let path = path.display();
            return Err(Error::bad_input(format!(
                "{path} has no lines {} and {END}; write them where the tables belong",
                mark.trim_end()
            )));
        };
        Ok(Page { path: path.into(), before: format!("{before}{mark}"), after: format!("{END}{after}") })
    }

    /// Puts the tables between the marks.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub(super) fn write(&self, tables: &str) -> Result<()> {
        let text = format!("{}\n{}\n{}", self.before, tables.trim_end(), self.after);
        OutputPath::check(&self.path, true, &[])?.write(text.as_bytes())
    }
}

/// The command that is running, without folders: those of another machine are others.
pub(super) fn typed(words: impl Iterator<Item = String>) -> String {
    let name = |word: String| match Path::new(&word).file_name() {
        Some(name) if word.contains('/') => name.to_string_lossy().into_owned(),
        _ => word,
    };
    let mut words = words.map(name).peekable();
    let mut out: Vec<String> = words.next().map(|_| "stratann-lab".to_string()).into_iter().collect();
    while let Some(word) = words.next() {
        match word.as_str() {
            // What says where, and not what.
            "-o" | "--output" | "--page" => drop(words.next()),
            "-q" | "--quiet" | "--json" | "--again" => {}
            _ if word.contains(' ') => out.push(format!("\"{word}\"")),
            _ => out.push(word),
        }
    }
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stand_between_the_marks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.md");
        std::fs::write(&path, "# A\n<!-- paper:a -->\nold\n<!-- /paper -->\nend\n").unwrap();
        assert!(Page::open(&path, "b").is_err());
        for tables in ["first\n", "second"] {
            Page::open(&path, "a").unwrap().write(tables).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "# A\n<!-- paper:a -->\n\nsecond\n<!-- /paper -->\nend\n");
    }

    #[test]
    fn a_command_has_no_folders() {
        let words =
            "/a/b/lab paper batann -o /tmp/x --base /data/base.u8bin -q --page y.md --only".split(' ');
        let words = words.map(String::from).chain(["figure 3,table 1".to_string()]);
        assert_eq!(typed(words), "stratann-lab paper batann --base base.u8bin --only \"figure 3,table 1\"");
    }
}
