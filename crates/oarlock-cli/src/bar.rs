//! How far a long command is: a line or a few for people, who look at a terminal. It is removed when dropped.

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::messages::Messages;
use crate::output::Format;
use crate::signals;

pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    pub(crate) fn new(messages: Messages, length: u64, template: &str) -> Self {
        if messages.quiet || messages.format != Format::Table || !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        signals::unheard(|| bar.enable_steady_tick(Duration::from_millis(200)));
        Self(Some(bar))
    }

    /// Whether there is a terminal that shows it.
    pub(crate) fn is_seen(&self) -> bool {
        self.0.as_ref().is_some_and(|bar| !bar.is_hidden())
    }

    /// One step more.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }

    pub(crate) fn position(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }

    pub(crate) fn message(&self, message: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.0 {
            bar.set_message(message);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
