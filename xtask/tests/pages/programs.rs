//! The programs of pages that are not in Rust: each is a part of a file that is built, or a test runs it.

use std::process::{Command, Stdio};

use super::super::{blocks, pages, read};

/// What is in these languages is no program, or another test reads it.
const OTHERS: [&str; 8] = ["console", "json", "nginx", "sh", "text", "toml", "yaml", ""];

/// Without comments, which are translated in the Chinese pages, and without empty lines.
fn code<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    lines.map(|line| line.split("//").next().unwrap_or_default().trim()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn in_other_languages_are_built_or_run() {
    let mut found = 0;
    for (page, text) in pages() {
        for (before, language, lines) in blocks(&text) {
            if language.starts_with("rust") || OTHERS.contains(&&*language) {
                continue;
            }
            found += 1;
            let what = format!("{}: the program that begins with {:?}", page.display(), lines.first());
            let mark = before.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
            if let Some(file) = mark.and_then(|mark| mark.strip_prefix("from ")) {
                let (source, shown) = (read(file), code(lines.into_iter()));
                let is_there = code(source.lines()).windows(shown.len()).any(|part| part == shown);
                assert!(is_there && !shown.is_empty(), "{what} is not in {file}");
            } else if let Some(file) = mark.and_then(|mark| mark.strip_prefix("run by ")) {
                let name = page.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                assert!(read(file).contains(name), "{what}: {file} does not name the page");
            } else {
                panic!(
                    "{what}: no test builds or runs it; say which one does: <!-- from FILE --> or <!-- run by FILE -->"
                );
            }
        }
    }
    assert!(found > 15, "only {found} programs were found");
}

/// Whether a program accepts a text; nothing if the program is not installed. `interop` fails without the languages where
/// CI is set.
fn accepts(program: &str, arguments: &[&str], input: &str) -> Option<bool> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: {program}: {error}");
            return None;
        }
    };
    let mut pipe = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut pipe, input.as_bytes()).expect("it reads");
    drop(pipe);
    Some(child.wait().expect("it ends").success())
}

/// The C program of `docs/guide/migrate/flock.md`.
#[test]
fn in_c_compile() {
    let page = read("docs/guide/migrate/flock.md");
    let (_, _, lines) = blocks(&page).into_iter().find(|(_, language, _)| language == "c").expect("a program in C");
    let head = "#include <fcntl.h>\n#include <sys/file.h>\n#include <unistd.h>\nstatic void work(void) {}\n";
    let source = format!("{head}int main(void) {{\n{}\nreturn 0;\n}}\n", lines.join("\n"));
    let compiler = ["-x", "c", "-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", "-"];
    assert_ne!(accepts("cc", &compiler, &source), Some(false), "{source}");
    let wrong = source.replace("LOCK_EX", "LOCK_EXCLUSIVE");
    assert_ne!(accepts("cc", &compiler, &wrong), Some(true), "a wrong name is not noticed");
}

/// The program of `docs/guide/migrate/redlock.md`. The libraries of Java and Go are there when `interop` builds theirs.
#[test]
fn in_javascript_can_be_read() {
    let source = read("interop/node/before.mjs");
    let node = ["--input-type=module", "--check", "-"];
    assert_ne!(accepts("node", &node, &source), Some(false), "{source}");
    let wrong = source.replace("finally", "at last");
    assert_ne!(accepts("node", &node, &wrong), Some(true), "a wrong word is not noticed");
}
