//! What a server says, in a file that outlives it when a test fails.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempPath;

/// How many lines are shown.
const LINES_SHOWN: usize = 20;

/// The message of the C library, Go and Java for a port in use, without regard to case.
const PORT_IS_TAKEN: &str = "address already in use";

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    // Removes the file when dropped.
    _file: TempPath,
}

impl Log {
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let file =
            tempfile::Builder::new().prefix(&format!("oarlock-{name}-")).suffix(".log").tempfile()?.into_temp_path();
        Ok(Self { path: file.to_path_buf(), _file: file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets `command` write to the end of it, and read nothing.
    pub(super) fn attach(&self, command: &mut Command) -> io::Result<()> {
        let file: File = OpenOptions::new().append(true).open(&self.path)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(())
    }

    pub(super) fn says_port_is_taken(&self) -> bool {
        self.text().to_lowercase().contains(PORT_IS_TAKEN)
    }

    /// Keeps a copy for good, and says where, with its last lines.
    pub(super) fn keep(&self) -> String {
        let kept = self.path.with_extension("kept.log");
        let place = match fs::copy(&self.path, &kept) {
            Ok(_) => format!("its log is {}", kept.display()),
            Err(error) => format!("its log cannot be kept: {error}"),
        };
        format!("{place}, and ends so:\n{}", last_lines(&self.text()))
    }

    fn text(&self) -> String {
        fs::read(&self.path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let first = lines.len().saturating_sub(LINES_SHOWN);
    lines[first..].iter().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_log_outlives_the_server() {
        let log = Log::create("test").expect("a log");
        let mut command = Command::new("sh");
        command.args(["-c", "seq 30; echo 'bind: Address already in use' >&2"]);
        log.attach(&mut command).expect("attached");
        assert!(command.status().expect("sh").success());
        assert!(log.says_port_is_taken());
        let text = log.keep();
        assert!(text.contains("    30\n") && !text.contains("    10\n"), "{text}");
        let path = log.path().to_owned();
        drop(log);
        assert!(!path.exists());
        let kept = path.with_extension("kept.log");
        assert!(fs::read_to_string(&kept).expect("kept").starts_with("1\n"));
        fs::remove_file(kept).expect("clean");
    }
}
