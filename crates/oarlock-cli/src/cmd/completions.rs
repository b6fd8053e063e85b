//! `oarlock completions`: from the same definitions as the help, and with the names of the locks in use.

use std::ffi::OsString;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use oarlock_core::text::plain;

use crate::args::Args;
use crate::cmd::ls::{self, LsArgs};
use crate::cmd::{Command, Examples};
use crate::exit::{Code, Exit, Failure};
use crate::messages::Messages;
use crate::output;
use crate::store::{Store, block_on};

/// The hidden subcommand that prints the names of locks for a line that is being typed.
pub(crate) const NAMES: &str = "__names";

/// How long a shell may wait for names.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most names to choose from.
const MOST: usize = 200;

/// Subcommands whose arguments are names of locks.
const NAMED: &str = "run once elect hold acquire ls show wait watch break";

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

pub(crate) const EXAMPLES: Examples =
    &[("source <(oarlock completions bash)", "Complete flags and the names of locks in use.")];

pub(crate) fn main(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "oarlock", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    match args.shell {
        Shell::Bash => script += &BASH.replace("NAMED", &NAMED.replace(' ', "|")),
        Shell::Fish => script += &FISH.replace("NAMED", NAMED),
        Shell::Zsh => script = zsh(&script),
        _ => {}
    }
    output::print(&script)?;
    Ok(Code::Success.into())
}

/// Adds the names to what the generated function finds. The words of the line say which store is meant.
/// Bash splits words at a colon, so the line is split here, and what stands before the colon is not offered again.
const BASH: &str = r#"
_oarlock_with_names() {
    _oarlock "$@"
    local line="${COMP_LINE:0:COMP_POINT}" current="" name
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] || { current="${words[-1]}"; unset 'words[-1]'; }
    local verb="" word
    for word in "${words[@]:1}"; do
        case "$word" in NAMED) verb="$word"; break ;; esac
    done
    # A flag before the word may want it as its value, unless it has one.
    [[ -n $verb && $current != -* && (${words[-1]} != -* || ${words[-1]} == -*=*) ]] || return 0
    local before=""
    [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && before="${current%"${current##*:}"}"
    while IFS= read -r name; do
        [[ $name == "$current"* ]] && COMPREPLY+=("$(printf %q "${name#"$before"}")")
    done < <("${words[0]}" __names "${words[@]:1}" 2> /dev/null)
}
complete -F _oarlock_with_names -o bashdefault -o default oarlock
"#;

const FISH: &str = r#"
complete -c oarlock -n "__fish_seen_subcommand_from NAMED" -f -a '(oarlock __names (commandline -opc)[2..] 2> /dev/null)'
"#;

/// Replaces the files, which the generated script offers for names, by the names.
fn zsh(script: &str) -> String {
    let mut done = String::with_capacity(script.len() + 200);
    for line in script.lines() {
        let is_name =
            line.starts_with("':name -- ") || line.starts_with("'*::names -- ") || line.starts_with("'::pattern -- ");
        let line = if is_name { line.replace(":_default'", ":_oarlock_names'") } else { line.to_owned() };
        done += &line;
        done.push('\n');
        if line.starts_with("#compdef") {
            done += "\n_oarlock_names() {\n    local -a names\n    \
                names=(\"${(@f)$(oarlock __names \"${words[@]:1}\" 2> /dev/null)}\")\n    compadd -a names\n}\n";
        }
    }
    done
}

/// Prints the names of the locks in use, on the store that the words of the line name. It prints nothing else: a shell
/// has no place for errors here.
pub(crate) fn names(words: &[OsString]) -> Exit {
    // Only what says where the store is; the rest of the line is not complete.
    let mut line: Vec<OsString> = vec!["oarlock".into(), "ls".into(), "-q".into()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let (flag, joined) = text.split_once('=').map_or((&*text, false), |(flag, _)| (flag, true));
        if ["-u", "--url", "--url-file", "-p", "--profile", "--password-file"].contains(&flag) {
            line.push(word.clone());
            if !joined {
                line.extend(words.next().cloned());
            }
        } else if text == "--" {
            break;
        }
    }
    if let Ok(Args { command: Command::Ls(LsArgs { store, .. }), .. }) = Args::try_parse_from(line) {
        let quiet = Messages { quiet: true, ..Messages::default() };
        let found = Store::new(&store).and_then(|store| {
            let store = Store { messages: quiet, ..store };
            block_on(async {
                let listed = async { Ok(ls::in_use(&store.connect().await?).await?) };
                tokio::time::timeout(PATIENCE, listed).await.unwrap_or_else(|_| Err(Failure::quiet(Code::Unreachable)))
            })
        });
        for state in found.unwrap_or_default().iter().take(MOST) {
            // What cannot be typed is not offered.
            let name = state.name.as_str();
            if plain(name) == name && output::print_line(name).is_err() {
                break;
            }
        }
    }
    Code::Success.into()
}
