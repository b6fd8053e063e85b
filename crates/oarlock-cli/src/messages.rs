//! What we say to people, always on standard error: standard output belongs to the command, or to the answer.

use std::io::Write;

use serde_json::json;

use crate::output::Format;

/// How talkative to be, and in which form.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Messages {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    pub(crate) format: Format,
}

impl Messages {
    /// Something nice to know; not with `-q`.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            self.say("note", text);
        }
    }

    /// A step of the engine; only with `-v`.
    pub(crate) fn detail(self, text: &str) {
        if self.verbose {
            self.say("detail", text);
        }
    }

    /// Something went wrong, and we go on.
    pub(crate) fn warning(self, text: &str) {
        let text = if self.is_json() { text.to_owned() } else { format!("warning: {text}") };
        self.say("warning", &text);
    }

    /// The store did not hear that we are done. Where all has failed already that is no news.
    pub(crate) fn parting(self, error: &oarlock::Error, failed: bool) {
        if failed {
            self.detail(&error.to_string());
        } else {
            self.warning(&error.to_string());
        }
    }

    /// Why we end.
    pub(crate) fn error(self, text: &str) {
        self.say("error", text);
    }

    fn is_json(self) -> bool {
        matches!(self.format, Format::Json | Format::Jsonl)
    }

    fn say(self, level: &str, text: &str) {
        let line =
            if self.is_json() { json!({ "level": level, "message": text }).to_string() } else { text.to_owned() };
        // A closed standard error must not end us.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// `name` as one word of a shell command, for hints that can be copied.
pub(crate) fn shell_word(name: &str) -> String {
    let safe = |c: char| c.is_alphanumeric() || "/._-:@%+=,".contains(c);
    let plain = oarlock_core::text::plain(name);
    if !plain.is_empty() && plain.chars().all(safe) { plain } else { format!("'{}'", plain.replace('\'', r"'\''")) }
}
