//! Any text of 1 to 1024 bytes is a name, and different texts are different names.

use std::collections::BTreeSet;
use std::sync::Arc;

use oarlock_core::ResourceName;
use oarlock_core::claim::MAX_NAME_BYTES;

use super::cases;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, ensure};

cases!("names":
    different_names_are_different_locks,
    names_are_shown_as_written [Listing],
    long_names_differ_to_the_last_byte,
);

/// Names that stores with paths, patterns, case folding, escapes or separators may confuse. `s` makes them fresh.
fn hostile(s: &str) -> Vec<String> {
    let endings = [
        "foo",
        "Foo",
        "FOO",
        "foo/bar",
        "foo/",
        "/foo",
        "foo//bar",
        "foo.bar",
        "foo:bar",
        "foo bar",
        "foo ",
        " foo",
        "foo\tbar",
        "foo\nbar",
        "foo\0bar",
        "foo*",
        "foo?",
        "[foo]",
        "{foo}",
        "foo}",
        "foo%2Fbar",
        "foo%",
        "foo_",
        "..",
        "../foo",
        "foo/../bar",
        "foo\\bar",
        "'foo'",
        "\"foo\"",
        "foo'; --",
        "$foo",
        "`foo`",
        "foo\u{e9}",
        "foo\u{65}\u{301}",
        "\u{202e}foo",
        "\u{30ad}\u{30fc}",
        "\u{1f512}",
        "lock-0000000001",
        "__READ__",
        "foo-lease",
        "foo/lease",
        "foo:fence",
        "foo/waiters",
        "foo,bar",
        "foo|bar",
        "foo#1",
        "foo@host",
        "&foo=",
        "~foo",
        "-foo",
    ];
    endings.iter().map(|name| format!("{s}{name}")).chain([s.to_owned(), format!("{s}{s}")]).collect()
}

async fn different_names_are_different_locks(context: Arc<TestContext>) -> Outcome {
    let (one, two) = (context.peer().await?, context.peer().await?);
    let names = hostile(context.name()?.as_str());
    let mut guards = Vec::new();
    for name in &names {
        let guard = one.mutex(name).try_lock().await?;
        guards.push(guard.ok_or_else(|| Failure::new(format!("{name:?} is taken already: by another name?")))?);
    }
    for name in &names {
        ensure!(two.mutex(name).try_lock().await?.is_none(), "{name:?} was given twice");
    }
    for (guard, name) in guards.into_iter().zip(&names) {
        guard.release().await?;
        let guard = two.mutex(name).try_lock().await?;
        ensure!(guard.is_some(), "{name:?} was released and is not free");
    }
    Ok(())
}

async fn names_are_shown_as_written(context: Arc<TestContext>) -> Outcome {
    let (one, two) = (context.peer().await?, context.peer().await?);
    let salt = context.name()?;
    let names: BTreeSet<String> = hostile(salt.as_str()).into_iter().collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(one.mutex(name).lock().await?);
    }
    let listed = two.list().await?;
    let seen: BTreeSet<String> = listed
        .iter()
        .map(|state| state.name.as_str().to_owned())
        .filter(|name| name.starts_with(salt.as_str()))
        .collect();
    let missing: Vec<_> = names.difference(&seen).collect();
    ensure!(missing.is_empty(), "not listed: {missing:?}");
    let strange: Vec<_> = seen.difference(&names).collect();
    ensure!(strange.is_empty(), "listed, but it has no holder: {strange:?}");
    let sorted = listed.iter().map(|state| &state.name).is_sorted();
    ensure!(sorted, "names are not listed in order");
    for name in &names {
        let state = two.inspect(&ResourceName::new(name)?).await?;
        ensure!(state.name.as_str() == name && state.holders.len() == 1, "{name:?} is shown as {state:?}");
    }
    Ok(())
}

async fn long_names_differ_to_the_last_byte(context: Arc<TestContext>) -> Outcome {
    let (one, two, salt) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut long = salt.as_str().to_owned();
    while long.len() < MAX_NAME_BYTES - 1 {
        long.push('x');
    }
    let (a, b) = (format!("{long}a"), format!("{long}b"));
    let guard = one.mutex(&a).lock().await?;
    let other = two.mutex(&b).try_lock().await?;
    ensure!(other.is_some(), "names that differ in their last byte are one lock");
    ensure!(two.mutex(&a).try_lock().await?.is_none(), "a name of {MAX_NAME_BYTES} bytes was given twice");
    ensure!(two.mutex(&long).try_lock().await?.is_some(), "a prefix of a held name is taken");
    guard.release().await?;
    Ok(())
}
