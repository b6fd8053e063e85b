//! Where the store is named, and passwords that are not shown.

use super::support::{TestContext, finish};

const CANARY: &str = "c4n4ry";

#[test]
fn the_flag_goes_before_the_variable() {
    let context = TestContext::new();
    let apart = format!("{}-apart", context.url());
    let file = context.path("url");
    std::fs::write(&file, format!("{apart}\n")).unwrap();
    let _holder = context.hold(&["x"]);
    assert_eq!(context.code(&["run", "-n", "x", "--", "true"]), 75);
    assert_eq!(context.code(&["run", "-n", "-u", &apart, "x", "--", "true"]), 0);
    assert_eq!(context.code(&["run", "-n", "--url-file", &file, "x", "--", "true"]), 0);
    let prefixed = format!("{}?prefix=mine/", context.url());
    assert_eq!(context.code(&["run", "-n", "-u", &prefixed, "x", "--", "true"]), 0, "a name space of its own");
}

#[test]
fn explain_masks_the_password() {
    let context = TestContext::new();
    let url = format!("redis+sentinel://me:{CANARY}@h1:1,h2/main/3?ttl=5s");
    for form in ["table", "json", "jsonl", "name"] {
        let done = context.run(&["url", "explain", &url, "-o", form]);
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(!done.out.contains(CANARY) && done.out.contains("***"), "{done:?}");
        assert!(done.out.contains("h2:26379"), "{done:?}");
    }
    let done = context.run(&["url", "explain", &url, "-o", "json"]);
    let explained: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&explained["scheme"], &explained["driver"]), (&"redis+sentinel".into(), &"redis".into()));
    let own = context.run(&["url", "explain"]);
    assert!(own.out.contains(&context.url()), "{own:?}");
}

#[test]
fn explain_warns_of_one_server_where_several_could_be_asked() {
    let context = TestContext::new();
    for (url, warned) in [
        ("etcd://h1", true),
        ("zk://h1/team", true),
        ("redis+sentinel://h1/main", true),
        ("redis+cluster://h1", true),
        ("etcd://h1,h2,h3", false),
        ("redis://h1", false),
        ("postgres://h1/db", false),
    ] {
        let done = context.run(&["url", "explain", url, "-o", "json"]);
        let explained: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        let warnings = explained["warnings"].to_string();
        assert_eq!(warnings.contains("the only server named"), warned, "{url}: {warnings}");
    }
}

#[test]
fn explain_names_the_consistency_of_each_store() {
    let context = TestContext::new();
    for (url, consistency) in [
        ("etcd://h1", "consensus"),
        ("zk://h1/team", "consensus"),
        ("redlock://h1,h2,h3", "timing"),
        ("redis://h1", "one server"),
        ("redis+cluster://h1", "one server"),
        ("postgres://h1/db", "one durable server"),
        ("mysql://h1/db", "one durable server"),
        ("mariadb://h1/db", "one durable server"),
        ("local:", "one machine"),
    ] {
        let done = context.run(&["url", "explain", url]);
        let row = done.out.lines().find(|line| line.starts_with("consistency")).unwrap_or_else(|| panic!("{done:?}"));
        let told = row.trim_start_matches("consistency").trim_start();
        assert!(told.starts_with(consistency), "{url}: {told}");
    }
}

#[test]
fn explain_warns_of_several_databases_of_which_two_could_take_writes() {
    let context = TestContext::new();
    for (hosts, warned) in [("h1", false), ("h1,h2:7", true)] {
        for scheme in ["postgres", "mysql"] {
            let done = context.run(&["url", "explain", &format!("{scheme}://{hosts}/db"), "-o", "json"]);
            let explained: serde_json::Value = serde_json::from_str(&done.out).unwrap();
            let warnings = explained["warnings"].to_string();
            assert_eq!(warnings.contains("both grant the same lock"), warned, "{scheme} {hosts}: {warnings}");
        }
    }
}

#[test]
fn a_password_is_in_no_message() {
    let context = TestContext::new();
    let urls = [
        (format!("redis://me:{CANARY}@127.0.0.1:1"), 69),
        (format!("mysql://me:{CANARY}@127.0.0.1"), 78),
        (format!("mysql://me:{CANARY}@127.0.0.1:1/locks"), 69),
        (format!("redis://me:{CANARY}@h?tll=1"), 78),
        (format!("redis://me:{CANARY}@h:x"), 78),
    ];
    for (url, code) in urls {
        for args in [&["run", "-v", "-n", "x", "--", "true"][..], &["ls", "-v"], &["show", "x"]] {
            let mut command = context.bare(args);
            command.env("OARLOCK_URL", &url);
            let done = finish(command);
            assert_eq!(done.code, Some(code), "{done:?}");
            assert!(!format!("{done:?}").contains(CANARY), "{done:?}");
        }
    }
}

#[test]
fn explain_shows_where_it_is_and_what_it_promises() {
    let context = TestContext::new();
    let own = finish(context.bare(["url", "explain"])).out;
    assert!(own.contains(&context.path(".local/state/oarlock")), "the real path: {own}");
    assert!(own.contains("consistency") && own.contains("group"), "{own}");
    for (url, promise) in [("etcd://h", "consensus"), ("redlock://a,b,c", "timing"), ("postgres://h/db", "one durable")]
    {
        let done = context.run(&["url", "explain", url]).out;
        assert!(done.contains(promise), "{url}: {done}");
        assert!(!done.contains("transaction"), "always refused, and so no choice: {done}");
    }
}
