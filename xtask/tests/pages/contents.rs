//! The table of contents, `docs/SUMMARY.md`: it has every page once. `OARLOCK_WRITE_DOCS=1` adds the pages it lacks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::super::{links, pages, read, resolve, root};

const CONTENTS: &str = "docs/SUMMARY.md";

/// The pages that it lists, by their path in the repository. A group without a page of its own has no target.
fn listed(contents: &str) -> Vec<PathBuf> {
    let targets = links(contents).into_iter().filter(|link| !link.is_empty());
    targets.map(|link| resolve(Path::new(CONTENTS), &link)).collect()
}

/// The table with one page more: behind the last page of its folder, or at the end, by its title.
fn with_page(contents: &str, page: &Path, text: &str) -> String {
    let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Untitled");
    let link = page.strip_prefix("docs").unwrap_or(page).display();
    let is_beside = |line: &&str| listed(line).first().is_some_and(|other| other.parent() == page.parent());
    let mut lines: Vec<_> = contents.lines().collect();
    let last = lines.iter().rposition(is_beside).unwrap_or(lines.len().saturating_sub(1));
    let indent = lines[last].len() - lines[last].trim_start().len();
    let entry = format!("{:indent$}- [{title}]({link})", "");
    lines.insert(last + 1, &entry);
    lines.join("\n") + "\n"
}

#[test]
fn the_book_has_every_page_once() {
    let mut contents = read(CONTENTS);
    let pages: Vec<_> = pages().into_iter().filter(|(page, _)| page.starts_with("docs")).collect();
    if std::env::var_os("OARLOCK_WRITE_DOCS").is_some() {
        let is_new = |page: &Path| page != Path::new(CONTENTS) && !listed(&contents).contains(&page.to_owned());
        let new: Vec<_> = pages.iter().filter(|(page, _)| is_new(page)).collect();
        for (page, text) in new {
            contents = with_page(&contents, page, text);
        }
        std::fs::write(root().join(CONTENTS), &contents).expect("the table of contents can be written");
    }
    let listed = listed(&contents);
    let mut once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "{CONTENTS} lists a page twice");
    once.insert(CONTENTS.into());
    let pages: BTreeSet<_> = pages.into_iter().map(|(page, _)| page).collect();
    let missing: Vec<_> = pages.symmetric_difference(&once).collect();
    assert!(missing.is_empty(), "in docs/ or in {CONTENTS}, but not in both (OARLOCK_WRITE_DOCS=1 adds): {missing:?}");
    assert!(read("docs/book.toml").contains("src = \".\""), "the book is made of docs/ itself");
}

#[test]
fn a_page_is_added_behind_the_last_one_of_its_folder() {
    let contents = "# Summary\n\n- [One](a/one.md)\n  - [Two](a/b/two.md)\n\n# Rest\n\n- [Three](three.md)\n";
    let with = |page: &str| with_page(contents, Path::new(page), "\n# A title\n## Another\n");
    assert_eq!(with("docs/a/new.md"), contents.replace("one.md)\n", "one.md)\n- [A title](a/new.md)\n"));
    assert_eq!(with("docs/a/b/new.md"), contents.replace("two.md)\n", "two.md)\n  - [A title](a/b/new.md)\n"));
    assert_eq!(with("docs/c/new.md"), format!("{contents}- [A title](c/new.md)\n"));
}
