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
}

impl Row {
    /// For those who wait for the table.
    pub(crate) fn line(&self) -> String {
        let count = |is: fn(&Cell) -> bool| self.cells.iter().filter(|(_, cell)| is(cell)).count();
        let red = count(|cell| matches!(cell, Cell::Red(_)));
        let green = count(|cell| matches!(cell, Cell::Green(_)));
        let absent = self.cells.len() - red - green;
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
        !self.rows.values().flat_map(|row| &row.cells).any(|(_, cell)| matches!(cell, Cell::Red(_)))
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut notes: Vec<String> = Vec::new();
        let mut note = |why: &str| {
            let place = notes.iter().position(|note| note == why).unwrap_or_else(|| {
                notes.push(why.to_owned());
                notes.len() - 1
            });
            place + 1
        };
        let head = ["client", "version", "store"].map(str::to_owned);
        let mut table: Vec<Vec<String>> =
            vec![head.into_iter().chain(Case::ALL.iter().map(|case| case.head().to_owned())).collect()];
        for row in self.rows.values() {
            let mut line = vec![row.client.clone(), row.version.clone(), row.store.clone()];
            for case in Case::ALL {
                let cell = row.cells.iter().find(|(of, _)| of == case).map(|(_, cell)| cell);
                line.push(match cell {
                    None => "-".to_owned(),
                    Some(Cell::Green(figure)) if figure.is_empty() => "ok".to_owned(),
                    Some(Cell::Green(figure)) => figure.clone(),
                    Some(Cell::Absent(why)) => format!("n/a ({})", note(why)),
                    Some(Cell::Red(why)) => format!("**RED** ({})", note(why)),
                });
            }
            table.push(line);
        }
        write!(f, "{}", aligned(&table))?;
        for (place, why) in notes.iter().enumerate() {
            write!(f, "{}({}) {why}", if place == 0 { "\n" } else { "  \n" }, place + 1)?;
        }
        writeln!(f)
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
        matrix.add(0, Row { client, version, store, cells });
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
