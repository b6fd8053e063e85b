//! Help, manual pages and completions come from one definition.

use super::support::TestContext;

#[test]
fn every_subcommand_has_a_page() {
    let context = TestContext::new();
    let (help, main) = (context.run(&["--help"]).out, context.run(&["man"]));
    assert!(main.out.contains(".TH oarlock 1"), "{main:?}");
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A line that goes on is indented further.
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty());
    let subcommands: Vec<_> = names.collect();
    assert!(["run", "elect", "watch", "man"].iter().all(|known| subcommands.contains(known)), "{help}");
    for subcommand in subcommands.into_iter().filter(|&subcommand| subcommand != "help") {
        assert!(main.out.contains(subcommand), "{subcommand}");
        let page = context.run(&["man", subcommand]);
        assert_eq!(page.code, Some(0), "{subcommand}");
        assert!(page.out.contains(".SH SYNOPSIS"), "{page:?}");
    }
}

#[test]
fn every_flag_of_run_is_on_its_page() {
    let context = TestContext::new();
    let help = context.run(&["run", "--help"]).out;
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
