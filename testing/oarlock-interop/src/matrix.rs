//! What came of it, as a table.

use std::collections::BTreeMap;
use std::fmt;

use crate::cases::Case;

/// What came of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// As it should be, with a figure where one was taken.
    Green(String),
    /// The client has no such thing: why.
    Absent(String),
    /// Not as it should be: why.
    Red(String),
}

/// One client in one version.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) client: String,
    pub(crate) version: String,
    pub(crate) store: String,
    pub(crate) cells: Vec<(Case, Cell)>,
    pub(crate) kinds: Vec<Kinds>,
    /// Under which circumstances both sides took fences from one counter, and what came of it.
    pub(crate) fences: Vec<(&'static str, Cell)>,
}

/// A kind of theirs and one of ours on the same name.
#[derive(Debug)]
pub(crate) struct Kinds {
    pub(crate) theirs: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) they_to_us: Cell,
    pub(crate) we_to_them: Cell,
}

impl Row {
    fn all(&self) -> impl Iterator<Item = &Cell> {
        let kinds = self.kinds.iter().flat_map(|kinds| [&kinds.they_to_us, &kinds.we_to_them]);
        let fences = self.fences.iter().map(|(_, cell)| cell);
        self.cells.iter().map(|(_, cell)| cell).chain(kinds).chain(fences)
    }

    /// For those who wait for the table.
    pub(crate) fn line(&self) -> String {
        let count = |is: fn(&Cell) -> bool| self.all().filter(|cell| is(cell)).count();
        let red = count(|cell| matches!(cell, Cell::Red(_)));
        let green = count(|cell| matches!(cell, Cell::Green(_)));
        let absent = self.all().count() - red - green;
        format!("{} {} on {}: {green} green, {absent} n/a, {red} red", self.client, self.version, self.store)
    }
}

/// All rows, in the order of the clients.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    rows: BTreeMap<usize, Row>,
}

impl Matrix {
    pub(crate) fn add(&mut self, place: usize, row: Row) {
        self.rows.insert(place, row);
    }

    pub(crate) fn is_green(&self) -> bool {
        !self.rows.values().flat_map(Row::all).any(|cell| matches!(cell, Cell::Red(_)))
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut notes = Notes::default();
        let words = |words: [&str; 3]| words.map(str::to_owned).to_vec();
        let mut table = vec![words(["client", "version", "store"])];
        table[0].extend(Case::ALL.iter().map(|case| case.head().to_owned()));
        let mut kinds = vec![words(["client", "version", "their kind"])];
        kinds[0].extend(words(["our kind", "they → us", "we → them"]));
        let mut fences = vec![words(["client", "version", "store"])];
        fences[0].extend(["who begins", "fences"].map(str::to_owned));
        for row in self.rows.values() {
            let mut line = words([&row.client, &row.version, &row.store]);
            for case in Case::ALL {
                let cell = row.cells.iter().find(|(of, _)| of == case);
                line.push(cell.map_or_else(|| "-".to_owned(), |(_, cell)| notes.shown(cell)));
            }
            table.push(line);
            for pair in &row.kinds {
                let mut line = words([&row.client, &row.version, pair.theirs]);
                line.extend([pair.ours.to_owned(), notes.shown(&pair.they_to_us), notes.shown(&pair.we_to_them)]);
                kinds.push(line);
            }
            for (who, cell) in &row.fences {
                let mut line = words([&row.client, &row.version, &row.store]);
                line.extend([(*who).to_owned(), notes.shown(cell)]);
                fences.push(line);
            }
        }
        write!(f, "{}", aligned(&table))?;
        for more in [kinds, fences].iter().filter(|table| table.len() > 1) {
            write!(f, "\n{}", aligned(more))?;
        }
        for (place, why) in notes.0.iter().enumerate() {
            write!(f, "{}({}) {why}", if place == 0 { "\n" } else { "  \n" }, place + 1)?;
        }
        writeln!(f)
    }
}

/// What is said beneath a table, once each.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn shown(&mut self, cell: &Cell) -> String {
        match cell {
            Cell::Green(figure) if figure.is_empty() => "ok".to_owned(),
            Cell::Green(figure) => figure.clone(),
            Cell::Absent(why) => format!("n/a ({})", self.number(why)),
            Cell::Red(why) => format!("**RED** ({})", self.number(why)),
        }
    }

    fn number(&mut self, why: &str) -> usize {
        let place = self.0.iter().position(|note| note == why);
        1 + place.unwrap_or_else(|| {
            self.0.push(why.to_owned());
            self.0.len() - 1
        })
    }
}

/// A Markdown table that can be read as it is.
pub(crate) fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |column: usize| table.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| wide(column).unwrap_or(0)).collect();
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = String::new();
    for (place, row) in table.iter().enumerate() {
        text.push_str(&line(row));
        if place == 0 {
            text.push_str(&line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(cells: Vec<(Case, Cell)>) -> Matrix {
        let mut matrix = Matrix::default();
        let [client, version, store] = ["redis-py", "8", "redis"].map(str::to_owned);
        matrix.add(0, Row { client, version, store, cells, kinds: Vec::new(), fences: Vec::new() });
        matrix
    }

    #[test]
    fn what_a_client_does_not_have_is_neither_green_nor_red() {
        let matrix = matrix(vec![
            (Case::WeWait, Cell::Green("1.0 ms".to_owned())),
            (Case::TheyEnterAgain, Cell::Absent("it is not re-entrant".to_owned())),
        ]);
        let text = matrix.to_string();
        assert!(matrix.is_green());
        assert!(text.contains("n/a (1)") && text.contains("(1) it is not re-entrant"), "{text}");
        assert!(text.contains("| 1.0 ms"), "{text}");
    }

    #[test]
    fn one_red_cell_spoils_it() {
        let matrix = matrix(vec![(Case::WeWait, Cell::Red("two at once".to_owned()))]);
        assert!(!matrix.is_green());
        assert!(matrix.to_string().contains("**RED** (1)"));
    }
}
