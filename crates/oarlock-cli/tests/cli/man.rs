//! Help, manual pages, completions and the table of `docs/cli.md` come from one definition.

use std::path::Path;

use super::support::{TestContext, finish, subcommands};

/// The page lists the subcommands as the help does. `OARLOCK_WRITE_DOCS=1` writes its table anew.
#[test]
fn the_page_lists_every_subcommand() {
    const BEGIN: &str =
        "<!-- subcommands: written by `OARLOCK_WRITE_DOCS=1 cargo test -p oarlock-cli --test cli man` -->\n";
    const END: &str = "<!-- end of subcommands -->\n";
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut table = String::from("| subcommand | what it does |\n|---|---|\n");
    for (name, about) in subcommands(&finish(TestContext::new().bare(["--help"])).out) {
        let is_page = docs.join(format!("{name}.md")).exists();
        let link = if is_page { format!("[`{name}`]({name}.md)") } else { format!("`{name}`") };
        table.push_str(&format!("| {link} | {} |\n", about.replace('|', "\\|")));
    }
    assert!(table.lines().count() > 15, "{table}");
    let old = std::fs::read_to_string(docs.join("cli.md")).unwrap();
    let (before, rest) = old.split_once(BEGIN).expect("the page has lost the mark of its table");
    let (_, after) = rest.split_once(END).expect("the page has lost the end of its table");
    let new = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("OARLOCK_WRITE_DOCS").is_some() {
        std::fs::write(docs.join("cli.md"), new).unwrap();
    } else {
        assert!(old == new, "docs/cli.md is not what the help says: run this test with OARLOCK_WRITE_DOCS=1");
    }
}

#[test]
fn every_subcommand_has_a_page() {
    let context = TestContext::new();
    let (help, main) = (context.run(&["--help"]).out, context.run(&["man"]));
    assert!(main.out.contains(".TH oarlock 1"), "{main:?}");
    let subcommands: Vec<_> = subcommands(&help).into_iter().map(|(name, _)| name).collect();
    let known = ["run", "elect", "watch", "man"];
    assert!(known.iter().all(|known| subcommands.iter().any(|name| name == known)), "{help}");
    for subcommand in subcommands.iter().map(String::as_str) {
        assert!(main.out.contains(subcommand), "{subcommand}");
        let page = context.run(&["man", subcommand]);
        assert_eq!(page.code, Some(0), "{subcommand}");
        assert!(page.out.contains(".SH SYNOPSIS"), "{page:?}");
        let examples = page.out.split(".SH EXAMPLES\n").nth(1).unwrap_or_default();
        assert!(examples.contains(&format!("oarlock {subcommand}")) || examples.contains("\\-p prod"), "{page:?}");
        // The common flags fit a screen.
        let mut short = context.bare([subcommand, "--help"]);
        short.env("COLUMNS", "100");
        let lines = finish(short).out.lines().count();
        assert!(lines <= 32, "{subcommand} --help has {lines} lines");
    }
}

#[test]
fn every_flag_of_run_is_on_its_page() {
    let context = TestContext::new();
    let help = context.run(&["help", "run"]).out;
    let page = context.run(&["man", "run"]).out.replace("\\-", "-");
    let flags = "--no-wait --wait --shared --exclusive --permits --take --ttl --no-renew --max-hold --min-hold --fair \
                 --spin --conflict-exit-code --on-busy --on-lost --lost-exit-code --kill-after --meta --reason \
                 --command --url --url-file --output --quiet --verbose --report";
    for flag in flags.split_whitespace() {
        assert!(help.contains(flag) && page.contains(flag), "{flag}");
    }
    for letter in "-n -w -s -x -j -t -E -k -m -c -u -o -q -v".split_whitespace() {
        assert!(help.contains(&format!("{letter}, --")), "{letter}");
    }
    assert!(!help.contains("__exec") && !help.contains("__keep"));
}

#[test]
fn every_shell_has_completions() {
    let context = TestContext::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = context.run(&["completions", shell]);
        assert_eq!(done.code, Some(0), "{shell}");
        assert!(done.out.contains("kill-after") && done.out.contains("flash-sale"), "{shell}");
    }
}

/// Names of locks in use are completed, on the store that the line names.
#[test]
fn live_names_are_completed() {
    let context = TestContext::new();
    let _holders = [context.hold(&["deploy/prod"]), context.hold(&["deploy/two words"]), context.hold(&["other"])];
    let complete = |line: &str| {
        let script = format!(
            "export PATH={}:$PATH; source <(oarlock completions bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
             COMP_WORDS=(${{COMP_LINE//:/ : }}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); \
             _oarlock_with_names oarlock \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            std::path::Path::new(env!("CARGO_BIN_EXE_oarlock")).parent().unwrap().display()
        );
        let mut shell = context.session("bash");
        shell.args(["-c", &script]).env("OARLOCK_URL", context.url());
        let done = finish(shell);
        let mut names: Vec<_> = done.out.lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect();
        names.sort_unstable();
        (names, done.err)
    };
    let (names, said) = complete("oarlock show dep");
    assert_eq!(names, ["deploy/prod", "deploy/two\\ words"], "{said}");
    assert_eq!(complete("oarlock break oth").0, ["other"]);
    let on = |url: &str| complete(&format!("oarlock show -u {url} dep")).0;
    assert!(on(&format!("local:{}", context.path("elsewhere"))).iter().all(|name| !name.starts_with("dep")), "another");
    assert_eq!(on(&context.url()).len(), 2, "the same store, by its URL");
    assert_eq!(complete(&format!("oarlock show --url={} dep", context.url())).0.len(), 2);
    for (shell, wanted) in [("fish", "oarlock __names"), ("zsh", ":_oarlock_names'")] {
        assert!(context.run(&["completions", shell]).out.contains(wanted), "{shell}");
    }
    assert!(!context.run(&["help"]).out.contains("__names"));
}

/// Colours are forced, so that the check can fail without a terminal.
#[test]
fn no_color_is_respected() {
    let context = TestContext::new();
    let coloured = |no_color: bool| {
        let mut command = context.oarlock(["run", "--help"]);
        command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR");
        if no_color {
            command.env("NO_COLOR", "1");
        }
        super::support::finish(command).out.contains('\u{1b}')
    };
    assert!(coloured(false), "there are colours to leave out");
    assert!(!coloured(true));
}
