//! A name can be any text: it never reaches the file system as written, and never has the file of another name.

use std::collections::BTreeSet;

use oarlock_core::driver::Driver as _;
use oarlock_core::state::Query;

use crate::{claim, granted, open, pending, temp};

#[tokio::test]
async fn hostile_names_are_names_like_any_other() {
    let dir = temp();
    let store = open(&dir.path().join("store")).await;
    let long = "n".repeat(1024);
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "a\n",
        "a\0",
        "\0",
        ".",
        "..",
        "../..",
        "/",
        "/etc/passwd",
        "a/b",
        "a//b",
        "%2f",
        "-rf",
        "ä",
        "a\u{308}",
        "Ä",
        "ß",
        "SS",
        "名前",
        "\u{202e}x",
        "\u{feff}",
        "swept",
        "00",
        &long,
        &long[1..],
    ];
    for name in names {
        granted(&store, &claim(name)).await;
    }
    for name in names {
        pending(&store, &claim(name)).await;
    }
    let mut query = Query::live();
    query.limit = 10;
    let mut listed = Vec::new();
    loop {
        let page = store.inspect(&query).await.unwrap();
        listed.extend(page.resources.iter().map(|state| state.name.as_str().to_owned()));
        if !page.more {
            break;
        }
        query.after = page.resources.last().map(|state| state.name.clone());
    }
    let expected: BTreeSet<_> = names.into_iter().map(str::to_owned).collect();
    assert_eq!(listed, expected.into_iter().collect::<Vec<_>>());
    let beside: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside, ["store"]);
}
