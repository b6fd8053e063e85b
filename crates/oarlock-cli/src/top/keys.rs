//! The keys, as a state machine.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::top::model::{Broken, Mode, Model};

/// What is to be done outside of the model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    /// Ask the store now.
    Refresh,
    /// End this hold.
    Break(Broken),
}

impl Model {
    pub(crate) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        match &self.mode {
            Mode::List => return self.press_in_list(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Open { from } => {
                let from = *from;
                return self.press_in_open(key.code, from);
            }
            Mode::Confirm(broken) => {
                let broken = broken.clone();
                self.mode = Mode::List;
                if key.code == KeyCode::Char('y') {
                    self.said = format!("asking {} to release {} …", broken.holder, broken.name);
                    return Action::Break(broken);
                }
                self.said = "nothing was done".to_owned();
            }
            Mode::Help => self.mode = Mode::List,
        }
        Action::Nothing
    }

    fn press_in_list(&mut self, key: KeyCode) -> Action {
        let page = self.page.max(1);
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.move_to(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.move_to(self.selected + 1),
            KeyCode::PageUp => self.move_to(self.selected.saturating_sub(page)),
            KeyCode::PageDown => self.move_to(self.selected + page),
            KeyCode::Home | KeyCode::Char('g') => self.move_to(0),
            KeyCode::End | KeyCode::Char('G') => self.move_to(usize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.rearrange();
            }
            KeyCode::Char('r') => {
                self.reverse = !self.reverse;
                self.rearrange();
            }
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => {
                self.filter.clear();
                self.rearrange();
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    return Action::Refresh;
                }
            }
            KeyCode::Enter if self.row().is_some() => self.mode = Mode::Open { from: 0 },
            KeyCode::Char('b') => self.confirm(),
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            _ => {}
        }
        Action::Nothing
    }

    /// Sorting and filtering keep the selected lock.
    fn rearrange(&mut self) {
        let selected = self.row().map(|row| row.name.clone());
        self.arrange(selected.as_deref());
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => return,
        }
        self.arrange(None);
        self.selected = 0;
    }

    fn press_in_open(&mut self, key: KeyCode, from: usize) -> Action {
        let page = self.page.max(1);
        let from = match key {
            KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => from + 1,
            KeyCode::PageUp => from.saturating_sub(page),
            KeyCode::PageDown => from + page,
            KeyCode::Char('b') => {
                self.confirm();
                return Action::Nothing;
            }
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Action::Nothing;
            }
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => {
                self.mode = Mode::List;
                return Action::Nothing;
            }
            _ => from,
        };
        self.mode = Mode::Open { from };
        Action::Nothing
    }

    fn confirm(&mut self) {
        let broken = self.row().and_then(|row| {
            let first = row.state.holders.first()?;
            let holder = oarlock_core::text::holder(&first.label);
            Some(Broken { name: row.state.name.to_string(), id: first.id, fence: first.fence, holder })
        });
        match broken {
            Some(broken) => self.mode = Mode::Confirm(broken),
            None => self.said = "this lock has no holder".to_owned(),
        }
    }
}
