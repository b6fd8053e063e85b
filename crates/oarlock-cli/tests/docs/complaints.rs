//! `docs/complaints.md` and the tests, or the parts of tests, that it names.

use std::path::Path;

/// The lines of documentation right before a function.
fn comment(source: &str, function: &str) -> Option<String> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| line.contains(&format!("fn {function}(")))?;
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#["));
    Some(above.copied().collect())
}

#[test]
fn every_complaint_has_a_test_that_names_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/complaints.md")).unwrap();
    let rows: Vec<Vec<_>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && line.ends_with("` |"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 25, "the table is gone: {rows:?}");
    for row in rows {
        let [complaint, reports, _, test] = row[..] else { panic!("{row:?}") };
        let (file, function) = test.trim_matches('`').split_once("::").unwrap_or_else(|| panic!("{row:?}"));
        let source = std::fs::read_to_string(root.join(format!("tests/cli/{file}.rs"))).unwrap();
        let comment = comment(&source, function).unwrap_or_else(|| panic!("{complaint}: there is no test {test}"));
        for report in reports.split(", ") {
            let number = report.rsplit(' ').next().unwrap_or_default();
            let named = comment.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == number);
            assert!(named, "{complaint}: the comment of {test} does not name {report}: {comment}");
        }
    }
}
