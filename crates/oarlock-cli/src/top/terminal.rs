//! The terminal: taken over, and given back however we end.

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{Event, KeyEvent, KeyEventKind, poll, read};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

/// What the terminal tells.
#[derive(Debug)]
pub(crate) enum Told {
    Key(KeyEvent),
    Resized,
    /// It is gone.
    Ended,
}

/// The screen while it is ours. Dropping it gives the terminal back; so does a panic.
pub(crate) struct Screen {
    pub(crate) terminal: Terminal<CrosstermBackend<io::Stdout>>,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        enable_raw_mode()?;
        let taken = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back; a terminal that is gone needs nothing.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
    let _ = io::stdout().flush();
}

/// Reads keys on a thread, until `stop` is dropped.
pub(crate) fn listen(told: mpsc::UnboundedSender<Told>, stop: Receiver<()>) {
    std::thread::spawn(move || {
        while stop.try_recv() == Err(TryRecvError::Empty) {
            let next = match poll(Duration::from_millis(100)) {
                Ok(false) => continue,
                Ok(true) => read(),
                Err(error) => Err(error),
            };
            let next = match next {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Told::Key(key),
                Ok(Event::Resize(..)) => Told::Resized,
                Ok(_) => continue,
                Err(_) => Told::Ended,
            };
            let ended = matches!(next, Told::Ended);
            if told.send(next).is_err() || ended {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use rustix::pty::OpenptFlags;
    use rustix::termios::{LocalModes, tcgetattr};

    use super::Screen;

    /// Run by the test below, on a terminal.
    #[test]
    #[ignore = "it panics, on purpose and on a terminal"]
    fn a_panic_with_the_screen() {
        let _screen = Screen::take().unwrap();
        panic!("the reason is readable");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "top::terminal::tests::a_panic_with_the_screen", "--nocapture"])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        // What it writes is less than a terminal holds.
        assert!(!child.wait().unwrap().success());
        let modes = tcgetattr(&slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "the terminal is still raw: {modes:?}");
        drop(slave);
        let mut written = Vec::new();
        // The other end is closed: that is an error here.
        let _ = File::from(master).read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let taken = written.find("\x1b[?1049h").expect("it was not taken");
        let given_back = written.find("\x1b[?1049l").expect("it was not given back");
        let told = written.find("the reason is readable").expect("the panic was not told");
        assert!(taken < given_back && given_back < told, "{written:?}");
    }
}
