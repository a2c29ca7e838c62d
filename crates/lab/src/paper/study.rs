//! The folder of a study: commands of this program are run in it, and their documents are kept.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stratann_cli::output::Output;
use stratann_core::hash::checksum;
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, ErrorKind, Result, input};

use super::sets::{Set, text};

/// The folder, and the program whose commands measure.
pub(super) struct Study {
    folder: PathBuf,
    program: PathBuf,
    /// Tells builds of the program apart: documents of another one are measured again.
    identity: String,
    again: bool,
    output: Output,
    commands: Vec<String>,
    /// Commands that this process has run: no item runs them once more.
    ran: HashSet<String>,
}

/// A document of a command, as the folder has it.
#[derive(Serialize, Deserialize)]
struct Kept {
    program: String,
    command: String,
    document: Value,
}

impl Study {
    /// Opens a folder, which is made where it is missing.
    ///
    /// # Errors
    /// When the folder cannot be made, or this program's file is not found.
    pub(super) fn open(folder: &Path, again: bool, output: Output) -> Result<Study> {
        let runs = folder.join("runs");
        std::fs::create_dir_all(&runs).map_err(|e| Error::io("creating", &runs, &e))?;
        let program = std::env::current_exe()
            .map_err(|e| Error::io("finding the file of", Path::new("this program"), &e))?;
        let file = program.metadata().map_err(|e| Error::io("reading", &program, &e))?;
        let version = env!("CARGO_PKG_VERSION");
        let identity = format!("{version}, {} bytes, {}.{:09}", file.len(), file.mtime(), file.mtime_nsec());
        Ok(Study {
            folder: folder.into(),
            program,
            identity,
            again,
            output,
            commands: Vec::new(),
            ran: HashSet::new(),
        })
    }

    /// A file or a folder of the study.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// An index over the set's vectors, built with these options.
    ///
    /// # Errors
    /// When it cannot be built.
    pub(super) fn index(&mut self, set: &Set, name: &str, options: &[&str]) -> Result<String> {
        Ok(self.build(set, name, options)?.0)
    }

    /// As [`Study::index`], with the report of the build.
    ///
    /// # Errors
    /// As [`Study::index`].
    pub(super) fn build(&mut self, set: &Set, name: &str, options: &[&str]) -> Result<(String, Value)> {
        let folder = self.path(name);
        let path = text(&folder)?;
        let args = ["build", &set.base, "-o", &path, "--metric", set.metric, "--force"];
        let report = self.make(&[&args[..], options].concat(), Some(&folder))?;
        Ok((path, report))
    }

    /// The commands since the last call, as a user would type them.
    pub(super) fn take_commands(&mut self) -> Vec<String> {
        std::mem::take(&mut self.commands)
    }

    /// The document of a command, which is run where the folder does not have it.
    ///
    /// # Errors
    /// When the command fails. What it says of that is on stderr.
    pub(super) fn run(&mut self, args: &[&str]) -> Result<Value> {
        self.make(args, None)
    }

    /// As [`Study::run`], for a command that makes a file or a folder: it is run where that is missing, too.
    ///
    /// # Errors
    /// As [`Study::run`].
    pub(super) fn make(&mut self, args: &[&str], made: Option<&Path>) -> Result<Value> {
        let command = command_line(args);
        let kept = self.folder.join("runs").join(format!("{:016x}.json", checksum(command.as_bytes())));
        self.commands.push(command.clone());
        let is_there = made.is_none_or(Path::exists);
        if is_there
            && (self.ran.contains(&command) || !self.again)
            && let Some(document) = self.kept(&kept, &command)
        {
            return Ok(document);
        }
        self.output.note(&command);
        let document = self.ask(args, &command)?;
        self.ran.insert(command.clone());
        let known = Kept { program: self.identity.clone(), command, document };
        let text = serde_json::to_vec_pretty(&known).map_err(|e| Error::bad_input(e.to_string()))?;
        OutputPath::check(&kept, true, &[])?.write(&text)?;
        Ok(known.document)
    }

    /// The document that the folder has of this command and this program.
    fn kept(&self, path: &Path, command: &str) -> Option<Value> {
        let kept: Kept = serde_json::from_slice(&input::read(path).ok()?).ok()?;
        (kept.program == self.identity && kept.command == command).then_some(kept.document)
    }

    fn ask(&self, args: &[&str], command: &str) -> Result<Value> {
        let mut words: Vec<OsString> = args.iter().map(OsString::from).collect();
        words.push("--json".into());
        if self.output.quiet {
            words.push("--quiet".into());
        }
        let child = Command::new(&self.program)
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|e| Error::io("starting", &self.program, &e))?;
        check(child.status, command)?;
        serde_json::from_slice(&child.stdout)
            .map_err(|e| Error::corrupt(format!("`{command}` printed no JSON document: {e}")))
    }
}

/// A number of a document.
pub(super) fn number(document: &Value, pointer: &str) -> Option<f64> {
    document.pointer(pointer).and_then(Value::as_f64)
}

/// The first over the second.
pub(super) fn over(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.zip(b).map(|(a, b)| a / b)
}

/// A share as percent.
pub(super) fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| 100.0 * share)
}

/// An error unless the command ended well.
fn check(status: ExitStatus, command: &str) -> Result<()> {
    let kind = match status.code() {
        Some(0) => return Ok(()),
        Some(2) => ErrorKind::BadInput,
        Some(130) | None => ErrorKind::Interrupted,
        Some(_) => ErrorKind::Io,
    };
    let message = match status.code() {
        Some(code) => format!("`{command}` ended with exit code {code}; its message is above"),
        None => format!("`{command}` was stopped by a signal; run this command once more to go on"),
    };
    Err(Error { kind, message })
}

/// A command as a user would type it.
fn command_line(args: &[&str]) -> String {
    let quoted = |word: &&str| match word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./,=:+".contains(c))
    {
        true => (*word).to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let words: Vec<String> = args.iter().map(quoted).collect();
    format!("stratann-lab {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed() {
        assert_eq!(
            command_line(&["search", "a/b.idx", "--recall", "0.9"]),
            "stratann-lab search a/b.idx --recall 0.9"
        );
        assert_eq!(command_line(&["info", "it's here"]), "stratann-lab info 'it'\\''s here'");
    }
}
